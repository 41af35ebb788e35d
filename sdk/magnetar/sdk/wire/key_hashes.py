"""Hashes of keys on which clients and brokers agree, from 0 to 2^31 - 1. Pure.

Source: protocol sheet, section 14.
"""

from mmh3 import mmh3_32_uintdigest

_MASK_31 = 0x7FFF_FFFF


def java_string_hash(key: str) -> int:
    """Return Java's `String.hashCode` without its sign: over UTF-16 units, h = 31 h + unit."""
    value = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFF_FFFF
    return value & _MASK_31


def murmur3_hash(data: bytes) -> int:
    """Return MurmurHash3 (x86, 32 bits, seed 0) without its highest bit."""
    return mmh3_32_uintdigest(data) & _MASK_31
