"""How long an event loop is held: a callback every millisecond records how late it is.

Percentiles are of the time for which the loop was not available, as seen at a random moment: a loop
that is held for 50 ms counts as 50 moments, 50 ms to 1 ms late.

A virtual machine may return its free memory to the host in passes (Linux: free page reporting).
Memory touched after that must be fetched again, and memory in use may be mapped again. The guest
sees that as time of its own processor, in any thread. The probe therefore records the passes, where
the kernel counts them, and the moments around them can be left out.
"""

import asyncio
import os
import time
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.loop_steps import Held, LoopSteps

_INTERVAL_S = 0.001
_PASS_WINDOW_S = 0.1
"""Time in seconds, before and after the stroke that sees a new pass, that counts as near the
pass."""
_SETTLE_STEP_S = 4.0
"""Interval in seconds, longer than that between two passes."""
_SETTLE_S_MAX = 20.0
_SETTLED_KIB = 16 << 10
_COUNTERS = Path("/sys/module/page_reporting/parameters")


@dataclass(frozen=True, slots=True)
class Lateness:
    """Observations of a probe since its last `take`."""

    lateness_ms: dict[str, float]
    """Percentiles, in ms, and counts:

    - `max_cpu`: processor time of the loop's own thread in the longest of these times. For the
      rest of it the thread waited, for the processor or for the interpreter's lock.
    - `own_p999`, `own_max`: without the time for which this thread was ready and had no
      processor, which on a busy machine other programs took.
    - `cpu_p999`, `cpu_max`: processor time of the thread, which hardly depends on other work of
      the machine.
    - `outside_p999`, `outside_of`: only the moments that are not near a pass.
    - `passes`, `reported_mib`: what the whole machine returned to its host meanwhile.

    The last four exist only where the kernel counts passes.
    """
    latest_ms: list[float]
    """The highest hundredth of the moments, so that several runs can be combined."""
    latest_outside_ms: list[float]
    """The highest hundredth of the moments outside of passes; of all, where the kernel counts no
    passes."""
    held: list[Held] = field(default_factory=list)
    """The longest times, and the steps that the loop took in them."""


class PageReports:
    """The kernel's counters of memory that it returned to its host."""

    def __init__(self) -> None:
        paths = [_COUNTERS / name for name in ("passes", "reported_kib")]
        self._files = [os.open(each, os.O_RDONLY) for each in paths if each.exists()]
        self.are_counted = len(self._files) == len(paths)

    def passes(self) -> int:
        """Return the number of passes so far; 0 where they are not counted."""
        return self._read(0) if self.are_counted else 0

    def reported_kib(self) -> int:
        """Return the KiB returned so far; 0 where they are not counted."""
        return self._read(1) if self.are_counted else 0

    def settle(self) -> None:
        """Wait until recently freed memory has been returned, at most 20 s."""
        until_s = time.monotonic() + _SETTLE_S_MAX
        now = self.reported_kib()
        while self.are_counted and time.monotonic() < until_s:
            time.sleep(_SETTLE_STEP_S)
            before, now = now, self.reported_kib()
            if now - before < _SETTLED_KIB:
                return

    def _read(self, number: int) -> int:
        return int(os.pread(self._files[number], 32, 0))


