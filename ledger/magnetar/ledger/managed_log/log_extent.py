"""How far a log reaches: its ledgers and positions, what is confirmed, and since when. Pure.

- `LogShape` is arithmetic over positions: which entry comes next, before, and how many lie between.
  It works on a list of (ledger id, number of entries), in log order, the last one still growing.
  Empty ledgers are skipped; a position in a ledger that is gone counts as the border it stood at.
- `LogExtent` is the owner's view: the shape, and what of it is confirmed. One ledger at a time
  *grows*: the one whose appends are being reported. While ledgers change, that is the draining one
  until its last append was reported, and the current one counts for nothing until then. So
  positions never go back, and no reader of the owner's is ahead of what was reported.
- `StoredTimes` says when entries were stored, by the clocks of brokers. Publish times are the
  producers', and a producer's clock may be a day behind. What a broker knows itself is a lower
  bound: no entry is older than the ledger it lies in, nor than the close of the ledger before it,
  nor than an entry before it. For the entries that it stored itself the owner keeps *marks*, each
  an entry and when it was confirmed: dense for what is new, ever thinner for what is old, so that
  the bound is wrong by a small part of an entry's age.

Source: managed ledger, section 4.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.position import Position

MARK_INTERVAL_S = 1.0
"""Time between two marks, while entries are stored."""
MARKS_MAX = 512
"""Marks of a log at which they are thinned."""
_AGE_PER_GAP = 8
"""A mark goes if those beside it are no further apart than this part of their age: fewer than 300
are left in a year."""
_LEFT_MAX = MARKS_MAX * 3 // 4


class LogShape:
    """How a log is cut into ledgers. Rebuilt when the list changes; `grow` on every append."""

    def __init__(self, ledgers: list[tuple[int, int]]) -> None:
        self._ids = [ledger_id for ledger_id, _ in ledgers]
        self._entries = [entries for _, entries in ledgers]
        self._index = {ledger_id: at for at, ledger_id in enumerate(self._ids)}
        self._before = list(accumulate(self._entries, initial=0))[:-1]
        """Entries in all ledgers before the one at the same index."""

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._index

    def add_ledger(self, ledger_id: int) -> None:
        """Append an empty ledger, which grows from now on instead of the one before it."""
        self._before.append(self._before[-1] + self._entries[-1] if self._ids else 0)
        self._index[ledger_id] = len(self._ids)
        self._ids.append(ledger_id)
        self._entries.append(0)

    def grow(self, entries: int) -> None:
        """Set the number of confirmed entries of the last ledger."""
        self._entries[-1] = entries

    @property
    def last_confirmed(self) -> Position:
        """The last entry there is; (first ledger, -1) when there is none."""
        for at in range(len(self._ids) - 1, -1, -1):
            if self._entries[at]:
                return Position(self._ids[at], self._entries[at] - 1)
        return Position(self._ids[-1], -1) if self._ids else Position(-1, -1)

    def last_entry_id(self, ledger_id: int) -> int:
        """Last entry of a ledger of the list; -1 when it is empty."""
        return self._entries[self._index[ledger_id]] - 1

    def _locate(self, position: Position) -> tuple[int, int]:
        """(index of the ledger, entry id) of the first existing or future entry >= position."""
        at = self._index.get(position.ledger_id)
        entry_id = max(position.entry_id, 0)
        if at is None:
            at = bisect_right(self._ids, position.ledger_id)
            entry_id = 0
            if at == len(self._ids):  # beyond the last ledger: the end of the log
                at -= 1
                return at, self._entries[at]
        while at < len(self._ids) - 1 and entry_id >= self._entries[at]:
            at, entry_id = at + 1, 0
        return at, entry_id

    def first_at_or_after(self, position: Position) -> Position:
        """The first entry >= position, existing or, at the end, the next to be written.

        (-1, 0) in a log that was terminated when it held nothing.
        """
        if not self._ids:
            return Position(-1, 0)
        at, entry_id = self._locate(position)
        return Position(self._ids[at], min(entry_id, self._entries[at]))

    def next_position(self, position: Position) -> Position:
        """The entry after `position`; at the end, the next to be written."""
        ledger_id, entry_id = position
        at = self._index.get(ledger_id)
        if at is not None and 0 <= entry_id + 1 < self._entries[at]:
            return Position(ledger_id, entry_id + 1)  # nearly always: there is nothing to look for
        return self.first_at_or_after(Position(position.ledger_id, position.entry_id + 1))

    def previous_position(self, position: Position) -> Position:
        """The entry before `position`; (first ledger, -1) when there is none."""
        if not self._ids:
            return Position(-1, -1)
        at = bisect_left(self._ids, position.ledger_id)
        if at < len(self._ids) and self._ids[at] == position.ledger_id:
            entry_id = min(position.entry_id, self._entries[at])
            if entry_id > 0:
                return Position(position.ledger_id, entry_id - 1)
        for before in range(min(at, len(self._ids)) - 1, -1, -1):
            if self._entries[before]:
                return Position(self._ids[before], self._entries[before] - 1)
        return Position(self._ids[0], -1)

    def entries_between(self, lower: Position, upper: Position) -> int:
        """Number of entries in (lower, upper]; never negative."""
        return max(0, self._rank(upper) - self._rank(lower))

    def _rank(self, position: Position) -> int:
        """Number of entries <= position."""
        if not self._ids:
            return 0
        at = bisect_left(self._ids, position.ledger_id)
        if at == len(self._ids):
            return self._before[-1] + self._entries[-1]
        if self._ids[at] != position.ledger_id:
            return self._before[at]
        return self._before[at] + max(0, min(position.entry_id + 1, self._entries[at]))


class LogExtent:
    """The confirmed part of a log."""

    def __init__(self) -> None:
        self.shape = LogShape([])
        self.last_confirmed = Position(-1, -1)
        self.growing_id = -1
        """The ledger that grows; -1 when none does."""

    def confirm(self, ledger_id: int, last_entry_id: int) -> None:
        """Everything up to this entry of the growing ledger is confirmed."""
        self.last_confirmed = Position(ledger_id, last_entry_id)
        self.shape.grow(last_entry_id + 1)

    def grow_in(self, ledger_id: int) -> None:
        """Let this ledger grow from now on."""
        self.growing_id = ledger_id
        if ledger_id not in self.shape:
            self.shape.add_ledger(ledger_id)

    def entries(self, ledger_id: int) -> int:
        """Confirmed entries of a ledger; 0 of one that does not grow yet."""
        return self.shape.last_entry_id(ledger_id) + 1 if ledger_id in self.shape else 0

    def reshape(self, listed: Sequence[LogLedger]) -> None:
        """The list has changed: adopt the counters of closed ledgers, and which there are."""
        self.shape = LogShape(
            [
                (
                    ledger.ledger_id,
                    ledger.entries if ledger.is_closed else self.entries(ledger.ledger_id),
                )
                for ledger in listed
                if ledger.is_closed or ledger.ledger_id in self.shape
            ]
        )

    def reach_end(self, listed: Sequence[LogLedger]) -> None:
        """No ledger grows, and all that closed ledgers hold is confirmed."""
        self.growing_id = -1
        self.reshape(listed)
        if self.shape.last_confirmed.entry_id >= 0:
            self.last_confirmed = self.shape.last_confirmed


class StoredTimes:
    """The marks of one log."""

    def __init__(self) -> None:
        self._positions: list[Position] = []
        self._times_ms: list[int] = []
        self._next_s = float("-inf")

    def is_due(self, now_s: float) -> bool:
        """Whether an entry that is confirmed now is to be marked."""
        return now_s >= self._next_s

    def mark(self, position: Position, now_s: float, now_ms: int) -> None:
        """Note that this entry is confirmed by now, and none behind it."""
        self._next_s = now_s + MARK_INTERVAL_S
        self._positions.append(position)
        self._times_ms.append(now_ms)
        if len(self._positions) >= MARKS_MAX:
            self._thin(now_ms)

    def since_ms(self, position: Position) -> int:
        """A time before which the entry was not stored; 0: nothing is known."""
        at = bisect_right(self._positions, position)
        return self._times_ms[at - 1] if at else 0

    def __len__(self) -> int:
        return len(self._positions)

    def _thin(self, now_ms: int) -> None:
        kept = [len(self._positions) - 1]
        for at in range(len(self._positions) - 2, 0, -1):
            older_ms = self._times_ms[at - 1]
            if (self._times_ms[kept[-1]] - older_ms) * _AGE_PER_GAP > now_ms - older_ms:
                kept.append(at)
        # A clock that was set back makes any distance: the bound on their number comes first.
        kept = [*kept[: _LEFT_MAX - 1], 0][::-1]
        self._positions = [self._positions[at] for at in kept]
        self._times_ms = [self._times_ms[at] for at in kept]


def stored_since_ms(
    ledgers: Sequence[LogLedger], position: Position, known_ms: Iterable[int], *, now_ms: int
) -> int:
    """A time before which the entry at the position was not stored; 0: nothing is known.

    Args:
        ledgers: the log's list, oldest first.
        known_ms: other such times: when its ledger was created, and of a mark.
        now_ms: times after it are of a clock that was wrong, and say nothing.
    """
    since_ms = max((each for each in known_ms if each <= now_ms), default=0)
    for ledger in reversed(ledgers):
        if ledger.ledger_id < position.ledger_id and ledger.is_closed:
            return max(since_ms, ledger.closed_ms if ledger.closed_ms <= now_ms else 0)
    return since_ms
