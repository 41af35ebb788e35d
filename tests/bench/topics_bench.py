"""Very many topics on two brokers: what one costs, how they are shared, how fast they move.

Every topic has a producer of the official client, which stays connected, and one message in it. The
metadata writes are those of the ZooKeeper server, counted by its transaction id: nothing escapes
that. A restart is SIGTERM: the broker hands its bundles over, the clients follow; a topic counts as
served again when its producer is connected to the broker that has it now.
"""

import asyncio
import re
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import pulsar
import pulsar.asyncio

from magnetar.deploy.zookeeper import four_letter_word
from tests.bench.report import FULL, Effort, Figure, Report
from tests.processes import HOST
from tests.real_cluster import RealCluster

TOPICS = 10_000
TOPICS_QUICK = 300
BROKERS = ("broker-1", "broker-2")

_AT_ONCE = 200
_POLL_S = 0.05
_GIVE_UP_S = 180.0
_BALANCED_SHARE = 0.2
_OPERATION_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Broker:
    """One broker at one moment."""

    topics: int
    resident_mb: float
    cpu_s: float


class TopicsBench:
    """Adds its figures to the report."""

    def __init__(self, report: Report, effort: Effort) -> None:
        self._report = report
        self._topics = TOPICS if effort is FULL else TOPICS_QUICK

    def topics(self) -> None:
        """Create, publish once, restart a broker."""
        with RealCluster(self._report.directory / "topics", bookies=3, brokers=2) as cluster:
            asyncio.run(_Run(cluster, self._report, self._topics).measure())


