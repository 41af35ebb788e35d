"""Arithmetic over the positions of a log: which entry comes next, before, and how many lie between.

Pure: works on a list of (ledger id, number of entries), in log order, the last one still growing.
Empty ledgers are skipped; a position in a ledger that is gone counts as the border it stood at.
Source: managed ledger, section 4.
"""

from bisect import bisect_left, bisect_right
from itertools import accumulate

from magnetar.ledger.position import Position


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
