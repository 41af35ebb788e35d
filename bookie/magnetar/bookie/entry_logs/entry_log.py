"""The entry log format: file header, runs, footer, and the scan of a log.

Layout: docs/formats/entry-log.md. The codecs are pure. Every decoder either returns a value or
raises `StorageCorruptError`; nothing that a checksum covers is used before it was compared.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from struct import Struct, pack, unpack_from
from typing import NamedTuple

import google_crc32c

from magnetar.bookie.errors import StorageCorruptError
from magnetar.ledger.ports import File

# Stored on disk: never renumber.
FORMAT_VERSION = 1
_LOG_MAGIC = b"MGNTELOG"
_RUN_MAGIC = 0x4D52554E
_FOOTER_MAGIC = 0x4D465452
_TRAILER_MAGIC = 0x4D454E44
_HAS_IDS = 1

_LOG_HEADER = Struct(">8sHHIq36x")
_RUN_HEADER = Struct(">IB3xqqqII")
_FOOTER_HEADER = Struct(">II")
_FOOTER_ITEM = Struct(">qQ")
_TRAILER = Struct(">QI")
_PLACE = Struct(">IQ")
_U32 = Struct(">I")

LOG_HEADER_BYTES = _LOG_HEADER.size + 4
RUN_HEADER_BYTES = _RUN_HEADER.size + 4
TRAILER_BYTES = _TRAILER.size + 4
LOG_ID_MAX = (1 << 32) - 1
ID_SPAN_MAX = (1 << 32) - 1
"""Greatest difference between the ids of a run with gaps: its id table has u32 differences."""


class RunLocation(NamedTuple):
    """Where a run lies, and what must be known to read parts of it."""

    log_id: int
    offset: int
    size_bytes: int
    """Header, tables and packets."""
    entries: int
    has_ids: bool

    @property
    def tables_bytes(self) -> int:
        """Bytes of the header and the tables: what comes before the packets."""
        return RUN_HEADER_BYTES + 4 * self.entries * (1 + self.has_ids)


class RunHeader(NamedTuple):
    """Header and tables of a run, decoded."""

    ledger_id: int
    ids: Sequence[int]
    """A range if the ids are contiguous."""
    offsets: list[int]
    """Begin of each packet, counted from the begin of the run, and the end of the last one."""

    @property
    def tables_bytes(self) -> int:
        return self.offsets[0]


def _crc(log_id: int, offset: int, data: bytes) -> int:
    crc: int = google_crc32c.extend(google_crc32c.value(_PLACE.pack(log_id, offset)), data)
    return crc


def encode_log_header(log_id: int, created_ms: int) -> bytes:
    head = _LOG_HEADER.pack(_LOG_MAGIC, FORMAT_VERSION, LOG_HEADER_BYTES, log_id, created_ms)
    return head + _U32.pack(google_crc32c.value(head))


def decode_log_header(data: bytes) -> tuple[int, int]:
    """Log id and creation time in ms.

    Raises:
        StorageCorruptError: no header of a log of this version.
    """
    if len(data) < LOG_HEADER_BYTES:
        raise StorageCorruptError(f"entry log header of {len(data)} bytes")
    magic, version, header_bytes, log_id, created_ms = _LOG_HEADER.unpack_from(data)
    (crc,) = _U32.unpack_from(data, _LOG_HEADER.size)
    if magic != _LOG_MAGIC or google_crc32c.value(data[: _LOG_HEADER.size]) != crc:
        raise StorageCorruptError("entry log header: wrong magic or checksum")
    if version != FORMAT_VERSION or header_bytes != LOG_HEADER_BYTES:
        raise StorageCorruptError(
            f"entry log {log_id}: format version {version}, expected {FORMAT_VERSION}"
        )
    return log_id, created_ms


def encode_run_head(
    *,
    log_id: int,
    offset: int,
    ledger_id: int,
    first: int,
    last: int,
    length_table: bytes,
    packets_bytes: int,
    gap_ids: Sequence[int] | None,
) -> bytes:
    """Header and tables of a run whose packets follow.

    `length_table` has a u32 per packet, as in an `EntryBlock`; `gap_ids` are the ids if they are
    not contiguous.
    """
    flags = 0
    tables = length_table
    if gap_ids is not None:
        flags = _HAS_IDS
        assert last - first <= ID_SPAN_MAX
        tables += pack(f">{len(gap_ids)}I", *[entry_id - first for entry_id in gap_ids])
    count = len(length_table) // 4
    head = _RUN_HEADER.pack(_RUN_MAGIC, flags, ledger_id, first, last, count, packets_bytes)
    crc = _crc(log_id, offset, head + tables)
    return b"".join((head, _U32.pack(crc), tables))


def run_tables_bytes(data: bytes, at: int = 0) -> int | None:
    """Bytes of the header and the tables of the run that begins in `data` at `at`, as the header
    claims; None if no header is there. Nothing is checked: the caller bounds it."""
    if len(data) - at < RUN_HEADER_BYTES:
        return None
    magic, flags, _, _, _, count, _ = _RUN_HEADER.unpack_from(data, at)
    if magic != _RUN_MAGIC:
        return None
    return RUN_HEADER_BYTES + 4 * int(count) * (2 if flags & _HAS_IDS else 1)


def decode_run_head(data: bytes, *, log_id: int, offset: int) -> RunHeader:
    """Header and tables of the run that lies at `offset` of the log; what follows is left alone.

    Raises:
        StorageCorruptError: truncated, a checksum that does not match, or impossible values.
    """
    tables_bytes = run_tables_bytes(data)
    if tables_bytes is None or len(data) < tables_bytes:
        raise StorageCorruptError(f"entry log {log_id}: no run at offset {offset}")
    head_bytes = _RUN_HEADER.size
    (crc,) = _U32.unpack_from(data, head_bytes)
    if _crc(log_id, offset, data[:head_bytes] + data[RUN_HEADER_BYTES:tables_bytes]) != crc:
        raise StorageCorruptError(f"entry log {log_id}: run at {offset} has a wrong checksum")
    _, flags, ledger_id, first, last, count, packets_bytes = _RUN_HEADER.unpack_from(data)
    lengths = unpack_from(f">{count}I", data, RUN_HEADER_BYTES)
    offsets = list(accumulate(lengths, initial=tables_bytes))
    ids: Sequence[int]
    if flags & _HAS_IDS:
        differences = unpack_from(f">{count}I", data, RUN_HEADER_BYTES + 4 * count)
        ids = array("q", [first + difference for difference in differences])
        ordered = all(a < b for a, b in pairwise(ids))
    else:
        ids = range(first, first + count)
        ordered = True
    # The checksum held, so these are errors of the writer; they must not become wrong answers.
    if not (count and ordered and ledger_id >= 0 and 0 <= first == ids[0] and last == ids[-1]):
        raise StorageCorruptError(f"entry log {log_id}: run at {offset} has impossible ids")
    if offsets[-1] != tables_bytes + packets_bytes:
        raise StorageCorruptError(f"entry log {log_id}: run at {offset} has wrong lengths")
    return RunHeader(ledger_id, ids, offsets)


def encode_footer(log_id: int, offset: int, ledger_bytes: Mapping[int, int]) -> bytes:
    """Footer and trailer, to be written at `offset`, the end of the runs."""
    body = b"".join(
        (
            _FOOTER_HEADER.pack(_FOOTER_MAGIC, len(ledger_bytes)),
            *[_FOOTER_ITEM.pack(*item) for item in sorted(ledger_bytes.items())],
        )
    )
    trailer = _TRAILER.pack(offset, _TRAILER_MAGIC)
    return b"".join(
        (
            body,
            _U32.pack(_crc(log_id, offset, body)),
            trailer,
            _U32.pack(google_crc32c.extend(google_crc32c.value(_U32.pack(log_id)), trailer)),
        )
    )


def decode_trailer(data: bytes, *, log_id: int) -> int:
    """The offset of the footer, from the last `TRAILER_BYTES` of a file.

    Raises:
        StorageCorruptError: this is no trailer; the log was not closed in an orderly way.
    """
    if len(data) != TRAILER_BYTES:
        raise StorageCorruptError(f"entry log {log_id}: trailer of {len(data)} bytes")
    offset, magic = _TRAILER.unpack_from(data)
    (crc,) = _U32.unpack_from(data, _TRAILER.size)
    expected = google_crc32c.extend(google_crc32c.value(_U32.pack(log_id)), data[: _TRAILER.size])
    if magic != _TRAILER_MAGIC or crc != expected:
        raise StorageCorruptError(f"entry log {log_id}: no trailer")
    return int(offset)


def decode_footer(data: bytes, *, log_id: int, offset: int) -> dict[int, int]:
    """Bytes per ledger, from the footer at `offset` of the log, without the trailer.

    Raises:
        StorageCorruptError: truncated or a checksum that does not match.
    """
    if len(data) < _FOOTER_HEADER.size + 4:
        raise StorageCorruptError(f"entry log {log_id}: footer of {len(data)} bytes")
    magic, count = _FOOTER_HEADER.unpack_from(data)
    body_bytes = _FOOTER_HEADER.size + _FOOTER_ITEM.size * count
    if magic != _FOOTER_MAGIC or len(data) != body_bytes + 4:
        raise StorageCorruptError(f"entry log {log_id}: no footer of {count} ledgers at {offset}")
    if _crc(log_id, offset, data[:body_bytes]) != _U32.unpack_from(data, body_bytes)[0]:
        raise StorageCorruptError(f"entry log {log_id}: footer has a wrong checksum")
    return dict(_FOOTER_ITEM.iter_unpack(data[_FOOTER_HEADER.size : body_bytes]))


@dataclass(frozen=True, slots=True)
class ScannedRun:
    """A run found by a scan."""

    ledger_id: int
    first: int
    last: int
    location: RunLocation


@dataclass(frozen=True, slots=True)
class LogScan:
    """What a scan of a log found."""

    runs: list[ScannedRun]
    end: int
    """The end of the last whole run: what follows is a footer, or torn."""

    def ledger_bytes(self) -> dict[int, int]:
        """Bytes per ledger, as the footer would say."""
        total: dict[int, int] = {}
        for run in self.runs:
            total[run.ledger_id] = total.get(run.ledger_id, 0) + run.location.size_bytes
        return total


def scan_log(file: File, log_id: int) -> LogScan:
    """All whole runs from the begin of a log up to the first thing that is none.

    Reads headers and tables only. Packets are not looked at.

    Raises:
        StorageCorruptError: the file header is damaged.
        OSError: a read failed.
    """
    found_id, _ = decode_log_header(file.pread(LOG_HEADER_BYTES, 0))
    if found_id != log_id:
        raise StorageCorruptError(f"entry log {log_id}: its header says {found_id}")
    runs: list[ScannedRun] = []
    at, end = LOG_HEADER_BYTES, file.size
    while True:
        run = _scan_run(file, log_id, at, end)
        if run is None:
            return LogScan(runs, at)
        runs.append(run)
        at += run.location.size_bytes


def _scan_run(file: File, log_id: int, at: int, end: int) -> ScannedRun | None:
    tables_bytes = run_tables_bytes(file.pread(RUN_HEADER_BYTES, at))
    # The size is not checked yet: a torn header may claim anything, but not beyond the file.
    if tables_bytes is None or at + tables_bytes > end:
        return None
    try:
        head = decode_run_head(file.pread(tables_bytes, at), log_id=log_id, offset=at)
    except StorageCorruptError:
        return None  # the first torn run is where the log ends
    size_bytes = head.offsets[-1]
    if at + size_bytes > end:
        return None
    count = len(head.ids)
    has_ids = tables_bytes != RUN_HEADER_BYTES + 4 * count
    location = RunLocation(log_id, at, size_bytes, count, has_ids)
    return ScannedRun(head.ledger_id, head.ids[0], head.ids[-1], location)


def read_footer(file: File, log_id: int) -> dict[int, int] | None:
    """Bytes per ledger from the footer of a log; None if it has none and must be scanned.

    Raises:
        StorageCorruptError: a trailer is there, but its footer is damaged.
        OSError: a read failed.
    """
    end = file.size - TRAILER_BYTES
    if end < LOG_HEADER_BYTES:
        return None
    try:
        offset = decode_trailer(file.pread(TRAILER_BYTES, end), log_id=log_id)
    except StorageCorruptError:
        return None
    if not LOG_HEADER_BYTES <= offset < end:
        raise StorageCorruptError(f"entry log {log_id}: its footer cannot be at {offset}")
    return decode_footer(file.pread(end - offset, offset), log_id=log_id, offset=offset)
