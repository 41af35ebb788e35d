"""Entries in order for a consumer that reads the compacted view: newest messages, then the log.

Up to the horizon, entries come from the compacted ledger, with their positions in the topic; after
it, from the log. Entries that were compacted away between two others count as acknowledged once the
later one is sent, so that a durable cursor moves past them.

The compacted ledger may hold entries whose ledgers are trimmed, where the cursor cannot be placed.
A subscription that begins there has an `EarlyPlace`, which remembers how far that part is consumed.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from magnetar.broker.base.entry import kept_words_of
from magnetar.broker.base.errors import RequestError
from magnetar.broker.topic.dispatch.source import EntrySource
from magnetar.broker.topic.run import Run
from magnetar.cursors import Cursor, SubscriptionCursor
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.position import Position

_END = 1 << 62
_LEDGER, _ENTRY = "compacted.ledger", "compacted.entry"


class CompactedView(Protocol):
    """The compacted view of a topic up to its horizon; `CompactedLedger` implements it."""

    @property
    def horizon(self) -> Position: ...

    async def read_behind(
        self, after: Position, /, *, entries_max: int, bytes_max: int
    ) -> list[tuple[Position, bytes]]: ...


def early_place(
    view: CompactedView | None, log_begins: Position, first: Position
) -> Position | None:
    """Return the position behind which a subscription at `first` has compacted entries to consume
    that are trimmed from the log; None if there are none."""
    if view is None or first >= log_begins:
        return None
    return Position(first.ledger_id, max(-1, first.entry_id - 1))


def place_properties(after: Position | None) -> dict[str, int]:
    """Return the position properties of a cursor that save an early place."""
    return {} if after is None else {_LEDGER: after.ledger_id, _ENTRY: after.entry_id}


class EarlyPlace:
    """How far a subscription has consumed compacted entries that are trimmed from the log.

    A durable cursor saves it with its position. One record must take both: a place without its
    position, or a position without its place, would repeat or skip compacted entries after a crash.
    """

    def __init__(
        self,
        view: Callable[[], CompactedView | None],
        log_begins: Callable[[], Position],
        cursor: SubscriptionCursor,
    ) -> None:
        self.view = view
        self._log_begins = log_begins
        self._cursor = cursor
        self.after: Position | None = None
        """Last consumed position of that part; None if the whole part is consumed."""
        self._sent: deque[Position] = deque()
        """Sent and unacknowledged entries of that part. There may be a million, and one
        acknowledgement removes them all from the front."""
        self._acked: set[Position] = set()
        self._is_passed = False
        """Whether everything of that part was sent."""
        saved = cursor.position_properties if isinstance(cursor, Cursor) else {}
        if _LEDGER in saved and _ENTRY in saved:
            self.after = Position(saved[_LEDGER], saved[_ENTRY])

    def place(self, first: Position) -> None:
        """Place the subscription at `first`, wherever that is."""
        self.rewind()
        self._set(early_place(self.view(), self._log_begins(), first))

    def clear(self) -> None:
        """Forget the early part: the new consumer does not read the compacted view."""
        self.rewind()
        self._set(None)

    def rewind(self) -> None:
        """Prepare to send again what was sent and not acknowledged."""
        self._sent.clear()
        self._acked.clear()
        self._is_passed = False

    def sent(self, run: Run, start: int) -> None:
        """Note that entries are sent, from index `start` of a run on."""
        if run.first >= self._log_begins():
            self.passed()
            return
        for at in range(start, len(run.entries)):
            position = Position(run.ledger_id, run.first_entry_id + at)
            if not self._sent or position > self._sent[-1]:
                self._sent.append(position)

    def passed(self) -> None:
        """Note that nothing of that part remains to be sent."""
        self._is_passed = True
        self._settle()

    def acked(self, positions: Iterable[Position]) -> None:
        """Note that entries were acknowledged one by one."""
        if self._sent:
            last = self._sent[-1]
            self._acked.update(each for each in positions if each <= last)
            self._settle()

    def acked_through(self, position: Position) -> None:
        """Note that everything through the position was acknowledged."""
        while self._sent and self._sent[0] <= position:
            self._acked.add(self._sent[0])
            if not self._settle():
                break

    def _settle(self) -> bool:
        after = self.after
        while self._sent and self._sent[0] in self._acked:
            after = self._sent.popleft()
            self._acked.discard(after)
        if self._is_passed and not self._sent:
            after = None
        if after == self.after:
            return False
        self._set(after)
        return True

    def _set(self, after: Position | None) -> None:
        if after == self.after:
            return
        self.after = after
        if isinstance(self._cursor, Cursor):
            known = self._cursor.position_properties
            others = {name: known[name] for name in known if name not in (_LEDGER, _ENTRY)}
            self._cursor.set_position_properties(others | place_properties(after))


class CompactedSource(EntrySource):
    """An `EntrySource` that reads the compacted view, if the current consumer asks for it."""

    early: EarlyPlace | None = None
    """Early place of the subscription; None if the topic is never compacted."""
    _reads_compacted = False
    _known_view: CompactedView | None = None
    """View from which the runs ahead were read."""
    _nothing_behind: Position | None = None
    """Position after which the view has no entries; None if unknown."""

    @property
    def _view(self) -> CompactedView | None:
        return self.early.view() if self._reads_compacted and self.early is not None else None

    @property
    def is_view_unreadable(self) -> bool:
        found, view = self.unreadable, self._view
        return found is not None and view is not None and found[0] <= view.horizon

    def read_for(self, *, reads_compacted: bool) -> None:
        """Set whether to read the compacted view, from the next `rewind` on."""
        self._reads_compacted = reads_compacted
        if not reads_compacted and self.early is not None:
            self.early.clear()

    def rewind(self) -> None:
        super().rewind()
        if self._reads_compacted and self.early is not None:
            self.early.rewind()
            if self.early.after is not None:
                self._after = self.early.after

    def next_run(self) -> tuple[Run, int] | None:
        view = self._view
        if view is not self._known_view:
            self._drop_ahead()
            self._known_view, self._nothing_behind = view, None
        if view is not None and (after := self._done_through()) < view.horizon:
            found = self._next_compacted(view, after)
            if found is not None or self._after < view.horizon:
                return found
        return super().next_run()

    def _done_through(self) -> Position:
        """Return the last entry that was returned, skipped, or acknowledged meanwhile."""
        assert self.early is not None
        if self.early.after is not None or not self._acks.is_durable:
            return self._after
        return max(self._after, self._acks.mark_delete)

    def _next_compacted(self, view: CompactedView, after: Position) -> tuple[Run, int] | None:
        assert self.early is not None
        ahead = self._ahead
        while ahead and ahead[0].last <= after:
            del ahead[0]
        if not ahead:
            if self._nothing_behind is None or after < self._nothing_behind:
                self._read_behind(view, after)
                return None
            horizon = view.horizon
            self._ack_gap(after, Position(horizon.ledger_id, horizon.entry_id + 1))
            self._after = horizon
            self.early.passed()
            return None
        run, index = ahead[0], 0
        if run.first <= after:
            index = after.entry_id + 1 - run.first_entry_id
        else:
            self._ack_gap(after, run.first)
        if len(ahead) == 1:
            self._read_on(run.last)
        if self.early.after is not None:
            self.early.sent(run, index)
        return run, index

    def _ack_gap(self, after: Position, until: Position) -> None:
        """Acknowledge the entries between two positions: they were compacted away."""
        if not self._acks.is_durable:
            return
        position = self._log.next_position(after)
        while position < until:
            if position.ledger_id == until.ledger_id:
                self._acks.ack_range(position.ledger_id, position.entry_id, until.entry_id - 1)
                return
            self._acks.ack_range(position.ledger_id, position.entry_id, _END)
            position = self._log.next_position(Position(position.ledger_id, _END))

    def _read_on(self, last: Position) -> None:
        view = self._view
        if view is None or last >= view.horizon:
            super()._read_on(last)
        elif self._nothing_behind is None or last < self._nothing_behind:
            self._read_behind(view, last)

    def _read_behind(self, view: CompactedView, after: Position) -> None:
        if not self._reading.is_busy:
            self.reads += 1
            self._reading.begin(self._read_view(view, after))

    async def _read_view(self, view: CompactedView, after: Position) -> None:
        settings = self._settings
        try:
            found = await view.read_behind(
                after, entries_max=settings.read_ahead_entries, bytes_max=settings.read_ahead_bytes
            )
        except (LedgerError, RequestError) as error:
            # Which entry of the ledger comes next is not known: it is one from the next in the log
            # on. If the log begins behind the view, only its horizon can be named.
            self._reading.fail(min(self._log.next_position(after), view.horizon), error)
            return
        self._reading.done()
        self._ahead.extend(runs_of(found, is_masked=not self._acks.is_durable))
        if not found:
            self._nothing_behind = after
        self._on_ready()


def runs_of(found: Sequence[tuple[Position, bytes]], *, is_masked: bool) -> list[Run]:
    """Return entries as runs of consecutive ones.

    `is_masked`: whether the ack_set of a batch tells which messages are compacted away, for clients
    that ignore the mark in the message itself. Only for readers: other consumers on such clients
    would wait for those messages before they acknowledge the batch.
    """
    runs: list[Run] = []
    start = 0
    for at in range(1, len(found) + 1):
        if at < len(found):
            before, here = found[at - 1][0], found[at][0]
            if here == Position(before.ledger_id, before.entry_id + 1):
                continue
        first = found[start][0]
        entries = [entry for _, entry in found[start:at]]
        kept = list(map(kept_words_of, entries)) if is_masked else []
        runs.append(
            Run.of_stored(
                first.ledger_id,
                first.entry_id,
                entries,
                kept_words=kept if any(kept) else None,
            )
        )
        start = at
    return runs
