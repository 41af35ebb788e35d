"""Rates and backlogs of the last hour, kept by the broker for the console's plots. Pure.

One point per sample of the metrics (`sampler.py`), in a ring per topic and one for the whole
broker. Memory is bounded: so many topics have a ring, each of the same size. Topics without traffic
and backlog get none, and lose theirs when they have been quiet for the whole hour, or when they are
gone for longer than it takes to load them again: where topics come and go, those that were deleted
would take the room of those that are there. While all rings are taken, further topics are left out,
and the answer about them says so.

A restart forgets everything, and so does a change of the owner: plots are for a look, Prometheus is
for records.
"""

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

SPAN_S: Final = 3_600
"""How far a plot goes back."""
FIELDS: Final = ("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut", "msgBacklog")
"""Of each point: messages and bytes per second, entries of all backlogs."""
POINT_BYTES: Final = len(FIELDS) * 4
ABSENCE_S_MAX: Final = 300
"""A topic that is not loaded for longer loses its ring."""
RING_OVERHEAD_BYTES: Final = 400
"""About what Python adds to each ring, its name included."""


@dataclass(frozen=True, slots=True)
class Plotted:
    """What is kept of a topic or the broker, the oldest point first."""

    ended_ms: int
    """When the last point was taken; 0: there is none yet."""
    interval_ms: int
    points: dict[str, list[float]]
    is_left_out: bool = False
    """There was no room for this topic."""

    def shown(self) -> dict[str, object]:
        """As JSON."""
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
        """Number of the last sample with anything but zeros."""
        self.last_seen = 0
        """Number of the last sample in which the topic was loaded."""

    def put(self, place: int, values: Sequence[float]) -> None:
        at = place * len(FIELDS)
        self.values[at : at + len(FIELDS)] = array("f", values)


class History(Generic[Key]):
    """Rings by topic. `begin`, `add` for each topic, `finish`: one sample."""

    def __init__(self, *, bytes_max: int, interval_s: float) -> None:
        """`bytes_max`: of all rings together; below that of one, nothing is kept. `interval_s`:
        between two samples."""
        self.interval_ms = round(interval_s * 1000)
        self._points = max(1, min(SPAN_S * 1000 // max(1, self.interval_ms), 3_600))
        self._absences_max = ABSENCE_S_MAX * 1000 // max(1, self.interval_ms)
        ring_bytes = self._points * POINT_BYTES + RING_OVERHEAD_BYTES
        self._rings_max = bytes_max // ring_bytes - 1  # one is the broker's
        self._rings: dict[Key, _Ring] = {}
        self._whole = _Ring(self._points if self.is_on else 0)
        self._sums = [0.0] * len(FIELDS)
        self._left_out: set[Key] = set()
        self._samples = 0
        self._ended_ms = 0

    @property
    def is_on(self) -> bool:
        """Whether anything is kept."""
        return self._rings_max >= 0

    @property
    def rings(self) -> int:
        """Topics that have one."""
        return len(self._rings)

    @property
    def rings_max(self) -> int:
        """Topics that may have one."""
        return max(0, self._rings_max)

    @property
    def _place(self) -> int:
        return self._samples % self._points

    def begin(self) -> None:
        """A sample begins."""
        self._sums = [0.0] * len(FIELDS)
        self._left_out.clear()

    def add(self, key: Key, values: Sequence[float]) -> None:
        """The values of one topic in this sample, in the order of `FIELDS`."""
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
            # A bounded list of names: further plots are empty without a word.
            if len(self._left_out) < max(1, self._rings_max):
                self._left_out.add(key)
            return None
        self._rings[key] = _Ring(self._points)
        return self._rings[key]

    def finish(self, ended_ms: int) -> None:
        """The sample is complete. `ended_ms`: wall clock."""
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
        """What is kept of all topics together."""
        return self._plotted(self._whole, is_left_out=False)

    def of(self, key: Key) -> Plotted:
        """What is kept of one topic."""
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
