"""When the entries of a log were stored, by the clocks of brokers. Pure.

Publish times are the producers', and a producer's clock may be a day behind. What a broker knows
itself is a lower bound: no entry is older than the ledger it lies in, nor than the close of the
ledger before it, nor than an entry before it. For the entries that it stored itself the owner keeps
*marks*, each an entry and when it was confirmed: dense for what is new, ever thinner for what is
old, so that the bound is wrong by a small part of an entry's age.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

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
        """This entry, and none behind it, is confirmed by now."""
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
