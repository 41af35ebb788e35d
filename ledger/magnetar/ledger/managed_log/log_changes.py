"""Changes of the ledgers of a log that is being appended to: rotation, and repair after a failure.

*Rotation* makes no pause (managed ledger, section 9). Create the next ledger L2, and set the list
to [.., L1, L2]. New appends go to L2 while pending ones finish on L1. When L1 has drained, close it
and record its counters. A further rotation waits for that (rule 9.1). While the metadata store is
unavailable, appends continue where they are: the size limits of a ledger are soft.

*Repair* follows the failure of an open ledger. Appends wait. The failed ledger is closed at a known
last entry. Only then is anything written again, in order, to a new one (rules 3.1 and 9.3). If L1
failed while L2 took appends already, nothing of L2 was reported yet. L2 leaves the list before L1
is closed, since readers may continue behind L1 from then on. The batches of L2 are written again
behind those of L1.

*Beginning* creates the first ledger of a log that was opened without one: when an append is
expected (`prepare`), or at the first append, which waits for it.

*Giving back* takes a ledger out of the list and deletes it, if the expected appends did not come.
Appends that come meanwhile wait for another ledger. It may remain unknown whether the list still
names the ledger. The next change that chains a ledger, or ends the log, then takes it out again.

One task makes all changes, one at a time. It ends when there is nothing left to change.
"""

import asyncio

import structlog

from magnetar.ledger.backoff import backoff
from magnetar.ledger.errors import (
    LedgerError,
    LedgerFencedError,
    LogFencedError,
    LogUnavailableError,
    NoSuchLedgerError,
)
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.managed_log.log_appender import AppendState, LogAppender
from magnetar.ledger.managed_log.log_ledgers import LogLedgers
from magnetar.ledger.managed_log.log_list import Change, LogList
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.ports import Clock
from magnetar.ledger.settings import LogConfig
from magnetar.ledger.writer import LedgerWriter

log = structlog.get_logger()

_RETRY_DELAY_S = 0.05
_RETRY_DELAY_MAX_S = 1.0
_LEDGER_DELAY_S = 0.1
"""Pause in seconds before a second new ledger in a row is created without an append being
confirmed. It doubles each time, up to `_RETRY_DELAY_MAX_S`."""

_LOST_FOR_GOOD = (LogFencedError, LedgerFencedError, NoSuchLedgerError)
"""Errors that mean another owner. If a ledger of this owner is gone, a later owner found it empty
and removed it."""


