"""Copying of live packets from entry logs to a new one. Runs on the worker of garbage collection.

Every copied byte was compared with its checksum before. A run with a damaged live packet is neither
copied nor given up: it stays in place, and its log with it, until it is healed. So does a log with
a part that cannot be read at all.

The copy is synced in steps: a gigabyte at once would hold up the journal's syncs for seconds.
"""

import posixpath
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from magnetar.bookie.disks.disk_errors import is_disk_broken
from magnetar.bookie.entry_logs.damage import Damage
from magnetar.bookie.entry_logs.entry_log import (
    LOG_HEADER_BYTES,
    RUN_HEADER_BYTES,
    TRAILER_BYTES,
    RunHead,
    RunLocation,
    decode_log_header,
    decode_run_head,
    decode_trailer,
    encode_footer,
    encode_log_header,
    run_tables_bytes,
)
from magnetar.bookie.entry_logs.log_names import log_name
from magnetar.bookie.entry_logs.log_scan import read_log_header, scan_log
from magnetar.bookie.entry_logs.log_writer import SYNC_BYTES
from magnetar.bookie.errors import StorageCorruptError
from magnetar.bookie.gc.compaction_phases import copy_name
from magnetar.bookie.gc.compaction_record import MOVE_BYTES, CompactionRecord, encode_move
from magnetar.bookie.gc.live_part import copy_run, damaged_ids, positions_of
from magnetar.bookie.indexes.location_index import LocationIndex, RunMove
from magnetar.ledger.ports import Buffer, Clock, Disk, File

_WRITE_BYTES = 1 << 20
_BUFFERS_MAX = 512
_WINDOW_BYTES = 256 << 10
"""Bytes read at once for runs that are smaller."""
_RECORDS_AT_ONCE = 256


@dataclass(slots=True)
class Copied:
    """Progress of a copy, by source log."""

    complete: list[int] = field(default_factory=list)
    """Logs whose live packets were all copied."""
    incomplete: list[int] = field(default_factory=list)
    """Logs with a part that could not be read, or whose end is not known."""
    damages: list[Damage] = field(default_factory=list)
    read_bytes: int = 0
    written_bytes: int = 0


