"""Reading a log as its owner: ranges of what was reported as appended.

The owner knows how far each ledger is confirmed. Open ledgers are read through their writers, older
ones through a bounded number of read handles. A position in a ledger that is gone counts as the
next one there is, and a range never spans ledgers (rule 4.2).
"""

from collections import OrderedDict

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError, LogDataLossError, NoSuchLedgerError
from magnetar.ledger.ledger_metadata import LedgerState
from magnetar.ledger.managed_log.log_appender import LogAppender
from magnetar.ledger.position import Position
from magnetar.ledger.reader import LedgerReader

_READERS_MAX = 16


class OwnerReads:
    """Reads entries of a log for its owner."""

    def __init__(
        self, client: LedgerClient, path: str, appender: LogAppender, *, password: bytes | None
    ) -> None:
        self._client = client
        self._path = path
        self._appender = appender
        self._password = password
        self._readers: OrderedDict[int, LedgerReader] = OrderedDict()

    async def read_range(
        self, start: Position, *, entries_max: int, bytes_max: int
    ) -> tuple[Position, list[bytes]]:
        """See `ManagedLog.read_range`."""
        while True:
            first, last = self._range(start, entries_max)
            if last < first.entry_id:
                return first, []
            try:
                payloads = await self._read(first, last, bytes_max)
            except LedgerError:
                if first.ledger_id in self._appender.extent.shape:
                    raise
                continue  # removed by a shrink meanwhile: the log begins behind it now
            return first, payloads

    def created_ms(self, ledger_id: int) -> int:
        """When a ledger was created, ms since the epoch; 0: it was not read lately."""
        for writer in (self._appender.writer, self._appender.draining):
            if writer is not None and writer.ledger_id == ledger_id:
                return writer.metadata.created_ms
        reader = self._readers.get(ledger_id)
        return reader.metadata.created_ms if reader is not None else 0

    def forget_removed(self) -> None:
        """Drop the handles of ledgers that left the list."""
        shape = self._appender.extent.shape
        for ledger_id in [each for each in self._readers if each not in shape]:
            del self._readers[ledger_id]

    def _range(self, start: Position, entries_max: int) -> tuple[Position, int]:
        """The first confirmed entry from `start` on, and the last one to read; less: none."""
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
                break  # its handle no longer hears of replicas that move; a reader looks again
            return await writer.read(first_entry_id, last, bytes_max=bytes_max)
        reader = await self._reader(ledger_id)
        return await reader.read(first_entry_id, last, bytes_max=bytes_max)

    async def _reader(self, ledger_id: int) -> LedgerReader:
        reader = self._readers.get(ledger_id)
        if reader is not None:
            self._readers.move_to_end(ledger_id)
            return reader
        try:
            reader = await self._client.open(ledger_id, password=self._password)
        except NoSuchLedgerError as error:
            raise LogDataLossError(
                f"{self._path}: ledger {ledger_id} is listed, but its metadata is gone; bring it "
                f"back from a backup of the metadata store"
            ) from error
        self._readers[ledger_id] = reader
        while len(self._readers) > _READERS_MAX:
            self._readers.popitem(last=False)
        return reader
