"""Deletion of ledgers that this bookie holds, but the metadata assigns to other bookies.

They are left when a bookie comes back after its ledgers were copied to others. Only CLOSED ledgers
are deleted: of any other, a writer or a recovery may know more than the metadata. A worker that
re-replicates may be adding this bookie back at the same moment, copy first and metadata last
(defect B12). So the ledger's lock is taken, and then the metadata is read again.
"""

import random

import structlog

from magnetar.bookie.gc.ledger_collector import LedgerSource
from magnetar.bookie.gc.metadata_calls import MetadataCalls
from magnetar.bookie.metrics import GcMetrics
from magnetar.bookie.requests.fencing import LedgerTable
from magnetar.bookie.storage import LedgerStorage
from magnetar.ledger.errors import LedgerError, NoSuchLedgerError
from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock
from magnetar.ledger.replication_lock import ReplicationLock, UnreleasedLocks

_log = structlog.get_logger(__name__)


def is_surplus(metadata: LedgerMetadata, bookie_id: str) -> bool:
    """Return whether a bookie that holds entries of the ledger need not."""
    return metadata.state is LedgerState.CLOSED and all(
        bookie_id not in fragment.bookies for fragment in metadata.ensembles
    )


class OverReplicatedLedgers:
    """Deletes the surplus ledgers of one bookie."""

    def __init__(
        self,
        storage: LedgerStorage,
        ledgers: LedgerTable,
        store: MetadataStore,
        *,
        bookie_id: str,
        calls: MetadataCalls,
        clock: Clock,
        random: random.Random,
        metrics: GcMetrics,
        root: str = "/ledgers",
    ) -> None:
        self._storage = storage
        self._ledgers = ledgers
        self._store = store
        self._bookie_id = bookie_id
        self._calls = calls
        self._clock = clock
        self._random = random
        self._metrics = metrics
        self._root = root
        self._unreleased = UnreleasedLocks()

    async def collect(self, source: LedgerSource) -> int:
        """Check all local ledgers; return how many were deleted, durably.

        Raises:
            ForeignMetadataError, LedgerError: before anything was deleted.
            StorageError: the flush failed; the next one makes the deletions durable.
        """
        await self._calls.check_instance()
        deleted = 0
        for ledger_id in self._storage.ledger_ids():
            await self._calls.wait_turn()
            try:
                deleted += await self._look_at(source, ledger_id)
            except NoSuchLedgerError:
                pass  # a round of garbage collection deletes it
            except LedgerError as error:
                self._metrics.unconfirmed_ledgers += 1
                _log.warning("surplus_ledger_unconfirmed", ledger_id=ledger_id, error=str(error))
        await self._unreleased.release_all()
        if deleted:
            await self._storage.flush()
        return deleted

    async def _look_at(self, source: LedgerSource, ledger_id: int) -> bool:
        """Delete the ledger if it is surplus; return whether it was."""
        if not is_surplus((await source.read(ledger_id)).metadata, self._bookie_id):
            return False
        await self._unreleased.release_all()
        lock = await ReplicationLock.try_take(
            self._store,
            ledger_id,
            holder=self._bookie_id,
            random=self._random,
            unclear=self._unreleased,
            root=self._root,
        )
        if lock is None:
            return False  # it is being re-replicated, perhaps to this bookie
        try:
            metadata = (await source.read(ledger_id)).metadata
            if not is_surplus(metadata, self._bookie_id) or not await lock.is_held():
                return False
            if not self._ledgers.delete(ledger_id, self._clock.monotonic_s()):
                return False
            _log.info("surplus_ledger_deleted", ledger_id=ledger_id)
            self._metrics.surplus_ledgers += 1
            return True
        finally:
            await self._unreleased.release(lock)