class LogCopier:
    """One copy. Call `begin`, `copy_some` until it returns False, then `finish`; or `abandon`."""

    def __init__(
        self,
        directory: str,
        target_log_id: int,
        sources: Sequence[int],
        *,
        index: LocationIndex,
        disk: Disk,
        clock: Clock,
        moves_max: int,
    ) -> None:
        """The copy ends with the run that reaches `moves_max` moves; the rest is left for another
        copy. A run takes up to three moves: of its kept entries, and of the gaps around them."""
        self._directory = directory
        self._log_id = target_log_id
        self._sources = list(sources)
        self._index = index
        self._disk = disk
        self._clock = clock
        self._moves_max = moves_max
        self._path = posixpath.join(directory, copy_name(target_log_id))
        self._file: File | None = None
        self._buffers: list[Buffer] = []
        self._buffered_bytes = 0
        self._unsynced_bytes = 0
        self._ledger_bytes: dict[int, int] = {}
        self._moves = bytearray()
        self._work = self._copy_sources()
        self.copied = Copied()

    def begin(self) -> None:
        """Create the file.

        Raises:
            OSError: call `abandon`.
        """
        rank = max(self._rank(log_id) for log_id in self._sources)
        self._file = self._disk.create(self._path)
        self._file.append([encode_log_header(self._log_id, self._clock.wall_ms(), rank)])

    def copy_some(self, bytes_max: int) -> bool:
        """Copy about `bytes_max` bytes; return False when everything is copied.

        Raises:
            OSError, StorageIOError: call `abandon`.
        """
        until = self.copied.read_bytes + bytes_max
        return any(self.copied.read_bytes >= until for _ in self._work)

    def finish(self) -> CompactionRecord | None:
        """Make the copy durable; return the content of the record.

        None, and the file is gone, if the sources have no live packet: they can be removed as they
        are.

        Raises:
            OSError: call `abandon`.
        """
        assert self._file is not None
        if not self._moves:
            self.abandon()
            return None
        self._write_out()
        self._file.append([encode_footer(self._log_id, self._file.size, self._ledger_bytes)])
        self._file.datasync()
        self._file.drop_cache()
        self._file.close()
        self._file = None
        self._disk.sync_directory(self._directory)
        return CompactionRecord(self._log_id, tuple(self.copied.complete), self._moves)

    def abandon(self) -> None:
        """Remove the copy, of which there must be no record.

        Raises:
            OSError: it still exists; the next start or the next try removes it.
        """
        self._work.close()
        if self._file is not None:
            self._file.close()
            self._file = None
            self._disk.remove(self._path)

    # Reading

    def _copy_sources(self) -> Generator[None]:
        """Copy run by run, with a yield after each."""
        for log_id in self._sources:
            try:
                file = self._disk.open(posixpath.join(self._directory, log_name(log_id)))
            except OSError as error:
                if not is_disk_broken(error):
                    raise
                self.copied.incomplete.append(log_id)  # the others need not wait for it
                continue
            try:
                yield from self._copy_log(_Source(log_id, file))
            finally:
                file.close()
            if len(self._moves) // MOVE_BYTES >= self._moves_max:
                return

    def _copy_log(self, source: "_Source") -> Iterator[None]:
        is_complete = True
        for at, head, head_bytes in source.runs():
            if len(self._moves) // MOVE_BYTES >= self._moves_max:
                return  # the rest stays in the log, for the next copy
            self.copied.read_bytes += len(head_bytes)
            is_complete = self._copy_run(source, at, head, head_bytes) and is_complete
            yield
        is_complete = is_complete and source.is_whole
        (self.copied.complete if is_complete else self.copied.incomplete).append(source.log_id)

    def _copy_run(self, source: "_Source", at: int, head: RunHead, head_bytes: bytes) -> bool:
        """Copy the live packets of a run; return False if that is impossible."""
        try:
            stretches = self._live_stretches(head, source.log_id, at)
        except StorageCorruptError:
            return False  # the index of this ledger is damaged: live packets are unknown
        positions = positions_of(head, stretches)
        location = head.location(source.log_id, at)
        if not positions:
            if stretches:
                # Newer copies were laid over all entries of a run with gaps, and left records of
                # the gaps between them. These records must go before the log does.
                self._move(head, head.first, head.last, location, None)
            return True
        try:
            packets = source.read(head.packets_bytes, at + head.tables_bytes)
        except StorageCorruptError:
            packets = b""  # all of it counts as damaged
        self.copied.read_bytes += len(packets)
        damaged = damaged_ids(head, packets, positions)
        if damaged is not None:
            path = posixpath.join(self._directory, log_name(source.log_id))
            self.copied.damages.append(
                Damage(path, at, head.ledger_id, *damaged, "compaction cannot copy it: damaged")
            )
            return False
        target_at = self._end
        run = copy_run(head, head_bytes, packets, positions, log_id=self._log_id, at=target_at)
        self._append(run.head, run.packets)
        total = self._ledger_bytes.get(head.ledger_id, 0)
        self._ledger_bytes[head.ledger_id] = total + run.size_bytes
        first, last = head.ids[positions[0][0]], head.ids[positions[-1][1] - 1]
        self._move(head, first, last, location, run.location)
        # Records of gaps outside the kept entries must go, as above.
        if head.first < first:
            self._move(head, head.first, first - 1, location, None)
        if last < head.last:
            self._move(head, last + 1, head.last, location, None)
        return True

    def _move(
        self,
        head: RunHead,
        first: int,
        last: int,
        source: RunLocation,
        target: RunLocation | None,
    ) -> None:
        self._moves += encode_move(RunMove(head.ledger_id, first, last, source, target))

    def _live_stretches(self, head: RunHead, log_id: int, at: int) -> list[tuple[int, int]]:
        location = head.location(log_id, at)
        found: list[tuple[int, int]] = []
        first, count = head.first, 1
        while True:
            # Usually one record covers the whole run. Reading more would make a page index read the
            # heads of other runs.
            records = self._index.records_from(head.ledger_id, first, count)
            near = list(takewhile(lambda record: record.first <= head.last, records))
            # A flush between two calls may have joined a record to one that was returned before.
            found += [
                (max(first, each.first), each.last) for each in near if each.location == location
            ]
            if len(near) < count or near[-1].last >= head.last:
                return found
            first = near[-1].last + 1
            count = min(4 * count, _RECORDS_AT_ONCE)

    def _rank(self, log_id: int) -> int:
        try:
            file = self._disk.open(posixpath.join(self._directory, log_name(log_id)))
            try:
                return read_log_header(file, log_id).rank
            finally:
                file.close()
        except StorageCorruptError:
            pass
        except OSError as error:
            if not is_disk_broken(error):
                raise
        return log_id  # it cannot be higher

    # Writing

    @property
    def _end(self) -> int:
        assert self._file is not None
        return self._file.size + self._buffered_bytes

    def _append(self, *buffers: Buffer) -> None:
        size = sum(map(len, buffers))
        self._buffers += buffers
        self._buffered_bytes += size
        self.copied.written_bytes += size
        if self._buffered_bytes >= _WRITE_BYTES or len(self._buffers) >= _BUFFERS_MAX:
            self._write_out()

    def _write_out(self) -> None:
        assert self._file is not None
        if not self._buffers:
            return
        buffers, size = self._buffers, self._buffered_bytes
        self._buffers, self._buffered_bytes = [], 0
        self._file.append(buffers)
        self._unsynced_bytes += size
        if self._unsynced_bytes >= SYNC_BYTES:
            self._file.datasync()
            self._file.drop_cache()
            self._unsynced_bytes = 0


