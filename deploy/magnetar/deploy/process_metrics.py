"""Metrics of the process itself, for every kind of process."""

import asyncio
import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import FrameType

from prometheus_client import Metric, ProcessCollector
from prometheus_client.registry import Collector

from magnetar.deploy.declared_metrics import DeclaredCollector
from magnetar.deploy.standard_error import lost_lines
from magnetar.ledger.flight_recorder import COLLECTION, LOOP, RECORDER, FlightRecorder
from magnetar.ledger.metric_fields import Histogram, counter, histogram

_PREFIX = "magnetar_"
_STRIKE_INTERVAL_S = 0.1
_LATE_S = 0.02
"""Lateness, in seconds, from which a stroke is investigated."""
_CALLS_MAX = 6


def process_collectors(opened: AsyncExitStack) -> list[Collector]:
    """Return the collectors for memory, processor time, open files and the event loop of this
    process.

    `opened` stops them.
    """
    watch = LoopWatch()
    watch.start()
    opened.callback(watch.stop)
    gc.callbacks.append(_COLLECTIONS)
    opened.callback(gc.callbacks.remove, _COLLECTIONS)
    return [ProcessCollector(registry=None), watch, _LostLines()]


@dataclass(slots=True)
class LoopMetrics:
    """Metrics of this process's event loop."""

    event_loop_lateness_s: Histogram = histogram(
        "How late callbacks of the event loop ran, sampled every 100 ms."
    )


@dataclass(slots=True)
class LogMetrics:
    """Metrics of this process's log."""

    log_lines_lost: int = counter(
        "Lines of the log that could not be written: its disk or pipe was full."
    )


class LoopWatch(DeclaredCollector):
    """Measures how late the event loop is: a timer fires at an interval, and each stroke records
    its delay.

    Everything in a process shares one loop, so a long callback delays all others. The lateness of a
    due callback is the delay that each of them sees. Watches the running loop, from `start` to
    `stop`. While a stroke is late, a thread notes what the loop runs: that is the cause in the
    flight recorder.
    """

    def __init__(
        self, interval_s: float = _STRIKE_INTERVAL_S, recorder: FlightRecorder = RECORDER
    ) -> None:
        metrics = LoopMetrics()
        super().__init__(_PREFIX, metrics)
        self.lateness_s = metrics.event_loop_lateness_s
        self._recorder = recorder
        self._witness = _Witness()
        self._interval_s = interval_s
        self._due_s = 0.0
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        # The loop's own time has a resolution of ms, and is that of its last look for events.
        self._due_s = time.monotonic() + self._interval_s
        loop = asyncio.get_running_loop()
        self._next = loop.call_later(self._interval_s, self._strike, loop)
        self._witness.expect(self._due_s)
        self._witness.start()

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
        self._witness.stop()

    def _strike(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = time.monotonic()
        late_s = max(0.0, now_s - self._due_s)
        self.lateness_s.observe(late_s)
        self._due_s = now_s + self._interval_s
        self._recorder.note(LOOP, late_s, self._witness.seen)
        self._witness.expect(self._due_s)
        self._next = loop.call_later(self._interval_s, self._strike, loop)


class _Witness:
    """A thread that notes what the loop's thread does while a stroke is late."""

    def __init__(self) -> None:
        self._watched = threading.get_ident()
        self._due_s = float("inf")
        self._seen = ""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="witness", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def expect(self, due_s: float) -> None:
        """Set when the next stroke is due."""
        self._seen = ""
        self._due_s = due_s

    def seen(self) -> str:
        """Return what the loop ran when the last stroke was late."""
        return self._seen

    def _watch(self) -> None:
        while True:
            wait_s = self._due_s + _LATE_S - time.monotonic()
            if self._is_over.wait(max(_LATE_S, min(wait_s, 1.0))):
                return
            if not self._seen and time.monotonic() >= self._due_s + _LATE_S:
                self._seen = _innermost(sys._current_frames().get(self._watched))


def _innermost(frame: FrameType | None) -> str:
    """Return the calls that a thread is in, the innermost first."""
    calls: list[str] = []
    while frame is not None and len(calls) < _CALLS_MAX:
        code = frame.f_code
        calls.append(f"{code.co_qualname} ({os.path.basename(code.co_filename)}:{frame.f_lineno})")
        frame = frame.f_back
    return " < ".join(calls)


class _Collections:
    """Records long rounds of Python's cycle collector; `gc` calls it at their start and end."""

    def __init__(self, recorder: FlightRecorder) -> None:
        self._recorder = recorder
        self._started_s = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._started_s = time.perf_counter()
        else:
            self._recorder.note(
                COLLECTION,
                time.perf_counter() - self._started_s,
                lambda: f"generation {info['generation']}, {info['collected']} collected",
            )


_COLLECTIONS = _Collections(RECORDER)


class _LostLines(DeclaredCollector):
    """Exports the number of log lines that could not be written."""

    def __init__(self) -> None:
        self._metrics = LogMetrics()
        super().__init__(_PREFIX, self._metrics)

    def collect(self) -> Iterator[Metric]:
        self._metrics.log_lines_lost = lost_lines()
        yield from super().collect()
