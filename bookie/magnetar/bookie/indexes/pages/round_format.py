"""Byte layout of the double-write file: all changes of one round to the page files. Pure.

Layout: docs/formats/page-index.md. One checksum covers the whole round: it counts only if it is
complete.
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

import google_crc32c

from magnetar.bookie.errors import StorageCorruptError
from magnetar.bookie.indexes.index_mark import Promise

# Stored on disk: never renumber.
_FORMAT_VERSION = 1
_MAGIC = b"MGNTPDWR"

_HEAD = Struct(">8sH2xIQQQQII")
_ITEM = Struct(">qQI")
_U32 = Struct(">I")

ROUND_HEAD_BYTES = _HEAD.size + 4
_REMOVE = (1 << 32) - 1
"""In place of a length: remove the file."""


class Write(NamedTuple):
    """Bytes to write at a place in the file of a ledger."""

    ledger_id: int
    offset: int
    data: bytes


class Round(NamedTuple):
    """Changes that are written together: files are removed first, then bytes written in place."""

    promise: Promise
    """The index mark after the round."""
    removed: Sequence[int]
    """Ledgers whose files are removed."""
    writes: Sequence[Write]
    """The pages; those of one ledger are neighbours."""


def encode_round(todo: Round) -> list[bytes]:
    """Encode a round as buffers to be written one after the other."""
    body: list[bytes] = [_ITEM.pack(ledger_id, 0, _REMOVE) for ledger_id in todo.removed]
    for ledger_id, offset, data in todo.writes:
        body += (_ITEM.pack(ledger_id, offset, len(data)), data)
    body_bytes, crc = 0, 0
    for buffer in body:
        body_bytes += len(buffer)
        crc = google_crc32c.extend(crc, buffer)
    _, sequence, last_log_id, ledgers, digest = todo.promise
    items = len(todo.removed) + len(todo.writes)
    head = _HEAD.pack(
        _MAGIC, _FORMAT_VERSION, items, sequence, body_bytes, ledgers, digest, last_log_id, crc
    )
    return [head + _U32.pack(google_crc32c.value(head)), *body]


def body_bytes_of(head: bytes) -> int:
    """Return the number of bytes that follow the head of a round.

    Raises:
        StorageCorruptError: no head of a round.
    """
    return int(_decode_head(head)[4])


def decode_round(data: bytes) -> Round:
    """Decode the round at the start of `data`; bytes after it are ignored.

    Raises:
        StorageCorruptError: there is no whole round.
    """
    _, _, items, sequence, body_bytes, ledgers, digest, last_log_id, crc = _decode_head(data)
    body = data[ROUND_HEAD_BYTES : ROUND_HEAD_BYTES + body_bytes]
    if len(body) != body_bytes or google_crc32c.value(body) != crc:
        raise StorageCorruptError("page index: a round of writing with a wrong checksum")
    removed: list[int] = []
    writes: list[Write] = []
    for ledger_id, offset, content in _items(body):
        if content is None:
            removed.append(ledger_id)
        else:
            writes.append(Write(ledger_id, offset, content))
    if len(removed) + len(writes) != items:
        raise StorageCorruptError(f"page index: {items} items of a round, found others")
    return Round(Promise("interleaved", sequence, last_log_id, ledgers, digest), removed, writes)


def _items(body: bytes) -> Iterator[tuple[int, int, bytes | None]]:
    at = 0
    while at < len(body):
        if len(body) - at < _ITEM.size:
            raise StorageCorruptError("page index: a round of writing ends within an item")
        ledger_id, offset, size = _ITEM.unpack_from(body, at)
        at += _ITEM.size
        if size == _REMOVE:
            yield ledger_id, 0, None
            continue
        content = body[at : at + size]
        at += size
        if len(content) != size or ledger_id < 0:
            raise StorageCorruptError("page index: a round of writing with an impossible item")
        yield ledger_id, offset, content


def _decode_head(data: bytes) -> tuple[bytes, int, int, int, int, int, int, int, int]:
    if len(data) < ROUND_HEAD_BYTES:
        raise StorageCorruptError(f"page index: a round of {len(data)} bytes")
    head = _HEAD.unpack_from(data)
    (crc,) = _U32.unpack_from(data, _HEAD.size)
    if google_crc32c.value(data[: _HEAD.size]) != crc or head[0] != _MAGIC:
        raise StorageCorruptError("page index: no round of writing")
    if head[1] != _FORMAT_VERSION:
        raise StorageCorruptError(f"page index: a round of version {head[1]}")
    return head
