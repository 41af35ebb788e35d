"""Shared by tests of garbage collection: metadata that can lie, and ledgers in it."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from magnetar.bookie.gc.metadata_calls import MetadataCalls
from magnetar.bookie.metrics import GcMetrics
from magnetar.ledger.errors import LedgerError, NoSuchLedgerError
from magnetar.ledger.layouts.ledger_layout import LedgerRange
from magnetar.ledger.ledger_manager import VersionedLedger
from magnetar.ledger.ledger_metadata import LEDGER_ID_MAX, Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.registration import BookieRegistry
from magnetar.ledger.system import SystemClock
from tests.dictionary_store import DictionaryStore

INSTANCE = "0123456789abcdef0123456789abcdef"
RANGE_IDS = 100

Lie = Callable[[list[LedgerRange]], Sequence[LedgerRange]]


def metadata_of(
    ledger_id: int, *, bookies: Sequence[str] = ("b1",), state: LedgerState = LedgerState.CLOSED
) -> LedgerMetadata:
    is_closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=len(bookies),
        write_quorum=len(bookies),
        ack_quorum=1,
        state=state,
        last_entry_id=9 if is_closed else -1,
        length=100 if is_closed else 0,
        ensembles=(Fragment(0, tuple(bookies)),),
        created_ms=1,
        creation_token=1,
    )


class Ledgers:
    """The ledgers of a cluster, with the interface of a manager; its listing may lie."""

    def __init__(self, ledger_ids: Iterable[int] = ()) -> None:
        self.metadata = {ledger_id: metadata_of(ledger_id) for ledger_id in ledger_ids}
        self.lie: Lie = lambda ranges: ranges
        self.on_range: Callable[[int], None] = lambda at: None
        """Called before the nth range is listed."""
        self.on_read: Callable[[int], None] = lambda ledger_id: None
        """Called before the metadata of a ledger is read."""
        self.failing: set[int] = set()
        """Ledgers whose metadata cannot be read at present."""
        self.records_deletions = True
        self.lost: set[int] = set()
        """Ledgers that the metadata lacks without a record of their deletion."""
        self.reads: list[int] = []
        self.unseen: set[int] = set()
        """Ledgers that the metadata server does not know yet, because it is behind."""

    async def catch_up(self) -> None:
        self.unseen.clear()

    async def ledger_ranges(self) -> AsyncIterator[LedgerRange]:
        for at, found in enumerate(self.lie(self.ranges())):
            self.on_range(at)
            yield found

    def ranges(self) -> list[LedgerRange]:
        ids = sorted(self.metadata.keys() - self.unseen)
        count = ids[-1] // RANGE_IDS + 1 if ids else 0
        bounds = [RANGE_IDS * at for at in range(count + 1)]
        return [
            LedgerRange(first, end - 1, tuple(each for each in ids if first <= each < end))
            for first, end in zip(bounds, [*bounds[1:], LEDGER_ID_MAX + 1], strict=True)
        ]

    async def read(self, ledger_id: int) -> VersionedLedger:
        self.reads.append(ledger_id)
        self.on_read(ledger_id)
        if ledger_id in self.failing:
            raise LedgerError("no answer")
        if ledger_id not in self.metadata or ledger_id in self.unseen:
            raise NoSuchLedgerError(f"no ledger {ledger_id}")
        return VersionedLedger(self.metadata[ledger_id], 0)

    async def is_deleted(self, ledger_id: int) -> bool:
        return ledger_id not in self.metadata and ledger_id not in self.lost


def store_of_cluster() -> DictionaryStore:
    store = DictionaryStore()
    store.nodes["/ledgers/INSTANCEID"] = INSTANCE.encode()
    return store


def metadata_calls(store: DictionaryStore, *, instance_id: str = INSTANCE) -> MetadataCalls:
    return MetadataCalls(
        BookieRegistry(store), instance_id=instance_id, clock=SystemClock(), calls_per_s=0
    )


def gc_metrics() -> GcMetrics:
    return GcMetrics()
