"""Load for brokers: produce and consume at full speed or at a rate, and measure."""

from magnetar.sdk.perf.consume import AckMode, ConsumeOptions, consume, run_consume
from magnetar.sdk.perf.produce import ProduceOptions, produce, run_produce
from magnetar.sdk.perf.result import PerfResult

__all__ = [
    "AckMode",
    "ConsumeOptions",
    "PerfResult",
    "ProduceOptions",
    "consume",
    "produce",
    "run_consume",
    "run_produce",
]
