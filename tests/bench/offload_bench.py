"""Tiered storage: the cost of copying for publishers, and reading from objects beside bookies.

The store is a directory. Publishing at a steady rate alternates: alone, and during copies of
another topic without a rate limit. Two topics of the same size are read in turns, one from the
bookies and one from objects only: by a consumer that catches up, and by Spark.
"""

import itertools
import json
import os
import statistics
import threading
import time
from dataclasses import asdict
from typing import Any, Final

from tests.bench import load
from tests.bench.figures import Rate
from tests.bench.report import FULL, Effort, Figure, Report
from tests.cluster import ProcessCluster
from tests.http_calls import admin, topic_path
from tests.integration.spark.support import keep_topics, options_for
from tests.processes import pss_bytes_of
from tests.waiting import wait_until

_SIZE: Final = 1_000
_BATCH: Final = 100
_RATE: Final = 20_000
_COPY_MB_PER_S_MIN: Final = 150
_WITHIN_S: Final = 600.0
_TOPIC: Final = "persistent://public/default/offload-bench"
_SETTINGS: Final = """
[broker]
offload_store = "main"
object_stores = [{{ name = "main", url = "{url}" }}]
offload_check_interval_s = 0.1
offload_bytes_per_s_max = 0
object_bytes_min = 0
ledger_bytes_max = {ledger_bytes}
ledger_age_min_s = 0
retention_minutes = -1
retention_mib = -1
tail_cache_bytes_max = 0
"""
_MOVE: Final = {
    "managedLedgerOffloadThresholdInBytes": 0,
    "managedLedgerOffloadDeletionLagInMillis": 0,
}
_COPY: Final = {**_MOVE, "managedLedgerOffloadDeletionLagInMillis": 3_600_000}


