"""Appends to a log, in order, over at most two open ledgers.

New batches go to the *current* ledger. During a change of ledgers, the previous one is *draining*:
it only finishes the batches that it was given. Outcomes are reported in the order of the appends
over both. A batch that the current ledger has confirmed is *held* until the draining one has
confirmed all of its batches (rule 9.2). Otherwise a takeover could keep the later batch and lose
the earlier one. `AppendOrder` is that queue: first the batches that were given to a ledger, then
those that wait for the next one. `LedgerFullness` says when the current ledger needs a successor.

When a ledger fails, appends wait in the queue. They continue in another ledger once the failed one
is closed at a known last entry (rules 3.1 and 9.3). Batches that the closed ledger holds are
reported as appended; the rest is written again. `log_changes.py` does that.

This module does not create, close or list ledgers. Source: managed ledger, sections 3 and 9.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import partial
from typing import Protocol

import structlog

from magnetar.ledger.errors import (
    EntryTooLargeError,
    InvariantError,
    LedgerError,
    LedgerFencedError,
    LogError,
    LogFencedError,
    LogUnavailableError,
    MessageTooLargeError,
    NoSuchLedgerError,
)
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.managed_log.log_extent import LogExtent, StoredTimes
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.ports import Clock
from magnetar.ledger.settings import LogConfig
from magnetar.ledger.writer import LedgerWriter

log = structlog.get_logger()

_SPREAD = 0.05


class AppendBatch(Protocol):
    """A batch to append to a log. Exactly one of the callbacks runs, once."""

    @property
    def payloads(self) -> Sequence[bytes]: ...

    def on_appended(self, ledger_id: int, first_entry_id: int) -> None:
        """Called when all payloads are durable, as consecutive entries from `first_entry_id` on."""
        ...

    def on_failed(self, error: LogError) -> None:
        """Called when the batch failed. Unless it was refused, its entries may be in the log."""
        ...


class PendingAppend:
    """A batch that was given to a ledger."""

    __slots__ = ("batch", "first_entry_id", "is_done", "ledger_id")

    def __init__(self, batch: AppendBatch, ledger_id: int) -> None:
        self.batch = batch
        self.ledger_id = ledger_id
        self.first_entry_id = -1
        self.is_done = False
        """Whether the ledger has confirmed the batch."""

    @property
    def last_entry_id(self) -> int:
        return self.first_entry_id + len(self.batch.payloads) - 1


class AppendOrder:
    """The queue of appends without an outcome, in the order in which they were made. Pure.

    Appends that were given to a ledger come first; those that wait for the next one follow. After a
    ledger was closed at a known end, the appends that it holds are done, and the rest can be
    written again. An append that the ledger holds in part can be neither.
    """

    def __init__(self) -> None:
        self._sent: deque[PendingAppend] = deque()
        self.push = self._sent.append
        """Append a batch that a ledger took. A bound method, since it runs for every batch."""
        self._waiting: deque[AppendBatch] = deque()
        self.waiting_bytes = 0
        """Bytes of batches that no ledger has yet."""
        self.held_bytes = 0
        """Bytes of batches that are confirmed, but follow some that are not."""

    def __len__(self) -> int:
        return len(self._sent) + len(self._waiting)

    def wait(self, batch: AppendBatch, size_bytes: int) -> None:
        """Queue a batch while no ledger takes batches."""
        self._waiting.append(batch)
        self.waiting_bytes += size_bytes

    def take_next(self, pending: PendingAppend) -> bool:
        """Return whether a confirmed append is the next to report, and take it; else keep it."""
        sent = self._sent
        if sent and sent[0] is pending:
            sent.popleft()
            return True
        pending.is_done = True
        return False

    def is_next_of(self, ledger_id: int) -> bool:
        """Return whether the next outcome to report belongs to an append to that ledger."""
        return bool(self._sent) and self._sent[0].ledger_id == ledger_id

    @property
    def has_sent(self) -> bool:
        """Whether any append that a ledger took has no outcome yet."""
        return bool(self._sent)

    def hold(self, pending: PendingAppend) -> None:
        """Count the bytes of a confirmed batch that follows unconfirmed ones."""
        self.held_bytes += sum(map(len, pending.batch.payloads))

    def take_done(self) -> PendingAppend | None:
        """Return the next append, if it is confirmed."""
        if self._sent and self._sent[0].is_done:
            return self._sent.popleft()
        return None

    def settle(self, ledger_id: int, last_entry_id: int) -> tuple[list[PendingAppend], bool]:
        """Apply the end of a closed ledger: return the next appends that it holds, and whether it
        holds a part of the one that follows them."""
        held: list[PendingAppend] = []
        while self.is_next_of(ledger_id):
            if self._sent[0].last_entry_id > last_entry_id:
                return held, self._sent[0].first_entry_id <= last_entry_id
            held.append(self._sent.popleft())
        return held, False

    def take_waiting(self) -> list[AppendBatch]:
        """Take the batches that no ledger has yet, in order."""
        waiting = list(self._waiting)
        self._waiting.clear()
        self.waiting_bytes = 0
        return waiting

    def take_all(self) -> list[AppendBatch]:
        """Take all batches, in order."""
        batches = [pending.batch for pending in self._sent]
        batches += self._waiting
        self._sent.clear()
        self._waiting.clear()
        self.waiting_bytes = self.held_bytes = 0
        return batches


class Growing(Protocol):
    """The properties of a ledger that decide whether it is full; `LedgerWriter` has them."""

    @property
    def entries_added(self) -> int: ...

    @property
    def bytes_added(self) -> int: ...


class LedgerFullness:
    """Judges one ledger after the other, and reports each once as full: by entries, bytes or age.

    A large ledger is full once it has the minimum age, so that a burst does not make many ledgers.
    An old ledger is full at any size. The maximum age is spread by up to 5 %, so that logs that
    were opened together do not rotate together.
    """

    def __init__(self, config: LogConfig, *, clock: Clock, random: random.Random) -> None:
        self._config = config
        self._clock = clock
        self._random = random
        self.begin()

    def begin(self) -> None:
        """Start to judge a new ledger."""
        self._since_s = self._clock.monotonic_s()
        self._age_max_s = self._config.ledger_age_max_s * (1 + _SPREAD * self._random.random())
        self._was_reported = False

    def is_newly_full(self, ledger: Growing) -> bool:
        """Return whether the ledger has become full since the last call."""
        if self._was_reported:
            return False
        config = self._config
        age_s = self._clock.monotonic_s() - self._since_s
        is_full = age_s >= self._age_max_s or (
            age_s >= config.ledger_age_min_s
            and (
                ledger.entries_added >= config.ledger_entries_max
                or ledger.bytes_added >= config.ledger_bytes_max
            )
        )
        self._was_reported = is_full
        return is_full


class LedgerEvents(Protocol):
    """Events for the object that changes the ledgers, called within `append` and replies."""

    def on_full(self) -> None:
        """Called when the current ledger needs a successor."""
        ...

    def on_first_needed(self) -> None:
        """Called when the log has no ledger and an append waits for one, or soon will."""
        ...

    def on_drained(self) -> None:
        """Called when all batches of the draining ledger are confirmed and reported."""
        ...

    def on_failure(self, error: LedgerError) -> None:
        """Called when an open ledger failed; appends wait from now on."""
        ...

    def on_retry(self) -> None:
        """Called when the pause after a failure is over, and there is a batch to append."""
        ...


class AppendState(Enum):
    IDLE = auto()
    """Opened without a ledger; the first append requests one."""
    WRITING = auto()
    WAITING = auto()
    """An open ledger failed, or the first one is being created; appends wait."""
    UNAVAILABLE = auto()
    """There was no new ledger within `repair_timeout_s`; appends fail until the next attempt."""
    FENCED = auto()
    ENDED = auto()
    """Closed or terminated; nothing is pending any more."""


class LogAppender:
    """The appends of one log, and its confirmed extent."""

    def __init__(
        self, path: str, config: LogConfig, *, clock: Clock, random: random.Random
    ) -> None:
        self._path = path
        self._config = config
        self._clock = clock
        self.events: LedgerEvents
        self.state = AppendState.ENDED
        self.writer: LedgerWriter | None = None
        """The current ledger; the last one when the log has ended."""
        self.draining: LedgerWriter | None = None
        self._broken: list[LedgerWriter] = []
        """Open ledgers that failed an append."""
        self.extent = LogExtent()
        self.stored_times = StoredTimes()
        self._order = AppendOrder()
        self.confirmed_batches = 0
        """Number of batches reported as appended; tells whether a new ledger works."""
        self._refusal: Callable[[], LogError] | None = None
        self._fence_reason = (
            f"{path}: another owner has taken the log over; close this handle, and open the log "
            f"again only if it should still be yours"
        )
        self._retry_at_s = 0.0
        self._fullness = LedgerFullness(config, clock=clock, random=random)
        self._on_fenced: list[Callable[[], None]] = []
        self._is_held_back = False
        """Whether a ledger is draining, and the next one must wait until it has drained."""
        self._refused = 0
        """Number of refused batches whose callback has not run yet."""

    # Appends

    @property
    def pending_bytes(self) -> int:
        """Bytes appended whose outcome is not reported yet."""
        size = self._order.held_bytes + self._order.waiting_bytes
        for writer in (self.writer, self.draining):
            if writer is not None:
                size += writer.pending_bytes
        return size

    @property
    def pending_batches(self) -> int:
        """Number of batches appended whose outcome is not reported yet."""
        return len(self._order)

    def append(self, batch: AppendBatch) -> None:
        """Append a batch. Its callback runs later, in the order of the calls."""
        if self._refusal is not None:
            self._refuse(batch, self._refusal())
        elif self._refused:
            # The caller, which appends in order, must learn first of the failed append before this
            # one.
            self._refuse(batch, self._behind_another())
        elif self.state is AppendState.WRITING:
            if self._is_held_back:
                self._enqueue(batch)
            else:
                self._write(batch)
        elif self.state is AppendState.WAITING or self._is_time_to_begin():
            self._enqueue(batch)
        else:
            self._refuse(batch, self._unavailable())

    def hold_ledgers_apart(self) -> None:
        """From the next ledger on, start a ledger only when the previous one has drained."""
        self._config = self._config.model_copy(update={"overlaps_ledgers": False})

    def prepare(self) -> None:
        """Create the first ledger in the background, if there is none yet, since an append is
        expected. If that fails, the append tries again."""
        if self.state is AppendState.IDLE and self._refusal is None:
            self.state = AppendState.WAITING
            self.events.on_first_needed()

    def _is_time_to_begin(self) -> bool:
        """Return whether to create a ledger now: the first one, or another one after a failure."""
        if self.state is AppendState.IDLE:
            self.prepare()
            return True
        if self._clock.monotonic_s() < self._retry_at_s:
            return False
        self.state = AppendState.WAITING
        self.events.on_retry()
        return True

    def _unavailable(self) -> LogError:
        return LogUnavailableError(
            f"{self._path}: no ledger can be written to now; the next attempt is within "
            f"{self._config.unavailable_retry_s} s"
        )

    def _behind_another(self) -> LogError:
        return LogUnavailableError(
            f"{self._path}: a previous append failed; this one is refused to keep the order"
        )

    def _refuse(self, batch: AppendBatch, error: LogError) -> None:
        self._refused += 1
        asyncio.get_running_loop().call_soon(self._tell_refused, batch, error)

    def _tell_refused(self, batch: AppendBatch, error: LogError) -> None:
        self._refused -= 1
        batch.on_failed(error)

    def _enqueue(self, batch: AppendBatch) -> None:
        size, waiting_bytes = sum(map(len, batch.payloads)), self._order.waiting_bytes
        if waiting_bytes + size > self._config.pending_bytes_max:
            self._refuse(batch, self._too_much("the next ledger", waiting_bytes))
        else:
            self._order.wait(batch, size)

    def _too_much(self, awaited: str, size_bytes: int) -> LogError:
        return LogUnavailableError(
            f"{self._path}: {size_bytes} bytes wait for {awaited}; pending_bytes_max is "
            f"{self._config.pending_bytes_max}"
        )

    def _write(self, batch: AppendBatch) -> None:
        writer = self.writer
        assert writer is not None
        if self._order.held_bytes > self._config.pending_bytes_max:
            self._refuse(batch, self._too_much("the ledger before", self._order.held_bytes))
            return
        pending = PendingAppend(batch, writer.ledger_id)
        try:
            pending.first_entry_id = writer.append(
                batch.payloads, partial(self._on_done, writer, pending)
            )
        except LedgerFencedError as error:
            # The fence was noticed while nothing was pending: the last add had its ack quorum
            # before.
            self.fence(error)
            self._refuse(batch, self._why_fenced())
        except EntryTooLargeError as error:
            self._refuse(batch, MessageTooLargeError(f"{self._path}: {error}"))
        except LedgerError as error:
            if writer.has_failed:
                self._on_ledger_failed(writer, error)
            if self.state is AppendState.WAITING:
                self._enqueue(batch)
            else:
                self._refuse(batch, LogUnavailableError(f"{self._path}: {error}"))
        else:
            self._order.push(pending)
            if self._fullness.is_newly_full(writer):
                self.events.on_full()

    # Outcomes

    def _on_done(
        self, writer: LedgerWriter, pending: PendingAppend, error: LedgerError | None
    ) -> None:
        if error is not None:
            self._on_error(writer, error)
        elif writer in self._broken:
            # Batches that a ledger confirms after it was given up are settled by its close: the
            # next ledger may be leaving the list already.
            pass
        elif self._order.take_next(pending):
            self._report(pending)
            if self.draining is not None:
                self._report_held()
        elif self.draining is not None and writer is self.writer:
            self._order.hold(pending)

    def _report(self, done: PendingAppend) -> None:
        """Report an append that is confirmed, as all earlier ones are."""
        ledger_id, first = done.ledger_id, done.first_entry_id
        self.extent.confirm(ledger_id, first + len(done.batch.payloads) - 1)
        self.confirmed_batches += 1
        now_s = self._clock.monotonic_s()
        if self.stored_times.is_due(now_s):
            self.stored_times.mark(self.extent.last_confirmed, now_s, self._clock.wall_ms())
        try:
            done.batch.on_appended(ledger_id, first)
        except Exception as bug:  # noqa: BLE001  # handed on to the loop's handler
            self._tell_of(bug)

    def _report_held(self) -> None:
        """Report the batches held behind the draining ledger, once that has no outcome left."""
        draining, writer = self.draining, self.writer
        assert draining is not None
        assert writer is not None
        if self.extent.growing_id != draining.ledger_id:
            return
        if self._order.is_next_of(draining.ledger_id):
            return
        self._order.held_bytes = 0
        self.extent.grow_in(writer.ledger_id)
        self.events.on_drained()
        while (held := self._order.take_done()) is not None:
            self._report(held)
        if self._is_held_back:
            waiting, self._is_held_back = self._order.take_waiting(), False
            self._write_all(waiting)

    def _on_error(self, writer: LedgerWriter, error: LedgerError) -> None:
        if self.state in (AppendState.FENCED, AppendState.ENDED):
            pass  # already reported as failed
        elif isinstance(error, LedgerFencedError):
            self.fence(error)
        elif writer is self.writer or writer is self.draining:
            # The batch stays pending. Once the ledger is closed at a known end, the batch is either
            # part of it or written again.
            self._on_ledger_failed(writer, error)

    def _tell_appended(self, done: PendingAppend) -> None:
        try:
            done.batch.on_appended(done.ledger_id, done.first_entry_id)
        except Exception as bug:  # noqa: BLE001  # handed on to the loop's handler
            self._tell_of(bug)

    def _tell_of(self, bug: Exception) -> None:
        """Report a bug in a callback, which must not prevent the outcomes of later callers."""
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"the outcome of an append to {self._path}", "exception": bug}
        )

    def _on_ledger_failed(self, writer: LedgerWriter, error: LedgerError) -> None:
        if writer not in self._broken:
            self._broken.append(writer)
        if self.state is AppendState.WRITING:
            self.state = AppendState.WAITING
        if self._refusal is None:
            self.events.on_failure(error)

    def is_broken(self, writer: LedgerWriter) -> bool:
        """Return whether an open ledger failed and takes no more appends."""
        return writer.has_failed or writer in self._broken

    def fence(self, error: LedgerError, *, is_own: bool = False) -> None:
        """Fail the handle for good, because another owner took the log over. With `is_own`, no
        other owner is known: this process gives the log up itself, and `error` says why."""
        if self.state in (AppendState.FENCED, AppendState.ENDED):
            return
        if is_own:
            log.info("log_abandoned", path=self._path, reason=str(error))
        else:
            log.warning("log_fenced", path=self._path, error=str(error))
        self.state = AppendState.FENCED
        if isinstance(error, LogFencedError):
            self._fence_reason = str(error)
        elif isinstance(error, NoSuchLedgerError):
            self._fence_reason = (
                f"{self._path}: {error}. A later owner that found it empty deleted it, or somebody "
                f"did; close this handle, and open the log again only if it should still be yours"
            )
        self._refusal = self._why_fenced
        self._fail_all(self._why_fenced())
        for writer in (self.draining, self.writer):
            if writer is not None:
                writer.abandon()  # the appends of this turn are not sent any more
        for callback in self._on_fenced:
            callback()

    def _why_fenced(self) -> LogError:
        return LogFencedError(self._fence_reason)

    def on_fenced(self, callback: Callable[[], None]) -> None:
        """Run `callback` once when another owner has taken the log over."""
        self._on_fenced.append(callback)

    def _fail_all(self, error: LogError) -> None:
        """Report all pending batches as failed, in order."""
        self._fail(self._order.take_all(), error)

    def _fail(self, batches: Sequence[AppendBatch], error: LogError) -> None:
        for batch in batches:
            try:
                batch.on_failed(error)
            except Exception as bug:  # noqa: BLE001  # handed on to the loop's handler
                self._tell_of(bug)

    # Ledgers

    def start(self, writer: LedgerWriter, listed: Sequence[LogLedger]) -> None:
        """Start with the ledger that a takeover chained behind the others of the list."""
        self._set_current(writer)
        self.extent.reshape(listed)
        self.extent.last_confirmed = self.extent.shape.last_confirmed
        self.state = AppendState.WRITING

    def start_idle(self, listed: Sequence[LogLedger]) -> None:
        """Start behind the ledgers of the list, all of them closed, without a new one."""
        self.extent.reach_end(listed)
        self.state = AppendState.IDLE

    def begin(self, writer: LedgerWriter) -> None:
        """Switch to this owner's first ledger, which is listed; write the waiting batches."""
        waiting = self._order.take_all()
        self._set_current(writer)
        self.state = AppendState.WRITING
        self._write_all(waiting)

    @property
    def is_unused(self) -> bool:
        """Whether the only open ledger was never written to."""
        writer = self.writer
        return (
            self.state is AppendState.WRITING
            and self._refusal is None
            and writer is not None
            and writer.entries_added == 0
            and self.draining is None
        )

    def withdraw(self) -> LedgerWriter:
        """Take the unused ledger away. Appends wait until `rest`, or until a new ledger begins."""
        if not self.is_unused:
            raise InvariantError("a ledger that has entries cannot be withdrawn")
        writer, self.writer = self.writer, None
        assert writer is not None
        self.state = AppendState.WAITING
        return writer

    def rest(self, listed: Sequence[LogLedger]) -> bool:
        """Continue without a ledger after `withdraw`, as after `start_idle`; return False if
        appends already wait for a ledger."""
        self.extent.reach_end(listed)
        if len(self._order):
            return False
        self.state = AppendState.IDLE
        return True

    def _set_current(self, writer: LedgerWriter) -> None:
        self.writer = writer
        self._fullness.begin()
        if self.draining is None or self.is_drained:
            self.extent.grow_in(writer.ledger_id)

    def switch_to(self, writer: LedgerWriter) -> None:
        """Send new appends to a ledger that the list names; pending ones finish where they are."""
        if self.draining is not None:
            raise InvariantError(
                f"ledger {self.draining.ledger_id} is still draining: appends cannot switch to "
                f"ledger {writer.ledger_id}"
            )
        self.draining = self.writer
        self._set_current(writer)
        self._is_held_back = not self._config.overlaps_ledgers and not self.is_drained

    def swap_current(self, writer: LedgerWriter) -> None:
        """Replace the current ledger, of which nothing was reported, by another one."""
        if self.draining is None or self.is_drained:
            raise InvariantError(
                f"ledger {writer.ledger_id} cannot replace one whose appends may be reported"
            )
        self._set_current(writer)

    @property
    def is_drained(self) -> bool:
        """Whether all batches of the draining ledger are confirmed and reported."""
        draining = self.draining
        if draining is None or self.extent.growing_id != draining.ledger_id:
            return True
        if self._order.has_sent:
            return not self._order.is_next_of(draining.ledger_id)
        if not self.is_broken(draining):
            return True
        # It may have failed with no add pending; then only this check notices.
        return self.extent.entries(draining.ledger_id) == draining.entries_added

    def drained_closed(self, listed: Sequence[LogLedger]) -> None:
        """Drop the draining ledger, which is closed and has its end in the list."""
        if not self.is_drained:
            raise InvariantError("the draining ledger was closed before its appends were reported")
        if self.draining in self._broken:
            self._broken.remove(self.draining)
        self.draining = None
        self.extent.reshape(listed)

    def resume(
        self, writer: LedgerWriter, listed: Sequence[LogLedger], *, closed: LedgerMetadata
    ) -> None:
        """Continue in `writer` after the failed ledger was closed at a known end (rule 3.1).

        Batches that the closed ledger holds are appended. The rest is written again, then the
        waiting batches, in order. A batch that the closed ledger holds in part cannot be completed:
        its entries would not be consecutive. It fails, and so do all batches behind it, so that a
        client that resends keeps its order.
        """
        self.extent.reach_end(listed)
        held, is_torn = self._order.settle(closed.ledger_id, closed.last_entry_id)
        for pending in held:
            self._tell_appended(pending)
        waiting = self._order.take_all()
        self._is_held_back = False
        self.draining = None
        self._broken.clear()
        self._set_current(writer)
        self.state = AppendState.WRITING
        if is_torn:
            self._fail(
                waiting,
                LogUnavailableError(f"{self._path}: the ledger failed in the middle of a batch"),
            )
        else:
            self._write_all(waiting)

    def _write_all(self, waiting: Sequence[AppendBatch]) -> None:
        for batch in waiting:
            if self._refused:
                self._refuse(batch, self._behind_another())
            elif self.state is AppendState.WRITING:
                self._write(batch)
            elif self.state is AppendState.WAITING:  # it has failed again
                self._enqueue(batch)
            else:
                is_fenced = self.state is AppendState.FENCED
                self._refuse(batch, self._why_fenced() if is_fenced else self._unavailable())

    def give_up(self, cause: LedgerError) -> None:
        """Fail all pending batches, and appends for some time: no ledger can be written to."""
        draining = self.draining
        if draining is not None and not self.is_drained and draining not in self._broken:
            self._broken.append(draining)  # its batches were reported as failed
        if self.writer is None and not len(self._order):
            log.warning("ledger_not_prepared", path=self._path, error=str(cause))
            self.state = AppendState.IDLE
            return
        log.error("log_unavailable", path=self._path, error=str(cause))
        self.state = AppendState.UNAVAILABLE
        self._retry_at_s = self._clock.monotonic_s() + self._config.unavailable_retry_s
        self._fail_all(LogUnavailableError(f"{self._path}: no ledger can be written to: {cause}"))

    # The end

    def refusal(self) -> LogError | None:
        """Return why an append would be refused now; None if it would not."""
        if self._refusal is not None:
            return self._refusal()
        return self._unavailable() if self.state is AppendState.UNAVAILABLE else None

    def refuse(self, refusal: Callable[[], LogError]) -> None:
        """Take no more appends; pending ones still get their outcome."""
        if self.state is not AppendState.FENCED:
            self._refusal = refusal

    def end(self, error: LogError) -> None:
        """End the appender; pending batches fail."""
        if self.state is not AppendState.FENCED:
            self.state = AppendState.ENDED
        self._fail_all(error)

    def end_complete(self, listed: Sequence[LogLedger], refusal: Callable[[], LogError]) -> None:
        """End the appender of a terminated log: the list is complete."""
        self.extent.reach_end(listed)
        self._refusal = refusal
        self.end(refusal())
