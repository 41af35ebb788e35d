"""Murmur3_32 as Pulsar uses it: for Failover's active consumer, and the keys of Key_Shared.

Source: protocol sheet section 14. Seed 0, x86 32-bit variant, little-endian blocks.
"""

import struct

_MASK = 0xFFFFFFFF


def murmur3_32(data: bytes) -> int:
    """The raw unsigned 32-bit hash."""
    hashed = 0
    whole = len(data) & ~3
    for block in struct.unpack_from(f"<{whole >> 2}I", data):
        block = (block * 0xCC9E2D51) & _MASK
        hashed ^= (((block << 15) | (block >> 17)) * 0x1B873593) & _MASK
        hashed = ((hashed << 13) | (hashed >> 19)) & _MASK
        hashed = (hashed * 5 + 0xE6546B64) & _MASK
    if whole < len(data):
        hashed ^= _scramble(int.from_bytes(data[whole:], "little"))
    hashed ^= len(data)
    hashed = ((hashed ^ (hashed >> 16)) * 0x85EBCA6B) & _MASK
    hashed = ((hashed ^ (hashed >> 13)) * 0xC2B2AE35) & _MASK
    return hashed ^ (hashed >> 16)


def murmur31(data: bytes) -> int:
    """The hash without its sign bit: what Pulsar calls the hash of a key or name."""
    return murmur3_32(data) & 0x7FFFFFFF


def _scramble(block: int) -> int:
    block = (block * 0xCC9E2D51) & _MASK
    block = ((block << 15) | (block >> 17)) & _MASK
    return (block * 0x1B873593) & _MASK
