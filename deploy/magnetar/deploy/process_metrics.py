"""What every process shows of itself in its metrics."""

from collections.abc import Iterator
from contextlib import AsyncExitStack

from prometheus_client import Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from magnetar.deploy.loop_watch import LoopWatch
from magnetar.deploy.standard_error import lost_lines


def process_collectors(opened: AsyncExitStack) -> list[Collector]:
    """Memory, processor time, open files and the event loop of this process.

    `opened` gets what must be stopped again.
    """
    watch = LoopWatch()
    watch.start()
    opened.callback(watch.stop)
    return [ProcessCollector(registry=None), watch, _LostLines()]


class _LostLines(Collector):
    """Lines of the log that nobody took."""

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "magnetar_log_lines_lost",
            "Lines of the log that could not be written: its disk or pipe was full.",
            value=lost_lines(),
        )
