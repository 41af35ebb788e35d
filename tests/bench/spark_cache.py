"""Requests to the broker's tail cache, and its content, while a consumer follows a topic.

Publishes and consumes once alone and once while Spark reads directly from the bookies. Measures
lookups in the cache that found the entry, lookups that did not, and entries inserted into it. A
consumer that keeps up finds everything, and each entry is inserted once. A reader through the
broker would change both.
"""

import re
import threading
from dataclasses import dataclass
from typing import Final

from tests.bench import load
from tests.http_calls import call
from tests.standalone import Standalone

RATE_INTERVAL_MS: Final = 500
"""Period in ms over which the server computes its rates of hits and misses."""

RATES_OFTEN: Final = ("env", f"MAGNETAR_BROKER_METRICS_RATE_INTERVAL_MS={RATE_INTERVAL_MS}")
"""Prefix of the command that starts the server."""

_TOPIC: Final = "persistent://public/default/spark-bench-cache"


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Use of the cache in one run."""

    delivered: int
    """Entries that were published, and that the consumer got."""
    inserted: int
    """Entries inserted into the cache."""
    hits_per_s: float
    misses_per_s: float

    @property
    def hit_share(self) -> float:
        """Share of lookups that found the entry; 1 if there was no lookup."""
        looks = self.hits_per_s + self.misses_per_s
        return self.hits_per_s / looks if looks else 1.0

    @property
    def inserted_share(self) -> float:
        """Mean number of insertions per entry; publishing alone inserts each once."""
        return self.inserted / self.delivered


def follow(server: Standalone, messages: int, run: str) -> CacheUse:
    """Publish entries of 1 KB, which one consumer gets meanwhile; each run has its own topic.

    The load acknowledges nothing: on the same topic, the consumer of a second run would begin with
    the first run's messages, which no cache holds.
    """
    before = _inserted(server)
    with _Rates(server) as rates:
        load.run("fanout_load", server.port, f"{_TOPIC}-{run}", messages, 1, run, "publish")
    return CacheUse(messages, _inserted(server) - before, rates.hits_per_s, rates.misses_per_s)


class _Rates:
    """Mean rates of hits and misses while the block runs."""

    def __init__(self, server: Standalone) -> None:
        self._server = server
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._samples: list[tuple[float, float]] = []

    @property
    def hits_per_s(self) -> float:
        return self._mean(0)

    @property
    def misses_per_s(self) -> float:
        return self._mean(1)

    def __enter__(self) -> "_Rates":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(RATE_INTERVAL_MS / 1000):
            page = _page(self._server)
            hits, misses = (_value(page, f"cache_{each}_rate") for each in ("hits", "misses"))
            self._samples.append((hits, misses))

    def _mean(self, at: int) -> float:
        return sum(each[at] for each in self._samples) / max(1, len(self._samples))


def _inserted(server: Standalone) -> int:
    return int(_value(_page(server), "cache_inserted_entries_total"))


def _page(server: Standalone) -> str:
    return call(server, "GET", "/metrics", expect=200).text


def _value(page: str, name: str) -> float:
    return sum(map(float, re.findall(rf"^pulsar_ml_{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE)))
