"""Order per key while everything changes: a topic grows from 1 to 16 segments and back, by load.

Two brokers, a bookie and ZooKeeper run as processes, and so do producers and stream consumers.
Policies have the topic's load split it until it has 16 segments, then merge it until it has one,
and again. With one segment, consumers share it by entry buckets. Consumers join, leave and are
killed meanwhile, and brokers are killed -9: a random one, or the one that coordinates the topic's
consumers. Afterwards what the consumers have written down is judged (`verdict.py`).
"""

import asyncio
import heapq
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from magnetar.sdk import Client
from tests.chaos.scalable import records
from tests.chaos.scalable.records import ADMIN, SUBSCRIPTION, TOPIC, received_in
from tests.chaos.scalable.verdict import Stream, Verdict, judge
from tests.http_calls import Answer, ask
from tests.processes import ServerProcess, python_command
from tests.real_cluster import RealCluster

BROKERS = ("broker-1", "broker-2")
SEGMENTS = 16
RATE = 400.0
"""Messages/s of all producers, which a busy machine bears; 50,000 is what the topic is made for."""
CONSUMERS_MAX = 4
SETTLE_S = 600.0
START_S = 300.0
_CHURN_S = (3.0, 8.0)
_LOOK_S = 0.3
_QUIET_S = 10.0
"""A change that began so long after a kill is one that no kill disturbed."""
_ENVIRONMENT = {
    "MAGNETAR_BROKER_SCALABLE_AUTO_SCALE_INTERVAL_S": "0.5",
    "MAGNETAR_BROKER_SCALABLE_SPLIT_COOLDOWN_S": "0",
    "MAGNETAR_BROKER_SCALABLE_MERGE_COOLDOWN_S": "0",
    "MAGNETAR_BROKER_SCALABLE_MERGE_WINDOW_S": "0",
    "MAGNETAR_BROKER_SCALABLE_REBUCKET_COOLDOWN_S": "0",
    "MAGNETAR_BROKER_SCALABLE_LAYOUT_DEPTH_MAX": "1000",
    "MAGNETAR_BROKER_SCALABLE_CONSUMER_GRACE_MS": "3000",
    "MAGNETAR_BROKER_LOAD_SAMPLE_INTERVAL_MS": "500",
    "MAGNETAR_BROKER_DEDUPLICATION": "true",
    "MAGNETAR_BROKER_SHEDDING": "false",
}
_DROPS = ("topics_dropped", "term_ended", "lease_lost")
"""What a broker says when it stops serving without another word."""
_RATES = ("MsgRateIn", "MsgRateOut", "BytesRateIn", "BytesRateOut")
_GROWS: Mapping[str, object] = {
    "maxSegments": SEGMENTS,
    "splitMsgRateInThreshold": 0.01,
    "mergeMsgRateInThreshold": 0.0,
}
"""A segment with any load is split."""
_SHRINKS: Mapping[str, object] = {
    "maxSegments": SEGMENTS,
    **{f"split{each}Threshold": 2e12 for each in _RATES},
    **{f"merge{each}Threshold": 1e12 for each in _RATES},
}
"""Whatever the load, neighbours are merged."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    seed: int
    kills: int
    rate: float = RATE
    """Messages/s of all producers."""
    keys: int = 1_000
    producers: int = 2


@dataclass(slots=True)
class _Progress:
    """What is known while it runs."""

    kills: Counter[str] = field(default_factory=Counter)
    churn: Counter[str] = field(default_factory=Counter)
    killed_ms: list[int] = field(default_factory=list)
    """When brokers died, and were there again; wall clock, as the times of changes."""
    cycles: int = 0
    """From one segment to the most, back to one, and to its sharing."""
    changes: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By the times of their ends."""
    active: int = 0
    buckets: int = 0
    """The most entry buckets of a segment that takes messages."""
    shrinks: bool = False
    """Whether the topic is on its way to one segment."""
    ended: int = 0
    """Processes of clients that ended by themselves."""


