"""When stored logs and cursors came into being, as far as the walk over topics at rest can tell.

A topic or subscription may be made without being loaded: by growth, over HTTP, by a split, by a
restore. Then no broker has seen its use, and it must not count as unused for longer than it exists.

Each record is judged when a walk sees it for the first time; later walks remember the result:

- If an earlier walk came past every topic and did not see the record, it counts as new, whatever it
  says. No clock matters: the time that a record states may be that of another record that it was
  copied from, or of a clock that was wrong.
- In the first walk after a start, the latest of the stored times decides. They are wall clock
  times. The clock may have been set since, so they are translated by the smallest offset between
  wall clock and monotonic clock that was ever observed: a clock that is set makes a record younger,
  never older.
- A record without a readable time counts as new.

So a record may seem younger than it is, by up to the time between two walks, or until a restart.
What is not remembered, because there are too many records, is judged by its stored times at each
walk.
"""

import math
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from magnetar.ledger.ports import Clock

REMEMBERED_MAX: Final = 200_000
"""Logs and cursors whose time is remembered; each takes about 150 bytes of memory."""

_KEY_BYTES = 8
_TIME_MS_MAX = 1 << 62


class Births:
    """Judges records by their identity and their stored times. `begin` and `end` enclose a walk."""

    def __init__(self, clock: Clock, *, remembered_max: int = REMEMBERED_MAX) -> None:
        self._clock = clock
        self._remembered_max = remembered_max
        self._offset_ms = math.inf
        """Smallest difference between wall clock and monotonic clock until now."""
        self._before: dict[bytes, float] = {}
        """Records of earlier walks that this walk has not seen yet."""
        self._seen: dict[bytes, float] = {}
        """Records that this walk has seen."""
        self._is_complete = True
        """Whether this walk has remembered all that it has seen."""
        self._knows_all = False
        """Whether a walk has remembered all records that there were, so that others are new."""
        self._observe()

    def __len__(self) -> int:
        return len(self._before) + len(self._seen)

    def begin(self) -> None:
        """Begin a walk."""
        self._is_complete = True

    def end(self, *, is_whole: bool) -> None:
        """End a walk. `is_whole`: whether it has come past every topic; what it has not seen is
        forgotten then."""
        if not is_whole:
            self._before.update(self._seen)
        else:
            self._before = self._seen
            self._knows_all = self._is_complete
        self._seen = {}

    def since_s(self, identity: str, times_ms: Iterable[int], *, was_in_use: bool = False) -> float:
        """Return since when a record can have been unused, monotonic seconds.

        Args:
            identity: tells the record from all others, and from a later one at its path.
            times_ms: wall clock times that are stored with the record, at which it was made or
                used; 0 if unknown.
            was_in_use: earlier walks may have passed by the record because it was in use.
        """
        key = blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES).digest()
        known_s = self._seen.get(key)
        if known_s is None:
            known_s = self._before.pop(key, None)
        if known_s is None:
            known_s = self._judge(times_ms, is_new=self._knows_all and not was_in_use)
            if len(self) >= self._remembered_max:
                self._is_complete = False
                return known_s
        self._seen[key] = known_s
        return known_s

    def _judge(self, times_ms: Iterable[int], *, is_new: bool) -> float:
        now_s = self._observe()
        last_ms = min(max(times_ms, default=0), _TIME_MS_MAX)
        if is_new or last_ms <= 0:
            return now_s
        return min(now_s, (last_ms - self._offset_ms) / 1000)

    def _observe(self) -> float:
        """Compare the clocks; return the time now."""
        now_s = self._clock.monotonic_s()
        self._offset_ms = min(self._offset_ms, self._clock.wall_ms() - now_s * 1000)
        return now_s
