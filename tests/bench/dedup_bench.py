"""Cost of deduplication: publishing to topics with and without it, in turns."""

import itertools

from tests.bench import load
from tests.bench.figures import Rate
from tests.bench.report import Effort, Figure, Report, measure
from tests.cluster import ProcessCluster
from tests.http_calls import admin

_SHARE_MIN = 0.9
"""Least share of the rate without deduplication that must remain with it."""


class DeduplicationBench:
    """Measures unbatched messages through a broker."""

    def __init__(self, report: Report, effort: Effort) -> None:
        self._report = report
        self._effort = effort

    def deduplication(self) -> None:
        numbers = itertools.count()
        effort = self._effort

        def publish(*, deduplicates: bool) -> float:
            topic = f"dedup-{next(numbers)}"
            # The topic exists, with its policy, before the rate is measured.
            _produce(cluster.url, topic, messages=1)
            _set_policy(cluster, topic, deduplicates=deduplicates)
            return _produce(cluster.url, topic, messages=effort.messages).msgs_per_s

        with ProcessCluster(self._report.directory / "dedup") as cluster:
            publish(deduplicates=False)  # warms up
            paired = measure(
                lambda _: publish(deduplicates=True),
                lambda: publish(deduplicates=False),
                repeats=max(3, effort.repeats),
            )
        self._report.add(
            Figure(
                name="publish, 1 KB unbatched, with deduplication",
                unit="msg/s",
                value=round(paired.value),
                target=f">= {_SHARE_MIN} x without",
                met=paired.ratio >= _SHARE_MIN,
                ratio=round(paired.ratio, 3),
                beside="without",
                beside_value=round(paired.ceiling),
                runs=[round(each) for each in paired.values],
            )
        )


def _produce(url: str, topic: str, *, messages: int) -> Rate:
    return load.produce(url, topic, messages=messages, size=1024, in_flight=1000)


def _set_policy(cluster: ProcessCluster, topic: str, *, deduplicates: bool) -> None:
    path = f"persistent/public/default/{topic}/deduplicationEnabled"
    admin(cluster.http_port, "POST", path, deduplicates)
