"""Deletes the ledgers whose metadata is gone.

One collection: the cluster must be the one that our data belongs to; snapshot of the local ledgers;
listing of the metadata; what it lacks are candidates, unless the listing is not plausible
(`dead_ledgers.py`); the metadata of each candidate is read, and only an explicit "no such ledger"
deletes it (rule 10.1). A store that records deletions must have one of it: without, the metadata
lost the ledger, and this copy may be the last trace of it. There the brake asks nothing of shares,
since a topic that is deleted may well have had all ledgers: it ends a round that meets many ledgers
without a record. Where the store records none, and many of few ledgers are missing at once, each
must have been missing for a while (`Brake.patience_s`). Any error deletes nothing.

Deleting is to forget: what requests know, the caches and the state at once, the index with the
flush at the end. The bytes in the entry logs go when that is durable, and not here.

A ledger cannot come to life between confirmation and deletion: its metadata is made before its
first entry, and ids are never used again.
"""

from collections.abc import AsyncIterator, Callable
from typing import Protocol

import structlog
from pyroaring import BitMap64

from magnetar.bookie.errors import ImplausibleListingError
from magnetar.bookie.gc.dead_ledgers import Brake, DeadLedgerSearch
from magnetar.bookie.gc.id_slices import id_set_of
from magnetar.bookie.gc.metadata_calls import MetadataCalls
from magnetar.bookie.metrics import GcMetrics
from magnetar.bookie.requests.fencing import LedgerTable
from magnetar.bookie.storage import LedgerStorage
from magnetar.ledger.errors import InvariantError, LedgerError, NoSuchLedgerError
from magnetar.ledger.layouts.ledger_layout import LedgerRange
from magnetar.ledger.ledger_manager import VersionedLedger
from magnetar.ledger.ports import Clock

_log = structlog.get_logger(__name__)

_DELETIONS_PER_FLUSH = 10_000
UNRECORDED_MAX = 100
"""Ledgers that the metadata lost, after which a round asks for no more: each costs a line."""


class LedgerSource(Protocol):
    """What is asked of the ledger manager; see there."""

    async def catch_up(self) -> None: ...

    def ledger_ranges(self) -> AsyncIterator[LedgerRange]: ...

    async def read(self, ledger_id: int) -> VersionedLedger: ...

    @property
    def records_deletions(self) -> bool: ...

    async def is_deleted(self, ledger_id: int) -> bool: ...