class _Field:
    """The processes of one run."""

    def __init__(self, plan: Plan, cluster: RealCluster, directory: Path) -> None:
        self.cluster, self.directory = cluster, directory
        self._plan = plan
        self.consumers: dict[str, ServerProcess] = {}
        self.producers: list[ServerProcess] = []
        self._made = 0

    def start_producers(self) -> None:
        rate = self._plan.rate / self._plan.producers
        for number in range(self._plan.producers):
            self.producers.append(
                self._start("publish", f"p{number}", str(number), str(rate), str(self._plan.keys))
            )

    def join(self, name: str = "") -> None:
        """A stream consumer comes; by a name, one that was killed comes back."""
        self._made += not name
        name = name or f"c{self._made}"
        self.consumers[name] = self._start("consume", name, name)

    def dead(self) -> list[str]:
        """Clients that ended by themselves, which none may."""
        found = [name for name, each in self.consumers.items() if each.returncode is not None]
        for name in found:
            del self.consumers[name]
        return found

    def close(self) -> None:
        for each in (*self.consumers.values(), *self.producers):
            if each.returncode is None:
                each.kill()

    async def ask(self, method: str, path: str, body: object | None = None) -> Answer | None:
        """The answer of a broker that gives one; None: none does."""
        for name in BROKERS:
            try:
                port = self.cluster.server(name).ports["http"]
                answer = await ask(port, method, path, body)
            except (OSError, EOFError, TimeoutError):
                continue
            if answer.status < 300 or answer.status == 412:  # HTTP
                return answer
        return None

    def _start(self, what: str, name: str, *arguments: str) -> ServerProcess:
        module = f"tests.chaos.scalable.{what}"
        url = self.cluster.service_url
        return ServerProcess(
            python_command(module, url, str(self.directory), *arguments),
            log_path=self.directory / f"{name}.log",
            is_ready=lambda _line: False,
        )


def run(plan: Plan, directory: Path) -> dict[str, Any]:
    """The drill and its verdict, as JSON."""
    directory.mkdir(parents=True, exist_ok=True)
    return asyncio.run(_run(plan, directory))


async def _run(plan: Plan, directory: Path) -> dict[str, Any]:
    rng = random.Random(plan.seed)
    cluster = RealCluster(directory / "cluster", bookies=1, brokers=2, environment=_ENVIRONMENT)
    started_s = time.monotonic()
    progress = _Progress()
    with await asyncio.to_thread(cluster.__enter__):
        stage = _Field(plan, cluster, directory)
        try:
            async with Client(cluster.service_url) as client:  # so that the topic is there
                consumer = await client.stream_consumer(TOPIC, SUBSCRIPTION)
                await consumer.close()
            stage.start_producers()
            for _ in range(2):
                stage.join()
            tasks = [
                asyncio.create_task(_scale(stage, progress)),
                asyncio.create_task(_churn(stage, progress, random.Random(plan.seed + 1))),
            ]
            try:
                await _strike(plan, rng, stage, progress)
                await _until(lambda: progress.cycles > 0, "the topic has grown and shrunk")
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            sent, problems = await _finish(plan, stage, progress)
        finally:
            stage.close()
    verdict = judge(_records(directory), sent, _losses_ns(cluster, progress))
    for each in problems:
        verdict.problem(each)
    return _result(plan, progress, verdict, time.monotonic() - started_s)