class OffloadBench:
    """Measures tiered storage; its figures go to the report."""

    def __init__(self, report: Report, effort: Effort) -> None:
        self._report = report
        self._is_full = effort is FULL
        self._messages = 1_000_000 if self._is_full else 50_000
        self._rounds = 3 if self._is_full else 1
        self._seconds = 10.0 if self._is_full else 2.0

    def offload(self) -> None:
        directory = self._report.directory / "offload"
        store = directory / "objects"
        store.mkdir(parents=True)
        settings = directory / "broker.toml"
        ledger_bytes = self._messages * _SIZE // 8
        settings.write_text(_SETTINGS.format(url=store.as_uri(), ledger_bytes=ledger_bytes))
        with ProcessCluster(directory, broker_arguments=["--config", str(settings)]) as cluster:
            keep_topics(cluster)
            self._beside_copies(cluster)
            self._reads(cluster)

    # Publishing beside copies

    def _beside_copies(self, cluster: ProcessCluster) -> None:
        alone: list[Rate] = []
        beside: list[Rate] = []
        copied: list[float] = []
        for number in range(self._rounds):
            topic = f"{_TOPIC}-copied-{number}"
            self._fill(cluster, topic)
            alone.append(self._publish(cluster, f"alone-{number}"))
            with _Copies(cluster, topic) as copies:
                beside.append(self._publish(cluster, f"beside-{number}"))
            copied.append(copies.mb_per_s)
        loss = 100 * (1 - _median(beside) / _median(alone))
        details: dict[str, object] = {
            "alone": list(map(asdict, alone)),
            "beside": list(map(asdict, beside)),
        }
        self._report.add(
            Figure(
                name=f"publishing {_RATE} msg/s, slower beside copies to a store",
                unit="%",
                value=round(loss, 1),
                target="<= 10",
                met=loss <= 10,
                details=details,
            )
        )
        rate = statistics.median(copied)
        self._report.add(
            Figure(
                name="copies to a directory, beside this publishing",
                unit="MB/s",
                value=round(rate, 1),
                target=f">= {_COPY_MB_PER_S_MIN}",
                met=rate >= _COPY_MB_PER_S_MIN,
                runs=copied,
            )
        )

    def _publish(self, cluster: ProcessCluster, name: str) -> Rate:
        return load.produce(
            cluster.url,
            f"{_TOPIC}-{name}",
            messages=int(_RATE * self._seconds),
            size=_SIZE,
            batch=_BATCH,
            rate=_RATE,
        )

    def _fill(self, cluster: ProcessCluster, topic: str) -> None:
        load.produce(
            cluster.url,
            topic,
            messages=self._messages,
            size=_SIZE,
            in_flight=10_000,
            batch=_BATCH,
        )
        admin(cluster, "PUT", f"{topic_path(topic)}/unload")  # which closes its last ledger
        _ledgers(cluster, topic)

    # Reading

    def _reads(self, cluster: ProcessCluster) -> None:
        on_bookies, in_objects = f"{_TOPIC}-on-bookies", f"{_TOPIC}-in-objects"
        for topic in (on_bookies, in_objects):
            self._fill(cluster, topic)
        admin(cluster, "POST", f"{topic_path(in_objects)}/offloadPolicies", _MOVE)
        _wait_for(cluster, in_objects, "only")
        pss: list[float] = []

        numbers = itertools.count()

        def consumed(topic: str) -> float:
            rate = load.consume(
                cluster.url,
                topic,
                messages=self._messages,
                ack="cumulative",
                subscription=f"round-{next(numbers)}",
            )
            pss.append(pss_bytes_of(cluster.servers[-1].pid) / 1e6)
            return rate.mb_per_s

        def by_spark(topic: str) -> float:
            work = {
                "what": "batch",
                "cores": 1,
                "processors": sorted(os.sched_getaffinity(0))[-1:],
                "warm_s": 15.0 if self._is_full else 1.0,
                "repeats": 3 if self._is_full else 1,
                "options": options_for(cluster, topic=topic),
            }
            found = load.run("spark_load", json.dumps(work))
            return float(self._messages * _SIZE / 1e6 / found["seconds"])

        for name, way, least in (
            ("catch-up from objects, to that from bookies", consumed, 0.7),
            ("Spark from objects, to that from bookies", by_spark, 0.8),
        ):
            pairs = [(way(on_bookies), way(in_objects)) for _ in range(self._rounds)]
            ratio = statistics.median(objects / bookies for bookies, objects in pairs)
            self._report.add(
                Figure(
                    name=name,
                    unit="x",
                    value=round(ratio, 2),
                    target=f">= {least}",
                    met=ratio >= least,
                    details={
                        "bookies_mb_per_s": [round(each[0], 1) for each in pairs],
                        "objects_mb_per_s": [round(each[1], 1) for each in pairs],
                        "broker_pss_mb": [round(each, 1) for each in pss],
                    },
                )
            )


class _Copies:
    """Copies the ledgers of a topic during the block, which ends when all are copied."""

    def __init__(self, cluster: ProcessCluster, topic: str) -> None:
        self._cluster, self._topic = cluster, topic
        self._thread = threading.Thread(target=self._wait)
        self._began_s = 0.0
        self.mb_per_s = 0.0

    def __enter__(self) -> "_Copies":
        self._began_s = time.monotonic()
        admin(self._cluster, "POST", f"{topic_path(self._topic)}/offloadPolicies", _COPY)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _wait(self) -> None:
        _wait_for(self._cluster, self._topic, "copied")
        copied = sum(each["size"] for each in _ledgers(self._cluster, self._topic))
        self.mb_per_s = round(copied / 1e6 / (time.monotonic() - self._began_s), 1)


def _ledgers(cluster: ProcessCluster, topic: str) -> list[dict[str, Any]]:
    """Return the ledgers of a topic that have entries."""
    found = admin(cluster, "GET", f"{topic_path(topic)}/internalStats")["ledgers"]
    return [each for each in found if each["entries"]]


def _wait_for(cluster: ProcessCluster, topic: str, state: str) -> None:
    wait_until(
        lambda: (
            {each.get("object", {}).get("state") for each in _ledgers(cluster, topic)} == {state}
        ),
        f"the ledgers of {topic} to be {state}",
        within_s=_WITHIN_S,
    )


def _median(rates: list[Rate]) -> float:
    return statistics.median(rate.msgs_per_s for rate in rates)
