"""Rates and backlogs of the last hour, kept by the broker for the console's plots. Pure.

Each sample of the metrics (`sampler.py`) adds one point to a ring per topic, and to one for the
whole broker. Memory is bounded: a limited number of topics have a ring, all of the same size.
Topics without traffic and backlog get none. A topic loses its ring when it was quiet for the whole
hour, or not loaded for longer than loading takes; otherwise, where topics come and go, deleted
topics would take the room of existing ones. While all rings are taken, further topics are left out,
and the answer about them says so.

A restart drops everything, and so does a change of the owner: the plots are for a quick look,
Prometheus is for records.
"""

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

SPAN_S: Final = 3_600
"""Time span of a plot, in seconds."""
FIELDS: Final = ("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut", "msgBacklog")
"""Fields of each point: messages and bytes per second, and entries of all backlogs."""
POINT_BYTES: Final = len(FIELDS) * 4
ABSENCE_S_MAX: Final = 300
"""Seconds without being loaded after which a topic loses its ring."""
RING_OVERHEAD_BYTES: Final = 400
"""Approximate overhead of Python per ring, its name included."""


@dataclass(frozen=True, slots=True)
class Plotted:
    """Points of a topic or the broker, oldest first."""

    ended_ms: int
    """Time of the last point, since the epoch; 0 if there is none yet."""
    interval_ms: int
    points: dict[str, list[float]]
    is_left_out: bool = False
    """Whether there was no room for this topic."""

    def shown(self) -> dict[str, object]:
        """Return the plot as JSON."""
        return {
            "endedMs": self.ended_ms,
            "intervalMs": self.interval_ms,
            "points": self.points,
            "isLeftOut": self.is_left_out,
        }


class _Ring:
    """The last points of one topic, in single precision."""

    __slots__ = ("last_noise", "last_seen", "values")

    def __init__(self, points: int) -> None:
        self.values = array("f", bytes(points * POINT_BYTES))
        self.last_noise = 0
        """Number of the last sample with a value other than 0."""
        self.last_seen = 0
        """Number of the last sample in which the topic was loaded."""

    def put(self, place: int, values: Sequence[float]) -> None:
        at = place * len(FIELDS)
        self.values[at : at + len(FIELDS)] = array("f", values)


class History(Generic[Key]):
    """Rings by topic. One sample is `begin`, `add` for each topic, then `finish`."""

    def __init__(self, *, bytes_max: int, interval_s: float) -> None:
        """Create the history.

        Args:
            bytes_max: bytes of all rings together; if that is too small for one ring, nothing is
                kept.
            interval_s: seconds between two samples.
        """
        self.interval_ms = round(interval_s * 1000)
        self._points = max(1, min(SPAN_S * 1000 // max(1, self.interval_ms), 3_600))
        self._absences_max = ABSENCE_S_MAX * 1000 // max(1, self.interval_ms)
        ring_bytes = self._points * POINT_BYTES + RING_OVERHEAD_BYTES
        self._rings_max = bytes_max // ring_bytes - 1  # One ring is the broker's.
        self._rings: dict[Key, _Ring] = {}
        self._whole = _Ring(self._points if self.is_on else 0)
        self._sums = [0.0] * len(FIELDS)
        self._left_out: set[Key] = set()
        self._samples = 0
        self._ended_ms = 0

    @property
    def is_on(self) -> bool:
        """Whether history is kept."""
        return self._rings_max >= 0

    @property
    def rings(self) -> int:
        """Number of topics with a ring."""
        return len(self._rings)

    @property
    def rings_max(self) -> int:
        """Number of topics that may have a ring."""
        return max(0, self._rings_max)

    @property
    def _place(self) -> int:
        return self._samples % self._points

    def begin(self) -> None:
        """Begin a sample."""
        self._sums = [0.0] * len(FIELDS)
        self._left_out.clear()

    def add(self, key: Key, values: Sequence[float]) -> None:
        """Add the values of one topic to the sample, in the order of `FIELDS`."""
        if not self.is_on:
            return
        for at, value in enumerate(values):
            self._sums[at] += value
        is_quiet = not any(values)
        ring = self._rings.get(key)
        if ring is None:
            if is_quiet:
                return
            ring = self._ring_for(key)
            if ring is None:
                return
        ring.last_seen = self._samples
        ring.put(self._place, values)
        if not is_quiet:
            ring.last_noise = self._samples

    def _ring_for(self, key: Key) -> _Ring | None:
        if len(self._rings) >= self._rings_max:
            # The list of names is bounded: topics beyond it get empty plots without a notice.
            if len(self._left_out) < max(1, self._rings_max):
                self._left_out.add(key)
            return None
        self._rings[key] = _Ring(self._points)
        return self._rings[key]

    def finish(self, ended_ms: int) -> None:
        """Complete the sample. `ended_ms`: wall clock."""
        if not self.is_on:
            return
        nothing = [0.0] * len(FIELDS)
        for key, ring in list(self._rings.items()):
            absent = self._samples - ring.last_seen
            if self._samples - ring.last_noise >= self._points or absent > self._absences_max:
                del self._rings[key]
            elif absent:
                ring.put(self._place, nothing)
        self._whole.put(self._place, self._sums)
        self._samples += 1
        self._ended_ms = ended_ms

    def whole(self) -> Plotted:
        """Return the plot of all topics together."""
        return self._plotted(self._whole, is_left_out=False)

    def of(self, key: Key) -> Plotted:
        """Return the plot of one topic."""
        return self._plotted(self._rings.get(key), is_left_out=key in self._left_out)

    def _plotted(self, ring: _Ring | None, *, is_left_out: bool) -> Plotted:
        if not self.is_on or ring is None:
            return Plotted(self._ended_ms, self.interval_ms, {}, is_left_out)
        count = min(self._samples, self._points)
        first = self._samples - count
        points = {
            name: [
                round(ring.values[(number % self._points) * len(FIELDS) + at], 3)
                for number in range(first, self._samples)
            ]
            for at, name in enumerate(FIELDS)
        }
        return Plotted(self._ended_ms, self.interval_ms, points)
