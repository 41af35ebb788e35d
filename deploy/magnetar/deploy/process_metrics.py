"""What every process shows of itself in its metrics."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack

from prometheus_client import Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from magnetar.deploy.declared_metrics import buckets_of
from magnetar.deploy.standard_error import lost_lines
from magnetar.ledger.metric_fields import Histogram

_STRIKE_INTERVAL_S = 0.1


def process_collectors(opened: AsyncExitStack) -> list[Collector]:
    """Memory, processor time, open files and the event loop of this process.

    `opened` gets what must be stopped again.
    """
    watch = LoopWatch()
    watch.start()
    opened.callback(watch.stop)
    return [ProcessCollector(registry=None), watch, _LostLines()]


class LoopWatch(Collector):
    """How late the event loop is: a clock strikes at an interval, and each stroke waits so long.

    Everything in a process shares one loop, so a callback that takes long delays all others; the
    lateness of a callback that is due is what each of them feels. Watches the running loop, from
    `start` to `stop`.
    """

    def __init__(self, interval_s: float = _STRIKE_INTERVAL_S) -> None:
        self.lateness_s = Histogram()
        self._interval_s = interval_s
        self._due_s = 0.0
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        # The loop's own time is that of the last time it looked for events, in milliseconds.
        self._due_s = time.monotonic() + self._interval_s
        loop = asyncio.get_running_loop()
        self._next = loop.call_later(self._interval_s, self._strike, loop)

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(
            "magnetar_event_loop_lateness_seconds",
            "How late callbacks of the event loop ran, sampled every 100 ms.",
        )
        family.add_metric([], buckets_of(self.lateness_s), sum_value=self.lateness_s.total)
        yield family

    def _strike(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = time.monotonic()
        self.lateness_s.observe(max(0.0, now_s - self._due_s))
        self._due_s = now_s + self._interval_s
        self._next = loop.call_later(self._interval_s, self._strike, loop)


class _LostLines(Collector):
    """Lines of the log that nobody took."""

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "magnetar_log_lines_lost",
            "Lines of the log that could not be written: its disk or pipe was full.",
            value=lost_lines(),
        )
