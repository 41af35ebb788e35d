"""Recovery of bookies by hand: the same repair, for every ledger that names them, driven from here.

For operators who do not want to wait for the auditor, or have switched auto-recovery off. Each
ledger is repaired under its lock, so that workers may run meanwhile. Open ledgers are closed first,
without a grace, unless the caller skips them. Source: auto-recovery, section 8.
"""

import random
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from enum import Enum

import structlog

from magnetar.ledger.autorecovery.checker import names_any
from magnetar.ledger.autorecovery.ledger_scan import PacedReads, scan_ledgers
from magnetar.ledger.autorecovery.repair import RepairState
from magnetar.ledger.autorecovery.work_items import WorkItems
from magnetar.ledger.autorecovery.worker import make_repair
from magnetar.ledger.autorecovery.worker_metrics import WorkerMetrics
from magnetar.ledger.autorecovery.worker_settings import WorkerSettings
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import (
    BookieRegisteredError,
    MetadataUnavailableError,
    ReplicationLockLostError,
    UnknownOutcomeError,
)
from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock
from magnetar.ledger.replication_lock import UnreleasedLocks
from magnetar.ledger.under_replication import EVERYTHING, Missing

_log = structlog.get_logger(__name__)


class Recovered(Enum):
    """Outcome for one ledger."""

    REPAIRED = "repaired"
    WOULD_BE = "would be repaired"
    """Outcome of a dry run."""
    SKIPPED_OPEN = "open, left alone"
    BUSY = "a worker repairs it"
    DELETED = "deleted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RecoveredLedger:
    """One ledger that named the bookies."""

    ledger_id: int
    outcome: Recovered
    reason: str = ""

    @property
    def is_done(self) -> bool:
        """Whether the ledger no longer needs the bookies."""
        return self.outcome in (Recovered.REPAIRED, Recovered.DELETED)


class ManualRecovery:
    """Recovers bookies that are gone for good."""

    def __init__(
        self,
        client: LedgerClient,
        store: MetadataStore,
        *,
        clock: Clock,
        random: random.Random,
        holder: str,
        reads: PacedReads,
        settings: WorkerSettings | None = None,
        root: str = "/ledgers",
    ) -> None:
        self._client = client
        self._store = store
        self._holder = holder
        self._reads = reads
        self._root = root
        self._items = WorkItems(store, clock=clock, random=random, root=root)
        self._unreleased = UnreleasedLocks()
        self.metrics = WorkerMetrics()
        self._repair = make_repair(
            client, clock=clock, settings=settings or WorkerSettings(), metrics=self.metrics
        )

    async def recover(
        self,
        bookies: Collection[str],
        *,
        ledger_id: int | None = None,
        is_dry_run: bool = False,
        skips_open: bool = False,
    ) -> AsyncIterator[RecoveredLedger]:
        """Repair every ledger that names one of the bookies, or only the given one; yield each
        outcome.

        Raises:
            BookieRegisteredError: one of the bookies is running.
            NoSuchLedgerError: the given ledger does not exist.
            MetadataError
        """
        await self._unreleased.release_all()
        await check_not_registered(self._store, bookies, root=self._root)
        async for metadata in self._ledgers(bookies, ledger_id):
            if is_dry_run:
                yield RecoveredLedger(metadata.ledger_id, Recovered.WOULD_BE)
            elif skips_open and metadata.state is not LedgerState.CLOSED:
                yield RecoveredLedger(metadata.ledger_id, Recovered.SKIPPED_OPEN)
            else:
                yield await self._recover_ledger(metadata.ledger_id, bookies)

    async def _ledgers(
        self, bookies: Collection[str], ledger_id: int | None
    ) -> AsyncIterator[LedgerMetadata]:
        if ledger_id is not None:
            metadata = (await self._client.manager.read(ledger_id)).metadata
            if names_any(metadata, bookies):
                yield metadata
            return
        async for ledger in scan_ledgers(self._reads):
            if names_any(ledger.metadata, bookies):
                yield ledger.metadata

    async def _recover_ledger(self, ledger_id: int, bookies: Collection[str]) -> RecoveredLedger:
        lock = await self._items.take_lock(ledger_id, self._holder, unclear=self._unreleased)
        if lock is None:
            return RecoveredLedger(ledger_id, Recovered.BUSY, "its replication lock is held")
        try:
            item = await self._items.read(ledger_id)
            reported: Missing = {} if item is None else dict(item.missing)
            reported.update({bookie_id: [EVERYTHING] for bookie_id in bookies})
            done = await self._repair.repair(
                ledger_id, reported, may_close=True, holds_lock=lock.is_held
            )
            if done.state in (RepairState.WHOLE, RepairState.DELETED):
                if item is not None:
                    await self._items.delete(item)
                if await self._items.is_lost(ledger_id):
                    await self._items.note_lost(ledger_id, [])
                is_deleted = done.state is RepairState.DELETED
                outcome = Recovered.DELETED if is_deleted else Recovered.REPAIRED
                return RecoveredLedger(ledger_id, outcome)
            return RecoveredLedger(ledger_id, Recovered.FAILED, done.reason)
        except (ReplicationLockLostError, MetadataUnavailableError, UnknownOutcomeError) as error:
            return RecoveredLedger(ledger_id, Recovered.FAILED, str(error))
        finally:
            await self._unreleased.release(lock)


async def check_not_registered(
    store: MetadataStore, bookies: Collection[str], *, root: str
) -> None:
    """Check in the metadata store that the bookies are not running now.

    Raises:
        BookieRegisteredError: one of them is.
        MetadataUnavailableError
    """
    await store.catch_up()
    registered: list[str] = []
    for bookie_id in bookies:
        for path in (f"{root}/available/{bookie_id}", f"{root}/available/readonly/{bookie_id}"):
            if await store.exists(path) is not None:
                registered.append(bookie_id)
    if registered:
        raise BookieRegisteredError(
            f"{_listed(registered)} registered, and so running: nothing was changed. Stop it for "
            f"good and wait until its session has ended, or name another bookie"
        )


def _listed(bookies: Sequence[str]) -> str:
    return f"bookie {bookies[0]} is" if len(bookies) == 1 else f"bookies {', '.join(bookies)} are"