class Probe:
    """Watches the loop that it is started on."""

    def __init__(self, steps: LoopSteps | None = None) -> None:
        self._reports = PageReports()
        self._steps = steps if steps is not None else LoopSteps()
        self._due_s = 0.0
        self._cpu_s = 0.0
        self._queued_s = 0.0
        # Of the thread that makes the probe: the loop's.
        self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self._begin()

    def start(self) -> None:
        # The loop's own time has a resolution of ms, and is that of its last look for events.
        self._due_s = time.monotonic() + _INTERVAL_S
        loop = asyncio.get_running_loop()
        loop.call_later(_INTERVAL_S, self._strike, loop)

    def take(self) -> Lateness:
        """Return what was seen since the last call, the current turn included."""
        self._see()
        strokes = list(zip(self._struck_s, self._late_s, strict=True))
        every = _moments(self._late_s)
        own = _moments(self._own_late_s)
        computed = _moments(self._computed_s)
        outside = _moments(
            late_s for struck_s, late_s in strokes if not self._is_near_pass(struck_s, late_s)
        )
        seen: dict[str, float] = {
            "p50": _at(every, 0.5),
            "p99": _at(every, 0.99),
            "p999": _at(every, 0.999),
            "max": _at(every, 1),
            "own_p999": _at(own, 0.999),
            "own_max": _at(own, 1),
            "cpu_p999": _at(computed, 0.999),
            "cpu_max": _at(computed, 1),
            "max_cpu": _ms(self._worst_cpu_s),
            "of": len(every),
        }
        if self._reports.are_counted:
            seen |= {
                "passes": self._passes - self._first_passes,
                "reported_mib": (self._reports.reported_kib() - self._first_kib) >> 10,
                "outside_p999": _at(outside, 0.999) if outside else 0.0,
                "outside_of": len(outside),
            }
        # The same count for both, though there are fewer moments outside.
        count = max(1, len(every) // 100)
        latest = [_ms(each) for each in every[-count:]]
        latest_outside = [_ms(each) for each in outside[-count:]]
        self._begin()
        return Lateness(seen, latest, latest_outside, self._steps.take())

    def _begin(self) -> None:
        self._struck_s = array("d")
        self._late_s = array("d")
        self._own_late_s = array("d")
        self._computed_s = array("d")
        self._pass_s = array("d")
        self._worst_s = self._worst_cpu_s = 0.0
        self._passes = self._first_passes = self._reports.passes()
        self._first_kib = self._reports.reported_kib()
        # The time that the probe took for its sums is no turn of the loop.
        self._due_s = max(self._due_s, time.monotonic())
        self._cpu_s, self._queued_s = time.thread_time(), self._queued()

    def _strike(self, loop: asyncio.AbstractEventLoop) -> None:
        self._see()
        loop.call_later(_INTERVAL_S, self._strike, loop)

    def _see(self) -> None:
        now_s = time.monotonic()
        late_s = max(0.0, now_s - self._due_s)
        cpu_s = time.thread_time()
        if late_s > self._worst_s:
            self._worst_s, self._worst_cpu_s = late_s, cpu_s - self._cpu_s
        queued_s = self._queued()
        self._steps.on_stroke(late_s, cpu_s - self._cpu_s, queued_s - self._queued_s)
        self._computed_s.append(cpu_s - self._cpu_s)
        self._cpu_s = cpu_s
        self._struck_s.append(now_s)
        self._late_s.append(late_s)
        self._own_late_s.append(max(0.0, late_s - (queued_s - self._queued_s)))
        self._queued_s = queued_s
        passes = self._reports.passes()
        if passes != self._passes:
            self._passes = passes
            self._pass_s.append(now_s)
        self._due_s = now_s + _INTERVAL_S

    def _queued(self) -> float:
        """Return the seconds for which the thread has waited for a processor."""
        return int(os.pread(self._schedstat, 100, 0).split()[1]) / 1e9

    def _is_near_pass(self, struck_s: float, late_s: float) -> bool:
        begin_s, end_s = struck_s - late_s - _PASS_WINDOW_S, struck_s + _PASS_WINDOW_S
        return any(begin_s <= each <= end_s for each in self._pass_s)


def _moments(lates_s: Iterable[float]) -> list[float]:
    """Return all moments, sorted. Strokes due while the loop was held would have been late as
    well."""
    moments: list[float] = []
    for late_s in lates_s:
        rest_s = late_s
        while rest_s >= 0.0:
            moments.append(rest_s)
            rest_s -= _INTERVAL_S
    return sorted(moments)


def _at(moments: list[float], share: float) -> float:
    """Return the percentile at a share, in ms."""
    return _ms(moments[min(len(moments) - 1, int(len(moments) * share))])


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
