"""First step after a loss of data, before the bookie serves, so that it never gives a wrong answer.

The pass goes through the metadata of all ledgers. For each ledger that names this bookie, it puts a
state into the storage, in limbo: entries that the bookie acknowledged may be gone, so no missing
entry is proven absent. The ledger is fenced, too, unless it is open and its last fragment names
only other bookies. The fence that a recovery relies on may be among the lost data, and an ordinary
add that slips in behind it would be acknowledged and lost (defects D14, D16).

Open ledgers whose last fragment does not name the bookie are remembered: of all present ledgers,
only they may come to this bookie with ordinary adds (`requests/past_ledgers.py`).

A ledger whose metadata cannot be read by this release may name the bookie: it is treated as if it
did. If the listing, or one read, fails for another reason, the pass fails and the bookie does not
start. Repeating the pass changes nothing. Source: storage sheet, section 13.
"""

import asyncio
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import structlog

from magnetar.bookie.disks.directories import BookieDirectories
from magnetar.bookie.integrity.horizon_file import write_horizon
from magnetar.bookie.integrity.loss_mark import LossMark, write_marks
from magnetar.bookie.integrity.own_entries import names_bookie
from magnetar.bookie.journaling.journal_format import mark_name
from magnetar.bookie.requests.past_ledgers import LossHorizon
from magnetar.bookie.storage import LedgerState as StoredState
from magnetar.bookie.storage import LedgerStorage
from magnetar.ledger.digest import master_key
from magnetar.ledger.errors import InvalidLedgerMetadataError, NoSuchLedgerError
from magnetar.ledger.ledger_manager import LedgerManager
from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.ledger.ports import Clock, Disk, Worker

_log = structlog.get_logger(__name__)

_READS_AT_ONCE = 64
_FLUSH_LEDGERS = 100_000
"""States that are put before a flush."""


@dataclass(frozen=True, slots=True)
class LossReport:
    """Result of the pass."""

    ledgers: int
    """All ledgers of the cluster."""
    limbo: int
    fenced: int


class LossPass:
    """One pass. The storage is open, and nothing was replayed yet."""

    def __init__(
        self,
        bookie_id: str,
        storage: LedgerStorage,
        manager: LedgerManager,
        *,
        directories: BookieDirectories,
        disk: Disk,
        clock: Clock,
        worker: Worker,
    ) -> None:
        self._bookie_id = bookie_id
        self._storage = storage
        self._manager = manager
        self._directories = directories
        self._disk = disk
        self._clock = clock
        self._worker = worker
        self._ledgers = 0
        self._highest = -1
        self._open: list[int] = []
        self._limbo = 0
        self._fenced = 0

    async def run(self, lost: Sequence[str]) -> LossReport:
        """Run the pass; its results are durable on return.

        Args:
            lost: the directories that were found empty.

        Raises:
            LedgerError: the metadata could not be read completely; the bookie must not start.
            StorageError, OSError: the states could not be written; the bookie must not start.
        """
        mark = LossMark(since_ms=self._clock.wall_ms(), lost=list(lost), is_noted=False)
        await self._worker.run(partial(write_marks, self._disk, self._directories.ledgers, mark))
        await self._worker.run(partial(self._forget_journals, lost))
        unflushed = 0
        # A metadata server that is behind would not list the newest ledgers of this bookie.
        await self._manager.catch_up()
        async for found in self._manager.ledger_ranges():
            ids = found.ledger_ids
            for at in range(0, len(ids), _READS_AT_ONCE):
                some = ids[at : at + _READS_AT_ONCE]
                await asyncio.gather(*map(self._put_record, some))
                unflushed += len(some)
            if unflushed >= _FLUSH_LEDGERS:
                await self._storage.flush()
                unflushed = 0
        await self._storage.flush()
        horizon = LossHorizon(self._highest, frozenset(self._open))
        await self._worker.run(
            partial(write_horizon, self._disk, self._directories.ledgers, horizon)
        )
        noted = mark.model_copy(update={"is_noted": True})
        await self._worker.run(partial(write_marks, self._disk, self._directories.ledgers, noted))
        report = LossReport(self._ledgers, self._limbo, self._fenced)
        _log.warning(
            "data_was_lost",
            bookie=self._bookie_id,
            lost=list(lost),
            ledgers=report.ledgers,
            limbo=report.limbo,
            fenced=report.fenced,
        )
        return report

    def _forget_journals(self, lost: Sequence[str]) -> None:
        """Remove the last marks of lost journals, which point nowhere: replay begins with new
        records.

        The mark of an existing journal stays valid: limbo covers the entries before it that were
        lost with a ledger directory.
        """
        for number, journal in enumerate(self._directories.journals):
            if journal not in lost:
                continue
            for directory in self._directories.ledgers:
                try:
                    self._disk.remove(posixpath.join(directory, mark_name(number)))
                except FileNotFoundError:
                    continue
                self._disk.sync_directory(directory)

    async def _put_record(self, ledger_id: int) -> None:
        self._ledgers += 1
        self._highest = max(self._highest, ledger_id)
        try:
            metadata = (await self._manager.read(ledger_id)).metadata
        except NoSuchLedgerError:
            return  # deleted since the listing
        except InvalidLedgerMetadataError as error:
            _log.error("metadata_unreadable", ledger_id=ledger_id, error=str(error))
            self._put(ledger_id, fenced=True)
            return
        if names_bookie(metadata, self._bookie_id):
            fenced = must_be_fenced(metadata, self._bookie_id)
            self._put(ledger_id, fenced=fenced, key=master_key(metadata.password))
        if not must_be_fenced(metadata, self._bookie_id):
            self._open.append(ledger_id)

    def _put(self, ledger_id: int, *, fenced: bool, key: bytes = b"") -> None:
        """Put a ledger into limbo. `key`: its master key, used if the state has none."""
        state = self._storage.state(ledger_id) or StoredState(b"", False, -1)
        state = replace(
            state,
            master_key=state.master_key or key,
            limbo=True,
            fenced=state.fenced or fenced,
        )
        self._storage.put_state(ledger_id, state)
        self._limbo += 1
        self._fenced += state.fenced


def must_be_fenced(metadata: LedgerMetadata, bookie_id: str) -> bool:
    """Return whether an ordinary add to the ledger could do harm here.

    An open ledger whose last fragment does not name the bookie is not fenced: its writer may choose
    the bookie again, and was never fenced on it.
    """
    is_open = metadata.state is LedgerState.OPEN
    return not is_open or bookie_id in metadata.last_fragment.bookies
