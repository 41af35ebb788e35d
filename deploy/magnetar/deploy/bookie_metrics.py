"""Prometheus exporter of the bookies in this process.

Each metric declared in `magnetar.bookie.metrics` is exported as `magnetar_bookie_` and its name,
with the label `bookie`. Some are exported under BookKeeper's names as well. Collecting runs on the
event loop, which owns the numbers.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from magnetar.bookie.metrics import BookieMetrics
from magnetar.deploy.bookkeeper_names import bookie_families
from magnetar.deploy.declared_metrics import Families

PREFIX = "magnetar_bookie_"


class Measured(Protocol):
    """The part of a bookie that its metrics need."""

    @property
    def bookie_id(self) -> str: ...

    @property
    def metrics(self) -> BookieMetrics: ...


class BookieCollector(Collector):
    """Collects the samples of bookies."""

    def __init__(self, bookies: Sequence[Measured]) -> None:
        self._bookies = bookies

    def collect(self) -> Iterator[Metric]:
        families = Families(PREFIX, labels=["bookie"])
        for bookie in self._bookies:
            for refresh in bookie.metrics.before_export:
                refresh()
            families.add(bookie.metrics, [bookie.bookie_id])
        yield from families
        yield from bookie_families([(each.bookie_id, each.metrics) for each in self._bookies])
