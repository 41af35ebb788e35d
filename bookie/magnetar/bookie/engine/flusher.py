"""Writes a frozen write buffer to the entry log and then to the index. Lives on the flush worker.

The order is the promise: runs, sync of the log, index and ledger states with their sync.
A crash in between leaves bytes in the log that nothing points to, never a pointer without bytes.
"""

from collections.abc import Sequence

from magnetar.bookie.engine.write_cache import LedgerRuns, WriteBuffer
from magnetar.bookie.entry_logs.log_writer import EntryLogWriter
from magnetar.bookie.entry_logs.run_plan import plan_runs
from magnetar.bookie.errors import StorageIOError
from magnetar.bookie.indexes.location_index import IndexChanges, LocationIndex, NewRun


class Flusher:
    """Owner of the log writer, and the only one who writes to the index."""

    def __init__(
        self,
        writer: EntryLogWriter,
        index: LocationIndex,
        *,
        run_entries_max: int,
        run_bytes_max: int,
    ) -> None:
        self._writer = writer
        self._index = index
        self._run_entries_max = run_entries_max
        self._run_bytes_max = run_bytes_max

    def flush(self, buffer: WriteBuffer) -> set[int]:
        """Write the buffer durably; returns the ledgers of which older copies of entries were
        overlaid.

        Raises:
            StorageIOError: it may be partly written. The same buffer, or one that absorbed it, can
                be flushed again.
        """
        try:
            runs = {
                ledger_id: self._write_ledger(ledger_id, buffer.ledgers[ledger_id])
                for ledger_id in sorted(buffer.ledgers)
            }
            self._writer.sync()
        except (OSError, StorageIOError) as exc:
            self._writer.abandon()
            raise StorageIOError(f"entry log cannot be written: {exc}") from exc
        except BaseException:
            self._writer.abandon()  # its buffers may hold half a run
            raise
        # Before the commit: if that fails halfway, the index may already point into the log.
        self._writer.on_indexing()
        return self._index.commit(
            IndexChanges(
                last_log_id=self._writer.last_log_id,
                deleted=buffer.deleted,
                runs=runs,
                states=buffer.states,
            )
        )

    def close(self) -> None:
        """Close the active log with its footer.

        Raises:
            OSError: it has none; that costs a scan, nothing else.
        """
        self._writer.close()

    def _write_ledger(self, ledger_id: int, runs: LedgerRuns) -> Sequence[NewRun]:
        planned = plan_runs(runs, entries_max=self._run_entries_max, bytes_max=self._run_bytes_max)
        return [
            NewRun(self._writer.write(ledger_id, run), run.stretches(), run.first, run.last)
            for run in planned
        ]
