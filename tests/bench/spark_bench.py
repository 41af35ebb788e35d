"""Reading topics by Spark: rates per core, micro-batches, latency, and effects on broker and
bookies.

Measures rows per executor core, two cores beside one, the time of a micro-batch beside Spark's own,
and the time of a message until `foreachBatch`. Also measures what reading directly from bookies
costs publishers meanwhile, and its effect on the broker's tail cache.
"""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from typing import Any, Final

from tests.bench import load
from tests.bench.report import FULL, Effort, Figure, Report, measure
from tests.bench.spark_cache import RATES_OFTEN, CacheUse, follow
from tests.cluster import ProcessCluster
from tests.http_calls import admin
from tests.integration.spark.support import keep_topics, options_for
from tests.processes import ROOT, descendants_of, magnetar_environment
from tests.standalone import Standalone

_MB: Final = 1_000_000
_ROWS: Final = {100: 4_000_000, 1_000: 600_000}
_ROWS_QUICK: Final = {100: 200_000, 1_000: 50_000}
_ROWS_PER_BATCH: Final = 1_000
_TOPIC: Final = "persistent://public/default/spark-bench"
_BESIDE: Final = "persistent://public/default/spark-bench-beside"
_BESIDE_MESSAGES: Final = 200_000
_BESIDE_ROUNDS: Final = 5
_ATTEMPTS_MAX: Final = 5


