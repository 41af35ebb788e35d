"""The writer's hold on its ledger's metadata: every compare-and-set it does, with every outcome.

Ensemble changes and the close go through here, one at a time, each computed from the value that it
is written against (rules 2.1 and 2.2). A conflict or an unknown outcome is resolved by reading back
and comparing with the proposal (rule 2.3, D26): only the writer appends fragments, so what is found
is the old last fragment, the proposal, or proof that somebody else acts on the ledger.

Between its own writes the writer watches the node. Once the ledger is no longer OPEN, or is
deleted, it withdraws at once instead of at its next refused add: after a decommissioning the
bookies that would refuse may have been replaced by ones that know nothing (D16, D17).

Source: ledger protocol, sections 2.3, 5 (step 6) and 6.
"""

import asyncio
from collections.abc import Callable

import structlog

from magnetar.ledger.errors import (
    BadVersionError,
    InvalidLedgerMetadataError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    LedgerWriteError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    UnknownOutcomeError,
)
from magnetar.ledger.ledger_manager import LedgerManager, VersionedLedger
from magnetar.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.metadata.store import Watch, WatchEvent
from magnetar.ledger.ports import Clock
from magnetar.ledger.settings import LedgerSettings

_log = structlog.get_logger(__name__)


class WriterMetadata:
    """The metadata of a ledger that is being written."""

    def __init__(
        self,
        ledger: VersionedLedger,
        *,
        manager: LedgerManager,
        clock: Clock,
        settings: LedgerSettings,
        on_superseded: Callable[[LedgerError], None],
    ) -> None:
        self._ledger = ledger
        self._manager = manager
        self._clock = clock
        self._settings = settings
        self._on_superseded = on_superseded
        self._proposal: Fragment | None = None
        """A fragment whose write was begun, and may have happened."""
        self._is_writing = False
        self._given_up = 0
        """How many times the handle was given up: what was begun before is not tried again."""
        self._was_changed = False
        """The node changed, by us or by others, since it was last read or written."""
        self._checking: asyncio.Task[None] | None = None
        self._watch: Watch | None = manager.watch(self.current.ledger_id, self._on_event)

    @property
    def current(self) -> LedgerMetadata:
        """The latest value known to be committed."""
        return self._ledger.metadata

    async def commit_ensemble(self, first_entry_id: int, bookies: tuple[str, ...]) -> None:
        """Make `bookies` the ensemble from an entry on; returns when that is certain.

        Raises:
            LedgerFencedError: the ledger is recovered or closed by another client.
            LedgerWriteError: another client changed the ensemble, or the metadata store was away
                for `ensemble_change_timeout_s`.
            LedgerClosedError: the handle was given up meanwhile.
            NoSuchLedgerError, MetadataError
        """
        deadline_s = self._clock.monotonic_s() + self._settings.ensemble_change_timeout_s
        ledger = self._ledger
        before = ledger.metadata.last_fragment
        proposal = Fragment(first_entry_id, bookies)
        given_up = self._given_up
        self._is_writing = True
        try:
            for _ in range(self._settings.metadata_retries_max):
                self._proposal = proposal
                try:
                    self._ledger = await self._manager.write(
                        ledger.metadata.with_ensemble(first_entry_id, bookies),
                        version=ledger.version,
                    )
                except (BadVersionError, UnknownOutcomeError):
                    ledger = await self._read_again(deadline_s)
                    self._check_kept(given_up)
                    self._check_open(ledger.metadata)
                    found = ledger.metadata.last_fragment
                    if found == proposal:
                        self._ledger = ledger  # our own write, whose reply was lost
                    elif found == before:
                        continue  # not written, or an earlier fragment was re-replicated
                    else:
                        raise self._foreign_ensemble(found) from None
                except MetadataUnavailableError as error:
                    await self._pause(deadline_s, error)
                    self._check_kept(given_up)
                    continue
                self._proposal = None
                return
            raise LedgerWriteError(
                f"ledger {self.current.ledger_id}: no ensemble change in "
                f"{self._settings.metadata_retries_max} tries"
            )
        finally:
            self._end_writing()

    async def close(self, last_entry_id: int, length: int) -> LedgerMetadata:
        """Close the ledger at its last add confirmed; returns the final metadata.

        Raises:
            LedgerFencedError: another client recovers the ledger, or has closed it differently.
            LedgerWriteError: another client changed the ensemble.
            NoSuchLedgerError: it was deleted.
            LedgerClosedError: the handle was given up meanwhile.
            MetadataUnavailableError and other MetadataErrors: call again.
        """
        # From here on it is the close that judges what it finds. A watch would take its own write,
        # or an ensemble change that was given up, for another client's when a try has failed.
        self.stop_watching()
        ledger = self._ledger
        ours = {ledger.metadata.last_fragment, self._proposal or ledger.metadata.last_fragment}
        given_up = self._given_up
        self._is_writing = True
        try:
            for _ in range(self._settings.metadata_retries_max):
                metadata = ledger.metadata
                if metadata.state is LedgerState.CLOSED:
                    if (metadata.last_entry_id, metadata.length) == (last_entry_id, length):
                        break  # our own write whose reply was lost, or one that agrees
                    raise LedgerFencedError(
                        f"ledger {metadata.ledger_id} was closed by another client at entry "
                        f"{metadata.last_entry_id}, length {metadata.length}; this writer had "
                        f"confirmed entry {last_entry_id}, length {length}. Read the end of the "
                        f"log again before writing to it"
                    )
                self._check_open(metadata)
                if metadata.last_fragment not in ours:
                    raise self._foreign_ensemble(metadata.last_fragment)
                try:
                    ledger = await self._manager.write(
                        metadata.closed(last_entry_id=last_entry_id, length=length),
                        version=ledger.version,
                    )
                    break
                except (BadVersionError, UnknownOutcomeError):
                    ledger = await self._manager.read(metadata.ledger_id)
                    self._check_kept(given_up)
            else:
                raise MetadataUnavailableError(
                    f"ledger {self.current.ledger_id}: not closed in "
                    f"{self._settings.metadata_retries_max} tries; call again"
                )
            self._ledger = ledger
            return ledger.metadata
        finally:
            self._end_writing()

    def give_up(self) -> None:
        """Try no write again that is under way: its first try may succeed yet."""
        self._given_up += 1
        self.stop_watching()

    def _check_kept(self, given_up: int) -> None:
        if given_up != self._given_up:
            raise LedgerClosedError(f"ledger {self.current.ledger_id}: its handle was given up")

    def _check_open(self, metadata: LedgerMetadata) -> None:
        if metadata.state is LedgerState.IN_RECOVERY:
            # Rule 6.1: closing it ourselves could take back what the recovery exposed.
            raise LedgerFencedError(
                f"ledger {metadata.ledger_id} is being recovered by another client, which decides "
                f"where it ends; stop writing, and read its end when it is closed"
            )
        if metadata.state is LedgerState.CLOSED:
            raise LedgerFencedError(
                f"ledger {metadata.ledger_id} was closed by another client at entry "
                f"{metadata.last_entry_id}; stop writing: what was added behind it is no part of it"
            )

    def _foreign_ensemble(self, found: Fragment) -> LedgerWriteError:
        return LedgerWriteError(
            f"ledger {self.current.ledger_id}: another client set the ensemble from entry "
            f"{found.first_entry_id} to {', '.join(found.bookies)}; two writers act on it"
        )

    async def _read_again(self, deadline_s: float) -> VersionedLedger:
        while True:
            try:
                return await self._manager.read(self.current.ledger_id)
            except MetadataUnavailableError as error:
                await self._pause(deadline_s, error)

    async def _pause(self, deadline_s: float, error: MetadataUnavailableError) -> None:
        if self._clock.monotonic_s() >= deadline_s:
            raise LedgerWriteError(
                f"ledger {self.current.ledger_id}: the metadata store was away for "
                f"{self._settings.ensemble_change_timeout_s} s during an ensemble change: {error}"
            ) from error
        await asyncio.sleep(self._settings.metadata_retry_delay_s)

    # Watching ------------------------------------------------------------------------------------

    def stop_watching(self) -> None:
        """The handle has ended: what happens to the metadata is no longer its concern."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._checking is not None and self._checking is not asyncio.current_task():
            self._checking.cancel()

    def _on_event(self, event: WatchEvent) -> None:
        self._was_changed = True
        self._start_check()

    def _end_writing(self) -> None:
        self._is_writing = False
        self._start_check()

    def _start_check(self) -> None:
        # A write under way hears of a conflict by itself, and it is the one to judge it.
        if self._was_changed and self._watch and not self._checking and not self._is_writing:
            self._checking = asyncio.get_running_loop().create_task(
                self._check(), name=f"check-ledger-{self.current.ledger_id}"
            )

    async def _check(self) -> None:
        try:
            while self._was_changed and self._watch is not None and not self._is_writing:
                self._was_changed = False
                try:
                    self._judge(await self._manager.read(self.current.ledger_id))
                except (NoSuchLedgerError, InvalidLedgerMetadataError) as error:
                    self._on_superseded(error)
                except MetadataError as error:
                    _log.warning(
                        "ledger_check_failed", ledger_id=self.current.ledger_id, error=str(error)
                    )
                    self._was_changed = True
                    await asyncio.sleep(self._settings.metadata_retry_delay_s)
        finally:
            self._checking = None
            self._start_check()

    def _judge(self, found: VersionedLedger) -> None:
        if self._watch is None or self._is_writing or found.version <= self._ledger.version:
            return
        try:
            self._check_open(found.metadata)
            if found.metadata.last_fragment != self.current.last_fragment:
                raise self._foreign_ensemble(found.metadata.last_fragment)
        except LedgerError as error:
            self._on_superseded(error)
        else:
            self._ledger = found  # replicas of earlier fragments have moved
