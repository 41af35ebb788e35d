"""Very many topics on two brokers: what one costs, how they are shared, how fast they move.

Every topic has a connected producer of the official client, and one message in it. Metadata writes
are those of the ZooKeeper server, counted by its transaction id, which includes every write. A
restart is SIGTERM: the broker hands its bundles over, and the clients follow. A topic counts as
served again when its producer is connected to its new broker. The restarted broker gets its share
by shedding, which here runs every few seconds instead of every minute.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import pulsar
import pulsar.asyncio

from magnetar.deploy.zookeeper import four_letter_word
from tests.bench.report import FULL, Effort, Figure, Report
from tests.http_calls import ask
from tests.processes import HOST
from tests.real_cluster import RealCluster

TOPICS = 10_000
TOPICS_QUICK = 300
BROKERS = ("broker-1", "broker-2")

_AT_ONCE = 200
_POLL_S = 0.05
_GIVE_UP_S = 60.0
"""Time limit in seconds for balancing, which may never finish beside other work."""
_CONNECT_S_MAX = 300.0
_IMBALANCE_MAX = 0.1
"""Largest gap between two brokers, as a share of all topics: each has its half within ten
percent."""
_OPERATION_TIMEOUT_S = 60

_LOOKS = {
    "MAGNETAR_BROKER_LOAD_SAMPLE_INTERVAL_MS": "1500",
    "MAGNETAR_BROKER_SHEDDING_INTERVAL_MS": "3500",
}
"""Settings for full runs: more than two samples between two runs of shedding, as by default."""
_FEW = {
    "MAGNETAR_BROKER_BUNDLE_TOPICS_MAX": str(TOPICS_QUICK // 10),
    "MAGNETAR_BROKER_BUNDLE_SESSIONS_MAX": str(TOPICS_QUICK // 10),
    "MAGNETAR_BROKER_SHEDDING_TOPICS_MIN": "4",
}
"""Settings for few topics: as many bundles as with many topics, and shedding for a small gap."""


@dataclass(frozen=True, slots=True)
class Broker:
    """One broker at one moment."""

    topics: int
    resident_mb: float
    cpu_s: float


class TopicsBench:
    """Measures very many topics; its figures go to the report."""

    def __init__(self, report: Report, effort: Effort) -> None:
        self._report = report
        self._topics = TOPICS if effort is FULL else TOPICS_QUICK
        self._environment = _LOOKS if effort is FULL else {**_LOOKS, **_FEW}

    def topics(self) -> None:
        """Create topics, publish to each once, restart a broker."""
        with RealCluster(
            self._report.directory / "topics",
            bookies=3,
            brokers=2,
            environment=self._environment,
        ) as cluster:
            asyncio.run(_Run(cluster, self._report, self._topics).measure())


class _NotBalancedError(Exception):
    """All topics are served, but one of the brokers has too many of them."""


class _Run:
    def __init__(self, cluster: RealCluster, report: Report, topics: int) -> None:
        self._cluster = cluster
        self._report = report
        self._topics = topics
        self._client = pulsar.asyncio.Client(
            cluster.service_url,
            operation_timeout_seconds=_OPERATION_TIMEOUT_S,
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
        balanced = await self._balanced()
        self._report_brokers(await self._brokers(), balanced)

        seconds = await _timed(self._publish(self._producers))
        self._report_step(
            "published to for the first time", seconds, await self._writes_per_topic()
        )

        await self._restart("broker-2", "all just published to")
        # About half of its topics, those that have moved, have no open ledger any more.
        await self._restart("broker-1", "once more")
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

    async def _restart(self, name: str, state: str) -> None:
        """Stop a broker by SIGTERM until all producers are connected again; start it until it has
        its share.

        `state` describes the topics, for the report.
        """
        before = (await self._brokers())[name].topics
        await self._writes_per_topic()
        started_s = time.monotonic()
        stopping = asyncio.ensure_future(asyncio.to_thread(self._cluster.terminate, name))
        # Until the process has ended, producers still count as connected to it.
        status = await stopping
        ended_s = time.monotonic() - started_s
        assert status == 0, f"{name} ended with {status}"
        await self._wait_connected()
        moved_s = time.monotonic() - started_s
        writes = await self._writes_per_topic()
        await asyncio.to_thread(self._cluster.start, name)
        share = await self._balanced()
        self._report.add(
            Figure(
                name=f"{self._topics} topics, {state}: one of two brokers restarted, all served",
                unit="s",
                value=round(moved_s, 2),
                target="< 10",
                met=moved_s < 10,
                details={
                    "topics of the broker": before,
                    "seconds until the process has ended": round(ended_s, 2),
                    "metadata writes per topic that moves": round(
                        writes * self._topics / max(1, before), 2
                    ),
                    "seconds until the new process has its share": share,
                },
            )
        )

    async def _wait_connected(self) -> None:
        until_s = time.monotonic() + _CONNECT_S_MAX
        while lost := sum(not producer.is_connected() for producer in self._producers):
            if time.monotonic() > until_s:
                raise TimeoutError(f"{lost} topics are not served after {_CONNECT_S_MAX:.0f} s")
            await asyncio.sleep(_POLL_S)

    async def _balanced(self) -> float | str:
        """Return the seconds until the brokers are balanced, or their state if they do not get
        there. Beside other work, balancing sees the load of that work, too."""
        try:
            return round(await _timed(self._wait_balanced()), 1)
        except _NotBalancedError as error:
            return str(error)

    async def _wait_balanced(self) -> None:
        """Wait until all topics are served and both brokers have about half of them."""
        until_s = time.monotonic() + _GIVE_UP_S
        while True:
            counts = [broker.topics for broker in (await self._brokers()).values()]
            gap = max(counts) - min(counts)
            if sum(counts) == self._topics and gap <= _IMBALANCE_MAX * self._topics:
                return await self._wait_connected()
            if time.monotonic() > until_s:
                raise _NotBalancedError(f"the brokers have {counts} topics after {_GIVE_UP_S} s")
            await asyncio.sleep(10 * _POLL_S)

    # Looking

    async def _transactions(self) -> int:
        """Return how many writes the metadata server has done since its creation."""
        port = self._cluster.server("zookeeper-1").ports["native"]
        found = re.search(r"Zxid: 0x([0-9a-f]+)", await four_letter_word(HOST, port, "srvr"))
        assert found is not None
        return int(found[1], 16)

    async def _writes_per_topic(self) -> float:
        """Return the metadata writes per topic since the last call."""
        now = await self._transactions()
        writes, self._writes_before = now - self._writes_before, now
        return round(writes / self._topics, 2)

    async def _brokers(self) -> dict[str, Broker]:
        found = {}
        for name in BROKERS:
            page = (await ask(self._cluster.http_url(name), "GET", "/metrics", expect=200)).text
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

    def _report_brokers(self, brokers: dict[str, Broker], balanced_s: float | str) -> None:
        counts = [broker.topics for broker in brokers.values()]
        imbalance = (max(counts) - min(counts)) / max(1, sum(counts))
        self._report.add(
            Figure(
                name=f"{self._topics} topics: imbalance of two brokers",
                unit="%",
                value=round(imbalance * 100, 1),
                target="<= 10",
                met=imbalance <= _IMBALANCE_MAX,
                details={"topics": counts, "seconds after the last was created": balanced_s},
            )
        )
        self._report.add_limit(
            f"{self._topics} topics: memory of the larger broker",
            "MB",
            [max(broker.resident_mb for broker in brokers.values())],
            limit=1_000,
        )


async def _many(work: Callable[[int], Awaitable[None]], numbers: Sequence[int] | range) -> None:
    """Run the work for all numbers, `_AT_ONCE` at a time."""
    waiting = iter(numbers)

    async def lane() -> None:
        for number in waiting:
            await work(number)

    await asyncio.gather(*(lane() for _ in range(_AT_ONCE)))


async def _timed(work: Awaitable[None]) -> float:
    started_s = time.monotonic()
    await work
    return time.monotonic() - started_s
