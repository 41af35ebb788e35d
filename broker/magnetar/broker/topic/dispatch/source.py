"""The entries of a topic in order, for one subscription: from the tail cache, or read ahead.

A source stands after a position and hands out runs. What the tail cache holds costs nothing; behind
the tail it reads ranges of up to `read_ahead_bytes` and keeps one more under way while the last one
is being written, so that a consumer that catches up waits for neither disk nor broker.
What is read is shared by all subscriptions (`range_reads.py`).

Acknowledged entries are skipped here in ranges; single ones inside a run are left to the encoder.
"""

from collections.abc import Callable
from typing import Protocol

from magnetar.broker.topic.dispatch.paced_read import PacedRead
from magnetar.broker.topic.dispatch.range_reads import RangeReads, ReadableLog
from magnetar.broker.topic.dispatch.visibility import Visibility, VisibleRuns
from magnetar.broker.topic.run import Run
from magnetar.cursors import SubscriptionCursor
from magnetar.ledger.errors import LedgerError, LogClosedError, LogFencedError
from magnetar.ledger.position import Position

_RUNS_AHEAD_MAX = 2
_STRETCHES_MAX = 64


class Skipped(Protocol):
    """A feature that delivers certain entries in another way, so that dispatch passes over them."""

    def passed_over(self, position: Position, /) -> Position | None:
        """The last of the consecutive entries from here on that are; None: this one is not."""
        ...

    def rewound(self) -> None:
        """Everything begins again at the first unacknowledged entry."""
        ...


class EntrySource:
    """Runs after a position. `on_ready` is called when a read that was waited for is done."""

    def __init__(
        self,
        log: ReadableLog,
        reads: RangeReads,
        acks: SubscriptionCursor,
        *,
        label: str,
        on_ready: Callable[[], None],
        skipped: Skipped | None = None,
        visibility: Visibility | None = None,
    ) -> None:
        """`visibility`: of the topic; None: all of the log is visible."""
        self._log = log
        self._visibility = Visibility(log) if visibility is None else visibility
        self._visible = VisibleRuns(self._visibility)
        self._skipped = skipped
        if skipped is not None:
            skipped.rewound()
        self._reads = reads
        self._cache = reads.cache
        self._settings = reads.settings
        self._acks = acks
        self._on_ready = on_ready
        self._after = acks.mark_delete
        self._ahead: list[Run] = []
        """A few. A list: every subscription has it, and an empty deque takes 760 bytes."""
        self._reading = PacedRead(
            reads.settings, failure_event="read_failed", label=label, on_ready=on_ready
        )
        self.reads = 0

    @property
    def after(self) -> Position:
        """The last entry handed out or skipped."""
        return self._after

    @property
    def is_reading(self) -> bool:
        """A read is under way, or will be tried again after a pause."""
        return self._reading.is_busy

    @property
    def unreadable(self) -> tuple[Position, str] | None:
        """Where the last read began, and why it failed; None: it did not."""
        return self._reading.unreadable

    @property
    def is_at_end(self) -> bool:
        """Everything in the log was handed out or skipped."""
        return self._next_position(self._after) > self._visibility.last

    def rewind(self) -> None:
        """Go back to the first unacknowledged entry."""
        self._after = self._acks.mark_delete
        self._drop_ahead()
        if self._skipped is not None:
            self._skipped.rewound()

    def advance(self, run: Run, stop: int) -> None:
        """Everything before index `stop` of the run has been handed out or skipped."""
        self._after = Position(run.ledger_id, run.first_entry_id + stop - 1)

    def next_run(self) -> tuple[Run, int] | None:
        """The run that holds the next entry, and its index; None if there is nothing right now.

        None means either the end of the log (the topic wakes its dispatchers when entries are
        appended) or a read under way (`on_ready` follows).
        """
        log_end = self._log.last_confirmed
        if self._after >= log_end:
            self._drop_ahead()  # the usual end of a turn, found without a look at what is acked
            return None
        position = self._next_open(self._after, log_end)
        if self._skipped is not None:
            last = self._skipped.passed_over(position)
            if last is not None:
                self._after = self._pass_over(last)
                position = self._next_open(self._after, log_end)
        if position > (log_end if self._visibility.hidden is None else self._visibility.last):
            self._drop_ahead()
            return None
        ahead = self._ahead
        while ahead:
            index = ahead[0].index_of(position)
            if index >= 0:
                if len(ahead) < _RUNS_AHEAD_MAX:
                    self._read_on(ahead[-1].last)
                return self._visible.see(ahead[0]), index
            del ahead[0]
        run = self._cache.find(position)
        if run is not None:
            index = position.entry_id - run.first_entry_id
            return (run if self._visibility.hidden is None else self._visible.see(run)), index
        self._read(position)
        return None

    def use_cursor(self, acks: SubscriptionCursor) -> None:
        """Go by another view of the same cursor from now on."""
        self._acks = acks

    def close(self) -> None:
        """Stop reading."""
        self._drop_ahead()

    def _next_position(self, after: Position) -> Position:
        if self._skipped is not None:
            after = self._pass_over(after)
        return self._next_open(after)

    def _pass_over(self, after: Position) -> Position:
        """The last of the entries behind `after` that are skipped, if the next ones are.

        After so many stretches it is enough: what is read, though it may be skipped, is found out
        by whoever gets it.
        """
        assert self._skipped is not None
        for _ in range(_STRETCHES_MAX):
            last = self._skipped.passed_over(self._next_open(after))
            if last is None:
                break
            after = last
        return after

    def _next_open(self, after: Position, log_end: Position | None = None) -> Position:
        """The first entry after it that is not acknowledged. `log_end`: if that is known."""
        acks = self._acks
        if acks.has_holes:
            return acks.next_unacked(after)
        after = max(after, acks.mark_delete)
        if log_end is not None and after.ledger_id == log_end.ledger_id and after < log_end:
            return Position(after.ledger_id, after.entry_id + 1)  # nearly always
        return self._log.next_position(after)

    def _drop_ahead(self) -> None:
        self._ahead.clear()
        self._reading.stop()

    def _read_on(self, last: Position) -> None:
        """Read what follows `last`, unless the cache has it or it is not written yet."""
        if self._reading.is_busy:
            return
        position = self._next_position(last)
        if position <= self._visibility.last and self._cache.find(position) is None:
            self._read(position)

    def _read(self, start: Position) -> None:
        if not self._reading.is_busy:
            self.reads += 1
            self._reading.begin(self._read_range(start))

    async def _read_range(self, start: Position) -> None:
        try:
            run = await self._reads.read(start)
        except (LogFencedError, LogClosedError):
            self._reading.give_up()
            return
        except LedgerError as error:
            self._reading.fail(start, error)
            return
        self._reading.done()
        if run is not None:
            self._ahead.append(run)
            if len(self._ahead) < _RUNS_AHEAD_MAX:
                self._read_on(run.last)
        self._on_ready()
