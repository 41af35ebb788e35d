"""Flushing of a frozen write buffer: to the entry log, then to the index. Runs on the flush worker.

The order is what makes it safe: runs, sync of the log, then index and ledger states with their
sync. A crash in between leaves bytes in the log that nothing points to, never a pointer without
bytes. If there is no room for runs, deletions go to the index alone, since they make room.
"""

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from magnetar.bookie.disks.disk_errors import is_out_of_room
from magnetar.bookie.engine.flush_pace import PART_BYTES, FlushPace
from magnetar.bookie.engine.write_cache import LedgerRuns, WriteBuffer
from magnetar.bookie.entry_logs.log_writer import EntryLogWriter
from magnetar.bookie.entry_logs.run_plan import PlannedRun
from magnetar.bookie.errors import StorageIOError
from magnetar.bookie.indexes.location_index import IndexChanges, LocationIndex, NewRun
from magnetar.bookie.metrics import FlushTimes
from magnetar.ledger.ports import Clock

_INDEX_PART = 8
"""Index and run heads are assumed to need one part in 8 of the bytes of the blocks."""

PlanRuns = Callable[[Mapping[int, LedgerRuns]], Iterator[tuple[int, PlannedRun]]]
"""Decides the order of a buffer's runs in the log, and how they are cut and merged."""


class Flushed(NamedTuple):
    """Result of a flush."""

    overlaid: set[int]
    """Ledgers in which newer copies of entries replaced older ones."""
    times: FlushTimes


class Flusher:
    """Owner of the log writer; nothing else writes to the index."""

    def __init__(
        self,
        writer: EntryLogWriter,
        index: LocationIndex,
        plan: PlanRuns,
        pace: FlushPace,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._writer = writer
        self._index = index
        self._plan = plan
        self._pace = pace

    def flush(self, buffer: WriteBuffer) -> Flushed:
        """Write the buffer durably.

        Raises:
            StorageIOError: it may be partly written. The same buffer, or one that absorbed it, can
                be flushed again.
        """
        now_s = self._clock.monotonic_s
        started_s = now_s()
        refusal = None
        try:
            runs = self._write_log(buffer)
        except StorageIOError as error:
            refusal = error
        if refusal is not None:
            # Not inside the handler: another error must not count as a consequence of this one.
            self._delete_at_least(buffer, refusal)
            raise refusal
        # Before the commit: if that fails halfway, the index may already point into the log.
        self._writer.on_indexing()
        logged_s = now_s()
        overlaid = self._index.commit(
            IndexChanges(
                last_log_id=self._writer.last_log_id,
                deleted=buffer.deleted,
                runs=runs,
                states=buffer.states,
            ),
            pause=self._pace.rest_from_work,
        )
        indexed_s = now_s()
        while runs:
            # One by one: freeing all at once is a single interpreter call, which cannot be
            # interrupted.
            runs.popitem()
            self._pace.rest_from_work()
        return Flushed(overlaid, FlushTimes(logged_s - started_s, indexed_s - logged_s))

    def close(self) -> None:
        """Close the active log with its footer.

        Raises:
            OSError: the log has no footer; that only costs a scan.
        """
        self._writer.close()

    def _write_log(self, buffer: WriteBuffer) -> dict[int, list[NewRun]]:
        """Write the runs durably.

        Raises:
            StorageIOError: the runs do not count.
        """
        block_bytes = buffer.block_bytes()
        self._pace.start(block_bytes)
        try:
            self._check_room(block_bytes)
        except OSError as exc:
            raise StorageIOError(f"entry log cannot be written: {exc}") from exc
        try:
            runs = self._write_runs(buffer)
            self._writer.sync()
        except (OSError, StorageIOError) as exc:
            self._writer.abandon()
            raise StorageIOError(f"entry log cannot be written: {exc}") from exc
        except BaseException:
            self._writer.abandon()  # its buffers may hold half a run
            raise
        return runs

    def _delete_at_least(self, buffer: WriteBuffer, refusal: StorageIOError) -> None:
        """If there is no room for runs, make the deletions durable without them.

        Raises:
            StorageIOError: the deletions are not durable.
        """
        if is_out_of_room(refusal) and buffer.deleted and not buffer.are_deletions_durable:
            last_log_id = self._writer.last_log_id
            self._index.commit(IndexChanges(last_log_id, deleted=buffer.deleted))
            buffer.are_deletions_durable = True

    def _check_room(self, block_bytes: int) -> None:
        """Check for room before a write that would fail and take the last room from others.

        Journal, index and compaction need it. Deletions alone need no log, and make room.

        Raises:
            OSError: there is no room.
        """
        if not block_bytes:
            return
        needed = block_bytes + block_bytes // _INDEX_PART
        if self._writer.free_bytes() < needed:
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {needed} bytes are needed")

    def _write_runs(self, buffer: WriteBuffer) -> dict[int, list[NewRun]]:
        runs: dict[int, list[NewRun]] = {}
        part_bytes = 0
        for ledger_id, run in self._plan(buffer.ledgers):
            location = self._writer.write(ledger_id, run)
            new = NewRun(location, run.stretches(), run.first, run.last)
            runs.setdefault(ledger_id, []).append(new)
            part_bytes += location.size_bytes
            self._pace.rest_from_work()
            if part_bytes >= PART_BYTES and self._pace.is_gentle:
                self._writer.sync_part()
                self._pace.rest(part_bytes)
                part_bytes = 0
        return runs
