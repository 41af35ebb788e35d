"""Base-128 varints, as protobuf writes unsigned and signed 64-bit integers.

Hot commands are encoded by hand (see `hot_commands.py`), and most of their bytes are varints.
Values are taken 14 bits at a time from two tables: a sequence id costs two look-ups and no loop.
"""

_MASK_64 = (1 << 64) - 1
_LOW_14 = (1 << 14) - 1

LAST_14 = [bytes((n,)) for n in range(128)]
LAST_14 += [bytes((n & 127 | 128, n >> 7)) for n in range(128, 1 << 14)]
"""The varints of one and two bytes."""

MORE_14 = [bytes((n & 127 | 128, n >> 7 | 128)) for n in range(1 << 14)]
"""The low 14 bits of a longer varint."""


def encode_varint(value: int) -> bytes:
    """One to ten bytes. Negative values are taken modulo 2^64, as protobuf does."""
    if 0 <= value < 16_384:
        return LAST_14[value]
    if 0 <= value < 268_435_456:
        return MORE_14[value & _LOW_14] + LAST_14[value >> 14]
    value &= _MASK_64
    return MORE_14[value & _LOW_14] + encode_varint(value >> 14)
