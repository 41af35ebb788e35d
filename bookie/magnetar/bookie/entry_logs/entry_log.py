"""The entry log format: file header, runs, footer.

Layout: docs/formats/entry-log.md. The codecs are pure. Every decoder either returns a value or
raises `StorageCorruptError`; nothing that a checksum covers is used before it was compared.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, islice
from operator import lt
from struct import Struct, unpack
from typing import NamedTuple

import google_crc32c

from magnetar.bookie.entry_logs.pieces import piece_count
from magnetar.bookie.errors import StorageCorruptError
from magnetar.ledger.errors import InvariantError

# Stored on disk: never renumber.
FORMAT_VERSION = 2
_LOG_MAGIC = b"MGNTELOG"
RUN_MAGIC = b"MRUN"
_FOOTER_MAGIC = 0x4D465452
_TRAILER_MAGIC = 0x4D454E44
_HAS_IDS = 1

_LOG_HEADER = Struct(">8sHHIqI32x")
_RUN_HEADER = Struct(">4sB3xqqqII")
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

_PIECE_AND_CHECKSUM_BYTES = 4096 + 4


class RunLocation(NamedTuple):
    """The place of a run, and the facts needed to read parts of it."""

    log_id: int
    offset: int
    size_bytes: int
    """Bytes of header, tables and packets."""
    entries: int
    has_ids: bool

    @property
    def tables_bytes(self) -> int:
        """Bytes of the header and the tables, which come before the packets."""
        before = RUN_HEADER_BYTES + 4 * self.entries * (1 + self.has_ids)
        # The rest is packets and a checksum for each piece of them.
        return before + 4 * -(-(self.size_bytes - before) // _PIECE_AND_CHECKSUM_BYTES)


class StoredRun(NamedTuple):
    """A run in an entry log, with its ledger and ids."""

    ledger_id: int
    first: int
    """First of the ids that are read from this run, as far as it holds them; `last` is the last
    one."""
    last: int
    location: RunLocation


class LogHeader(NamedTuple):
    """The file header of a log."""

    log_id: int
    created_ms: int
    rank: int
    """Age of the log's entries: of several copies of an entry, the one in the log of the highest
    rank is the newest; within a log, the last one.

    A log written by flushes has its own id as rank. A copy made by compaction has the highest rank
    of its sources.
    """


class RunHead(NamedTuple):
    """Header and tables of a run, decoded."""

    ledger_id: int
    first: int
    last: int
    offsets: "array[int]"
    """Start of each packet, relative to the first one, and the end of the last."""
    differences: "array[int] | None"
    """Each id minus the first one; None if the ids are contiguous."""
    checksums: "array[int]"
    """CRC32C of each piece of the packets."""
    tables_bytes: int
    """Bytes of header and tables; the packets follow them."""

    @property
    def entries(self) -> int:
        return len(self.offsets) - 1

    @property
    def packets_bytes(self) -> int:
        return self.offsets[-1]

    @property
    def size_bytes(self) -> int:
        """Bytes of header, tables and packets."""
        return self.tables_bytes + self.offsets[-1]

    @property
    def ids(self) -> Sequence[int]:
        """The ids of the run; a range if they are contiguous."""
        first = self.first
        if self.differences is None:
            return range(first, self.last + 1)
        return array("q", [first + difference for difference in self.differences])

    def location(self, log_id: int, offset: int) -> RunLocation:
        """Return the location of the run at this place."""
        return RunLocation(
            log_id, offset, self.size_bytes, self.entries, self.differences is not None
        )

    def holds(self, entry_id: int) -> bool:
        if not self.first <= entry_id <= self.last:
            return False
        differences = self.differences
        if differences is None:
            return True
        difference = entry_id - self.first
        return differences[bisect_left(differences, difference)] == difference

    def positions(self, entry_id: int, last: int) -> tuple[int, int]:
        """Return start and stop positions of the entries from `entry_id` up to a gap or `last`.

        The run must hold `entry_id`.
        """
        start = entry_id - self.first
        last = min(last, self.last) - self.first
        differences = self.differences
        if differences is None:
            return start, last + 1
        at = stop = bisect_left(differences, start)
        while stop < len(differences) and differences[stop] - start == stop - at:
            if differences[stop] > last:
                break
            stop += 1
        return at, stop

    def ids_within(self, begin: int, end: int) -> tuple[int, int]:
        """Return the first and last id of the packets with bytes between two offsets.

        `begin` and `end` are relative to the first packet.
        """
        start = bisect_right(self.offsets, begin, 0, self.entries) - 1
        stop = max(start, bisect_left(self.offsets, end, 0, self.entries) - 1)
        if self.differences is None:
            return self.first + start, self.first + stop
        return self.first + self.differences[start], self.first + self.differences[stop]


def _crc(log_id: int, offset: int, data: bytes) -> int:
    crc: int = google_crc32c.extend(google_crc32c.value(_PLACE.pack(log_id, offset)), data)
    return crc


def _table(data: bytes) -> "array[int]":
    table = array("I", data)
    if sys.byteorder == "little":
        table.byteswap()
    return table


def _encode_table(values: Sequence[int]) -> bytes:
    table = array("I", values)
    if sys.byteorder == "little":
        table.byteswap()
    return table.tobytes()


def encode_log_header(log_id: int, created_ms: int, rank: int | None = None) -> bytes:
    """Encode the file header. `rank`: that of the log whose runs are copied, if they are."""
    rank = log_id if rank is None else rank
    head = _LOG_HEADER.pack(_LOG_MAGIC, FORMAT_VERSION, LOG_HEADER_BYTES, log_id, created_ms, rank)
    return head + _U32.pack(google_crc32c.value(head))


def decode_log_header(data: bytes) -> LogHeader:
    """Decode the file header.

    Raises:
        StorageCorruptError: no header of a log of this version.
    """
    if len(data) < LOG_HEADER_BYTES:
        raise StorageCorruptError(f"entry log header of {len(data)} bytes")
    magic, version, header_bytes, log_id, created_ms, rank = _LOG_HEADER.unpack_from(data)
    (crc,) = _U32.unpack_from(data, _LOG_HEADER.size)
    if magic != _LOG_MAGIC or google_crc32c.value(data[: _LOG_HEADER.size]) != crc:
        raise StorageCorruptError("entry log header: wrong magic or checksum")
    if version != FORMAT_VERSION or header_bytes != LOG_HEADER_BYTES:
        raise StorageCorruptError(
            f"entry log {log_id}: format version {version}, expected {FORMAT_VERSION}"
        )
    return LogHeader(log_id, created_ms, rank)


def encode_run_head(
    *,
    log_id: int,
    offset: int,
    ledger_id: int,
    first: int,
    last: int,
    length_table: bytes,
    gap_ids: Sequence[int] | None,
    checksums: Sequence[int],
) -> bytes:
    """Encode header and tables of a run whose packets follow.

    `length_table` has a u32 per packet, as in an `EntryBlock`; `gap_ids` are the ids if they are
    not contiguous; `checksums` are those of the pieces of the packets.

    Raises:
        InvariantError: the ids do not ascend, or are not as many as the packets.
    """
    flags = 0
    count = len(length_table) // 4
    if not _are_run_ids(first, last, count, gap_ids):
        # Nothing is lost as long as it is not written: the packets are elsewhere, too.
        raise InvariantError(
            f"a run of ledger {ledger_id}, entries {first} to {last}, would hold {count} packets "
            "whose ids do not ascend one by one: it is not written"
        )
    ends = list(accumulate(unpack(f">{count}I", length_table)))
    tables = [_encode_table(ends), _encode_table(checksums)]
    if gap_ids is not None:
        flags = _HAS_IDS
        assert last - first <= ID_SPAN_MAX
        tables.insert(1, _encode_table([entry_id - first for entry_id in gap_ids]))
    assert len(checksums) == piece_count(ends[-1])
    header = _RUN_HEADER.pack(RUN_MAGIC, flags, ledger_id, first, last, count, ends[-1])
    crc = _crc(log_id, offset, b"".join((header, *tables)))
    return b"".join((header, _U32.pack(crc), *tables))


def _are_run_ids(first: int, last: int, count: int, gap_ids: Sequence[int] | None) -> bool:
    """Return whether `count` packets with these ids can be read from a run."""
    if gap_ids is None:
        return last - first + 1 == count > 0
    is_framed = len(gap_ids) == count > 0 and (gap_ids[0], gap_ids[-1]) == (first, last)
    return is_framed and all(map(lt, gap_ids, islice(gap_ids, 1, None)))


def run_bytes_max(packets_bytes: int, entries: int) -> int:
    """Return the greatest size of a run with these packets, with or without an id table."""
    return RUN_HEADER_BYTES + 8 * entries + 4 * piece_count(packets_bytes) + packets_bytes


def run_tables_bytes(data: bytes, at: int = 0) -> int | None:
    """Return the bytes of header and tables of the run at `at` in `data`, as its header claims.

    None if no header is there. Nothing is checked: the caller must bound the result.
    """
    if len(data) - at < RUN_HEADER_BYTES:
        return None
    magic, flags, _, _, _, count, packets_bytes = _RUN_HEADER.unpack_from(data, at)
    if magic != RUN_MAGIC:
        return None
    words = int(count) * (2 if flags & _HAS_IDS else 1) + piece_count(int(packets_bytes))
    return RUN_HEADER_BYTES + 4 * words


def decode_run_head(data: bytes, *, log_id: int, offset: int) -> RunHead:
    """Decode header and tables of the run at `offset` of the log; the packets are not touched.

    Raises:
        StorageCorruptError: truncated, a checksum that does not match, or impossible values.
    """
    tables_bytes = run_tables_bytes(data)
    if tables_bytes is None or len(data) < tables_bytes:
        raise StorageCorruptError(f"entry log {log_id}: no run at offset {offset}")
    header_bytes = _RUN_HEADER.size
    (crc,) = _U32.unpack_from(data, header_bytes)
    if _crc(log_id, offset, data[:header_bytes] + data[RUN_HEADER_BYTES:tables_bytes]) != crc:
        raise StorageCorruptError(f"entry log {log_id}: run at {offset} has a wrong checksum")
    _, flags, ledger_id, first, last, count, packets_bytes = _RUN_HEADER.unpack_from(data)
    at = RUN_HEADER_BYTES + 4 * count
    # The first packet begins at zero: with that, the ends are the starts.
    offsets = _table(bytes(4) + data[RUN_HEADER_BYTES:at])
    differences = None
    is_possible = count > 0 and ledger_id >= 0 and first >= 0 and offsets[-1] == packets_bytes
    if flags & _HAS_IDS:
        differences = _table(data[at : at + 4 * count])
        at += 4 * count
        is_possible = (
            is_possible
            and differences[0] == 0
            and differences[-1] == last - first
            and differences == array("I", sorted(set(differences)))
        )
    else:
        is_possible = is_possible and last - first + 1 == count
    # The checksum held, so these are errors of the writer; they must not become wrong answers.
    if not is_possible:
        raise StorageCorruptError(f"entry log {log_id}: run at {offset} has impossible tables")
    checksums = _table(data[at:tables_bytes])
    return RunHead(ledger_id, first, last, offsets, differences, checksums, tables_bytes)


def rebind_run_head(data: bytes, *, log_id: int, offset: int) -> bytes:
    """Make header and tables of a run valid at another place. The caller has decoded them."""
    header, tables = data[: _RUN_HEADER.size], data[RUN_HEADER_BYTES:]
    return b"".join((header, _U32.pack(_crc(log_id, offset, header + tables)), tables))


def encode_footer(log_id: int, offset: int, ledger_bytes: Mapping[int, int]) -> bytes:
    """Encode footer and trailer, to be written at `offset`, the end of the runs."""
    ids = sorted(ledger_bytes)
    # There may be a million ledgers: packing them one by one, or sorting pairs, would take long.
    items = array("Q", bytes(_FOOTER_ITEM.size * len(ids)))
    items[0::2] = array("Q", ids)
    items[1::2] = array("Q", [ledger_bytes[ledger_id] for ledger_id in ids])
    if sys.byteorder == "little":
        items.byteswap()
    body = _FOOTER_HEADER.pack(_FOOTER_MAGIC, len(ids)) + items.tobytes()
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
    """Decode the offset of the footer from the last `TRAILER_BYTES` of a file.

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


class FooterTables(NamedTuple):
    """The ledgers of a log and their bytes, as parallel arrays."""

    ledger_ids: "array[int]"
    """Ledger ids, ascending."""
    ledger_bytes: "array[int]"

    def by_ledger(self) -> dict[int, int]:
        return dict(zip(self.ledger_ids, self.ledger_bytes, strict=True))


def decode_footer(data: bytes, *, log_id: int, offset: int) -> FooterTables:
    """Decode the bytes per ledger from the footer at `offset` of the log, without the trailer.

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
    items = array("Q", data[_FOOTER_HEADER.size : body_bytes])
    if sys.byteorder == "little":
        items.byteswap()
    return FooterTables(items[0::2], items[1::2])
