"""What the drill's writers write: every entry can be computed from its ledger and its id.

So whoever reads an entry, acknowledged or not, can tell whether it is the one that the writer of
that ledger made for that id. Together with the digests that the writers log, nothing can be lost,
changed, moved or made up without being noticed.
"""

import hashlib
import zlib

_FILLER = bytes(zlib.crc32(b"%d" % at) & 0xFF for at in range(70_000))
_SMALL_BYTES = 600
_LARGE_BYTES = 60_000
_LARGE_EVERY = 400


def payload_of(ledger_id: int, entry_id: int) -> bytes:
    """The payload of an entry: mostly a few hundred bytes, now and then tens of kilobytes."""
    head = b"%d:%d:" % (ledger_id, entry_id)
    mixed = zlib.crc32(head)
    size = mixed % (_LARGE_BYTES if mixed % _LARGE_EVERY == 0 else _SMALL_BYTES)
    start = mixed >> 8 & 0x1FFF
    return head + _FILLER[start : start + size]


def digest_of(payload: bytes) -> int:
    """64 bits that stand for a payload in the writers' logs."""
    return int.from_bytes(hashlib.blake2b(payload, digest_size=8).digest(), "big")
