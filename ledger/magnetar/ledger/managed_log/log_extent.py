"""The extent of a log: ledgers and positions, confirmed entries, and storage times. Pure.

- `LogShape` is arithmetic over positions: the next entry, the previous one, and the number between.
  It works on a list of (ledger id, number of entries), in log order; the last ledger still grows.
  Empty ledgers are skipped. A position in a removed ledger counts as the border where it was.
- `LogExtent` is the owner's view: the shape, and its confirmed part. One ledger at a time *grows*:
  the one whose appends are being reported. While ledgers change, that is the draining one until its
  last append was reported; the current one does not count until then. So positions never go back,
  and no reader of the owner is ahead of the reported appends.
- `StoredTimes` says when entries were stored, by the clocks of brokers. Publish times come from
  producers, and a producer's clock may be a day behind. What a broker knows itself is a lower
  bound: no entry is older than its ledger, than the close of the previous ledger, or than an
  earlier entry. For the entries that it stored itself, the owner keeps *marks*, each an entry and
  the time of its confirmation. Marks are dense for new entries and ever thinner for old ones, so
  the error of the bound is a small part of an entry's age.

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
"""Number of marks of a log at which they are thinned."""
_AGE_PER_GAP = 8
"""A mark is dropped if its neighbours are no further apart than one part in this many of their age.
Fewer than 300 marks remain after a year."""
_LEFT_MAX = MARKS_MAX * 3 // 4


class LogShape:
    """The division of a log into ledgers. Rebuilt when the list changes; appends call `grow`."""

    def __init__(self, ledgers: list[tuple[int, int]]) -> None:
        self._ids = [ledger_id for ledger_id, _ in ledgers]
        self._entries = [entries for _, entries in ledgers]
        self._index = {ledger_id: at for at, ledger_id in enumerate(self._ids)}
        self._before = list(accumulate(self._entries, initial=0))[:-1]
        """Number of entries in all ledgers before the one at the same index."""

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._index

    def add_ledger(self, ledger_id: int) -> None:
        """Append an empty ledger, which grows from now on instead of the previous one."""
        self._before.append(self._before[-1] + self._entries[-1] if self._ids else 0)
        self._index[ledger_id] = len(self._ids)
        self._ids.append(ledger_id)
        self._entries.append(0)

    def grow(self, entries: int) -> None:
        """Set the number of confirmed entries of the last ledger."""
        self._entries[-1] = entries

    @property
    def last_confirmed(self) -> Position:
        """The last entry of the log; (first ledger, -1) if there is none."""
        for at in range(len(self._ids) - 1, -1, -1):
            if self._entries[at]:
                return Position(self._ids[at], self._entries[at] - 1)
        return Position(self._ids[-1], -1) if self._ids else Position(-1, -1)

    def last_entry_id(self, ledger_id: int) -> int:
        """Return the last entry of a ledger of the list; -1 if it is empty."""
        return self._entries[self._index[ledger_id]] - 1

    def _locate(self, position: Position) -> tuple[int, int]:
        """Return (ledger index, entry id) of the first existing or future entry >= position."""
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
        """Return the first entry >= position: an entry or, at the end, the next append.

        (-1, 0) in a log that was terminated while it was empty.
        """
        if not self._ids:
            return Position(-1, 0)
        at, entry_id = self._locate(position)
        return Position(self._ids[at], min(entry_id, self._entries[at]))

    def next_position(self, position: Position) -> Position:
        """Return the entry after `position`; at the end, the next append."""
        ledger_id, entry_id = position
        at = self._index.get(ledger_id)
        if at is not None and 0 <= entry_id + 1 < self._entries[at]:
            return Position(ledger_id, entry_id + 1)  # nearly always: no search is needed
        return self.first_at_or_after(Position(position.ledger_id, position.entry_id + 1))

    def previous_position(self, position: Position) -> Position:
        """Return the entry before `position`; (first ledger, -1) if there is none."""
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
        """Return the number of entries in (lower, upper]; never negative."""
        return max(0, self._rank(upper) - self._rank(lower))

    def _rank(self, position: Position) -> int:
        """Return the number of entries <= position."""
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
        """Id of the ledger that grows; -1 if none does."""

    def confirm(self, ledger_id: int, last_entry_id: int) -> None:
        """Confirm all entries up to this one of the growing ledger."""
        self.last_confirmed = Position(ledger_id, last_entry_id)
        self.shape.grow(last_entry_id + 1)

    def grow_in(self, ledger_id: int) -> None:
        """Let this ledger grow from now on."""
        self.growing_id = ledger_id
        if ledger_id not in self.shape:
            self.shape.add_ledger(ledger_id)

    def entries(self, ledger_id: int) -> int:
        """Return the number of confirmed entries of a ledger; 0 if it does not grow yet."""
        return self.shape.last_entry_id(ledger_id) + 1 if ledger_id in self.shape else 0

    def reshape(self, listed: Sequence[LogLedger]) -> None:
        """Adopt a changed list: its ledgers, and the counters of closed ones."""
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
        """Adopt a list in which no ledger grows: all entries of closed ledgers are confirmed."""
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
        """Return whether to mark an entry that is confirmed now."""
        return now_s >= self._next_s

    def mark(self, position: Position, now_s: float, now_ms: int) -> None:
        """Record that this entry is confirmed by now, and that no later one is."""
        self._next_s = now_s + MARK_INTERVAL_S
        self._positions.append(position)
        self._times_ms.append(now_ms)
        if len(self._positions) >= MARKS_MAX:
            self._thin(now_ms)

    def since_ms(self, position: Position) -> int:
        """Return a time before which the entry was not confirmed; 0 if nothing is known.

        A marked entry has the time of its own mark: with the mark before it, an entry that follows
        a long pause would count as old as the entry before the pause.
        """
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
        # If the clock was set back, distances mean nothing, so the limit on the number comes first.
        kept = [*kept[: _LEFT_MAX - 1], 0][::-1]
        self._positions = [self._positions[at] for at in kept]
        self._times_ms = [self._times_ms[at] for at in kept]


def stored_since_ms(
    ledgers: Sequence[LogLedger], position: Position, known_ms: Iterable[int], *, now_ms: int
) -> int:
    """Return a time before which the entry at the position was not stored; 0 if nothing is known.

    Args:
        ledgers: the log's list, oldest first.
        known_ms: other such times: the creation of its ledger, and the time of a mark.
        now_ms: later times come from a clock that was wrong, and are ignored.
    """
    since_ms = max((each for each in known_ms if each <= now_ms), default=0)
    for ledger in reversed(ledgers):
        if ledger.ledger_id < position.ledger_id and ledger.is_closed:
            return max(since_ms, ledger.closed_ms if ledger.closed_ms <= now_ms else 0)
    return since_ms
