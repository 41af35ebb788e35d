"""How far ahead of its consumer a reader of an object fetches, and how much all readers may keep.
Pure.

The window of a reader is the run that its consumer reads and the runs after it. A reader starts
with one run. Each move into the next run doubles the window, up to a bound in bytes; a jump
restarts with one run. So a seek costs one run, and a catch-up soon makes large requests.

Invariant: a window has at least the run that is read. It exceeds its bound only if that one run
does.

Source: tiered storage, section 19.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence

from magnetar.ledger.offloading.object_format import RunPlace, ranges_of

_AHEAD_PARTS, _PARTS = 3, 4
"""Share of the memory for runs that are fetched ahead. The rest is for the runs that are read: a
reader that cannot keep its run requests it again for each read."""


class ReadWindow:
    """The window of one reader of one object."""

    def __init__(self, runs: Sequence[RunPlace], *, bytes_max: int, range_bytes: int) -> None:
        """Make the window of a reader that has read nothing yet.

        Args:
            runs: all runs of the object, in order.
            bytes_max: bound of the window.
            range_bytes: bound of one request; a larger run is a request of its own.
        """
        self._runs = runs
        self._bytes_max = bytes_max
        self._range_bytes = range_bytes
        self._length = 1
        """Number of runs in the window, if the byte bound allows them."""
        self._failed: int | None = None
        """Number of a run that could not be fetched ahead: no run from it on is fetched until it is
        read."""
        self.current: int | None = None
        """Number of the run that is read; None before the first read."""
        self.numbers = range(0)
        """Numbers of the runs to keep: the current one, unless it was read to its end, and those to
        fetch ahead."""

    def move_to(self, number: int) -> bool:
        """Note that the consumer reads in a run. Return whether it read in another run before.

        Skipping forward within the window neither widens nor restarts it.
        """
        if number == self.current:
            return False
        is_next = self.current is not None and number == self.current + 1
        is_past_failure = self._failed is not None and number >= self._failed
        if is_past_failure or not (is_next or number in self.numbers):
            self._length, self._failed = 1, None
        elif is_next:
            self._length = min(2 * self._length, len(self._runs))
        self.current = number
        self._measure(number)
        return True

    def finish(self, number: int) -> None:
        """Note that a run was read to its end; if it is the current one, it need not be kept."""
        if number == self.current:
            self.numbers = range(number + 1, max(self.numbers.stop, number + 1))

    def fail(self, number: int) -> None:
        """Note that a run could not be fetched ahead. The window ends before it until the consumer
        reads it or jumps, so that a damaged run is not requested with every read."""
        if self.current is not None and number > self.current:
            self._failed = number if self._failed is None else min(self._failed, number)
            self.numbers = range(self.numbers.start, min(self.numbers.stop, self._failed))

    def restart(self) -> None:
        """Restart with one run, after the memory of the window was released."""
        self._length = 1
        if self.current is not None:
            self.numbers = range(self.current, self.current + 1)

    def _measure(self, number: int) -> None:
        """Set the window that begins with a run."""
        bound = self._runs[number].offset + self._bytes_max
        end = bisect_right(
            self._runs, bound, lo=number, key=lambda run: run.offset + run.size_bytes
        )
        end = min(end, number + self._length)
        if self._failed is not None:
            end = min(end, self._failed)
        self.numbers = range(number, max(end, number + 1))

    def wanted(self, present: Collection[int]) -> list[range]:
        """Return the runs to request now: ranges of consecutive runs, one request each, in order.

        Runs ahead are not requested one by one as the window moves, but when they make a whole
        request or half a window, or when the object ends with them.

        Args:
            present: numbers of runs that are in memory or under way.
        """
        missing = [number for number in self.numbers if number not in present]
        if not missing:
            return []
        is_worth_it = (
            missing[0] == self.current
            or self.numbers.stop == len(self._runs)
            or 2 * len(missing) >= len(self.numbers)
            or sum(self._runs[number].size_bytes for number in missing) >= self._range_bytes
        )
        if not is_worth_it:
            return []
        found: list[range] = []
        for stretch in _stretches(missing):
            runs = self._runs[stretch.start : stretch.stop]
            for start, end in ranges_of(runs, self._range_bytes):
                found.append(range(self._number_at(start), self._number_at(end)))
        return found

    def _number_at(self, offset: int) -> int:
        """Return the number of the run that begins at the offset; the number of runs, if the last
        one ends there."""
        return bisect_left(self._runs, offset, key=lambda run: run.offset)


def _stretches(numbers: Sequence[int]) -> list[range]:
    """Return ascending numbers as ranges without gaps."""
    found: list[range] = []
    for number in numbers:
        if found and found[-1].stop == number:
            found[-1] = range(found[-1].start, number + 1)
        else:
            found.append(range(number, number + 1))
    return found


class ReadMemory:
    """The bytes of runs that all readers of a process keep or fetch ahead. Each run counts once,
    however many readers share it."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._ahead_bytes_max = bytes_max * _AHEAD_PARTS // _PARTS
        self.in_use_bytes = 0

    def take(self, size_bytes: int, *, is_ahead: bool) -> bool:
        """Take memory for runs; return whether there was enough.

        Args:
            is_ahead: the runs are fetched ahead; they may not use all of the memory.
        """
        bytes_max = self._ahead_bytes_max if is_ahead else self._bytes_max
        if self.in_use_bytes + size_bytes > bytes_max:
            return False
        self.in_use_bytes += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """Return memory that was taken."""
        self.in_use_bytes -= size_bytes
        assert self.in_use_bytes >= 0, self.in_use_bytes
