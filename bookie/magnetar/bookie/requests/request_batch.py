"""What the requests of one network read leave for the journal, and whom to tell afterwards."""

from collections import defaultdict
from typing import Protocol

from magnetar.bookie.journaling.grouping import JournalBatch
from magnetar.bookie.journaling.journal_format import NewRecord, RecordType
from magnetar.bookie.requests.fencing import LedgerDescriptor
from magnetar.bookie.requests.replies import Connection


class BatchContext:
    """Whom to tell what when a batch is durable."""

    __slots__ = ("adds", "connection", "fences", "keys", "lacs", "shared_adds")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.adds: list[tuple[int, int, int]] = []
        """Request id, ledger id, entry id."""
        self.shared_adds: defaultdict[int, list[int]] = defaultdict(list)
        """Of ADDS, by request id: ledger id, entry id, ledger id, entry id, ..."""
        self.lacs: list[tuple[int, int, int]] = []
        """Request id, ledger id, LAC."""
        self.keys: list[LedgerDescriptor] = []
        self.fences: list[LedgerDescriptor] = []


Batch = JournalBatch[BatchContext]


class ReadBatches(dict[int, Batch]):
    """What one network read leaves for the journals, by their numbers: made when it is needed."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def __missing__(self, journal: int) -> Batch:
        batch = self[journal] = JournalBatch(BatchContext(self.connection))
        return batch


class JournalQueue(Protocol):
    """The journal, as far as requests go: it reports each batch to `on_committed`, once."""

    def append(self, batch: Batch) -> None: ...


def journal_key(ledger: LedgerDescriptor, batch: Batch) -> None:
    """Write the ledger's master key ahead of what this process first writes of the ledger."""
    if not ledger.is_key_journalled:
        batch.add(NewRecord(RecordType.MASTER_KEY, ledger.ledger_id, ledger.master_key))
        batch.context.keys.append(ledger)
        ledger.is_key_journalled = True
