"""What every process shows of itself in its metrics."""

from contextlib import AsyncExitStack

from prometheus_client import ProcessCollector
from prometheus_client.registry import Collector

from magnetar.deploy.loop_watch import LoopWatch


def process_collectors(opened: AsyncExitStack) -> list[Collector]:
    """Memory, processor time, open files and the event loop of this process.

    `opened` gets what must be stopped again.
    """
    watch = LoopWatch()
    watch.start()
    opened.callback(watch.stop)
    return [ProcessCollector(registry=None), watch]
