"""The bytes of a journal: file header, records, last mark, record of the newest file. No I/O.

Layout: docs/formats/journal.md. Record types, magics and the version are stored on disk: never
renumber them. A record's CRC covers its body, its head and its place (file id and offset), so that
a record that is valid somewhere else is not valid here.
"""

import hashlib
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

import google_crc32c

FILE_MAGIC = b"MGNTJRNL"
FILE_VERSION = 2
FILE_HEADER_BYTES = 64
OWNER_BYTES = 16

RECORD_MAGIC = b"MJRC"
RECORD_HEAD_BYTES = 28
RECORD_BODY_BYTES_MAX = 16 << 20
"""Largest record body, in bytes: twice the largest frame. A greater length counts as damage."""

MARK_MAGIC = b"MGNTMARK"

NEWEST_NAME = "newest-journal"
NEWEST_MAGIC = b"MGNTNEWJ"
NEWEST_SLOT_BYTES = 4096
"""Bytes of a slot: a page, so that writing one slot cannot tear the other one."""
_NEWEST_SLOTS = 2

_FILE_HEADER = struct.Struct(">8sHH4xQQQ16s4x")
_RECORD_TAIL = struct.Struct(">IIIq")
_PLACE_AND_TAIL = struct.Struct(">QQIIIq")
_CRC = struct.Struct(">I")
_CHECK_MASK = 0xFFFFFF
"""Bits of the word with a record's type that hold the low bits of the CRC of its head and place."""
_MARK = struct.Struct(">8sQQ")
_NEWEST = struct.Struct(">8sQQ")
_NAME_SUFFIX = ".journal"
_SPARE_SUFFIX = ".spare"


class RecordType(IntEnum):
    """Type of a journal record. Stored on disk: never renumber, never reuse."""

    ENTRY_BLOCK = 1
    MASTER_KEY = 2
    FENCE = 3
    EXPLICIT_LAC = 4


class NewRecord(NamedTuple):
    """A record to write."""

    type: int
    ledger_id: int
    body: bytes


class StoredRecord(NamedTuple):
    """A valid record that was read. `end` is the offset after it."""

    type: int
    ledger_id: int
    body: bytes
    group_start: int
    end: int


class FileHeader(NamedTuple):
    """Header of a journal file: its own identity, and the end of the previous file."""

    file_id: int
    previous_file_id: int
    previous_length: int
    owner: bytes


class LastMark(NamedTuple):
    """A place in the journal. Marks are ordered: file id first, then offset."""

    file_id: int
    offset: int


NO_MARK = LastMark(0, 0)

Marks = tuple[LastMark, ...]
"""One mark per journal, in the order of the journals."""


def covers(marks: Marks, others: Marks) -> bool:
    """Return whether each of `marks` is at or after the other mark of the same journal.

    Of two vectors, each may be ahead in another journal; then neither covers the other (rule 8.3).
    """
    return all(mark >= other for mark, other in zip(marks, others, strict=True))


def owner_of(*, instance_id: str, bookie_id: str, journal: int = 0) -> bytes:
    """Return 16 bytes that differ between clusters, bookies and one bookie's journal
    directories."""
    text = f"{instance_id}\0{bookie_id}" + (f"\0{journal}" if journal else "")
    return hashlib.sha256(text.encode()).digest()[:OWNER_BYTES]


def file_name(file_id: int) -> str:
    return f"{file_id:016x}{_NAME_SUFFIX}"


def file_ids(names: Sequence[str]) -> list[int]:
    """Return the ids of the journal files among the names of a directory, ascending."""
    ids: list[int] = []
    for name in names:
        stem = name.removesuffix(_NAME_SUFFIX)
        if len(stem) == 16 and name != stem and not stem.strip("0123456789abcdef"):
            ids.append(int(stem, 16))
    return sorted(ids)


