"""The writer's changes of its ledger's metadata by compare-and-set, whatever their outcome.

Ensemble changes and the close are made here, one at a time. Each is computed from the value that it
is written against (rules 2.1 and 2.2). After a conflict or an unknown outcome, the writer reads the
value back and compares it with the proposal (rule 2.3, D26). Only the writer appends fragments. So
it finds the old last fragment, the proposal, or proof that another client acts on the ledger.

Between its own writes the writer watches the node. Once the ledger is no longer OPEN, or is
deleted, it withdraws at once instead of at its next refused add. After a decommissioning, the
bookies that would refuse may have been replaced by bookies that do not know of the fence (D16,
D17).

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
        """A fragment whose write was started, and may have happened."""
        self._is_writing = False
        self._given_up = 0
        """Number of times that the handle was abandoned: writes started before are not retried."""
        self._was_changed = False
        """Whether the node changed since it was last read or written, by any client."""
        self._checking: asyncio.Task[None] | None = None
        self._watch: Watch | None = manager.watch(self.current.ledger_id, self._on_event)

    @property
    def current(self) -> LedgerMetadata:
        """The latest value known to be committed."""
        return self._ledger.metadata

    async def commit_ensemble(self, first_entry_id: int, bookies: tuple[str, ...]) -> None:
        """Make `bookies` the ensemble from an entry on; return when that is certain.

        Raises:
            LedgerFencedError: the ledger is recovered or closed by another client.
            LedgerWriteError: another client changed the ensemble, or the metadata store was
                unavailable for `ensemble_change_timeout_s`.
            LedgerClosedError: the handle was abandoned meanwhile.
            InvalidLedgerMetadataError: another process wrote metadata that breaks a rule.
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
                        self._ledger = ledger  # this writer's own write, whose reply was lost
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
        """Close the ledger at its last add confirmed; return the final metadata.

        Raises:
            LedgerFencedError: another client recovers the ledger, or has closed it differently.
            LedgerWriteError: another client changed the ensemble.
            NoSuchLedgerError: the ledger was deleted.
            LedgerClosedError: the handle was abandoned meanwhile.
            InvalidLedgerMetadataError: another process wrote metadata that breaks a rule.
            MetadataUnavailableError and other MetadataErrors: call again.
        """
        # From here on, the close itself judges the values that it reads. After a failed attempt, a
        # watch would mistake its own write, or an abandoned ensemble change, for another client's.
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
                        break  # this writer's own write, whose reply was lost, or one that agrees
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
        """Do not retry writes in progress; a first attempt may still succeed."""
        self._given_up += 1
        self.stop_watching()

    def _check_kept(self, given_up: int) -> None:
        if given_up != self._given_up:
            raise LedgerClosedError(f"ledger {self.current.ledger_id}: its handle was given up")

    def _check_open(self, metadata: LedgerMetadata) -> None:
        if metadata.state is LedgerState.IN_RECOVERY:
            # Rule 6.1: closing the ledger here could take back what the recovery exposed.
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
        """Stop watching the metadata: the handle has ended."""
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
        # A write in progress detects a conflict by itself, and has to judge it.
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
