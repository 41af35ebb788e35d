"""Benchmarks of Magnetar on this machine: `make bench`.

Each load runs several times, each time between two runs of the yardstick (ceiling.py) of the same
shape. The figure is the median, and so is its ratio to the yardstick. Processes are as in
production: three bookies, a broker, a client. One JSON object goes to stdout, a table for people to
stderr.

usage: python -m tests.bench [--quick] [--only WORD] [--dir DIR]
"""

import argparse
import json
import logging
import statistics
import sys
import tempfile
import threading
from dataclasses import asdict
from pathlib import Path

import structlog

from tests.bench import load
from tests.bench.acks_bench import AcksBench
from tests.bench.arrow_bench import ArrowBench
from tests.bench.dedup_bench import DeduplicationBench
from tests.bench.delayed_bench import DelayedBench
from tests.bench.dispatch_bench import DispatchBench
from tests.bench.fanout_bench import FanoutBench
from tests.bench.figures import describe_machine
from tests.bench.gaps_bench import GapsBench
from tests.bench.ledger_bench import LedgerBench
from tests.bench.offload_bench import OffloadBench
from tests.bench.patience import wait_for_the_disk
from tests.bench.rates_bench import RatesBench
from tests.bench.recovery_bench import RecoveryBench
from tests.bench.replication_bench import ReplicationBench
from tests.bench.report import FULL, QUICK, Effort, Figure, Paired, Report, measure
from tests.bench.sdk_bench import SdkBench
from tests.bench.spark_bench import SparkBench
from tests.bench.storage_bench import StorageBench
from tests.bench.storage_client import LoadProcess
from tests.bench.storage_upkeep import UpkeepBench
from tests.bench.topics_bench import TopicsBench
from tests.bench.websocket_bench import WebSocketBench
from tests.cluster import ProcessCluster
from tests.standalone import Standalone

_IDLE_S = 5.0
_SETTLE_S = 2.0


class Bench:
    """Measures broker and standalone; its figures go to the report."""

    def __init__(self, report: Report, effort: Effort) -> None:
        self._report = report
        self._directory = report.directory
        self._effort = effort

    def publish(self) -> None:
        """Measure unbatched publishing through the broker, and reading it back right after.

        A client that costs next to nothing publishes first, then the SDK.
        """
        effort = self._effort
        by_sdk: list[float] = []
        catch_up: list[float] = []
        details: list[object] = []

        def run(number: int) -> float:
            found = load.run(
                "publish_load", cluster.port, f"lean-{number}", effort.messages, 1024, 1000
            )
            details.append(found)
            topic = f"unbatched-{number}"
            published = load.produce(
                cluster.url, topic, messages=effort.messages, size=1024, in_flight=1000
            )
            consumed = load.consume(cluster.url, topic, messages=effort.messages)
            by_sdk.append(published.msgs_per_s)
            catch_up.append(consumed.msgs_per_s)
            return float(found["msgs_per_s"])

        with ProcessCluster(self._directory / "publish") as cluster:
            paired = measure(
                run,
                lambda: self._report.ceiling(size=1024, in_flight=1000, entries=effort.messages),
                repeats=effort.repeats,
            )
        self._report.add_ratio(
            "publish, 1 KB unbatched, 1000 in flight",
            paired,
            target=">= 0.5 of the ceiling",
            least=0.5,
            details={"runs": details},
        )
        self._report.add_rate("the same by the SDK", Paired(by_sdk, paired.ceilings), target=40_000)
        ratios = [
            consumed / published for consumed, published in zip(catch_up, by_sdk, strict=True)
        ]
        ratio = statistics.median(ratios)
        self._report.add(
            Figure(
                name="catch-up consume of the same",
                unit="msg/s",
                value=round(statistics.median(catch_up)),
                target=">= 1.5 x publish",
                met=ratio >= 1.5,
                ratio=round(ratio, 2),
                beside="publish",
                beside_value=round(statistics.median(by_sdk)),
                runs=[round(each) for each in catch_up],
            )
        )

    def publish_batched(self) -> None:
        """Measure small messages in batches of a thousand."""
        effort = self._effort
        with ProcessCluster(self._directory / "batched") as cluster:
            paired = measure(
                lambda number: (
                    load.produce(
                        cluster.url,
                        f"batched-{number}",
                        messages=effort.batched_messages,
                        size=100,
                        batch=1000,
                    ).msgs_per_s
                ),
                # A batch is one entry of 1000 x 100 bytes.
                lambda: (
                    1000
                    * self._report.ceiling(
                        size=100_000, in_flight=100, entries=effort.batched_messages // 1000
                    )
                ),
                repeats=effort.repeats,
            )
        self._report.add_rate("publish, 100 B in batches of 1000", paired, target=1_000_000)

    def publish_one_by_one(self) -> None:
        """Measure one message in flight: the latency of a durable publish."""
        effort = self._effort
        count = effort.single_messages
        p99s: list[float] = []

        def run(number: int) -> float:
            rate = load.produce(
                cluster.url, f"single-{number}", messages=count, size=1024, in_flight=1
            )
            assert rate.latency_ms is not None
            p99s.append(rate.latency_ms.p99)
            return rate.latency_ms.p50

        with ProcessCluster(self._directory / "single") as cluster:
            paired = measure(
                run,
                lambda: self._report.ceiling_p50_ms(size=1024, entries=count),
                repeats=effort.repeats,
            )
        self._report.add_latency(
            "publish, 1 KB, one in flight, p50",
            paired,
            target="<= 0.8",
            met=paired.value <= 0.8,
            p99s=p99s,
        )

    def standalone(self) -> None:
        """Measure start, idle, and restart with data."""
        starts: list[float] = []
        for number in range(self._effort.repeats):
            with Standalone(self._directory / f"standalone-{number}") as server:
                starts.append(server.ready_s)
        self._report.add_limit("standalone, time to ready", "s", starts, limit=1.5)
        with Standalone(self._directory / "standalone") as server:
            self._idle(server)
            self._restart(server)

    def _idle(self, server: Standalone) -> None:
        _pass_time(_SETTLE_S)
        before_s = server.process.cpu_s()
        _pass_time(_IDLE_S)
        percent = (server.process.cpu_s() - before_s) / _IDLE_S * 100
        resident_mb = server.process.resident_bytes() / 1e6
        self._report.add_limit("standalone, idle memory", "MB", [resident_mb], limit=120)
        self._report.add_limit("standalone, idle processor", "% of a core", [percent], limit=2)

    def _restart(self, server: Standalone) -> None:
        size = 64 << 10
        messages = self._effort.restart_mb * (1 << 20) // size
        restarts: list[float] = []
        load.produce(server.url, "restart", messages=messages, size=size, in_flight=200)
        for _ in range(self._effort.repeats):
            server.kill()
            restarts.append(server.start())
        self._report.add_limit(
            f"standalone, restart after kill -9 with {self._effort.restart_mb} MB",
            "s",
            restarts,
            limit=3,
        )