def spare_name(file_id: int) -> str:
    """Return the name of a journal file that is no longer needed and kept for reuse."""
    return f"{file_id:016x}{_SPARE_SUFFIX}"


def spare_names(names: Sequence[str]) -> list[str]:
    """Return the spare files among the names of a directory, sorted."""
    return sorted(name for name in names if name.endswith(_SPARE_SUFFIX))


def encode_file_header(header: FileHeader) -> bytes:
    """Encode a file header as 64 bytes."""
    data = _FILE_HEADER.pack(
        FILE_MAGIC,
        FILE_VERSION,
        FILE_HEADER_BYTES,
        header.file_id,
        header.previous_file_id,
        header.previous_length,
        header.owner,
    )
    return data + _CRC.pack(google_crc32c.value(data))


def decode_file_header(data: bytes) -> FileHeader | None:
    """Decode the header at the start of `data`; None if it is torn, damaged or of another
    format."""
    if len(data) < FILE_HEADER_BYTES:
        return None
    head = data[: _FILE_HEADER.size]
    if _CRC.unpack_from(data, _FILE_HEADER.size)[0] != google_crc32c.value(head):
        return None
    magic, version, size, file_id, previous, previous_length, owner = _FILE_HEADER.unpack(head)
    if magic != FILE_MAGIC or version != FILE_VERSION or size != FILE_HEADER_BYTES:
        return None
    return FileHeader(file_id, previous, previous_length, owner)


def encode_group(records: Sequence[NewRecord], *, file_id: int, start: int) -> list[bytes]:
    """Return the buffers of one group that begins at offset `start`: head, body, head, body, ...

    Bodies are the objects that were passed in; nothing is copied.
    """
    value, extend = google_crc32c.value, google_crc32c.extend
    pack_place, pack_crc, magic = _PLACE_AND_TAIL.pack, _CRC.pack, RECORD_MAGIC
    buffers: list[bytes] = []
    in_group = 0
    for type_, ledger_id, body in records:
        size = len(body)
        place = start + in_group
        head = pack_place(file_id, place, size, in_group, type_ << 24, ledger_id)
        type_and_check = type_ << 24 | value(head) & _CHECK_MASK
        bound = pack_place(file_id, place, size, in_group, type_and_check, ledger_id)
        crc = extend(value(body), bound)
        buffers += (magic + pack_crc(crc) + bound[16:], body)
        in_group += RECORD_HEAD_BYTES + size
    return buffers


def records_bytes(records: Sequence[NewRecord]) -> int:
    """Return the bytes that the records take in a file."""
    return len(records) * RECORD_HEAD_BYTES + sum([len(record.body) for record in records])


def wanted_bytes(data: bytes, at: int) -> int:
    """Return how many bytes from `at` on are needed to judge the record there; 0 if it cannot be
    one."""
    if len(data) - at < RECORD_HEAD_BYTES:
        return RECORD_HEAD_BYTES
    if data[at : at + 4] != RECORD_MAGIC:
        return 0
    (size,) = _CRC.unpack_from(data, at + 8)
    return RECORD_HEAD_BYTES + size if size <= RECORD_BODY_BYTES_MAX else 0


def is_head_valid(data: bytes, at: int, *, file_id: int, offset: int) -> bool:
    """Return whether the bytes at index `at` of `data` can be the head of a record.

    `offset` is their place in the file. The check reads no body. So a payload full of fake heads,
    each with a body of megabytes to check, cannot hold up a start.
    """
    if len(data) - at < RECORD_HEAD_BYTES:
        return False
    size, in_group, type_and_check, ledger_id = _RECORD_TAIL.unpack_from(data, at + 8)
    check = type_and_check & _CHECK_MASK
    head = _PLACE_AND_TAIL.pack(file_id, offset, size, in_group, type_and_check - check, ledger_id)
    return bool(google_crc32c.value(head) & _CHECK_MASK == check)


