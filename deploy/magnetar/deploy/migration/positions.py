"""Where each copied entry of a source topic lies at the target. Pure.

A copy keeps the order of its source, and both logs number their entries without gaps. So the map is
a list of *runs*: entries that follow each other at the source and at the target. A run ends where
either side begins a new ledger, or where the source has an entry that is not copied (the end of a
transaction, a marker). 1,000,000 entries in ledgers of 50,000 make about 40 runs; 48 bytes each.

The map is a cache: each entry at the target states its place at the source, so reading the target
rebuilds the map.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from magnetar.ledger.position import Position

_NUMBERS: Final = 6


class Interval(NamedTuple):
    """Positions after `after`, up to and including `through`."""

    after: Position
    through: Position


class EntryRange(NamedTuple):
    """Entries of one ledger, both ends included."""

    ledger_id: int
    first: int
    last: int

    @property
    def entries(self) -> int:
        """Number of entries."""
        return self.last - self.first + 1

    @property
    def interval(self) -> Interval:
        """The range as an interval of positions."""
        return Interval(
            Position(self.ledger_id, self.first - 1), Position(self.ledger_id, self.last)
        )


class Copied(NamedTuple):
    """One entry: its place at the source and at the target."""

    source: Position
    target: Position


class PositionMap:
    """The runs of one topic or partition, in order."""

    def __init__(self) -> None:
        self._source_ledgers = array("q")
        self._source_firsts = array("q")
        self._target_ledgers = array("q")
        self._target_firsts = array("q")
        self._counts = array("q")
        self._messages = array("q")
        self._unsaved = 0
        """Index of the first run that has changed since it was saved."""
        self.entries = 0
        self.messages = 0
        """Number of messages in the entries: a batch has several."""

    def __len__(self) -> int:
        return len(self._counts)

    def clear(self) -> None:
        """Clear the map."""
        self.__init__()  # type: ignore[misc]  # the empty state is that of a new map

    @property
    def last(self) -> Copied | None:
        """The last entry; None if the map is empty."""
        if not self._counts:
            return None
        ahead = self._counts[-1] - 1
        return Copied(
            Position(self._source_ledgers[-1], self._source_firsts[-1] + ahead),
            Position(self._target_ledgers[-1], self._target_firsts[-1] + ahead),
        )

    def add(self, source: Position, target: Position, messages: int) -> None:
        """Add the next copied entry."""
        last = self.last
        assert last is None or (source > last.source and target > last.target), "copies ascend"
        self.entries += 1
        self.messages += messages
        if last is not None and _follows(last.source, source) and _follows(last.target, target):
            self._counts[-1] += 1
            self._messages[-1] += messages
            self._unsaved = min(self._unsaved, len(self) - 1)
            return
        self._append(*source, *target, 1, messages)

    def _append(self, *numbers: int) -> None:
        for column, number in zip(self._columns(), numbers, strict=True):
            column.append(number)

    def _columns(self) -> "tuple[array[int], ...]":
        return (
            self._source_ledgers,
            self._source_firsts,
            self._target_ledgers,
            self._target_firsts,
            self._counts,
            self._messages,
        )

    # From the source to the target

    def floor(self, source: Position) -> Position | None:
        """Return the place of the last copied entry at or before a position; None if there is
        none."""
        at = self._run_of(source)
        if at < 0:
            return None
        ahead = self._counts[at] - 1
        if source.ledger_id == self._source_ledgers[at]:
            ahead = min(ahead, source.entry_id - self._source_firsts[at])
        return Position(self._target_ledgers[at], self._target_firsts[at] + ahead)

    def exact(self, source: Position) -> Position | None:
        """Return the place of an entry; None if it was not copied."""
        at = self._run_of(source)
        if at < 0 or source.ledger_id != self._source_ledgers[at]:
            return None
        ahead = source.entry_id - self._source_firsts[at]
        if ahead >= self._counts[at]:
            return None
        return Position(self._target_ledgers[at], self._target_firsts[at] + ahead)

    def translate(self, interval: Interval) -> Iterator[EntryRange]:
        """Yield the copies of the entries in an interval of the source."""
        at = max(0, self._run_of(interval.after))
        while at < len(self):
            ledger_id, first = self._source_ledgers[at], self._source_firsts[at]
            if Position(ledger_id, first) > interval.through:
                return
            last = first + self._counts[at] - 1
            begin, end = first, last
            if interval.after.ledger_id == ledger_id:
                begin = max(begin, interval.after.entry_id + 1)
            elif interval.after.ledger_id > ledger_id:
                begin = last + 1
            if interval.through.ledger_id == ledger_id:
                end = min(end, interval.through.entry_id)
            if begin <= end:
                ahead = self._target_firsts[at] - first
                yield EntryRange(self._target_ledgers[at], begin + ahead, end + ahead)
            at += 1

    def has_batches_behind(self, source: Position) -> bool:
        """Return whether any entry after a position may hold several messages."""
        start = max(0, self._run_of(source))
        return any(self._messages[at] > self._counts[at] for at in range(start, len(self)))

    def _run_of(self, source: Position) -> int:
        """Return the index of the last run that begins at or before a position; -1 if none does."""
        starts = self._source_ledgers, self._source_firsts
        return (
            bisect_right(
                range(len(self)), source, key=lambda at: Position(starts[0][at], starts[1][at])
            )
            - 1
        )

    # At the target

    def open_ranges(self, mark: Position, acked: Iterable[Interval]) -> Sequence[EntryRange]:
        """Return the entries at the target that are not acknowledged, in one canonical form.

        Args:
            mark: position at the target; everything up to it is acknowledged.
            acked: intervals at the target, in any order.
        """
        intervals = sorted(acked)
        found: list[EntryRange] = []
        at = 0
        for run in range(len(self)):
            ledger_id, first = self._target_ledgers[run], self._target_firsts[run]
            begin = Position(ledger_id, first)
            end = Position(ledger_id, first + self._counts[run] - 1)
            if mark >= begin:
                if mark >= end:
                    continue
                begin = Position(ledger_id, mark.entry_id + 1)
            while begin <= end:
                while at < len(intervals) and intervals[at].through < begin:
                    at += 1
                after, through = (
                    intervals[at] if at < len(intervals) else Interval(end, Position(end[0] + 1, 0))
                )
                if after >= begin:
                    stop = after if after < end else end
                    _join(found, EntryRange(ledger_id, begin.entry_id, stop.entry_id))
                if through >= end:
                    break
                begin = Position(ledger_id, through.entry_id + 1)
        return found

    # The saved form

    def unsaved_lines(self) -> str:
        """Return the runs that have changed since `all_is_saved`, a line each, to be appended to
        the file. A line replaces the previous one if both begin at the same place."""
        columns = self._columns()
        return "".join(
            " ".join(str(column[at]) for column in columns) + "\n"
            for at in range(self._unsaved, len(self))
        )

    def all_is_saved(self) -> None:
        """Note that the unsaved lines are in the file."""
        self._unsaved = len(self)

    def all_is_unsaved(self) -> None:
        """Make the next `unsaved_lines` return everything."""
        self._unsaved = 0

    @classmethod
    def of_lines(cls, text: str) -> "PositionMap":
        """Read the saved lines, up to the first one that is torn or out of order. The rest can be
        read from the target."""
        found = cls()
        for line in text.splitlines(keepends=True):
            numbers = _numbers(line)
            if numbers is None or not found._take(numbers):
                break
        found.entries, found.messages = sum(found._counts), sum(found._messages)
        found._unsaved = len(found)
        return found

    def _take(self, numbers: Sequence[int]) -> bool:
        last = self.last
        if last is not None:
            start = Position(self._source_ledgers[-1], self._source_firsts[-1])
            if Position(numbers[0], numbers[1]) == start:
                for column in self._columns():
                    column.pop()
                last = self.last
        if last is not None and (
            Position(numbers[0], numbers[1]) <= last.source
            or Position(numbers[2], numbers[3]) <= last.target
        ):
            return False
        self._append(*numbers)
        return True


def _follows(before: Position, position: Position) -> bool:
    return before.ledger_id == position.ledger_id and before.entry_id + 1 == position.entry_id


def _join(found: list[EntryRange], more: EntryRange) -> None:
    """Append a range, or extend the last one if the two are adjacent."""
    if found and (found[-1].ledger_id, found[-1].last + 1) == (more.ledger_id, more.first):
        found[-1] = EntryRange(more.ledger_id, found[-1].first, more.last)
    else:
        found.append(more)


def _numbers(line: str) -> Sequence[int] | None:
    parts = line.split()
    if not line.endswith("\n") or len(parts) != _NUMBERS:
        return None
    if not all(part.isascii() and part.isdecimal() for part in parts):
        return None
    numbers = [int(part) for part in parts]
    is_possible = max(numbers) < 1 << 63 and numbers[4] > 0
    return numbers if is_possible else None
