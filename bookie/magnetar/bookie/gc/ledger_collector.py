"""Deletion of the ledgers whose metadata is gone.

One collection has these steps. Check that the metadata belongs to our data's cluster; take a
snapshot of the local ledgers; list the metadata. Ledgers that the listing lacks are candidates,
unless the listing is not plausible (`dead_ledgers.py`). Then read the metadata of each candidate:
only an explicit "no such ledger" deletes it (rule 10.1).

If the store records deletions, it must have such a record: without one, the metadata lost the
ledger, and this copy may be the last trace of it. The brake then does not look at shares, since a
deleted topic may well have had all ledgers: it ends a round that meets many ledgers without a
record. If the store does not record deletions, and many of few ledgers are missing at once, each
must have been missing for a while (`Brake.patience_s`). Any error deletes nothing.

A deletion removes the request state, the caches and the ledger state at once, and the index records
with the flush at the end. The bytes in the entry logs are removed after that is durable, and not
here.

A ledger cannot come to life between confirmation and deletion: its metadata is created before its
first entry, and ids are never reused.
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
"""Ledgers lost by the metadata after which a round checks no more: each one logs a line."""


class LedgerSource(Protocol):
    """The part of the ledger manager that is used here; it documents the methods."""

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
        """`known_ledgers` returns the local ledgers in any order, faster than the storage does."""
        self._known_ledgers = known_ledgers or storage.ledger_ids
        self._storage = storage
        self._ledgers = ledgers
        self._calls = calls
        self._brake = brake
        self._clock = clock
        self._metrics = metrics
        self._missing_since_s: dict[int, float] = {}
        """Of the few ledgers that were missing in the last round: when each was first missing."""

    async def collect(self, source: LedgerSource, *, accept_vanished: bool = False) -> int:
        """Run one collection; return how many ledgers were deleted, durably.

        Args:
            accept_vanished: an operator confirmed that many ledgers, or all, have really been
                deleted: no brake. The metadata of each is read all the same.

        Raises:
            ImplausibleListingError, ForeignMetadataError, LedgerError: nothing was deleted, or only
                ledgers with a record of their deletion, before `UNRECORDED_MAX` ledgers had none.
            StorageError: the flush failed; the ledgers are gone from memory, and from the disk
                with the next flush.
        """
        # A share of 1 is how an operator accepts vanished ledgers permanently.
        accept_vanished = accept_vanished or self._brake.vanish_share_max >= 1
        candidates = await self.candidates(source, accept_vanished=accept_vanished)
        if not accept_vanished and not source.records_deletions:
            candidates = self._patiently(candidates)
        # Check once more: the listing may have taken minutes.
        await self._calls.check_instance()
        deleted = 0
        unrecorded_before = self._metrics.unrecorded_ledgers
        for ledger_id in candidates:
            if self._metrics.unrecorded_ledgers - unrecorded_before >= UNRECORDED_MAX:
                break
            if not await self._is_dead(source, ledger_id, accept_vanished=accept_vanished):
                continue
            if not self._ledgers.delete(ledger_id, self._clock.monotonic_s()):
                continue  # its fence is being written: next time
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
            raise ImplausibleListingError(too_many_unrecorded(unrecorded))
        return deleted

    def _patiently(self, candidates: list[int]) -> list[int]:
        """Return the candidates without those that only lately vanished with most of a few
        ledgers."""
        brake, local = self._brake, len(self._known_ledgers())
        if not brake.asks_for_patience(missing=len(candidates), local=local):
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
        """Return the local ledgers that the metadata does not list, ascending. Changes nothing.

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


def too_many_unrecorded(unrecorded: int) -> str:
    """Describe why a round ends that met so many ledgers without a record of their deletion."""
    return (
        f"the metadata store lacks at least {unrecorded} ledgers of this bookie without a "
        "record that they were deleted: they are kept, the metadata lost them"
    )


async def missing_ledgers(
    local_ids: BitMap64, source: LedgerSource, calls: MetadataCalls, brake: Brake | None
) -> list[int]:
    """Return the ledgers of the snapshot `local_ids` that the metadata does not list, ascending.

    `local_ids` is consumed; `brake` as in `DeadLedgerSearch.candidates`, and ignored for a source
    that records deletions.

    Raises:
        ImplausibleListingError, ForeignMetadataError, LedgerError
    """
    await calls.check_instance()
    # Every local ledger was created before the snapshot of the local ids. A metadata server that is
    # behind would neither list it nor confirm it.
    await source.catch_up()
    search = DeadLedgerSearch(local_ids)
    try:
        async for found in source.ledger_ranges():
            search.on_range(found)
            await calls.wait_turn()
    except InvariantError as error:
        # The manager checks its own listing, too. A wrong listing is no reason to end the process,
        # and none to delete.
        raise ImplausibleListingError(f"the listing of ledgers is broken: {error}") from error
    return search.candidates(None if source.records_deletions else brake)