class SparkBench:
    """Measures Spark; its figures go to the report."""

    def __init__(self, report: Report, effort: Effort) -> None:
        self._report = report
        self._is_full = effort is FULL
        self._rows = _ROWS if self._is_full else _ROWS_QUICK
        self._warm_s = 20.0 if self._is_full else 1.0

    def spark(self) -> None:
        with Standalone(self._report.directory / "spark", command_prefix=RATES_OFTEN) as server:
            keep_topics(server)
            for size in self._rows:
                self._fill(server, size)
            self._cores(server)
            if self._is_full:
                # Each needs a JVM of its own, which a quick run has no time to warm.
                self._micro_batches(server)
                self._latency(server)
                self._cache_beside(server)
        if self._is_full:
            with ProcessCluster(self._report.directory / "spark-cluster") as cluster:
                self._beside_publishing(cluster)

    def _fill(self, server: Standalone | ProcessCluster, size: int) -> None:
        load.produce(
            server.url,
            f"{_TOPIC}-{size}",
            messages=self._rows[size],
            size=size,
            in_flight=10_000,
            batch=1_000 if size < 1_000 else 100,
        )

    def _cores(self, server: Standalone) -> None:
        processors = sorted(os.sched_getaffinity(0))
        rates: dict[tuple[int, int], float] = {}
        for size, rows in self._rows.items():
            for cores in (1, 2) if self._is_full else (1,):
                work = {
                    "what": "batch",
                    "cores": cores,
                    "processors": processors[-cores:],
                    "warm_s": self._warm_s,
                    "repeats": 5 if self._is_full else 1,
                    "options": options_for(server, topic=f"{_TOPIC}-{size}"),
                }
                found = _measure(work)
                rates[size, cores] = rows / found["seconds"]
        small, large = rates[100, 1], rates[1_000, 1] * 1_000 / _MB
        self._add("Spark reads, 100 B, one core", "rows/s", small, ">= 400 000", small >= 400_000)
        self._add("Spark reads, 1 KB, one core", "MB/s", large, ">= 150", large >= 150)
        if not self._is_full:
            return
        ratio = rates[100, 2] / small
        self._add("Spark reads, 100 B, two cores to one", "x", ratio, ">= 1.7", ratio >= 1.7)
        ratio = rates[1_000, 2] / rates[1_000, 1]
        self._add("Spark reads, 1 KB, two cores to one", "x", ratio, ">= 1.7", ratio >= 1.7)

    def _micro_batches(self, server: Standalone) -> None:
        topic = f"{_TOPIC}-micro"
        batches = 30 if self._is_full else 6
        load.produce(
            server.url, topic, messages=_ROWS_PER_BATCH * (batches + 10), size=100, batch=100
        )
        own = {"format": "plain", "options": {}, "batches": batches}
        in_java = {
            "format": "rate-micro-batch",
            "options": {"rowsPerBatch": str(_ROWS_PER_BATCH)},
            "batches": batches,
        }
        ours = {
            "format": "magnetar",
            "options": {
                **options_for(server, topic=topic),
                "startingOffsets": "earliest",
                "maxEntriesPerTrigger": str(_ROWS_PER_BATCH // 100),
            },
            "batches": batches,
        }
        # Each once to warm the JVM, then once to be measured.
        streams = [own, ours, in_java]
        work = {"what": "stream", "cores": 1, "streams": [*streams, *streams]}
        plain, magnetar, rate = _measure(work)[-3:]
        over = magnetar["ms"] - plain["ms"]
        self._report.add(
            Figure(
                name="a micro-batch, beyond Spark's own of a source in Python that does nothing",
                unit="ms",
                value=round(over, 1),
                target="<= 50",
                met=over <= 50,
                details={
                    "magnetar_ms": magnetar["runs"],
                    "plain_ms": plain["runs"],
                    "rate_ms, a source of Spark's own in Java": rate["runs"],
                },
            )
        )

    def _latency(self, server: Standalone) -> None:
        """Measure from when a message was due until `foreachBatch` has its row, at 1,000 a
        second."""
        topic = f"{_TOPIC}-latency"
        admin(server, "PUT", "persistent/public/default/spark-bench-latency")
        work = {
            "what": "latency",
            "cores": 2,
            "url": server.url,
            "topic": topic,
            "rate": 1_000,
            "warm_s": 30,
            "seconds": 60,
            "options": options_for(server, topic=topic),
        }
        found = _measure(work)
        for name, limit_ms in (("p50_ms", 250), ("p99_ms", 600)):
            self._report.add_limit(
                f"published to `foreachBatch`, 1,000 messages/s, {name[:3]}",
                "ms",
                [found[name]],
                limit=limit_ms,
            )

    def _beside_publishing(self, cluster: ProcessCluster) -> None:
        """Measure publishing with Spark's processes running, each time between two runs with them
        stopped."""
        keep_topics(cluster)
        self._fill(cluster, 100)
        numbers = itertools.count()

        def publish() -> float:
            topic = f"{_BESIDE}-{next(numbers)}"
            found = load.run("publish_load", cluster.port, topic, _BESIDE_MESSAGES, 1_000, 1_000)
            return float(found["msgs_per_s"])

        with _Background(self._reading(cluster)) as reading:
            reading.pause()

            def beside(_: int) -> float:
                reading.go_on()
                try:
                    return publish()
                finally:
                    reading.pause()

            def beside_witness(_: int) -> float:
                with _Witness():
                    return publish()

            paired = measure(beside, publish, repeats=_BESIDE_ROUNDS)
            witness = measure(beside_witness, publish, repeats=_BESIDE_ROUNDS)
        loss = 100 * (1 - paired.ratio)
        self._report.add(
            Figure(
                name="publishing, slower while Spark reads from the bookies",
                unit="%",
                value=round(loss, 1),
                target="<= 10",
                met=loss <= 10,
                details={
                    "alone": paired.ceilings,
                    "beside": paired.values,
                    "slower beside the witness, %": round(100 * (1 - witness.ratio), 1),
                },
            )
        )
        share = paired.ratio / witness.ratio
        self._add("the same, to publishing beside the witness", "x", share, ">= 0.9", share >= 0.9)

    def _cache_beside(self, server: Standalone) -> None:
        messages = 200_000
        alone = follow(server, messages, "alone")
        with _Background(self._reading(server)):
            beside = follow(server, messages, "beside")
        self._cache(alone, beside)

    def _reading(self, server: Standalone | ProcessCluster) -> dict[str, Any]:
        """Return the work of reading a topic that was written before, not the one being published
        to."""
        return {
            "what": "beside",
            "cores": 1,
            "niceness": 20,
            "warm_s": self._warm_s,
            "options": {**options_for(server, topic=f"{_TOPIC}-100"), "workerNiceness": "20"},
        }

    def _cache(self, alone: CacheUse, beside: CacheUse) -> None:
        """Report the tail cache. A read through the broker would insert entries and count as
        lookups."""
        more = 100 * (beside.inserted_share - alone.inserted_share)
        fewer_hits = 100 * (alone.hit_share - beside.hit_share)
        self._report.add(
            Figure(
                name="tail cache, entries that come in while Spark reads from the bookies, beyond",
                unit="%",
                value=round(more, 2),
                target="<= 1, hits as before",
                met=more <= 1 and fewer_hits <= 1,
                details={
                    "hits of looks alone, %": round(100 * alone.hit_share, 2),
                    "hits of looks beside, %": round(100 * beside.hit_share, 2),
                    "alone": asdict(alone),
                    "beside": asdict(beside),
                },
            )
        )

    def _add(self, name: str, unit: str, value: float, target: str, met: bool) -> None:
        shown = round(value) if value > 100 else round(value, 2)
        self._report.add(Figure(name=name, unit=unit, value=shown, target=target, met=met))


def _measure(work: dict[str, Any]) -> Any:
    """Return what a Spark session of its own measures. Retry, because on a busy machine Spark may
    give up on its workers: it gives a Python process ten seconds to start."""
    for _ in range(_ATTEMPTS_MAX - 1):
        with contextlib.suppress(load.LoadFailedError):
            return load.run("spark_load", json.dumps(work))
    return load.run("spark_load", json.dumps(work))


class _Background:
    """A load that runs until the block ends."""

    def __init__(self, work: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.spark_load", json.dumps(work)],
            env=magnetar_environment(),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> "_Background":
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "begun\n", "the load did not begin"
        return self

    def pause(self) -> None:
        """Stop the load with SIGSTOP, with the JVM and its workers."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, which: signal.Signals) -> None:
        for pid in (self._process.pid, *descendants_of(self._process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, which)

    def __exit__(self, *_: object) -> None:
        self.go_on()
        self._process.communicate(timeout=120)


class _Witness:
    """A process that copies memory until the block ends, at idle priority like the readers.

    It shows the cost for publishers, on this machine, of a process that only takes unused processor
    time.
    """

    _PROGRAM = (
        "import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\n"
        "memory = bytearray(8 << 20)\n"
        "while True: bytes(memory)"
    )

    def __enter__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", self._PROGRAM])

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