def _pass_time(seconds: float) -> None:
    """Let time pass: idleness is measured."""
    threading.Event().wait(seconds)


def main() -> None:
    """Measure and print. Ends with status 0 even if a target is missed: the figures show it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two minutes, rough figures")
    parser.add_argument("--only", metavar="WORD", help="measurements whose name holds the word")
    parser.add_argument("--dir", type=Path, help="parent of the data folder (default: temporary)")
    arguments = parser.parse_args()
    # Log lines would hide the figures; killed bookies cause many.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    wait_for_the_disk()
    machine = describe_machine()
    sys.stderr.write(
        f"{machine.cpu}, {machine.cores} cores, {machine.memory_gb} GB, {machine.system}, "
        f"Python {machine.python}\n"
    )
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder, LoadProcess() as load:
        effort = QUICK if arguments.quick else FULL
        report = Report(Path(folder))
        bench, ledger = Bench(report, effort), LedgerBench(report, effort)
        gaps, recovery = GapsBench(report, effort), RecoveryBench(report, effort)
        replication = ReplicationBench(report, effort)
        storage, upkeep = StorageBench(report, effort, load), UpkeepBench(report, effort)
        for measurement in (
            storage.storage_writes,
            storage.storage_reads,
            storage.storage_caches,
            storage.storage_event_loop,
            upkeep.storage_compaction,
            upkeep.storage_index_size,
            upkeep.storage_many_ledgers,
            ledger.ledger,
            ledger.ledger_ensemble_change,
            bench.publish,
            bench.publish_batched,
            bench.publish_one_by_one,
            bench.standalone,
            DeduplicationBench(report, effort).deduplication,
            DispatchBench(report, effort).dispatch,
            AcksBench(report, effort).acks,
            FanoutBench(report, effort).fanout,
            RatesBench(report, effort).rates,
            DelayedBench(report, effort).delayed,
            gaps.gaps,
            recovery.recovery,
            TopicsBench(report, effort).topics,
            WebSocketBench(report, effort).websocket,
            SdkBench(report, effort).sdk,
            SparkBench(report, effort).spark,
            ArrowBench(report, effort).arrow,
            OffloadBench(report, effort).offload,
            replication.replication,
            replication.replication_of_clusters,
        ):
            # The event loop figure covers all loads that ran, so it is always reported.
            is_wanted = arguments.only is None or arguments.only in measurement.__name__
            if is_wanted or measurement == storage.storage_event_loop:
                measurement()
    result = {
        "machine": asdict(machine),
        "quick": arguments.quick,
        "figures": [asdict(figure) for figure in report.figures],
    }
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
