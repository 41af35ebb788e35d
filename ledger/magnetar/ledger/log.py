"""The managed log: an unbounded log made of ledgers, with one owner at a time.

One metadata node holds the list of ledgers. It changes by compare-and-set only (`log_list.py`).
Opening the log for writing takes it over (`log_takeover.py`). Batches are reported in the order of
their appends (`log_appender.py`). When a ledger is full, appends go on in the next one without a
pause. When a ledger fails, it is closed at a known last entry before anything else is written
(`log_changes.py`). No entry goes into a ledger before the list names that ledger (rule 2.2). So no
entry is in the log twice, out of order, or unreachable.

`log_reader.py` reads a log without owning it. Cursors, trimming decisions and caching are not part
of this component.

Source: managed ledger, sections 1 to 4, 8 and 9.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import structlog

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import (
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    LogClosedError,
    LogError,
    LogFencedError,
    LogTerminatedError,
    LogUnavailableError,
    NoSuchLedgerError,
)
from magnetar.ledger.managed_log.closed_ledgers import ClosedLedgers
from magnetar.ledger.managed_log.log_appender import AppendBatch, AppendState, LogAppender
from magnetar.ledger.managed_log.log_changes import LedgerChanges
from magnetar.ledger.managed_log.log_extent import stored_since_ms
from magnetar.ledger.managed_log.log_ledgers import LogLedgers, LogShrink
from magnetar.ledger.managed_log.log_list import LogList
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.managed_log.log_object_changes import LogObjectChanges
from magnetar.ledger.managed_log.log_reads import OwnerReads
from magnetar.ledger.managed_log.log_retention import Retention, trim_point
from magnetar.ledger.managed_log.log_takeover import MayOwn, always, claim, take_over
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import Position
from magnetar.ledger.settings import LogConfig

log = structlog.get_logger()

__all__ = ["AppendBatch", "LogEntry", "ManagedLog"]


class LogEntry(NamedTuple):
    """One entry of a log."""

    position: Position
    payload: bytes


class ManagedLog:
    """The owner's handle of a log. Make one with `ManagedLog.open` or `ManagedLog.create`."""

    def __init__(
        self,
        client: LedgerClient,
        store: MetadataStore,
        path: str,
        config: LogConfig,
        *,
        clock: Clock,
        random: random.Random,
    ) -> None:
        self.path = path
        self._client = client
        self._config = config
        self._clock = clock
        self._random = random
        self._list = LogList(store, path, properties=config.properties)
        self._ledgers = LogLedgers(client, path, config, lambda: self._list.properties)
        self._appender = LogAppender(path, config, clock=clock, random=random)
        self._changes = LedgerChanges(
            path, self._appender, self._list, self._ledgers, config, clock
        )
        self._appender.events = self._changes
        self._closed = ClosedLedgers(client, path, lambda: self._list, password=config.password)
        self._reads = OwnerReads(self._appender, self._closed)
        self._shrink = LogShrink(path, self._list, self._appender, self._ledgers)
        self.objects = LogObjectChanges(self._list, self._appender, self._ledgers)
        """Changes of where the log's ledgers lie in object stores, for the offloader."""
        self._end_lock = asyncio.Lock()
        self._is_closed = False

    # Opening -------------------------------------------------------------------------------------

    @classmethod
    async def open(
        cls,
        client: LedgerClient,
        store: MetadataStore,
        path: str,
        config: LogConfig,
        *,
        clock: Clock,
        random: random.Random,
        must_exist: bool = False,
        may_own: MayOwn = always,
    ) -> "ManagedLog":
        """Take over the log; create it if it does not exist. A terminated log can only be read.

        Args:
            may_own: called right before each recovery begins and right before each write of the
                list. If it returns False, the log is left to its present owner.

        Raises:
            NoSuchLogError: the log does not exist, and `must_exist` is set.
            LogFencedError: another owner opened the log at the same time and was faster, or
                `may_own` returned False. Open it again only if this process should still own it:
                two owners that always reopen fence each other for ever.
            LogDataLossError: a ledger of the list has no metadata any more.
            UnauthorizedError: the password is not that of the log's ledgers.
            FutureLogFormatError, InvalidLedgerMetadataError: this release cannot use the list.
            RecoveryUndecidedError, NotEnoughBookiesError, MetadataError: try again later.
        """
        self = cls(client, store, path, config, clock=clock, random=random)
        await self._list.load(may_create=not must_exist)
        await self._take_over(may_own)
        return self

    @classmethod
    async def create(
        cls,
        client: LedgerClient,
        store: MetadataStore,
        path: str,
        config: LogConfig,
        *,
        clock: Clock,
        random: random.Random,
    ) -> "ManagedLog":
        """Create a log, and open it.

        Raises:
            LogExistsError: a log exists at the path.
            LedgerError: see `open`; the log may then exist, and can be opened.
        """
        self = cls(client, store, path, config, clock=clock, random=random)
        await self._list.create(random)
        await self._take_over(always)
        return self

    async def _take_over(self, may_own: MayOwn) -> None:
        if self._config.opens_without_ledger and self._list.terminated is None:
            await claim(
                self.path,
                self._list,
                self._ledgers,
                self._client,
                clock=self._clock,
                random=self._random,
                password=self._config.password,
                may_own=may_own,
            )
            self._appender.start_idle(self._list.ledgers)
            return
        writer = await take_over(
            self.path,
            self._list,
            self._ledgers,
            self._client,
            clock=self._clock,
            password=self._config.password,
            may_own=may_own,
        )
        if writer is None:
            self._appender.end_complete(self._list.ledgers, self._why_terminated)
        else:
            self._appender.start(writer, self._list.ledgers)

    # Appending -----------------------------------------------------------------------------------

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not yet confirmed."""
        return self._appender.pending_bytes

    @property
    def pending_batches(self) -> int:
        """Number of batches appended whose outcome is not reported yet."""
        return self._appender.pending_batches

    def append(self, batch: AppendBatch) -> None:
        """Append a batch. Its callback runs later, in the order of the calls."""
        self._appender.append(batch)

    def prepare(self) -> None:
        """Create a ledger in the background, if the log was opened without one.

        The first append then finds it ready. If nothing is appended, the ledger is deleted after
        `unused_ledger_s`, or when the log closes.
        """
        self._appender.prepare()

    def on_fenced(self, callback: Callable[[], None]) -> None:
        """Run `callback` once when another owner has taken the log over."""
        self._appender.on_fenced(callback)

    async def rotate(self) -> None:
        """Switch to a new ledger; return once appends go there. Pending ones finish in the old.

        An empty ledger is kept. A full ledger is rotated automatically.

        Raises:
            LogFencedError, LogClosedError, LogTerminatedError: this handle takes no appends.
            LogUnavailableError: no new ledger within `repair_timeout_s`. Appends continue in the
                current ledger, and the rotation is still attempted.
        """
        self._check_open()
        rotated = self._changes.want_rotation(at_once=True)
        try:
            async with asyncio.timeout(self._config.repair_timeout_s):
                await asyncio.shield(rotated)
        except TimeoutError as error:
            raise LogUnavailableError(f"{self.path}: there is no new ledger yet") from error
        except LogError:
            raise
        except LedgerError as error:
            self._check_open()
            raise LogUnavailableError(f"{self.path}: no new ledger: {error}") from error

    def _check_open(self) -> None:
        refusal = self._appender.refusal()
        if refusal is not None:
            raise refusal

    # Positions and reading -----------------------------------------------------------------------

    @property
    def last_confirmed(self) -> Position:
        """The last confirmed entry; (ledger, -1) if the log holds none."""
        return self._appender.extent.last_confirmed

    @property
    def terminated(self) -> Position | None:
        """The last entry of a terminated log; None while the log takes appends."""
        return self._list.terminated

    @property
    def removed_through(self) -> int:
        """The last ledger that a shrink removed; -1 if none did."""
        return self._list.removed_through

    @property
    def ledgers(self) -> Sequence[LogLedger]:
        """The ledger list, with the current counters of open ledgers."""
        return [
            ledger if ledger.is_closed else self._counted(ledger) for ledger in self._list.ledgers
        ]

    def _counted(self, ledger: LogLedger) -> LogLedger:
        entries = self._appender.extent.entries(ledger.ledger_id)
        for writer in (self._appender.writer, self._appender.draining):
            if entries and writer is not None and writer.ledger_id == ledger.ledger_id:
                return replace(ledger, entries=entries, bytes=writer.length)
        return ledger

    @property
    def properties(self) -> dict[str, str]:
        return self._list.properties

    @property
    def ledger_created_ms(self) -> int:
        """Creation time of the ledger being written, ms since the epoch; 0 if there is none."""
        writer = self._appender.writer
        return writer.metadata.created_ms if writer is not None else 0

    def stored_since_ms(self, position: Position) -> int:
        """Return a time before which the entry was not stored, ms since 1970 by brokers' clocks.

        0 if nothing is known. The entry is no older than its ledger, the close of the previous
        ledger, or the earlier entries that this handle stored. No I/O: the creation time of a
        closed ledger is known only if that ledger was read lately.
        """
        known_ms = (
            self._appender.stored_times.since_ms(position),
            self._reads.created_ms(position.ledger_id),
        )
        return stored_since_ms(self._list.ledgers, position, known_ms, now_ms=self._clock.wall_ms())

    def first_position(self) -> Position:
        """Return the position of the first entry, or of the next append if the log is empty."""
        return self._appender.extent.shape.first_at_or_after(Position(-1, -1))

    def next_position(self, position: Position) -> Position:
        """Return the position after `position`: an entry or, at the end, the next append."""
        return self._appender.extent.shape.next_position(position)

    def previous_position(self, position: Position) -> Position:
        """Return the position before `position`; (first ledger, -1) if there is none."""
        return self._appender.extent.shape.previous_position(position)

    async def check_owned(self) -> None:
        """Check in the metadata store that this handle owned the log at some time after the call.

        For callers that are about to change something beside the log, based on what they know of
        the log. Together with a version that was read before, the change is safe: the next owner
        reads later.

        Raises:
            LogFencedError: another owner has taken the log over.
            MetadataError: the store cannot tell now.
        """
        await self._list.check_owned()

    def entries_between(self, lower: Position, upper: Position) -> int:
        """Return the number of confirmed entries in (lower, upper]."""
        return self._appender.extent.shape.entries_between(lower, upper)

    async def read(self, start: Position, *, entries_max: int, bytes_max: int) -> list[LogEntry]:
        """Read confirmed entries of one ledger from `start` on: at least one, or none at the end.

        Raises:
            LedgerError: see `read_range`.
        """
        first, payloads = await self.read_range(start, entries_max=entries_max, bytes_max=bytes_max)
        ledger_id, first_entry_id = first
        return [
            LogEntry(Position(ledger_id, first_entry_id + at), payload)
            for at, payload in enumerate(payloads)
        ]

    async def read_range(
        self, start: Position, *, entries_max: int, bytes_max: int
    ) -> tuple[Position, list[bytes]]:
        """Read entries without an object for each: the first position, and consecutive payloads.

        Entries that a shrink removed are skipped: the first entry of the log comes next.

        Raises:
            LedgerError: no replica could serve the first of them just now.
            LogDataLossError: its ledger is gone.
        """
        return await self._reads.read_range(start, entries_max=entries_max, bytes_max=bytes_max)

    async def entries_after(self, ledger_id: int, publish_ms: int) -> range | None:
        """Return entries of a ledger that include the first one published at or after a time.

        The time is in ms since 1970, and is compared with the times that producers set, as an
        object's index has them. All entries before the range are older. An empty range behind the
        last entry means that all are older. None if the ledger is read from bookies, which have no
        such index.
        """
        return await self._reads.entries_after(ledger_id, publish_ms)

    def prefer_objects(self, prefers: bool) -> None:
        """Set whether to read ledgers that are on bookies and in an object from the object."""
        self._closed.prefers_objects = prefers

    # Shrinking -----------------------------------------------------------------------------------

    async def shrink(self, before: Position) -> int:
        """Remove from the front all whole ledgers that end before `before`; return how many.

        Open ledgers and the last ledger stay. Ledgers leave the list first and are deleted after
        that. A crash in between leaves orphans, never a hole (rule 6.1).

        A reader that has not read them fails with LogTrimmedError. The owner's reads skip them.

        Raises:
            LogFencedError: another owner has taken the log over.
            LogClosedError: this handle is closed.
            MetadataError: the outcome is unknown; call again.
        """
        removed = await self.unlist(before)
        await self.delete_unlisted()
        return removed

    async def unlist(self, before: Position) -> int:
        """Take ledgers out of the list, the first half of `shrink`; the log begins behind them.

        Raises:
            LedgerError: see `shrink`.
        """
        if self._is_closed or self._appender.state is AppendState.FENCED:
            self._check_open()
        removed = await self._shrink.unlist(before)
        await self._reads.forget_removed()
        return removed

    async def delete_unlisted(self) -> None:
        """Delete the ledgers that left the list, the second half of `shrink`. A failed deletion is
        tried again at the next call, and left to the orphan sweep in the end."""
        await self._shrink.delete_unlisted()

    @property
    def leftover_ledgers(self) -> int:
        """Number of ledgers that left the list and could not be deleted so far."""
        return self._shrink.left_behind

    def trim_point(
        self,
        consumed: Position | None,
        retention: Retention,
        *,
        truncates: bool = False,
    ) -> Position | None:
        """Return where the log may begin by now, for `shrink`; None if nothing may be removed.

        No I/O. `consumed` is the position that every durable cursor has persistently passed; None
        if there is no cursor.
        """
        now_ms = self._clock.wall_ms()
        return trim_point(self.ledgers, consumed, retention, now_ms=now_ms, truncates=truncates)

    # Quorums -------------------------------------------------------------------------------------

    def set_quorums(self, *, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        """Set the quorums of ledgers created from now on, except one that was created ahead.

        Raises:
            ValueError: ensemble_size >= write_quorum >= ack_quorum >= 1 does not hold.
        """
        self._ledgers.set_quorums(
            ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum
        )

    def hold_ledgers_apart(self) -> None:
        """From now on, start the next ledger only when the previous one has drained. A takeover
        then finds a prefix of the appends (`LogConfig.overlaps_ledgers`)."""
        self._appender.hold_ledgers_apart()

    # Properties ----------------------------------------------------------------------------------

    async def update_properties(self, changes: Mapping[str, str | None]) -> None:
        """Set properties of the log, and remove those whose value is None; durable on return.

        Raises:
            LogFencedError: another owner has taken the log over.
            LogClosedError: this handle is closed.
            MetadataError: the outcome is unknown; call again.
        """
        if self._is_closed or self._appender.state is AppendState.FENCED:
            self._check_open()
        try:
            await self._list.update(lambda metadata: metadata.with_properties(changes))
        except LogFencedError as error:
            self._appender.fence(error)
            raise

    # Ending --------------------------------------------------------------------------------------

    async def terminate(self) -> Position:
        """Finish pending appends, and end the log for good; return its last entry.

        The end survives reopening: later appends, by any owner, fail with LogTerminatedError.

        Raises:
            LogFencedError: another owner has taken the log over, or this one gave it up; it is not
                terminated.
            LogClosedError: this handle is closed.
            MetadataError: the log may be terminated or not; call again. Appends are refused.
        """
        async with self._end_lock:
            terminated = self._list.terminated
            if terminated is not None:
                return terminated
            if self._is_closed or self._appender.state is AppendState.FENCED:
                self._check_open()
            self._appender.refuse(self._why_terminated)
            await self._changes.stop()
            try:
                await self._changes.close_ledgers(terminate=True)
            except (
                LogFencedError,
                LedgerFencedError,
                NoSuchLedgerError,
                LedgerClosedError,  # abandoned meanwhile
            ) as error:
                self._appender.fence(error)
                raise LogFencedError(
                    f"{self.path}: not terminated, another owner has taken the log over, or may "
                    f"have: {error}"
                ) from error
            self._appender.end_complete(self._list.ledgers, self._why_terminated)
            terminated = self._list.terminated
            assert terminated is not None
            log.info("log_terminated", path=self.path, last=str(terminated))
            return terminated

    def _why_terminated(self) -> LogError:
        return LogTerminatedError(f"{self.path}: the log was terminated; it can only be read")

    def _why_closed(self) -> LogError:
        return LogClosedError(f"{self.path}: the log is closed; open it again to append")

    async def close(self) -> None:
        """Finish pending appends, close the open ledgers and record their ends in the list.

        What cannot be done (bookies or metadata unavailable) is left to the recovery by the next
        owner. No acknowledged entry depends on it.
        """
        self._appender.refuse(self._why_closed)
        async with self._end_lock:
            if self._is_closed:
                return
            try:
                await self._changes.stop()
                if self._appender.state not in (AppendState.FENCED, AppendState.ENDED):
                    await self._changes.close_ledgers(terminate=False)
            except LedgerError as error:
                log.warning("log_left_open", path=self.path, error=str(error))
            finally:
                # If the caller cancels the rest, every batch is still reported, and a change of
                # ledgers in progress writes nothing more.
                self._is_closed = True
                self._appender.end(self._why_closed())
                self._changes.cut_off()
                for writer in (self._appender.draining, self._appender.writer):
                    if writer is not None:
                        writer.abandon()  # ends the watch of a ledger that could not be closed
                await self._reads.close()

    def abandon(self, reason: str) -> None:
        """End the handle at once and write nothing more: for an owner that may have lost the log.

        All pending appends fail with LogFencedError, as if another owner had taken the log over.
        Call `close` to release the rest.
        """
        if not self._is_closed:
            self._appender.fence(LogFencedError(f"{self.path}: {reason}"), is_own=True)

    async def delete(self) -> None:
        """Close the log and remove it: the node first, then its ledgers.

        Raises:
            NotEmptyError: cursors are left below the node.
            MetadataError
        """
        await self.close()
        ledgers = self._list.ledgers
        await self._list.delete()
        for ledger in ledgers:
            await self._ledgers.delete(ledger.ledger_id)