class LedgerChanges:
    """Changes the ledgers of an appender, which reports when a change is due."""

    def __init__(
        self,
        path: str,
        appender: LogAppender,
        log_list: LogList,
        ledgers: LogLedgers,
        config: LogConfig,
        clock: Clock,
    ) -> None:
        self._path = path
        self._appender = appender
        self._list = log_list
        self._ledgers = ledgers
        self._config = config
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._rotated: asyncio.Future[None] | None = None
        """Done when the requested rotation has happened; None if none is requested."""
        self._failures = 0
        """Number of ledgers in a row that failed without a confirmed append in between."""
        self._broken_since_s = 0.0
        self._confirmed_at_failure = -1
        self._repair_until_s: float | None = None
        """Monotonic time at which a repair gives up; None if none is in progress."""
        self._delay_s = 0.0
        """Pause in seconds before the repair begins."""
        self._dropped: list[LedgerWriter] = []
        """Ledgers that left the list and are still to be deleted."""
        self._prepared: asyncio.TimerHandle | None = None
        """Timer that gives back a ledger that was created ahead, unless it is used by then."""
        self._is_unused = False
        """Whether that timer has fired."""
        self._withdrawn: LedgerWriter | None = None
        """An unused ledger that the list may or may not still name."""
        self._is_stopping = False
        appender.on_fenced(self._on_fenced)

    # What the appender reports

    def _on_fenced(self) -> None:
        """End all changes: another owner has the log."""
        self._wake.set()
        self._finish_rotation(self._appender.refusal())

    def on_full(self) -> None:
        self.want_rotation()

    def on_first_needed(self) -> None:
        self._start_repair()

    def on_drained(self) -> None:
        self._wake.set()

    def on_failure(self, error: LedgerError) -> None:
        """Start a repair, or give up if repairs have taken too long.

        The time for repairs begins when a ledger fails. It ends when an append is confirmed, not
        when the next ledger exists: if the disks of the bookies are full, every new ledger fails.
        """
        if self._repair_until_s is not None:
            self._wake.set()
            return  # a repair is in progress; the other open ledger failed, too
        log.warning("ledger_failed", path=self._path, error=str(error))
        now_s = self._clock.monotonic_s()
        if self._appender.confirmed_batches != self._confirmed_at_failure:
            self._confirmed_at_failure = self._appender.confirmed_batches
            self._broken_since_s = now_s
            self._failures = 0
        self._failures += 1
        if now_s - self._broken_since_s > self._config.repair_timeout_s:
            self._appender.give_up(error)
            self._wake.set()  # no ledger drains any more
            return
        if self._failures > 1:
            self._delay_s = backoff(_LEDGER_DELAY_S, self._failures - 1, _RETRY_DELAY_MAX_S)
        self._start_repair()

    def on_retry(self) -> None:
        self._start_repair()

    def _start_repair(self) -> None:
        self._repair_until_s = self._clock.monotonic_s() + self._config.repair_timeout_s
        self._start()

    def want_rotation(self, *, at_once: bool = False) -> asyncio.Future[None]:
        """Request the next ledger; the result is done when appends go to it.

        The future fails with the LedgerError that made it impossible. `at_once`: retry a failed
        rotation now instead of after its pause.
        """
        if self._rotated is None:
            self._rotated = asyncio.get_running_loop().create_future()
            self._start()
        elif at_once:
            self._start()
        return self._rotated

    def _start(self) -> None:
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name=f"change-ledgers-{self._path}"
            )

    # The task

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                if not await self._step():
                    return
            except _LOST_FOR_GOOD as error:
                self._appender.fence(error)
                self._finish_rotation(error)
                await self._drop_spare()
                return
            except LedgerError as error:
                if self._appender.state in (AppendState.FENCED, AppendState.ENDED):  # that ended it
                    self._finish_rotation(error)
                    return
                if self._repair_until_s is None:
                    log.warning("ledger_not_changed", path=self._path, error=str(error))
                    delay_max_s = self._config.unavailable_retry_s
                elif self._is_repair_overdue():
                    self._repair_until_s = None
                    self._finish_rotation(error)
                    self._appender.give_up(error)
                    return
                else:
                    delay_max_s = _RETRY_DELAY_MAX_S
                failures += 1
                await self._wait(backoff(_RETRY_DELAY_S, failures, delay_max_s))
            except Exception as bug:  # appends would wait for ever
                log.exception("ledger_change_broke", path=self._path)
                broke = LogUnavailableError(f"{self._path}: a change of ledgers broke: {bug!r}")
                self._finish_rotation(broke)
                if self._repair_until_s is not None:
                    self._repair_until_s = None
                    self._appender.give_up(broke)
                    return
                await self._wait(self._config.unavailable_retry_s)
            else:
                failures = 0

    async def _step(self) -> bool:
        """Make the next due change; return False if there is none."""
        appender = self._appender
        if appender.state is AppendState.WAITING and self._repair_until_s is not None:
            await self._repair()
        elif appender.state is AppendState.IDLE:
            self._finish_rotation(None)  # an empty ledger is not followed by another
            return False
        elif appender.state is not AppendState.WRITING or self._is_stopping:
            return False
        elif appender.draining is not None:
            await self._finish_draining(appender.draining)
        elif self._is_unused:
            await self._give_back()
        elif self._rotated is not None:
            await self._rotate()
        else:
            return False
        return True

    def _is_repair_overdue(self) -> bool:
        until_s = self._repair_until_s
        return until_s is not None and self._clock.monotonic_s() >= until_s

    async def _wait(self, seconds: float) -> None:
        """Wait for that long, or until the next event."""
        self._wake.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass

    # Rotation

    async def _rotate(self) -> None:
        old = self._appender.writer
        assert old is not None
        if old.entries_added > 0:  # an empty ledger is not followed by another
            new = await self._take_spare()
            await self._update(lambda metadata: metadata.with_next(new.ledger_id))
            self._ledgers.spare_listed()
            self._appender.switch_to(new)
            log.info(
                "ledger_rotated",
                path=self._path,
                ledger_id=old.ledger_id,
                next_ledger_id=new.ledger_id,
            )
        self._finish_rotation(None)

    async def _update(self, change: Change) -> None:
        """Change the list, unless this owner has lost the log or has given it up: the write would
        make the next owner's takeover fail.

        Raises:
            LogFencedError, LogClosedError, MetadataError
        """
        self._check_owned()
        await self._list.update(change)

    def _check_owned(self) -> None:
        """Check before each write that the log was not fenced, abandoned or closed meanwhile.

        Raises:
            LogFencedError
            LogClosedError: the close was cut off; the next owner's recovery does the rest.
        """
        appender = self._appender
        refusal = appender.refusal()
        if refusal is not None and (
            appender.state is AppendState.ENDED or isinstance(refusal, LogFencedError)
        ):
            raise refusal

    async def _take_spare(self) -> LedgerWriter:
        """Return the next ledger. If the spare waited so long for its place in the list that
        another client sealed it, drop it and create another."""
        spare = await self._ledgers.take_spare()
        if spare.has_failed:
            # An update whose outcome was unknown may have listed it.
            await self._update(lambda metadata: metadata.without(spare.ledger_id))
            await self._drop_spare()
            spare = await self._ledgers.take_spare()
        return spare

    def _finish_rotation(self, error: LedgerError | None) -> None:
        rotated, self._rotated = self._rotated, None
        if rotated is None or rotated.done():
            return
        if error is None:
            rotated.set_result(None)
        else:
            rotated.set_exception(error)
            rotated.exception()  # mark it as retrieved: there may be no caller

    async def _finish_draining(self, old: LedgerWriter) -> None:
        appender = self._appender
        self._wake.clear()
        if not appender.is_drained:
            await self._wake.wait()  # its requests time out, so it drains or fails
            return
        closed = await self._close_and_record(old)
        appender.drained_closed(self._list.ledgers)
        log.info(
            "ledger_drained",
            path=self._path,
            ledger_id=old.ledger_id,
            last_entry_id=closed.last_entry_id,
        )

    async def _close_and_record(self, writer: LedgerWriter) -> LedgerMetadata:
        """Close an open ledger at its last add confirmed, and record its end in the list."""
        self._check_owned()
        closed = await writer.close(force=True)
        counters = self._counters(closed)
        await self._update(lambda metadata: metadata.with_closed(counters))
        return closed

    def _counters(self, closed: LedgerMetadata) -> LogLedger:
        return LogLedger(
            closed.ledger_id,
            entries=closed.last_entry_id + 1,
            bytes=closed.length,
            closed_ms=self._clock.wall_ms(),
        )

    # Repair

    async def _repair(self) -> None:
        """Make one attempt to continue after a failure; it can be repeated from any step."""
        appender = self._appender
        delay_s, self._delay_s = self._delay_s, 0.0
        if delay_s:
            await asyncio.sleep(delay_s)
        old = appender.draining
        if appender.writer is None:
            await self._begin()
        elif old is None:
            await self._replace()
        elif appender.is_drained:
            await self._close_and_record(old)
            appender.drained_closed(self._list.ledgers)
        elif not appender.is_broken(old) and not self._is_repair_overdue():
            # Only the later ledger failed. The draining one must end first, by itself.
            assert self._repair_until_s is not None
            await self._wait(max(0.0, self._repair_until_s - self._clock.monotonic_s()))
        else:
            await self._replace_both(old)

    async def _begin(self) -> None:
        """Chain the first ledger of a log that was opened without one."""
        new = await self._take_spare()
        await self._update(
            lambda metadata: self._without_withdrawn(metadata).with_next(new.ledger_id)
        )
        self._ledgers.spare_listed()
        self._drop_withdrawn()
        log.info("ledger_begun", path=self._path, ledger_id=new.ledger_id)
        self._repair_until_s = None
        self._finish_rotation(None)
        if self._appender.state is not AppendState.FENCED:
            if not self._appender.pending_batches:
                self._prepared = asyncio.get_running_loop().call_later(
                    self._config.unused_ledger_s, self._on_unused
                )
            self._appender.begin(new)
        await self._discard_dropped()

    def _on_unused(self) -> None:
        if self._appender.is_unused:
            self._is_unused = True
            self._start()

    async def _give_back(self) -> None:
        """Continue without the ledger that was never written to."""
        self._is_unused = False
        appender = self._appender
        if not appender.is_unused:
            return
        self._withdrawn = withdrawn = appender.withdraw()
        withdrawn.abandon()
        try:
            await self._update(self._without_withdrawn)
        finally:
            if appender.state is AppendState.WAITING and not appender.rest(self._list.ledgers):
                self._start_repair()
        self._drop_withdrawn()
        log.info("ledger_given_back", path=self._path, ledger_id=withdrawn.ledger_id)
        await self._discard_dropped()

    def _without_withdrawn(self, metadata: LogMetadata) -> LogMetadata:
        withdrawn = self._withdrawn
        return metadata if withdrawn is None else metadata.without(withdrawn.ledger_id)

    def _drop_withdrawn(self) -> None:
        """Delete the withdrawn ledger: the list certainly does not name it any more."""
        if self._withdrawn is not None:
            self._dropped.append(self._withdrawn)
            self._withdrawn = None

    async def _replace(self) -> None:
        """Close the only open ledger, which failed, and chain the next one."""
        self._check_owned()
        old = self._appender.writer
        assert old is not None
        creating = asyncio.ensure_future(self._take_spare())
        try:
            closed = await old.close(force=True)
        except BaseException:
            await asyncio.wait([creating])
            if not creating.cancelled():
                creating.exception()  # mark it as retrieved: the failure to close counts
            raise
        new = await creating
        counters = self._counters(closed)
        await self._update(lambda metadata: metadata.with_closed(counters).with_next(new.ledger_id))
        self._ledgers.spare_listed()
        self._resume(old, new, closed)
        if closed.last_entry_id < 0:
            await self._ledgers.delete(old.ledger_id)

    async def _replace_both(self, old: LedgerWriter) -> None:
        """Close the draining ledger, which failed, and write the later appends again."""
        appender = self._appender
        later = appender.writer
        assert later is not None
        if not appender.is_broken(old):
            # It has waited long enough. Further confirmations would be reported, and with them the
            # batches held on the later ledger, while that one leaves the list.
            old.abandon()
        if later.entries_added > 0 or appender.is_broken(later):
            later_id = later.ledger_id
            new = await self._take_spare()
            await self._update(lambda metadata: metadata.without(later_id).with_next(new.ledger_id))
            self._ledgers.spare_listed()
            self._dropped.append(later)
            appender.swap_current(new)
            later = new
        closed = await self._close_and_record(old)
        self._resume(old, later, closed)
        await self._discard_dropped()
        if closed.last_entry_id < 0:
            await self._ledgers.delete(old.ledger_id)

    def _resume(self, old: LedgerWriter, new: LedgerWriter, closed: LedgerMetadata) -> None:
        log.info(
            "ledger_replaced",
            path=self._path,
            ledger_id=old.ledger_id,
            last_entry_id=closed.last_entry_id,
            next_ledger_id=new.ledger_id,
        )
        self._repair_until_s = None
        self._finish_rotation(None)
        if self._appender.state is not AppendState.FENCED:
            self._appender.resume(new, self._list.ledgers, closed=closed)

    # The end

    async def stop(self) -> None:
        """Let a repair finish, for up to `repair_timeout_s`; no further change begins."""
        self._is_stopping = True
        if self._prepared is not None:
            self._prepared.cancel()
        task = self._task
        if task is not None and not task.done():
            self._wake.set()
            await asyncio.wait([task], timeout=self._config.repair_timeout_s)
            task.cancel()
            await asyncio.wait([task])
        self._finish_rotation(self._appender.refusal())

    def cut_off(self) -> None:
        """End the change in progress without waiting, and abandon a ledger that was created for it;
        for a log whose `stop` may have been cancelled."""
        if self._task is not None:
            self._task.cancel()
        self._finish_rotation(self._appender.refusal())
        self._ledgers.abandon_spare()

    async def close_ledgers(self, *, terminate: bool) -> None:
        """Close the open ledgers at their last add confirmed, and record their ends in the list.

        Safe to call again after an error. `terminate` ends the log there for good.

        Raises:
            LogFencedError, LedgerFencedError, NoSuchLedgerError: there is another owner, or this
                one gave the log up.
            MetadataError: call again, or leave it to the next owner's recovery.
        """
        appender = self._appender
        closed: list[LogLedger] = []
        for writer in (appender.draining, appender.writer):
            if writer is not None:
                self._check_owned()
                metadata = await writer.close(force=appender.is_broken(writer))
                closed.append(self._counters(metadata))
        # The ledger stays the spare until the list certainly does not name it: a retry after an
        # error must take it out, too.
        spare = await self._ledgers.find_spare()

        def change(metadata: LogMetadata) -> LogMetadata:
            metadata = self._without_withdrawn(metadata)
            for counters in closed:
                metadata = metadata.with_closed(counters)
            if spare is not None:  # an interrupted rotation may have listed it
                metadata = metadata.without(spare.ledger_id)
            return metadata.ended() if terminate else metadata

        await self._update(change)
        for ledger in closed:
            if ledger.entries == 0:
                await self._ledgers.delete(ledger.ledger_id)
        self._drop_withdrawn()
        if (spare := await self._ledgers.take_away_spare()) is not None:
            self._dropped.append(spare)
        await self._discard_dropped()

    async def _discard_dropped(self) -> None:
        while self._dropped:
            await self._ledgers.discard(self._dropped.pop())

    async def _drop_spare(self) -> None:
        spare = await self._ledgers.take_away_spare()
        if spare is None:
            return
        spare.abandon()
        if self._list.is_surely_without(spare.ledger_id):
            await self._ledgers.delete(spare.ledger_id)
