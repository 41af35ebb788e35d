"""The slow moments of a process: what took long, when it ended, and its cause.

A ring of the last ones, always on. Metrics say how often something is slow. The recorder says what
else was slow at the same moment, and so what a slow publish waited for. Code that measures its work
notes it here. Work that took less than the threshold of its kind costs one comparison.

There is one recorder per process (`RECORDER`), as there is one event loop, one garbage collector
and one log. A garbage collection may note a moment at any time and on any thread, even while the
moments are read.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

MOMENTS_MAX = 1_000
"""Capacity of the ring, some 200 bytes each; the oldest moment is dropped."""

LOOP = "event loop"
"""A callback ran so much later than it was due: everything in the process waited."""
COLLECTION = "garbage collection"
"""A run of Python's cycle collector, which stops every thread."""
COMMIT = "journal commit"
"""Append and sync of one group of the journal."""
FLUSH = "flush"
"""Flush of a write buffer into an entry log and the index, including both syncs."""
CHECKPOINT = "checkpoint"
METADATA = "metadata call"

THRESHOLDS_S: Mapping[str, float] = MappingProxyType(
    {
        LOOP: 0.02,
        COLLECTION: 0.005,
        COMMIT: 0.02,
        FLUSH: 0.2,
        CHECKPOINT: 1.0,
        METADATA: 0.05,
    }
)
"""Threshold of each kind, in seconds; shorter moments are not kept."""


@dataclass(frozen=True, slots=True)
class SlowMoment:
    """One slow operation."""

    kind: str
    ended_ms: int
    """Wall clock, in milliseconds since 1970."""
    milliseconds: float
    cause: str
    """The object of the work, or the code that ran; empty if unknown."""


class FlightRecorder:
    """The most recent slow moments of a process."""

    def __init__(
        self,
        *,
        wall_s: Callable[[], float] = time.time,
        thresholds_s: Mapping[str, float] = THRESHOLDS_S,
        moments_max: int = MOMENTS_MAX,
    ) -> None:
        self._wall_s = wall_s
        self._thresholds_s = thresholds_s
        self._moments: deque[SlowMoment] = deque(maxlen=moments_max)

    def note(self, kind: str, seconds: float, cause: str | Callable[[], str] = "") -> None:
        """Keep a moment that reached the threshold of its kind; only then call `cause`."""
        if seconds < self._thresholds_s[kind]:
            return
        text = cause if isinstance(cause, str) else cause()
        self._moments.append(
            SlowMoment(kind, round(self._wall_s() * 1000), round(seconds * 1000, 3), text)
        )

    def moments(
        self, *, kind: str = "", milliseconds_min: float = 0.0, limit: int = MOMENTS_MAX
    ) -> Sequence[SlowMoment]:
        """Return at most `limit` moments, newest first, of a kind or of all kinds, that took at
        least `milliseconds_min`."""
        found = (
            each
            for each in reversed(self._moments.copy())
            if kind in ("", each.kind) and each.milliseconds >= milliseconds_min
        )
        # islice takes no more than a C integer holds.
        return list(islice(found, max(0, min(limit, len(self._moments)))))


RECORDER = FlightRecorder()
"""The recorder of this process."""
