"""Completion of every ledger that a loss left in limbo, in the background.

The check goes ledger by ledger, so that the entries of one stay together. A ledger that is not
closed, is fenced here, and names this bookie in its last fragment is recovered: its writer cannot
continue. Then the entries that belong here are compared with the index, and missing ones are copied
from the other bookies, through the journal. A ledger that is complete leaves limbo. When all are,
everything is flushed and the mark of the loss is removed. Failed steps are retried, with delays,
for as long as it takes; until then the bookie never says that an entry of that ledger is absent.

If a ledger's writer continues on other bookies, this bookie can only have lost entries before the
last fragment, and those are complete. Source: storage sheet, section 13.
"""

import asyncio
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial

import structlog

from magnetar.bookie.errors import (
    NoSuchLedgerInStorageError,
    StorageClosedError,
    StorageError,
)
from magnetar.bookie.integrity.healer import RETRY_S_MAX
from magnetar.bookie.integrity.loss_mark import remove_marks
from magnetar.bookie.integrity.own_entries import confirmed_end, own_ranges, without
from magnetar.bookie.integrity.own_requests import OwnRequests
from magnetar.bookie.integrity.peers import Peers
from magnetar.bookie.integrity.restoring import restore
from magnetar.bookie.metrics import IntegrityMetrics
from magnetar.bookie.requests.fencing import LedgerTable
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.storage import LedgerStorage
from magnetar.ledger.backoff import backoff
from magnetar.ledger.digest import master_key
from magnetar.ledger.errors import LedgerError, NoSuchLedgerError
from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.ledger.ports import Disk, Worker
from magnetar.ledger.under_replication import Range

_log = structlog.get_logger(__name__)

_LIST_BITMAP_BYTES = 4096
_LEDGERS_PER_TURN = 1000


class FullCheck:
    """The check after a loss. Owned by the event loop."""

    def __init__(
        self,
        bookie_id: str,
        *,
        storage: LedgerStorage,
        ledgers: LedgerTable,
        peers: Peers,
        requests: OwnRequests,
        flush: Callable[[], Awaitable[None]],
        ledger_directories: Sequence[str],
        disk: Disk,
        worker: Worker,
        metrics: IntegrityMetrics,
        settings: BookieSettings,
    ) -> None:
        self._bookie_id = bookie_id
        self._storage = storage
        self._ledgers = ledgers
        self._peers = peers
        self._requests = requests
        self._flush = flush
        self._directories = ledger_directories
        self._disk = disk
        self._worker = worker
        self._metrics = metrics
        self._settings = settings

    async def run(self) -> None:
        """Run rounds until nothing is left to do."""
        failures = 0
        try:
            while not await self.run_round():
                failures += 1
                await asyncio.sleep(backoff(self._settings.heal_retry_s, failures, RETRY_S_MAX))
        except StorageClosedError:
            return  # the bookie stops
        self._metrics.check_needed = 0
        _log.warning("loss_is_made_good", bookie=self._bookie_id)

    async def run_round(self) -> bool:
        """Check every ledger in limbo once; return whether all are complete and durable."""
        limbo = await self._find_limbo()
        self._metrics.limbo_ledgers = len(limbo)
        left = 0
        for ledger_id in limbo:
            if await self._make_whole(ledger_id):
                self._metrics.limbo_ledgers -= 1
            else:
                self._metrics.check_failures += 1
                left += 1
        try:
            await self._flush()
            if left == 0:
                await self._worker.run(partial(remove_marks, self._disk, self._directories))
        except StorageClosedError:
            raise
        except (StorageError, OSError) as error:
            _log.warning("integrity_check_not_flushed", error=str(error))
            return False
        return left == 0

    async def _find_limbo(self) -> "array[int]":
        """Return the ledgers in limbo, ascending; a million ledgers take steps, so that other tasks
        run."""
        limbo = array("q")
        for number, ledger_id in enumerate(self._storage.ledger_ids()):
            if self._is_in_limbo(ledger_id):
                limbo.append(ledger_id)
            if number % _LEDGERS_PER_TURN == 0:
                await asyncio.sleep(0)
        return limbo

    def _is_in_limbo(self, ledger_id: int) -> bool:
        state = self._storage.state(ledger_id)
        return state is not None and state.limbo

    async def _make_whole(self, ledger_id: int) -> bool:
        """Copy the missing entries of a ledger; return whether nothing is missing any more."""
        try:
            metadata = await self._settled_metadata(ledger_id)
            is_whole = await self._copy_missing(metadata)
        except NoSuchLedgerError:
            return True  # garbage collection deletes it; no client reads it any more
        except StorageClosedError:
            raise
        except (LedgerError, StorageError) as error:
            _log.warning("ledger_stays_in_limbo", ledger_id=ledger_id, error=str(error))
            return False
        if is_whole:
            self._ledgers.leave_limbo(ledger_id, master_key(metadata.password))
        return is_whole

    async def _settled_metadata(self, ledger_id: int) -> LedgerMetadata:
        """Return the metadata; first recover an open ledger for which this bookie is fenced.

        Raises:
            LedgerError: the metadata cannot be read, or the ledger cannot be recovered now.
        """
        metadata = await self._peers.metadata(ledger_id)
        state = self._storage.state(ledger_id)
        is_writable_elsewhere = self._bookie_id not in metadata.last_fragment.bookies
        if metadata.state is LedgerState.CLOSED or is_writable_elsewhere:
            return metadata
        if state is not None and not state.fenced:
            return metadata  # the writer came back to this bookie after the loss
        metadata = await self._peers.recover(ledger_id)
        self._metrics.recovered_ledgers += 1
        return metadata

    async def _copy_missing(self, metadata: LedgerMetadata) -> bool:
        """Copy the missing entries; return whether all could be copied.

        Raises:
            StorageError: the stored entries cannot be read.
        """
        is_whole = True
        end = confirmed_end(metadata)
        for wanted in own_ranges(metadata, self._bookie_id, last=end):
            async for missing in self._missing(metadata.ledger_id, wanted):
                self._metrics.missing_entries += missing[1] - missing[0] + 1
                restored = await restore(metadata, missing, self._peers, self._requests)
                self._metrics.copied_entries += restored.entries
                self._metrics.copied_bytes += restored.bytes
                if restored.missing or restored.lost:
                    is_whole = False
                    await self._note_failure(metadata.ledger_id, restored.lost, restored.reason)
                if restored.is_interrupted:
                    return False
                await asyncio.sleep(restored.bytes / self._settings.integrity_copy_bytes_per_s_max)
        return is_whole

    async def _note_failure(self, ledger_id: int, lost: Sequence[Range], reason: str) -> None:
        _log.warning("entries_not_copied", ledger_id=ledger_id, lost=list(lost), reason=reason)
        for first, last in lost:
            await self._peers.list_for_repair(ledger_id, first, last, reason)

    async def _missing(self, ledger_id: int, wanted: Range) -> AsyncIterator[Range]:
        """Yield the parts of a range that are not stored here, page by page of the list."""
        at, last = wanted
        while at <= last:
            try:
                page = await self._storage.list_entries(ledger_id, at, _LIST_BITMAP_BYTES)
            except NoSuchLedgerInStorageError:
                yield at, last
                return
            held = page.entry_ids()
            # The page covers everything up to the start of the next one.
            stop = last if page.next_entry_id == -1 else min(last, page.next_entry_id - 1)
            for missing in without((at, stop), held):
                yield missing
            at = stop + 1
