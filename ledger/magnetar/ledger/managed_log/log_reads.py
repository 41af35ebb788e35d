"""Reads a log for its owner: ranges of entries that were reported as appended.

The owner knows how far each ledger is confirmed. Open ledgers are read through their writers, older
ones from wherever they are (`closed_ledgers.py`). A position in a removed ledger counts as the next
position of the log, and a range never spans ledgers (rule 4.2).
"""

from magnetar.ledger.errors import LedgerError
from magnetar.ledger.ledger_metadata import LedgerState
from magnetar.ledger.managed_log.closed_ledgers import ClosedLedgers
from magnetar.ledger.managed_log.log_appender import LogAppender
from magnetar.ledger.position import Position


class OwnerReads:
    """Reads entries of a log for its owner."""

    def __init__(self, appender: LogAppender, closed: ClosedLedgers) -> None:
        self._appender = appender
        self._closed = closed

    async def read_range(
        self, start: Position, *, entries_max: int, bytes_max: int
    ) -> tuple[Position, list[bytes]]:
        """Read consecutive entries; see `ManagedLog.read_range`."""
        while True:
            first, last = self._range(start, entries_max)
            if last < first.entry_id:
                return first, []
            try:
                payloads = await self._read(first, last, bytes_max)
            except LedgerError:
                if first.ledger_id in self._appender.extent.shape:
                    raise
                continue  # a shrink removed it meanwhile: the log now begins behind it
            return first, payloads

    async def entries_after(self, ledger_id: int, publish_ms: int) -> range | None:
        """Search a ledger by publish time; see `ManagedLog.entries_after`."""
        return await self._closed.entries_after(ledger_id, publish_ms)

    def created_ms(self, ledger_id: int) -> int:
        """Return when a ledger was created, ms since the epoch; 0 if it was not read lately."""
        for writer in (self._appender.writer, self._appender.draining):
            if writer is not None and writer.ledger_id == ledger_id:
                return writer.metadata.created_ms
        return self._closed.created_ms(ledger_id)

    async def forget_removed(self) -> None:
        """Close the handles of ledgers that left the list."""
        await self._closed.forget_but(self._appender.extent.shape.__contains__)

    async def close(self) -> None:
        """Close all handles."""
        await self._closed.close()

    def _range(self, start: Position, entries_max: int) -> tuple[Position, int]:
        """Return the first confirmed entry from `start` on, and the last to read; lower if none."""
        shape, confirmed = self._appender.extent.shape, self._appender.extent.last_confirmed
        first = shape.first_at_or_after(start)
        if first > confirmed:
            return first, first.entry_id - 1
        if first.ledger_id == confirmed.ledger_id:
            end = confirmed.entry_id
        else:
            end = shape.last_entry_id(first.ledger_id)
        return first, min(end, first.entry_id + entries_max - 1)

    async def _read(self, first: Position, last: int, bytes_max: int) -> list[bytes]:
        ledger_id, first_entry_id = first
        for writer in (self._appender.writer, self._appender.draining):
            if writer is None or writer.ledger_id != ledger_id:
                continue
            if writer.metadata.state is LedgerState.CLOSED:
                break  # its handle no longer learns of moved replicas; a reader does
            return await writer.read(first_entry_id, last, bytes_max=bytes_max)
        return await self._closed.read(ledger_id, first_entry_id, last, bytes_max=bytes_max)