async def _strike(plan: Plan, rng: random.Random, stage: _Field, progress: _Progress) -> None:
    """Kill brokers, and start them again."""
    while progress.kills.total() < plan.kills:
        before = received_in(stage.directory)
        # Something must happen in between, or there would be nothing to break.
        await _until(lambda now=before: received_in(stage.directory) > now, "messages come")
        await asyncio.sleep(rng.uniform(0, 3.0))
        kind = rng.choice(("broker", "coordinator"))
        name = rng.choice(BROKERS)
        if kind == "coordinator":
            name = await _coordinator(stage) or name
        progress.killed_ms.append(round(time.time() * 1000))
        await asyncio.to_thread(stage.cluster.kill, name)
        progress.kills[kind] += 1
        await asyncio.sleep(rng.choice((0.0, 0.0, 1.0)))
        await asyncio.to_thread(stage.cluster.start, name, START_S)
        progress.killed_ms.append(round(time.time() * 1000))
        sys.stderr.write(
            f"{progress.kills.total()}: {kind}; {progress.active} segments, {progress.cycles} "
            f"cycles, {received_in(stage.directory)} records\n"
        )


async def _coordinator(stage: _Field) -> str | None:
    """Name of the broker that owns the topic's name just now; None: nobody says."""
    answer = await stage.ask("GET", f"/lookup/v2/topic/persistent/{TOPIC.partition('://')[2]}")
    if answer is None:
        return None
    owner = answer.json.get("brokerUrl")
    return next((name for name in BROKERS if stage.cluster.url(name) == owner), None)


async def _scale(stage: _Field, progress: _Progress) -> None:
    """Have the topic grow and shrink for ever, and its consumers share the one segment that it has
    then."""
    while True:
        await _scaled_by(stage, progress, _GROWS, lambda: progress.active == SEGMENTS)
        progress.shrinks = True
        await _scaled_by(stage, progress, _SHRINKS, lambda: progress.active == 1)
        progress.shrinks = False
        await _scaled_by(stage, progress, _SHRINKS, lambda: progress.buckets > 1)
        progress.cycles += 1


async def _scaled_by(
    stage: _Field,
    progress: _Progress,
    policy: Mapping[str, object],
    is_reached: Callable[[], bool],
) -> None:
    is_set = False
    while not is_set or not is_reached():
        if not is_set:
            answer = await stage.ask("POST", f"{ADMIN}/autoScalePolicy", policy)
            is_set = answer is not None
            assert answer is None or answer.status != 412, answer
        await _look(stage, progress)
        await asyncio.sleep(_LOOK_S)


async def _look(stage: _Field, progress: _Progress) -> None:
    answer = await stage.ask("GET", f"{ADMIN}/stats")
    if answer is None:
        return
    layout = answer.json["layout"]
    progress.active = layout["states"]["ACTIVE"]
    active = [each for each in layout["segments"].values() if each["state"] == "ACTIVE"]
    progress.buckets = max(each["entryBuckets"] for each in active)
    if last := layout["lastOperation"]:
        progress.changes[last["at"]] = last


async def _churn(stage: _Field, progress: _Progress, rng: random.Random) -> None:
    """Consumers join, leave, and are killed; some of these come back."""
    while True:
        await asyncio.sleep(rng.uniform(*_CHURN_S))
        progress.ended += len(stage.dead())
        names = sorted(stage.consumers)
        what = rng.choice(("join", "leave", "kill", "return"))
        if progress.shrinks and len(names) > 1:
            what = rng.choice(("leave", "kill"))  # Load merges none that a consumer would have.
        if len(names) < 2 or (what == "join" and len(names) < CONSUMERS_MAX):
            what = "join"
            stage.join()
        elif what != "join":
            name = rng.choice(names)
            gone = stage.consumers.pop(name)
            end = gone.terminate if what == "leave" else gone.kill
            await asyncio.to_thread(end)
            if what == "return":
                stage.join(name)
        progress.churn[what] += 1