def decode_record(data: bytes, at: int, *, file_id: int, offset: int) -> StoredRecord | None:
    """Decode the record at index `at` of `data`, at `offset` in its file; None if it is invalid."""
    if data[at : at + 4] != RECORD_MAGIC or len(data) - at < RECORD_HEAD_BYTES:
        return None
    if not is_head_valid(data, at, file_id=file_id, offset=offset):
        return None
    size, in_group, type_and_check, ledger_id = _RECORD_TAIL.unpack_from(data, at + 8)
    body_at = at + RECORD_HEAD_BYTES
    if size > RECORD_BODY_BYTES_MAX or len(data) - body_at < size:
        return None
    body = data[body_at : body_at + size]
    bound = _PLACE_AND_TAIL.pack(file_id, offset, size, in_group, type_and_check, ledger_id)
    crc = google_crc32c.extend(google_crc32c.value(body), bound)
    if _CRC.unpack_from(data, at + 4)[0] != crc:
        return None
    return StoredRecord(
        type_and_check >> 24, ledger_id, body, offset - in_group, offset + RECORD_HEAD_BYTES + size
    )


def find_record_starts(data: bytes, start: int, stop: int) -> Iterator[int]:
    """Yield the indexes in [start, stop) where a record may begin; hits in payloads are mostly
    false."""
    at = data.find(RECORD_MAGIC, start)
    while 0 <= at < stop:
        yield at
        at = data.find(RECORD_MAGIC, at + 1)


class NewestFile(NamedTuple):
    """Content of the newest-file record of a journal. A larger file id is newer."""

    file_id: int
    length: int
    """Minimum size of the file in bytes since it was named; preallocated blocks count."""


def encode_newest(newest: NewestFile) -> bytes:
    """Encode one slot of the record: 28 bytes, then zeros up to `NEWEST_SLOT_BYTES`."""
    data = _NEWEST.pack(NEWEST_MAGIC, *newest)
    return (data + _CRC.pack(google_crc32c.value(data))).ljust(NEWEST_SLOT_BYTES, b"\0")


def newest_slot(data: bytes) -> int | None:
    """Return the slot that has the newest name; None if neither slot is valid."""
    found = [(each, slot) for slot in range(_NEWEST_SLOTS) if (each := _newest_in(data, slot))]
    return max(found)[1] if found else None


def decode_newest(data: bytes) -> NewestFile | None:
    """Decode the newer of the names in both slots; None if neither slot is valid."""
    slot = newest_slot(data)
    return None if slot is None else _newest_in(data, slot)


def _newest_in(data: bytes, slot: int) -> NewestFile | None:
    at = slot * NEWEST_SLOT_BYTES
    body = data[at : at + _NEWEST.size]
    crc = data[at + _NEWEST.size : at + _NEWEST.size + _CRC.size]
    if len(crc) < _CRC.size or _CRC.unpack(crc)[0] != google_crc32c.value(body):
        return None
    magic, file_id, length = _NEWEST.unpack(body)
    return NewestFile(file_id, length) if magic == NEWEST_MAGIC else None


def mark_name(journal: int) -> str:
    """Return the file name of a journal's last mark in a ledger directory."""
    return f"last-mark.{journal}" if journal else "last-mark"


def encode_mark(mark: LastMark) -> bytes:
    """Encode a mark as 28 bytes."""
    data = _MARK.pack(MARK_MAGIC, mark.file_id, mark.offset)
    return data + _CRC.pack(google_crc32c.value(data))


def decode_mark(data: bytes) -> LastMark | None:
    """Decode a mark; None if the bytes are not a mark."""
    if len(data) != _MARK.size + _CRC.size:
        return None
    if _CRC.unpack_from(data, _MARK.size)[0] != google_crc32c.value(data[: _MARK.size]):
        return None
    magic, file_id, offset = _MARK.unpack_from(data)
    return LastMark(file_id, offset) if magic == MARK_MAGIC else None