class _Run:
    def __init__(self, cluster: RealCluster, report: Report, topics: int) -> None:
        self._cluster = cluster
        self._report = report
        self._topics = topics
        self._client = pulsar.asyncio.Client(
            cluster.service_url,
            operation_timeout_seconds=_OPERATION_TIMEOUT_S,
            concurrent_lookup_requests=1_000,
            logger=pulsar.FileLogger(
                pulsar.LoggerLevel.Warn, str(cluster.directory / "logs" / "client.log")
            ),
        )
        self._producers: list[pulsar.asyncio.Producer] = []
        self._writes_before = 0

    async def measure(self) -> None:
        self._writes_before = await self._transactions()
        seconds = await _timed(self._create())
        self._report_step("created", seconds, await self._writes_per_topic())
        self._report_brokers(await self._brokers())

        seconds = await _timed(self._publish(self._producers))
        self._report_step(
            "published to for the first time", seconds, await self._writes_per_topic()
        )

        # The ledgers of the first publish are closed by this: from now on the topics are idle.
        await self._restart("broker-2")
        await self._writes_per_topic()
        moved = await self._restart("broker-1")
        writes = await self._writes_per_topic()
        self._report.add(
            Figure(
                name=f"{self._topics} topics: restart of one of two brokers, all served again",
                unit="s",
                value=round(moved, 2),
                target="< 10",
                met=moved < 10,
                details={"metadata writes per topic": writes},
            )
        )
        await self._publish(self._producers[:: max(1, self._topics // 100)])
        await self._client.close()

    async def _create(self) -> None:
        async def create(number: int) -> None:
            name = f"persistent://public/default/topic-{number:06d}"
            self._producers.append(await self._client.create_producer(name, send_timeout_millis=0))

        await _many(create, range(self._topics))

    async def _publish(self, producers: Sequence[pulsar.asyncio.Producer]) -> None:
        async def publish(number: int) -> None:
            await producers[number].send(b"x" * 100)

        await _many(publish, range(len(producers)))

    async def _restart(self, name: str) -> float:
        """SIGTERM and a new start; the seconds until all producers are connected again."""
        before = (await self._brokers())[name].topics
        started_s = time.monotonic()
        stopping = asyncio.ensure_future(asyncio.to_thread(self._cluster.terminate, name))
        # From here on until the process has ended, producers still count as connected to it.
        status = await stopping
        ended_s = time.monotonic() - started_s
        assert status == 0, f"{name} ended with {status}"
        while not all(producer.is_connected() for producer in self._producers):
            if time.monotonic() - started_s > _GIVE_UP_S:
                lost = sum(not producer.is_connected() for producer in self._producers)
                raise TimeoutError(f"{lost} topics are not served {_GIVE_UP_S} s after SIGTERM")
            await asyncio.sleep(_POLL_S)
        moved_s = time.monotonic() - started_s
        sys.stderr.write(
            f"{name} had {before} topics, ended after {ended_s:.2f} s; all are served again after "
            f"{moved_s:.2f} s\n"
        )
        await asyncio.to_thread(self._cluster.start, name)
        await self._wait_balanced()
        return moved_s

    async def _wait_balanced(self) -> None:
        """Shedding gives the broker that is back its share, a few bundles at a time."""
        started_s = time.monotonic()
        while time.monotonic() - started_s < _GIVE_UP_S:
            counts = [broker.topics for broker in (await self._brokers()).values()]
            if max(counts) - min(counts) <= _BALANCED_SHARE * self._topics:
                break
            await asyncio.sleep(1)
        sys.stderr.write(f"topics {counts} after {time.monotonic() - started_s:.0f} s\n")

    # Looking

    async def _transactions(self) -> int:
        """How many writes the metadata server has done, ever."""
        port = self._cluster.server("zookeeper-1").ports["native"]
        found = re.search(r"Zxid: 0x([0-9a-f]+)", await four_letter_word(HOST, port, "srvr"))
        assert found is not None
        return int(found[1], 16)

    async def _writes_per_topic(self) -> float:
        """Since the last call."""
        now = await self._transactions()
        writes, self._writes_before = now - self._writes_before, now
        return round(writes / self._topics, 2)

    async def _brokers(self) -> dict[str, Broker]:
        found = {}
        for name in BROKERS:
            url = self._cluster.http_url(name) + "/metrics"
            page = await asyncio.to_thread(_get, url)
            topics = re.search(r"^magnetar_broker_topics (\S+)$", page, re.MULTILINE)
            assert topics is not None, "the metrics page does not count topics"
            process = self._cluster.process(name)
            found[name] = Broker(
                int(float(topics[1])), process.resident_bytes() / 1e6, process.cpu_s()
            )
        return found

    # Reporting

    def _report_step(self, what: str, seconds: float, writes: float) -> None:
        self._report.add(
            Figure(
                name=f"{self._topics} topics {what}",
                unit="topics/s",
                value=round(self._topics / seconds),
                target="",
                met=True,
                details={"metadata writes per topic": writes, "seconds": round(seconds, 1)},
            )
        )

    def _report_brokers(self, brokers: dict[str, Broker]) -> None:
        counts = [broker.topics for broker in brokers.values()]
        imbalance = (max(counts) - min(counts)) / max(1, sum(counts)) * 100
        self._report.add(
            Figure(
                name=f"{self._topics} topics: imbalance of two brokers",
                unit="%",
                value=round(imbalance, 1),
                target="<= 10",
                met=imbalance <= 10,
                details={"topics": counts},
            )
        )
        self._report.add_limit(
            f"{self._topics} topics: memory of the larger broker",
            "MB",
            [max(broker.resident_mb for broker in brokers.values())],
            limit=1_000,
        )


async def _many(work: Callable[[int], Awaitable[None]], numbers: Sequence[int] | range) -> None:
    """Do it for all numbers, some at once."""
    waiting = iter(numbers)

    async def lane() -> None:
        for number in waiting:
            await work(number)

    await asyncio.gather(*(lane() for _ in range(_AT_ONCE)))


async def _timed(work: Awaitable[None]) -> float:
    started_s = time.monotonic()
    await work
    return time.monotonic() - started_s


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        text: str = answer.read().decode()
        return text
