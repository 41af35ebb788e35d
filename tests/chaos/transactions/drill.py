"""Exactly once: messages are consumed, transformed and produced while everything is killed.

Two brokers, a bookie and ZooKeeper run as processes, and so do the workers (`transform.py`), which
do their part in transactions. kill -9 comes at random to a broker, to the broker of a coordinator,
and to a worker. Afterwards all topics are read: each message of the source must have exactly one
result, and nothing of an aborted transaction may be seen.
"""

import asyncio
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from magnetar.sdk import (
    Client,
    ClientSettings,
    ConsumerSettings,
    InitialPosition,
    MessageId,
    ProducerSettings,
)
from magnetar.sdk.errors import SdkError
from tests.chaos.transactions.transform import ABORTED, RESULTS, SOURCE, TIMEOUT_MS, name_of
from tests.http_calls import ask
from tests.processes import ServerProcess, python_command
from tests.real_cluster import RealCluster

WORKERS = 2
AHEAD_MAX = 60
"""Messages that wait to be transformed, at most."""
SETTLE_S = 300.0
START_S = 300.0
COORDINATORS = 4
_ENVIRONMENT = {
    "MAGNETAR_BROKER_TRANSACTION_CHECK_INTERVAL_S": "1",
    "MAGNETAR_BROKER_TRANSACTION_SNAPSHOT_ENTRIES": "200",
    "MAGNETAR_BROKER_TRANSACTION_LOG_RECORDS": "200",
    "MAGNETAR_BROKER_SHEDDING": "false",
    # The verdict reads all there ever was: in a long drill ledgers are old enough to be trimmed.
    "MAGNETAR_BROKER_RETENTION_MINUTES": "-1",
    "MAGNETAR_BROKER_RETENTION_MIB": "-1",
}
_PATIENT = ClientSettings(operation_timeout_ms=180_000)


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    seed: int
    kills: int


@dataclass(slots=True)
class _Progress:
    """What is known while it runs."""

    sent: int = 0
    results: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    is_over: bool = False


class _Workers:
    """The processes that transform."""

    def __init__(self, url: str, directory: Path, rng: random.Random) -> None:
        self._url, self._rng = url, rng
        self._log_path = directory / "workers.log"
        self._running: list[ServerProcess] = []

    def start(self) -> None:
        while len(self._running) < WORKERS:
            module = "tests.chaos.transactions.transform"
            self._running.append(
                ServerProcess(
                    python_command(module, self._url, str(self._rng.getrandbits(31))),
                    log_path=self._log_path,
                    is_ready=lambda _line: False,
                )
            )

    def kill_one(self) -> None:
        self._running.pop(self._rng.randrange(len(self._running))).kill()

    def replace_dead(self) -> int:
        """Workers that ended by themselves, which none may."""
        dead = [each for each in self._running if each.returncode is not None]
        self._running = [each for each in self._running if each not in dead]
        self.start()
        return len(dead)

    def close(self) -> None:
        while self._running:
            self.kill_one()


def run(plan: Plan, directory: Path) -> dict[str, Any]:
    """The drill and its verdict, as JSON."""
    directory.mkdir(parents=True, exist_ok=True)
    return asyncio.run(_run(plan, directory))


async def _run(plan: Plan, directory: Path) -> dict[str, Any]:
    rng = random.Random(plan.seed)
    cluster = RealCluster(directory / "cluster", bookies=1, brokers=2, environment=_ENVIRONMENT)
    started_s = time.monotonic()
    with await asyncio.to_thread(cluster.__enter__):
        workers = _Workers(cluster.service_url, directory, rng)
        progress = _Progress()
        async with Client(cluster.service_url, _PATIENT) as client:
            tasks = [
                asyncio.create_task(_feed(client, progress)),
                *(asyncio.create_task(_count(client, each, progress)) for each in RESULTS),
            ]
            workers.start()
            died = 0
            try:
                died = await _strike(plan, rng, cluster, workers, progress)
                progress.is_over = True
                died += await _settle(client, workers)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                workers.close()
            verdict = await _judge(client)
    verdict |= {
        "seed": plan.seed,
        "kills": dict(progress.kills),
        "workers_that_ended": died,
        "seconds": round(time.monotonic() - started_s),
    }
    verdict["ok"] = not (
        verdict["lost"] or verdict["doubled"] or verdict["of_aborted"] or verdict["unknown"] or died
    )
    return verdict


