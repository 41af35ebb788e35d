"""The record of a compaction: which logs it replaces, and which run went where. Pure.

Layout: docs/formats/compaction.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from struct import Struct

import google_crc32c

from magnetar.bookie.entry_logs.entry_log import RunLocation
from magnetar.bookie.errors import StorageCorruptError
from magnetar.bookie.indexes.location_index import RunMove

# Stored on disk: never renumber.
_MAGIC = b"MGNTCMPC"
_VERSION = 1
_SOURCE_HAS_IDS = 1
_TARGET_HAS_IDS = 2
_IS_DROPPED = 4

_HEADER = Struct(">8sHHIII")
_MOVE = Struct(">BqqqIQIIQII")
_U32 = Struct(">I")

_NOWHERE = RunLocation(0, 0, 0, 0, False)

MOVE_BYTES = _MOVE.size
"""Bytes of a move, on disk and in memory."""


def encode_move(move: RunMove) -> bytes:
    source = move.source
    target = move.target or _NOWHERE
    flags = (
        (_SOURCE_HAS_IDS if source.has_ids else 0)
        | (_TARGET_HAS_IDS if target.has_ids else 0)
        | (_IS_DROPPED if move.target is None else 0)
    )
    return _MOVE.pack(
        flags,
        move.ledger_id,
        move.first,
        move.last,
        source.log_id,
        source.offset,
        source.size_bytes,
        source.entries,
        target.offset,
        target.size_bytes,
        target.entries,
    )


@dataclass(frozen=True, slots=True)
class CompactionRecord:
    """Content of a compaction's record. Moves stay encoded: there may be hundreds of thousands."""

    target_log_id: int
    replaced: tuple[int, ...]
    """Logs that are no longer needed and must be removed."""
    moves: bytes | bytearray
    """Encoded moves, one after the other, as `encode_move` makes them."""

    @property
    def move_count(self) -> int:
        return len(self.moves) // MOVE_BYTES

    def batches(self, moves_max: int) -> Iterator[Sequence[RunMove]]:
        """Yield the decoded moves, up to `moves_max` at a time."""
        each = _MOVE.iter_unpack(self.moves)
        while batch := [self._decode(values) for values in islice(each, moves_max)]:
            yield batch

    def _decode(self, values: tuple[int, ...]) -> RunMove:
        flags, ledger_id, first, last, log_id, *places = values
        offset, size_bytes, entries, new_offset, new_size_bytes, new_entries = places
        source_has_ids, target_has_ids = flags & _SOURCE_HAS_IDS, flags & _TARGET_HAS_IDS
        source = RunLocation(log_id, offset, size_bytes, entries, bool(source_has_ids))
        target = None
        if not flags & _IS_DROPPED:
            target = RunLocation(
                self.target_log_id, new_offset, new_size_bytes, new_entries, bool(target_has_ids)
            )
        return RunMove(ledger_id, first, last, source, target)


def encode_record(record: CompactionRecord) -> bytes:
    replaced = record.replaced
    head = _HEADER.pack(_MAGIC, _VERSION, 0, record.target_log_id, len(replaced), record.move_count)
    body = b"".join((head, *[_U32.pack(log_id) for log_id in replaced], record.moves))
    return body + _U32.pack(google_crc32c.value(body))


def decode_record(data: bytes, *, log_id: int) -> CompactionRecord:
    """Decode the record of the compaction that made log `log_id`.

    Raises:
        StorageCorruptError: not the record of that compaction.
    """
    if len(data) < _HEADER.size + 4:
        raise StorageCorruptError(f"compaction record of log {log_id} has {len(data)} bytes")
    magic, version, _, target_log_id, replaced_count, move_count = _HEADER.unpack_from(data)
    if magic != _MAGIC or google_crc32c.value(data[:-4]) != _U32.unpack(data[-4:])[0]:
        raise StorageCorruptError(f"compaction record of log {log_id}: wrong magic or checksum")
    moves_at = _HEADER.size + 4 * replaced_count
    if (
        version != _VERSION
        or target_log_id != log_id
        or len(data) != moves_at + MOVE_BYTES * move_count + 4
    ):
        raise StorageCorruptError(
            f"compaction record of log {log_id}: version {version}, of log {target_log_id}, with "
            f"{replaced_count} sources and {move_count} moves in {len(data)} bytes"
        )
    replaced = tuple(log for (log,) in _U32.iter_unpack(data[_HEADER.size : moves_at]))
    return CompactionRecord(log_id, replaced, data[moves_at:-4])