class _Source:
    """A log to copy from, read from its start to its end."""

    def __init__(self, log_id: int, file: File) -> None:
        self.log_id = log_id
        self._file = file
        self._window = b""
        self._window_at = 0
        self.is_whole = False
        """Whether `runs` has yielded everything that is, or can ever have been, in the log."""

    def runs(self) -> Iterator[tuple[int, RunHead, bytes]]:
        """Yield offset, head, and the head's bytes of the runs.

        After a damaged head, the next valid one is searched.
        """
        end = self._end_of_runs()
        at = LOG_HEADER_BYTES
        try:
            decode_log_header(self.read(LOG_HEADER_BYTES, 0))
            while at < self._file.size if end is None else at < end:
                head, head_bytes = self._head_at(at)
                if at + head.size_bytes > self._file.size:
                    return  # torn
                yield at, head, head_bytes
                at += head.size_bytes
            self.is_whole = at == (self._file.size if end is None else end)
            return
        except StorageCorruptError:
            pass  # damage, or a torn end: more runs may follow
        for offset in self._offsets_behind(at):
            try:
                head, head_bytes = self._head_at(offset)
            except StorageCorruptError:
                continue
            yield offset, head, head_bytes

    def _offsets_behind(self, at: int) -> list[int]:
        try:
            scan = scan_log(self._file, self.log_id, beyond_damage=True)
        except (StorageCorruptError, OSError):
            return []  # the rest of the log is unknown
        return [run.location.offset for run in scan.runs if run.location.offset > at]

    def _head_at(self, at: int) -> tuple[RunHead, bytes]:
        """Read the head of the run at `at`.

        Raises:
            StorageCorruptError: there is no valid run.
        """
        tables_bytes = run_tables_bytes(self.read(RUN_HEADER_BYTES, at))
        if tables_bytes is None or at + tables_bytes > self._file.size:
            raise StorageCorruptError(f"entry log {self.log_id}: no run at {at}")
        data = self.read(tables_bytes, at)
        return decode_run_head(data, log_id=self.log_id, offset=at), data

    def read(self, size: int, at: int) -> bytes:
        """Read bytes; fewer only at the end of the file.

        Raises:
            StorageCorruptError: the disk cannot read them.
        """
        try:
            return self._read(size, at)
        except OSError as error:
            raise StorageCorruptError(
                f"entry log {self.log_id}: cannot be read at {at}: {error}"
            ) from error

    def _read(self, size: int, at: int) -> bytes:
        begin = at - self._window_at
        if begin >= 0 and begin + size <= len(self._window):
            return self._window[begin : begin + size]
        if size >= _WINDOW_BYTES:
            return self._file.read_once(size, at)
        self._window, self._window_at = self._file.read_once(_WINDOW_BYTES, at), at
        return self._window[:size]

    def _end_of_runs(self) -> int | None:
        """Return the offset of the footer; None if there is no sound one."""
        end = self._file.size - TRAILER_BYTES
        if end < LOG_HEADER_BYTES:
            return None
        try:
            offset = decode_trailer(self.read(TRAILER_BYTES, end), log_id=self.log_id)
        except StorageCorruptError:
            return None
        return offset if LOG_HEADER_BYTES <= offset < end else None
