"""Murmur3_32 as Pulsar uses it: for Failover's active consumer, and the keys of Key_Shared.

Source: protocol sheet section 14. Seed 0, x86 32-bit variant, little-endian blocks.
"""

import struct
from collections.abc import Callable
from functools import lru_cache

_MASK = 0xFFFFFFFF


def murmur3_32(data: bytes, prefix: bytes = b"") -> int:
    """The raw unsigned 32-bit hash of `prefix + data`.

    A prefix, of a multiple of four bytes, is worked in once and remembered: for many short texts
    that begin alike.
    """
    hashed = _after_blocks(prefix) if prefix else 0
    size = len(data)
    for block in _unpack_blocks[size >> 2](data):
        block = (block * 0xCC9E2D51) & _MASK
        hashed ^= (((block << 15) | (block >> 17)) * 0x1B873593) & _MASK
        hashed = (((hashed << 13) & _MASK | (hashed >> 19)) * 5 + 0xE6546B64) & _MASK
    if size & 3:
        block = (int.from_bytes(data[size & ~3 :], "little") * 0xCC9E2D51) & _MASK
        hashed ^= (((block << 15) | (block >> 17)) * 0x1B873593) & _MASK
    hashed ^= size + len(prefix)
    hashed = ((hashed ^ (hashed >> 16)) * 0x85EBCA6B) & _MASK
    hashed = ((hashed ^ (hashed >> 13)) * 0xC2B2AE35) & _MASK
    return hashed ^ (hashed >> 16)


def murmur31(data: bytes, prefix: bytes = b"") -> int:
    """The hash without its sign bit: what Pulsar calls the hash of a key or name."""
    return murmur3_32(data, prefix) & 0x7FFFFFFF


class _Unpackers(dict[int, Callable[[bytes], tuple[int, ...]]]):
    """By number of blocks; made when first used."""

    def __missing__(self, blocks: int) -> Callable[[bytes], tuple[int, ...]]:
        unpack = struct.Struct(f"<{blocks}I").unpack_from
        if blocks <= _BLOCKS_REMEMBERED:
            self[blocks] = unpack
        return unpack


_BLOCKS_REMEMBERED = 256
_unpack_blocks = _Unpackers()


@lru_cache(maxsize=1024)
def _after_blocks(prefix: bytes) -> int:
    """The state of the hash after a prefix."""
    assert len(prefix) % 4 == 0
    hashed = 0
    for (block,) in struct.iter_unpack("<I", prefix):
        block = (block * 0xCC9E2D51) & _MASK
        hashed ^= (((block << 15) | (block >> 17)) * 0x1B873593) & _MASK
        hashed = (((hashed << 13) & _MASK | (hashed >> 19)) * 5 + 0xE6546B64) & _MASK
    return hashed
