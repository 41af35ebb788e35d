"""The entries of a topic in order, for one subscription: from the tail cache, or read ahead.

A source has a position and returns the runs after it. Entries in the tail cache cost nothing.
Behind the tail it reads ranges of up to `read_ahead_bytes`, and reads one more while the last one
is being written, so that a consumer that catches up waits for neither disk nor broker. All
subscriptions share what is read (`range_reads.py`).

Acknowledged entries are skipped here in ranges; the encoder skips single ones inside a run.
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
    """A feature that delivers certain entries in another way, so that dispatch skips them."""

    def passed_over(self, position: Position, /) -> Position | None:
        """Return the last of the consecutive entries to skip from here on; None: do not skip this
        one."""
        ...

    def rewound(self) -> None:
        """Handle a rewind: dispatch starts again at the first unacknowledged entry."""
        ...


class EntrySource:
    """Runs after a position. `on_ready` is called when an awaited read is done."""

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
        """`visibility`: that of the topic; None: all of the log is visible."""
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
        """A few runs. A list: every subscription has one, and an empty deque takes 760 bytes."""
        self._reading = PacedRead(
            reads.settings, failure_event="read_failed", label=label, on_ready=on_ready
        )
        self.reads = 0

    @property
    def after(self) -> Position:
        """Last entry returned or skipped."""
        return self._after

    @property
    def is_reading(self) -> bool:
        """Whether a read is running, or will be retried after a pause."""
        return self._reading.is_busy

    @property
    def unreadable(self) -> tuple[Position, str] | None:
        """Where the last read began, and why it failed; None if it did not fail."""
        return self._reading.unreadable

    @property
    def is_view_unreadable(self) -> bool:
        """Whether the last read failed in the compacted view, and not in the log."""
        return False

    @property
    def is_at_end(self) -> bool:
        """Whether everything visible in the log was returned or skipped."""
        return self._next_position(self._after) > self._visibility.last

    def rewind(self) -> None:
        """Go back to the first unacknowledged entry."""
        self._after = self._acks.mark_delete
        self._drop_ahead()
        if self._skipped is not None:
            self._skipped.rewound()

    def advance(self, run: Run, stop: int) -> None:
        """Note that everything before index `stop` of the run has been sent or skipped."""
        self._after = Position(run.ledger_id, run.first_entry_id + stop - 1)

    def next_run(self) -> tuple[Run, int] | None:
        """Return the run that holds the next entry, and its index; None if there is nothing right
        now.

        None means either the end of the log (the topic wakes its dispatchers when entries are
        appended) or a running read (`on_ready` follows).
        """
        log_end = self._log.last_confirmed
        if self._after >= log_end:
            self._drop_ahead()  # the usual end of a turn, found without reading the cursor
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
        """Use another view of the same cursor from now on."""
        self._acks = acks

    def close(self) -> None:
        """Stop reading."""
        self._drop_ahead()

    def _next_position(self, after: Position) -> Position:
        if self._skipped is not None:
            after = self._pass_over(after)
        return self._next_open(after)

    def _pass_over(self, after: Position) -> Position:
        """Return the last skipped entry after `after`, or `after` if the next entry is not skipped.

        The search ends after a number of stretches. Entries that are read although they are to be
        skipped are detected later, by the dispatcher.
        """
        assert self._skipped is not None
        for _ in range(_STRETCHES_MAX):
            last = self._skipped.passed_over(self._next_open(after))
            if last is None:
                break
            after = last
        return after

    def _next_open(self, after: Position, log_end: Position | None = None) -> Position:
        """Return the first unacknowledged entry after `after`. `log_end`: the end of the log, if
        known."""
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
