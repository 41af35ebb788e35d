"""The cursor record: the complete state of a durable cursor in one ledger entry.

Layout: docs/formats/cursor-record.md. The codec checks structure, not meaning. Whether the
positions exist in the log is decided when the state is restored.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter

import google_crc32c

from magnetar.cursors.ack_state import AckRange, AckSnapshot, BatchAck
from magnetar.cursors.errors import (
    CorruptCursorRecordError,
    CursorStateTooLargeError,
    UnsupportedCursorRecordError,
)
from magnetar.ledger.position import Position

# Stored on disk, never renumber.
MAGIC = 0x4D435552
VERSION = 1

_HEADER = struct.Struct(">II")
_BODY = struct.Struct(">Hqqq")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_I64 = struct.Struct(">q")
_GROUP = struct.Struct(">qI")
_BATCH = struct.Struct(">qqI")

_FIXED_BYTES = _HEADER.size + _BODY.size + 3 * _U32.size
_RANGE_BYTES = 16


@dataclass(frozen=True, slots=True)
class CursorRecord:
    """State of a cursor at one moment."""

    snapshot: AckSnapshot
    saved_ms: int
    position_properties: Mapping[str, int] = field(default_factory=dict)


def encode_record(record: CursorRecord) -> bytes:
    """Encode the record. The numbers of dropped ranges and batches are not stored."""
    snapshot = record.snapshot
    groups = [
        (ledger_id, [bound for ack_range in ranges for bound in ack_range[1:]])
        for ledger_id, ranges in groupby(snapshot.ranges, key=itemgetter(0))
    ]
    parts = [
        _BODY.pack(VERSION, *snapshot.mark_delete, record.saved_ms),
        _U32.pack(len(groups)),
    ]
    for ledger_id, bounds in groups:
        parts.append(_GROUP.pack(ledger_id, len(bounds) // 2))
        parts.append(struct.pack(f">{len(bounds)}q", *bounds))
    parts.append(_U32.pack(len(snapshot.batches)))
    for batch in snapshot.batches:
        size = _bit_set_bytes(batch)
        parts.append(_BATCH.pack(batch.ledger_id, batch.entry_id, size))
        parts.append(batch.remaining.to_bytes(size, "little"))
    parts.append(_U32.pack(len(record.position_properties)))
    for name, value in sorted(record.position_properties.items()):
        key = name.encode()
        parts.append(_U16.pack(len(key)) + key + _I64.pack(value))
    body = b"".join(parts)
    return _HEADER.pack(MAGIC, google_crc32c.value(body)) + body


def fit_record(record: CursorRecord, *, bytes_max: int) -> CursorRecord:
    """Shorten the record from the high end until it encodes to at most `bytes_max` bytes.

    Batches are dropped first: dropping one repeats some messages of one entry, while dropping a
    range may repeat thousands of entries.

    Raises:
        CursorStateTooLargeError: it does not fit even without ranges and batches.
    """
    snapshot = record.snapshot
    room = (
        bytes_max
        - _FIXED_BYTES
        - sum(10 + len(name.encode()) for name in record.position_properties)
    )
    if room < 0:
        raise CursorStateTooLargeError(
            f"{len(record.position_properties)} position properties do not fit into a record of "
            f"{bytes_max} bytes"
        )
    ledger_ids = [ack_range.ledger_id for ack_range in snapshot.ranges]
    groups = len(set(ledger_ids))
    if _RANGE_BYTES * len(ledger_ids) + _GROUP.size * groups <= room:
        ranges_kept = len(ledger_ids)
        room -= _RANGE_BYTES * len(ledger_ids) + _GROUP.size * groups
    else:
        ranges_kept = min(len(ledger_ids), room // (_RANGE_BYTES + _GROUP.size))
        room = 0
    batches_kept = 0
    for batch in snapshot.batches:
        room -= _BATCH.size + _bit_set_bytes(batch)
        if room < 0:
            break
        batches_kept += 1
    if (ranges_kept, batches_kept) == (len(snapshot.ranges), len(snapshot.batches)):
        return record
    return replace(
        record,
        snapshot=replace(
            snapshot,
            ranges=snapshot.ranges[:ranges_kept],
            batches=snapshot.batches[:batches_kept],
            ranges_dropped=snapshot.ranges_dropped + len(snapshot.ranges) - ranges_kept,
            batches_dropped=snapshot.batches_dropped + len(snapshot.batches) - batches_kept,
        ),
    )


def decode_record(data: bytes) -> CursorRecord:
    """Decode and check a record.

    Raises:
        CorruptCursorRecordError: not a record, or a damaged one.
        UnsupportedCursorRecordError: an unknown format version.
    """
    if len(data) < _HEADER.size + _U16.size:
        raise CorruptCursorRecordError(f"cursor record of {len(data)} bytes is cut off")
    magic, crc = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise CorruptCursorRecordError(f"expected magic {MAGIC:#010x}, got {magic:#010x}")
    body = data[_HEADER.size :]
    if google_crc32c.value(body) != crc:
        raise CorruptCursorRecordError(f"CRC of a cursor record of {len(data)} bytes is wrong")
    (version,) = _U16.unpack_from(body)
    if version != VERSION:
        raise UnsupportedCursorRecordError(
            f"cursor record of version {version}; this release reads version {VERSION}"
        )
    try:
        return _decode_body(body)
    except (struct.error, UnicodeDecodeError) as exc:
        raise CorruptCursorRecordError(f"cursor record of {len(data)} bytes: {exc}") from exc


def _decode_body(body: bytes) -> CursorRecord:
    _, mark_ledger_id, mark_entry_id, saved_ms = _BODY.unpack_from(body)
    at = _BODY.size
    ranges, at = _decode_ranges(body, at)
    batches, at = _decode_batches(body, at)
    properties, at = _decode_properties(body, at)
    if at != len(body):
        raise CorruptCursorRecordError(f"{len(body) - at} bytes follow a cursor record")
    snapshot = AckSnapshot(Position(mark_ledger_id, mark_entry_id), tuple(ranges), tuple(batches))
    return CursorRecord(snapshot, saved_ms, properties)


def _decode_ranges(body: bytes, at: int) -> tuple[list[AckRange], int]:
    (groups,) = _U32.unpack_from(body, at)
    at += _U32.size
    ranges: list[AckRange] = []
    previous = -1
    for _ in range(groups):
        ledger_id, count = _GROUP.unpack_from(body, at)
        at += _GROUP.size
        # Checked before unpacking: a damaged count must not allocate gigabytes.
        if count == 0 or at + _RANGE_BYTES * count > len(body):
            raise CorruptCursorRecordError(f"ledger {ledger_id} claims {count} ranges")
        bounds = struct.unpack_from(f">{2 * count}q", body, at)
        at += _RANGE_BYTES * count
        if ledger_id <= previous or not _is_ascending(bounds):
            raise CorruptCursorRecordError(f"ranges of ledger {ledger_id} are out of order")
        previous = ledger_id
        ranges += [
            AckRange(ledger_id, first, last)
            for first, last in zip(bounds[::2], bounds[1::2], strict=True)
        ]
    return ranges, at


def _is_ascending(bounds: tuple[int, ...]) -> bool:
    """Return whether 0 <= first <= last holds for each range, with a gap before the next one."""
    end = -2
    for first, last in zip(bounds[::2], bounds[1::2], strict=True):
        if first < 0 or first <= end + 1 or last < first:
            return False
        end = last
    return True


def _decode_batches(body: bytes, at: int) -> tuple[list[BatchAck], int]:
    (count,) = _U32.unpack_from(body, at)
    at += _U32.size
    batches: list[BatchAck] = []
    previous = (-1, -1)
    for _ in range(count):
        ledger_id, entry_id, size = _BATCH.unpack_from(body, at)
        at += _BATCH.size
        bits = body[at : at + size]
        at += size
        if size == 0 or len(bits) != size or bits[-1] == 0:
            raise CorruptCursorRecordError(f"bit set of {ledger_id}:{entry_id} is cut off")
        if (ledger_id, entry_id) <= previous or entry_id < 0:
            raise CorruptCursorRecordError(f"batch {ledger_id}:{entry_id} is out of order")
        previous = (ledger_id, entry_id)
        batches.append(BatchAck(ledger_id, entry_id, int.from_bytes(bits, "little")))
    return batches, at


def _decode_properties(body: bytes, at: int) -> tuple[dict[str, int], int]:
    (count,) = _U32.unpack_from(body, at)
    at += _U32.size
    properties: dict[str, int] = {}
    for _ in range(count):
        (size,) = _U16.unpack_from(body, at)
        at += _U16.size
        name = body[at : at + size].decode()
        at += size
        (value,) = _I64.unpack_from(body, at)
        at += _I64.size
        properties[name] = value
    if len(properties) != count:
        raise CorruptCursorRecordError("a position property is there twice")
    return properties, at


def _bit_set_bytes(batch: BatchAck) -> int:
    return (batch.remaining.bit_length() + 7) // 8
