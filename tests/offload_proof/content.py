"""What the messages of the proof hold, and how what was read is compared with what was published.

A message is told by its position and by a hash of its payload. The publisher notes both from its
own bytes and from the receipts; each way of reading notes them from what it got.
"""

import random
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

_BLOCK_BYTES = 1 << 20
_STEP = 8_191
"""Payloads begin at places of the block that are far from each other: none is like the next."""


class Seen(NamedTuple):
    """One message: its position and its payload's SHA-256, in hexadecimal digits."""

    ledger_id: int
    entry_id: int
    batch_index: int
    """-1: it is the only message of its entry."""
    digest: str


def digest_of(payload: bytes) -> str:
    return sha256(payload).hexdigest()


def payloads(seed: int, *, count: int, size: int) -> Iterator[bytes]:
    """The payloads of a topic: each begins with its number; the rest is hard to compress."""
    assert 8 < size < _BLOCK_BYTES
    block = random.Random(seed).randbytes(_BLOCK_BYTES)
    for number in range(count):
        begin = number * _STEP % (_BLOCK_BYTES - size)
        yield number.to_bytes(8, "big") + block[begin : begin + size - 8]


def difference(expected: Sequence[Seen], found: Sequence[Seen]) -> str:
    """Where what was read first differs from what was published; empty: nowhere."""
    for number, (wanted, got) in enumerate(zip(expected, found, strict=False)):
        if wanted != got:
            return f"message {number}: {tuple(wanted)} was published, {tuple(got)} was read"
    if len(expected) != len(found):
        return f"{len(expected)} messages were published, {len(found)} were read"
    return ""