async def _finish(
    plan: Plan, stage: _Field, progress: _Progress
) -> tuple[dict[Stream, int], list[str]]:
    """Stop publishing, have everything consumed, and ask all clients to leave."""
    problems = [f"consumer {name} ended by itself" for name in stage.dead()]
    for each in stage.producers:
        await asyncio.to_thread(each.terminate, SETTLE_S)
    sent: dict[Stream, int] = {}
    for number in range(plan.producers):
        path = stage.directory / f"{number}.published"
        if not path.exists():
            problems.append(f"producer {number} did not end in order")
            continue
        found = json.loads(path.read_text())
        sent |= {(number, int(key)): count for key, count in found["confirmed"].items()}
        problems += [f"producer {number}: {failure}" for failure in found["failures"]]
    if not stage.consumers:
        stage.join()
    try:
        await _until_consumed(stage)
    except TimeoutError:
        problems.append("not everything was consumed")
    for consumer in stage.consumers.values():
        await asyncio.to_thread(consumer.terminate)
    problems += [f"{progress.ended} consumers ended by themselves"] * (progress.ended > 0)
    return sent, problems


async def _until_consumed(stage: _Field) -> None:
    """Wait until no segment has a backlog.

    Raises:
        TimeoutError
    """
    async with asyncio.timeout(SETTLE_S):
        while True:
            answer = await stage.ask("GET", f"{ADMIN}/stats")
            found = answer.json["subscriptions"] if answer is not None else {}
            if SUBSCRIPTION in found and found[SUBSCRIPTION]["msgBacklog"] == 0:
                return
            await asyncio.sleep(_LOOK_S)


async def _until(condition: Any, what: str) -> None:
    """
    Raises:
        TimeoutError: says what has not happened.
    """
    deadline_s = time.monotonic() + SETTLE_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {SETTLE_S:.0f} s: {what}")
        await asyncio.sleep(_LOOK_S)


def _records(directory: Path) -> Any:
    """What all consumers have written down, in the order of its times."""
    journals = [records.read(path) for path in records.journals_in(directory)]
    return heapq.merge(*journals, key=lambda each: each.time_ns)


def _losses_ns(cluster: RealCluster, progress: _Progress) -> list[int]:
    """When brokers were killed, or dropped what they served because their lease was over; by the
    clock of the records."""
    found_ms: list[float] = list(progress.killed_ms)
    for name in BROKERS:
        for line in cluster.log_text(name).splitlines():
            if any(f'"event": "{each}"' in line for each in _DROPS):
                found_ms.append(
                    datetime.fromisoformat(json.loads(line)["timestamp"]).timestamp() * 1e3
                )
    ahead_ns = time.time_ns() - time.monotonic_ns()
    return sorted(round(each * 1e6) - ahead_ns for each in found_ms)


def _result(plan: Plan, progress: _Progress, verdict: Verdict, seconds: float) -> dict[str, Any]:
    calm = [each for each in progress.changes.values() if _is_calm(each, progress.killed_ms)]
    return {
        "ok": not verdict.problems_found,
        "seed": plan.seed,
        "rate": plan.rate,
        "kills": dict(progress.kills),
        "consumers": dict(progress.churn),
        "cycles": progress.cycles,
        "changes": len(progress.changes),
        "stall_ms": _stalls(list(progress.changes.values())),
        "stall_ms_without_kills": _stalls(calm),
        "messages": verdict.distinct,
        "redelivered": verdict.redelivered,
        "stored_again": verdict.stored_again,
        "seconds": round(seconds),
        "problems": verdict.problems,
        "problems_found": verdict.problems_found,
    }


def _is_calm(change: Mapping[str, Any], killed_ms: list[int]) -> bool:
    """Whether no broker died, or started, shortly before a change began, or in it."""
    begun_ms = change["at"] - change["tookMs"] - _QUIET_S * 1000
    return not any(begun_ms <= each <= change["at"] for each in killed_ms)


def _stalls(changes: list[dict[str, Any]]) -> dict[str, Any]:
    """How long changes held up publishing: of how many, the middle one, and the longest."""
    found = sorted(each["stalledMs"] for each in changes)
    if not found:
        return {"changes": 0}
    return {"changes": len(found), "median": statistics.median(found), "max": found[-1]}
