"""The managed log: an unbounded log made of ledgers, with one owner at a time.

The list of ledgers lies in one metadata node and changes by compare-and-set only (`log_list.py`).
Whoever opens the log for writing takes it over (`log_takeover.py`). Batches are reported in the
order of their appends (`log_appender.py`). A full ledger is followed by the next without a pause,
and one that fails is closed at a known last entry before anything is written again
(`log_changes.py`). Not one entry goes into a ledger before the list names it (rule 2.2), so no
entry is in the log twice, out of order, or unreachable.

To read a log without owning it, there is `log_reader.py`. What none of this does: cursors,
deciding what to trim, caching.

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
        """The objects of its ledgers, for whoever copies them to an object store."""
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
        """Take the log over, creating it if need be. A terminated log can only be read.

        `may_own`: asked, without a wait, right before anything is fenced and before the list is
        written. An opener that says no leaves the log to whoever owns it by now.

        Raises:
            NoSuchLogError: there is none, and it `must_exist`.
            LogFencedError: another owner opened it at the same time, and was faster, or `may_own`
                says no. Open it again only if it should still be yours: two that always do so
                would duel.
            LogDataLossError: a ledger of the list has no metadata any more.
            UnauthorizedError: the password is not that of the log's ledgers.
            FutureLogFormatError, InvalidLedgerMetadataError: the list is not one for this release.
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
            LogExistsError: there is one at the path already.
            As `open`, after which the log may exist and can be opened.
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
        """Batches appended and not yet reported."""
        return self._appender.pending_batches

    def append(self, batch: AppendBatch) -> None:
        """Append a batch. Its callback runs later, in the order of the calls."""
        self._appender.append(batch)

    def prepare(self) -> None:
        """Have a ledger by the time of the first append, if the log was opened without one.

        In the background. A log to which nothing is appended gives the ledger back when it closes.
        """
        self._appender.prepare()

    def on_fenced(self, callback: Callable[[], None]) -> None:
        """Run `callback` once when another owner has taken the log over."""
        self._appender.on_fenced(callback)

    async def rotate(self) -> None:
        """Go on in a new ledger. Returns when appends go there; those under way finish before it.

        An empty ledger is not followed by another. A full one is rotated without being asked.

        Raises:
            LogFencedError, LogClosedError, LogTerminatedError: this handle appends nothing.
            LogUnavailableError: that was not possible within `repair_timeout_s`; appends go on
                where they are, and so do attempts to rotate.
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
        """The last confirmed entry; (ledger, -1) when the log holds none."""
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
        """The ledger list; the counters of open ledgers are those of now."""
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
        """When the ledger that is written was created, ms since the epoch; 0: there is none."""
        writer = self._appender.writer
        return writer.metadata.created_ms if writer is not None else 0

    def stored_since_ms(self, position: Position) -> int:
        """A time before which the entry was not stored, by brokers' clocks, ms since the epoch.

        0: nothing is known. It is never older than its ledger, the close of the ledger before it,
        or what this handle stored before it. Reads nothing: of a closed ledger that was not read
        lately the creation is unknown.
        """
        known_ms = (
            self._appender.stored_times.since_ms(position),
            self._reads.created_ms(position.ledger_id),
        )
        return stored_since_ms(self._list.ledgers, position, known_ms, now_ms=self._clock.wall_ms())

    def first_position(self) -> Position:
        """The first entry there is, or the next to be written."""
        return self._appender.extent.shape.first_at_or_after(Position(-1, -1))

    def next_position(self, position: Position) -> Position:
        """The entry after `position`, existing or, at the end, the next to be written."""
        return self._appender.extent.shape.next_position(position)

    def previous_position(self, position: Position) -> Position:
        """The entry before `position`; (first ledger, -1) when there is none."""
        return self._appender.extent.shape.previous_position(position)

    async def check_owned(self) -> None:
        """Look at the store whether this handle owned the log at some time after the call.

        For whoever is about to change something beside the log by what it knows of it. Together
        with a version that was read before, the change is safe: the next owner reads later.

        Raises:
            LogFencedError: another owner has taken the log over.
            MetadataError: that cannot be told now.
        """
        await self._list.check_owned()

    def entries_between(self, lower: Position, upper: Position) -> int:
        """Number of confirmed entries in (lower, upper]."""
        return self._appender.extent.shape.entries_between(lower, upper)

    async def read(self, start: Position, *, entries_max: int, bytes_max: int) -> list[LogEntry]:
        """Confirmed entries from `start` on, of one ledger: at least one, or none at the end.

        Raises:
            As `read_range`.
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
        """Entries without an object for each: the first position, and consecutive payloads.

        What a shrink removed is passed over: the first entry there is comes next.

        Raises:
            LedgerError: no replica could serve the first of them just now.
            LogDataLossError: its ledger is gone.
        """
        return await self._reads.read_range(start, entries_max=entries_max, bytes_max=bytes_max)

    async def entries_after(self, ledger_id: int, publish_ms: int) -> range | None:
        """Entries of a ledger among which the first one is that was published at or after a time,
        ms since 1970: all before them are older. Empty, and behind the last one: all are older.

        By the times that producers set, as an object's index has them. None: the ledger is read
        from bookies, which have no such index.
        """
        return await self._reads.entries_after(ledger_id, publish_ms)

    def prefer_objects(self, prefers: bool) -> None:
        """Whether ledgers that are on bookies and in an object store are read from the object."""
        self._closed.prefers_objects = prefers

    # Shrinking -----------------------------------------------------------------------------------

    async def shrink(self, before: Position) -> int:
        """Remove whole ledgers from the front whose every entry is before `before`.

        An open ledger stays, and so does the last one. They leave the list first and are deleted
        after that: a crash between leaves orphans, never a hole (rule 6.1). Returns how many left.

        A reader that has not read them fails with LogTrimmedError; the owner's reads pass over.

        Raises:
            LogFencedError: another owner has taken the log over.
            LogClosedError: this handle is closed.
            MetadataError: whether it happened is not known; call again.
        """
        removed = await self.unlist(before)
        await self.delete_unlisted()
        return removed

    async def unlist(self, before: Position) -> int:
        """The first half of `shrink`: the ledgers leave the list, and the log begins behind them.

        Raises:
            As `shrink`.
        """
        if self._is_closed or self._appender.state is AppendState.FENCED:
            self._check_open()
        removed = await self._shrink.unlist(before)
        await self._reads.forget_removed()
        return removed

    async def delete_unlisted(self) -> None:
        """The second half: they are deleted. What fails is tried again at the next call, and left
        to the orphan sweep in the end."""
        await self._shrink.delete_unlisted()

    @property
    def leftover_ledgers(self) -> int:
        """Ledgers that left the list and could not be deleted so far."""
        return self._shrink.left_behind

    def trim_point(
        self,
        consumed: Position | None,
        retention: Retention,
        *,
        truncates: bool = False,
    ) -> Position | None:
        """Where the log may begin by now, for `shrink`; None: nothing may go. Reads nothing.

        `consumed`: what every durable cursor has persistently passed; None: there is no cursor.
        """
        now_ms = self._clock.wall_ms()
        return trim_point(self.ledgers, consumed, retention, now_ms=now_ms, truncates=truncates)

    # Quorums -------------------------------------------------------------------------------------

    def set_quorums(self, *, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        """Ledgers that are created from now on have these, but for one that waits already.

        Raises:
            ValueError: ensemble_size >= write_quorum >= ack_quorum >= 1 does not hold.
        """
        self._ledgers.set_quorums(
            ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum
        )

    def hold_ledgers_apart(self) -> None:
        """From now on nothing goes into the next ledger before the one before it has drained: what
        a takeover finds is a prefix of the appends then (`LogConfig.overlaps_ledgers`)."""
        self._appender.hold_ledgers_apart()

    # Properties ----------------------------------------------------------------------------------

    async def update_properties(self, changes: Mapping[str, str | None]) -> None:
        """Set properties of the log, and remove those that are None; durable on return.

        Raises:
            LogFencedError: another owner has taken the log over.
            LogClosedError: this handle is closed.
            MetadataError: whether it happened is not known; call again.
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
        """Finish pending appends, and end the log for good; returns its last entry.

        The end survives reopening: later appends, by any owner, fail with LogTerminatedError.

        Raises:
            LogFencedError: another owner has taken the log over; it is not terminated.
            LogClosedError: this handle is closed.
            MetadataError: not known whether it is terminated; call again. No append is taken.
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
            except (LogFencedError, LedgerFencedError, NoSuchLedgerError) as error:
                self._appender.fence(error)
                raise LogFencedError(
                    f"{self.path}: not terminated, another owner has taken the log over"
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
        """Finish pending appends, close the open ledgers and note their ends in the list.

        What cannot be done (bookies or metadata away) is left to the next owner's recovery; nothing
        acknowledged depends on it.
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
                # Who has no time for the rest, and cancels it, still has every batch reported.
                self._is_closed = True
                self._appender.end(self._why_closed())
                for writer in (self._appender.draining, self._appender.writer):
                    if writer is not None:
                        writer.abandon()  # of one that could not be closed, the watch ends
                await self._reads.close()

    def abandon(self, reason: str) -> None:
        """End the handle at once and write nothing more: for an owner that may have lost the log.

        Everything pending fails with LogFencedError, as if another owner had taken it over. Call
        `close` to end the rest.
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