async def _feed(client: Client, progress: _Progress) -> None:
    """Messages for the workers. What is stored twice by a retry are two messages."""
    producer = await client.producer(SOURCE, ProducerSettings(batching=False))
    while not progress.is_over:
        if progress.sent - progress.results >= AHEAD_MAX:
            await asyncio.sleep(0.02)
            continue
        try:
            await producer.send(b"%d" % progress.sent)
        except SdkError:
            continue
        progress.sent += 1


async def _count(client: Client, topic: str, progress: _Progress) -> None:
    """Results that are seen, more or less: for the pace alone."""
    consumer = await client.consumer(
        topic, "count", ConsumerSettings(initial_position=InitialPosition.EARLIEST)
    )
    seen: set[MessageId] = set()
    while True:
        message = await consumer.receive()
        consumer.acknowledge(message)
        if message.message_id not in seen:
            seen.add(message.message_id)
            progress.results += 1


async def _strike(
    plan: Plan, rng: random.Random, cluster: RealCluster, workers: _Workers, progress: _Progress
) -> int:
    died = 0
    while sum(progress.kills.values()) < plan.kills:
        before = progress.results
        deadline_s = time.monotonic() + 60
        # Something must happen in between, or there would be nothing to break.
        while progress.results == before and time.monotonic() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await asyncio.sleep(rng.uniform(0, 1.0))
        died += workers.replace_dead()
        kind = rng.choices(("worker", "broker", "coordinator"), (2, 1, 1))[0]
        if kind == "worker":
            workers.kill_one()
            workers.start()
        else:
            name = f"broker-{rng.randint(1, 2)}"
            if kind == "coordinator":
                name = await _coordinator(cluster, rng.randrange(COORDINATORS)) or name
            await asyncio.to_thread(cluster.kill, name)
            await asyncio.sleep(rng.choice((0.0, 0.0, 1.0)))
            await asyncio.to_thread(cluster.start, name, START_S)
        progress.kills[kind] += 1
        sys.stderr.write(
            f"{sum(progress.kills.values())}: {kind}; {progress.sent} sent, "
            f"{progress.results} results\n"
        )
    return died


async def _coordinator(cluster: RealCluster, number: int) -> str | None:
    """Name of the broker that is a coordinator just now; None: nobody says."""
    path = (
        "/lookup/v2/topic/persistent/pulsar/system/"
        f"transaction_coordinator_assign-partition-{number}"
    )
    for broker in ("broker-1", "broker-2"):
        try:
            answer = await ask(cluster.server(broker).ports["http"], "GET", path)
        except (OSError, EOFError, TimeoutError):
            continue
        if answer.status == 200:
            for name in ("broker-1", "broker-2"):
                if answer.json["brokerUrl"] == cluster.url(name):
                    return name
    return None


async def _settle(client: Client, workers: _Workers) -> int:
    """Wait until every message has a result; what is missing then is lost."""
    deadline_s = time.monotonic() + SETTLE_S
    died = 0
    while time.monotonic() < deadline_s:
        died += workers.replace_dead()
        verdict = await _judge(client)
        if not verdict["lost"]:
            break
        await asyncio.sleep(1.0)
    # A transaction that was left open could still show something: none may be left.
    await asyncio.sleep(TIMEOUT_MS / 1000)
    return died


async def _judge(client: Client) -> dict[str, Any]:
    sources = Counter([name async for name, _ in _read(client, SOURCE)])
    results: Counter[bytes] = Counter()
    for topic in RESULTS:
        results.update([payload async for _, payload in _read(client, topic)])
    of_aborted = results.pop(ABORTED, 0)
    return {
        "messages": len(sources),
        "results": results.total(),
        "lost": len(sources.keys() - results.keys()),
        "doubled": sum(count > 1 for count in results.values()),
        "unknown": len(results.keys() - sources.keys()),
        "of_aborted": of_aborted,
        "lost_ones": sorted(each.decode() for each in sources.keys() - results.keys())[:5],
    }


async def _read(client: Client, topic: str) -> Any:
    """All that can be read of a topic: where it lies, and what it says."""
    reader = await client.reader(topic, MessageId.EARLIEST)
    seen: set[bytes] = set()
    try:
        while await reader.has_message_available():
            message = await reader.read_next(timeout_s=120)
            name = name_of(message)
            if name not in seen:  # after a reconnect the last ones may come again
                seen.add(name)
                yield name, message.data
    finally:
        await reader.close()
