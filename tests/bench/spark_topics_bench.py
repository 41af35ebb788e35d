"""Spark queries over very many topics: `python -m tests.bench.spark_topics_bench`.

Measures planning a thousand topics by a pattern, an idle check of them, the commit of a micro-batch
of 200 partitions, and a batch query over 200 small ones. The driver's work is called as Spark calls
it, but without Spark; the batch query runs in Spark. The report also has the processor seconds of
this process and of the server: they show the cost, whatever other work the machine does.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pulsar
from pyspark.sql.streaming.datasource import ReadAllAvailable

from magnetar.arrow.stored.admin_client import AdminClient
from magnetar.arrow.stored.options import ConnectionOptions, OptionReader
from magnetar.sdk.spark.data_source import MagnetarDataSource
from tests.bench import load
from tests.bench.figures import describe_machine
from tests.bench.report import Figure, Report
from tests.integration.spark.driven import SCHEMA
from tests.integration.spark.support import keep_topics, options_for
from tests.standalone import Standalone

_NAMESPACE = "persistent://public/default"
_LOOKS = 5


class TopicsBench:
    """Measures queries over many topics; its figures go to the report."""

    def __init__(self, report: Report, server: Standalone) -> None:
        self._report = report
        self._server = server
        given = {"service.url": server.url, "admin.url": server.http_url}
        self._admin = AdminClient(ConnectionOptions.read(OptionReader(given)))

    def pattern(self, topics: int) -> None:
        for number in range(topics):
            self._admin.put(f"/admin/v2/persistent/public/default/plan-{number}", None)
        options = options_for(self._server, topicsPattern="public/default/plan-.*")
        source = MagnetarDataSource(options)
        self._add("schema of a pattern", topics, [self._timed(source.schema)], 3.0)
        reader = source.reader(SCHEMA)
        self._add("planning a batch by a pattern", topics, [self._timed(reader.partitions)], 2.0)
        stream = source.streamReader(SCHEMA)
        begun: dict[str, Any] = {}
        began = self._timed(lambda: begun.update(stream.initialOffset()))
        self._add("planning a stream by a pattern", topics, [began], 2.0)
        looks = [
            self._timed(lambda: stream.latestOffset(begun, ReadAllAvailable()))
            for _ in range(_LOOKS)
        ]
        self._add("an idle look by a pattern", topics, looks, 0.5)
        stream.stop()

    def partitions(self, partitions: int, rows: int, *, with_spark: bool) -> None:
        topic = f"{_NAMESPACE}/parted"
        path = "/admin/v2/persistent/public/default/parted/partitions"
        self._admin.put(path, partitions)
        options = options_for(self._server, topic=topic)
        stream = MagnetarDataSource({**options, "startingOffsets": "earliest"}).streamReader(SCHEMA)
        commits, offset = [], stream.initialOffset()
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(self._server.url, logger=quiet)
        producer = client.create_producer(
            topic,
            block_if_queue_full=True,
            message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
            batching_max_messages=10,
        )
        for _ in range(_LOOKS):
            for _ in range(rows // _LOOKS):
                producer.send_async(b"x" * 100, lambda *_: None)
            producer.flush()
            before, offset = offset, stream.latestOffset(offset, ReadAllAvailable())
            stream.partitions(before, offset)
            commits.append(self._timed(partial(stream.commit, offset)))
        client.close()
        self._add("commit of a micro-batch", partitions, commits, 0.3)
        stream.stop()
        if with_spark:
            work = {"what": "batch", "cores": 2, "warm_s": 20, "repeats": 3, "options": options}
            found = load.run("spark_load", json.dumps(work))
            self._figure("batch over small partitions", partitions, found["runs"], 10.0, {})

    def _timed(self, work: Callable[[], object]) -> dict[str, float]:
        own, server, wall = time.process_time(), self._server_s(), time.perf_counter()
        work()
        return {
            "seconds": time.perf_counter() - wall,
            "own_cpu_s": time.process_time() - own,
            "server_cpu_s": self._server_s() - server,
        }

    def _server_s(self) -> float:
        text = Path(f"/proc/{self._server.process.pid}/stat").read_text()
        fields = text.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _add(self, name: str, topics: int, runs: list[dict[str, float]], limit_s: float) -> None:
        cpu: dict[str, object] = {
            each: round(statistics.median(run[each] for run in runs), 3)
            for each in ("own_cpu_s", "server_cpu_s")
        }
        self._figure(name, topics, [run["seconds"] for run in runs], limit_s, cpu)

    def _figure(
        self, name: str, topics: int, runs: list[float], limit_s: float, details: dict[str, object]
    ) -> None:
        value = statistics.median(runs)
        self._report.add(
            Figure(
                name=f"{name}, {topics:,} topics",
                unit="s",
                value=round(value, 3),
                target=f"<= {limit_s}",
                met=value <= limit_s,
                runs=[round(each, 3) for each in runs],
                details={**details, "load": round(os.getloadavg()[0], 1)},
            )
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--without-spark", action="store_true", help="what the driver does only")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = Report(Path(folder))
        with Standalone(Path(folder) / "data") as server:
            keep_topics(server)
            bench = TopicsBench(report, server)
            bench.pattern(options.topics)
            bench.partitions(options.partitions, options.rows, with_spark=not options.without_spark)
    figures = [asdict(each) for each in report.figures]
    json.dump({"machine": asdict(describe_machine()), "figures": figures}, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
