"""The metrics of the bookies in this process, as Prometheus wants them.

Every metric that is declared in `magnetar.bookie.metrics` is exported, as `magnetar_bookie_` and
its name, with the label `bookie`; some under BookKeeper's names besides. Collecting runs on the
event loop, where the numbers belong.
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
    """A bookie, as far as its metrics are concerned."""

    @property
    def bookie_id(self) -> str: ...

    @property
    def metrics(self) -> BookieMetrics: ...


class BookieCollector(Collector):
    """Samples of bookies."""

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