class LedgerCollector:
    """Collects the dead ledgers of one bookie."""

    def __init__(
        self,
        storage: LedgerStorage,
        ledgers: LedgerTable,
        *,
        calls: MetadataCalls,
        brake: Brake,
        clock: Clock,
        metrics: GcMetrics,
        known_ledgers: Callable[[], list[int]] | None = None,
    ) -> None:
        """`known_ledgers` gives the local ledgers in any order, faster than the storage does."""
        self._known_ledgers = known_ledgers or storage.ledger_ids
        self._storage = storage
        self._ledgers = ledgers
        self._calls = calls
        self._brake = brake
        self._clock = clock
        self._metrics = metrics
        self._missing_since_s: dict[int, float] = {}
        """Of the few ledgers that were missing in the last round."""

    async def collect(self, source: LedgerSource, *, accept_vanished: bool = False) -> int:
        """One collection; returns how many ledgers were deleted, durably.

        Args:
            accept_vanished: a person said that many ledgers, or all, have really been deleted: no
                brake. Each is confirmed all the same.

        Raises:
            ImplausibleListingError, ForeignMetadataError, LedgerError: nothing was deleted, or what
                a record says was, before `UNRECORDED_MAX` ledgers came that have none.
            StorageError: the flush failed; the ledgers are gone from memory, and from the disk
                with the next flush.
        """
        # A share of 1 is how an operator says so for a whole run.
        accept_vanished = accept_vanished or self._brake.vanish_share_max >= 1
        candidates = await self.candidates(source, accept_vanished=accept_vanished)
        if not accept_vanished and not source.records_deletions:
            candidates = self._patiently(candidates)
        # Once more: the listing may have taken minutes.
        await self._calls.check_instance()
        deleted = 0
        unrecorded_before = self._metrics.unrecorded_ledgers
        for ledger_id in candidates:
            if self._metrics.unrecorded_ledgers - unrecorded_before >= UNRECORDED_MAX:
                break
            if not await self._is_dead(source, ledger_id, accept_vanished=accept_vanished):
                continue
            if not self._ledgers.delete(ledger_id, self._clock.monotonic_s()):
                continue  # in use at this very moment: next time
            _log.debug("ledger_deleted", ledger_id=ledger_id)
            self._metrics.deleted_ledgers += 1
            deleted += 1
            if deleted % _DELETIONS_PER_FLUSH == 0:
                await self._storage.flush()
        if deleted:
            await self._storage.flush()
            _log.info("ledgers_deleted", ledgers=deleted)
        unrecorded = self._metrics.unrecorded_ledgers - unrecorded_before
        if unrecorded >= UNRECORDED_MAX:
            raise ImplausibleListingError(
                f"the metadata store lacks at least {unrecorded} ledgers of this bookie without a "
                "record that they were deleted: they are kept, the metadata lost them"
            )
        return deleted

    def _patiently(self, candidates: list[int]) -> list[int]:
        """The candidates without those that vanished with most of the few others, just now."""
        brake, local = self._brake, len(self._known_ledgers())
        if local > brake.ledgers_min or len(candidates) <= brake.vanish_share_max * local:
            self._missing_since_s.clear()
            return candidates
        now_s = self._clock.monotonic_s()
        since_s = {each: self._missing_since_s.get(each, now_s) for each in candidates}
        self._missing_since_s = since_s
        gone = [each for each in candidates if now_s - since_s[each] >= brake.patience_s]
        if len(gone) < len(candidates):
            self._metrics.brakes += 1
            _log.warning(
                "ledgers_vanished",
                ledgers=len(candidates),
                of=local,
                patience_s=brake.patience_s,
            )
        return gone

    async def candidates(self, source: LedgerSource, *, accept_vanished: bool = False) -> list[int]:
        """The local ledgers that the metadata does not list, ascending. Changes nothing.

        Raises:
            ImplausibleListingError, ForeignMetadataError, LedgerError
        """
        local = await id_set_of(self._known_ledgers())
        brake = None if accept_vanished else self._brake
        return await missing_ledgers(local, source, self._calls, brake)

    async def _is_dead(
        self, source: LedgerSource, ledger_id: int, *, accept_vanished: bool
    ) -> bool:
        await self._calls.wait_turn()
        try:
            try:
                await source.read(ledger_id)
            except NoSuchLedgerError:
                if accept_vanished or await source.is_deleted(ledger_id):
                    return True
                self._metrics.unrecorded_ledgers += 1
                _log.error("ledger_lost_by_metadata", ledger_id=ledger_id)
                return False
        except LedgerError as error:
            self._metrics.unconfirmed_ledgers += 1
            _log.warning("ledger_deletion_unconfirmed", ledger_id=ledger_id, error=str(error))
            return False
        self._metrics.listed_in_error += 1
        _log.error("ledger_missing_in_listing", ledger_id=ledger_id)
        return False


async def missing_ledgers(
    local_ids: BitMap64, source: LedgerSource, calls: MetadataCalls, brake: Brake | None
) -> list[int]:
    """The local ledgers, looked at before, that the metadata does not list, ascending.

    `local_ids` is used up; `brake` as in `DeadLedgerSearch.candidates`, and not used on a source
    that records deletions.

    Raises:
        ImplausibleListingError, ForeignMetadataError, LedgerError
    """
    await calls.check_instance()
    # Every local ledger had been created when the local ids were looked at. A metadata server that
    # is behind would neither list it nor confirm it.
    await source.catch_up()
    search = DeadLedgerSearch(local_ids)
    try:
        async for found in source.ledger_ranges():
            search.on_range(found)
            await calls.wait_turn()
    except InvariantError as error:
        # The manager checks its own listing too. A listing that is wrong is no reason to end the
        # process, and none to delete.
        raise ImplausibleListingError(f"the listing of ledgers is broken: {error}") from error
    return search.candidates(None if source.records_deletions else brake)
