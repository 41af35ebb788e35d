"""Order per key while everything changes: a topic grows from 1 to 16 segments and back, by load.

Two brokers, bookies and ZooKeeper run as processes, and so do producers and stream consumers.
Policies have the topic's load split it until it has 16 segments, then merge it until it has one,
and again. With one segment, consumers share it by entry buckets. Consumers join, leave and are
killed meanwhile. At first no broker is killed, for as long as the topic grows and shrinks once:
what holds up publishing then comes of the changes. Then brokers are killed -9: a random one, or the
one that coordinates the topic's consumers. Afterwards what the consumers have written down is
judged (`verdict.py`), and what producers have seen of the changes (`stalls.py`).
"""

import asyncio
import heapq
import json
import random
import sys
import time
from collections.abc import Awaitable, Coroutine, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from magnetar.ledger.metadata.url import open_store
from magnetar.sdk import Client
from tests.chaos.scalable import records
from tests.chaos.scalable.field import Field
from tests.chaos.scalable.growing import ENTRY_BUCKETS, Growing
from tests.chaos.scalable.plan import BROKERS, LOOK_S, SETTLE_S, Plan, Progress
from tests.chaos.scalable.records import SUBSCRIPTION, TOPIC, Run, received_in
from tests.chaos.scalable.stalls import Gap, Gaps, distribution, problems_of, stalls_of
from tests.chaos.scalable.verdict import (
    ACK_PERSIST_MS,
    ACK_PERSIST_MS_MAX,
    Stream,
    Verdict,
    judge,
)
from tests.real_cluster import RealCluster

CONSUMERS_MAX = 4
START_S = 300.0
_CHURN_S = (3.0, 8.0)
_ENVIRONMENT = {
    "MAGNETAR_BROKER_SCALABLE_AUTO_SCALE_INTERVAL_S": "0.5",
    "MAGNETAR_BROKER_SCALABLE_SPLIT_COOLDOWN_S": "0",
    "MAGNETAR_BROKER_SCALABLE_MERGE_COOLDOWN_S": "0",
    "MAGNETAR_BROKER_SCALABLE_MERGE_WINDOW_S": "0",
    "MAGNETAR_BROKER_SCALABLE_REBUCKET_COOLDOWN_S": "0",
    "MAGNETAR_BROKER_SCALABLE_LAYOUT_DEPTH_MAX": "1000",
    "MAGNETAR_BROKER_SCALABLE_CONSUMER_GRACE_MS": "3000",
    "MAGNETAR_BROKER_SCALABLE_ENTRY_BUCKETS": str(ENTRY_BUCKETS),
    "MAGNETAR_BROKER_LOAD_SAMPLE_INTERVAL_MS": "500",
    "MAGNETAR_BROKER_DEDUPLICATION": "true",
    "MAGNETAR_BROKER_SHEDDING": "false",
    # So that what must not come again is known soon after it was acknowledged.
    "MAGNETAR_BROKER_ACK_PERSIST_INTERVAL_MS": str(ACK_PERSIST_MS),
    "MAGNETAR_BROKER_ACK_PERSIST_INTERVAL_MS_MAX": str(ACK_PERSIST_MS_MAX),
}
_DROPS = ("topics_dropped", "term_ended", "lease_lost")
"""What a broker says when it stops serving without another word."""


def run(plan: Plan, directory: Path) -> dict[str, Any]:
    """The drill and its verdict, as JSON."""
    directory.mkdir(parents=True, exist_ok=True)
    return asyncio.run(_run(plan, directory))


async def _run(plan: Plan, directory: Path) -> dict[str, Any]:
    cluster = RealCluster(
        directory / "cluster", bookies=plan.bookies, brokers=2, environment=_ENVIRONMENT
    )
    started_s = time.monotonic()
    progress = Progress()
    # Not in a thread: who ends the drill meanwhile ends what has been started.
    with cluster:
        stage = Field(plan, cluster, directory)
        store = await open_store(cluster.metadata_url)
        try:
            async with Client(cluster.service_url) as client:  # so that the topic is there
                consumer = await client.stream_consumer(TOPIC, SUBSCRIPTION)
                await consumer.close()
            growing = Growing(plan, stage, progress, store)
            await _act(plan, stage, progress, growing)
            problems = await _finish(stage, progress, growing)
        finally:
            stage.close()
            await store.close()
    sent, published = _published(plan, directory, problems)
    problems += problems_of(
        progress.changes.values(),
        kills=plan.kills,
        gaps_left_off=sum(each["gaps_left_off"] for each in published),
    )
    judging_s = time.monotonic()
    verdict = judge(
        _runs(directory),
        sent,
        _losses_ns(cluster, progress),
        producers=plan.producers,
        keys=plan.keys,
    )
    for each in problems:
        verdict.problem(each)
    if not plan.kills:
        verdict.check_judged()
    ended_s = time.monotonic()
    return {
        **_result(plan, progress, verdict),
        **_publishing(plan, progress, published),
        "seconds": round(ended_s - started_s),
        "judged_s": round(ended_s - judging_s),
        "problems_found": verdict.problems_found,
        "problems": verdict.problems,
    }


async def _act(plan: Plan, stage: Field, progress: Progress, growing: Growing) -> None:
    """All that happens while producers publish."""
    stage.start_producers()
    for _ in range(2):
        stage.join()
    try:
        await beside(
            _scenes(plan, stage, progress),
            growing.run(),
            growing.pace(),
            _churn(stage, progress, random.Random(plan.seed + 1)),
        )
    finally:
        stage.hold(False)


async def beside(scenes: Awaitable[None], *others: Coroutine[Any, Any, None]) -> None:
    """Wait for `scenes`; the others run meanwhile, and are cancelled then.

    Raises:
        ExceptionGroup: what any of them has raised first; all others are cancelled at once.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in others]
        await scenes
        for task in tasks:
            task.cancel()


async def _scenes(plan: Plan, stage: Field, progress: Progress) -> None:
    await _stay_calm(plan, stage, progress)
    await _strike(random.Random(plan.seed), plan, stage, progress)
    grown = progress.cycles
    await _until(lambda: progress.cycles > grown, "the topic grows and shrinks once more")


async def _stay_calm(plan: Plan, stage: Field, progress: Progress) -> None:
    """Wait until the topic has grown and shrunk, and nothing else has happened."""
    await _until(lambda: received_in(stage.directory) > 0, "messages come")
    began_s, before = time.monotonic(), stage.cpu_s()
    await _until(
        lambda: progress.cycles >= plan.calm_cycles, "the topic has grown, and shrunk again"
    )
    ended_s, after = time.monotonic(), stage.cpu_s()
    progress.calm_s = began_s, ended_s
    for process, used_s in after.items():
        kind, _ = process
        share = (used_s - before.get(process, 0.0)) / (ended_s - began_s)
        progress.cores[kind] = round(progress.cores.get(kind, 0.0) + share, 2)
    sys.stderr.write(f"calm: {len(progress.changes)} changes; {progress.cores} cores\n")


async def _strike(rng: random.Random, plan: Plan, stage: Field, progress: Progress) -> None:
    """Kill brokers, and start them again."""
    while progress.kills.total() < plan.kills:
        before = received_in(stage.directory)
        # Something must happen in between, or there would be nothing to break.
        await _until(lambda now=before: received_in(stage.directory) > now, "messages come")
        await asyncio.sleep(rng.uniform(0, 2.0))
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
            f"cycles, some {received_in(stage.directory)} messages\n"
        )


async def _coordinator(stage: Field) -> str | None:
    """Name of the broker that owns the topic's name just now; None: nobody says."""
    answer = await stage.ask("GET", f"/lookup/v2/topic/persistent/{TOPIC.partition('://')[2]}")
    if answer is None:
        return None
    owner = answer.json.get("brokerUrl")
    return next((name for name in BROKERS if stage.cluster.url(name) == owner), None)


async def _churn(stage: Field, progress: Progress, rng: random.Random) -> None:
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


async def _finish(stage: Field, progress: Progress, growing: Growing) -> list[str]:
    """Stop publishing, have everything consumed, and ask all clients to leave; return what went
    wrong."""
    problems = [f"consumer {name} ended by itself" for name in stage.dead()]
    for each in stage.producers:
        await asyncio.to_thread(each.terminate, SETTLE_S)
    if not stage.consumers:
        stage.join()
    try:
        await _until_consumed(growing)
    except TimeoutError:
        problems.append("not everything was consumed")
    for consumer in stage.consumers.values():
        await asyncio.to_thread(consumer.terminate)
    problems += [f"{progress.ended} consumers ended by themselves"] * (progress.ended > 0)
    return problems


async def _until_consumed(growing: Growing) -> None:
    """
    Raises:
        TimeoutError: there is a backlog still.
    """
    async with asyncio.timeout(SETTLE_S):
        while True:
            if await growing.backlog() == 0:
                return
            await asyncio.sleep(LOOK_S)


def _published(
    plan: Plan, directory: Path, problems: list[str]
) -> tuple[dict[Stream, int], list[dict[str, Any]]]:
    """How many messages of each stream were confirmed, and what else producers have written."""
    sent: dict[Stream, int] = {}
    published = []
    for number in range(plan.producers):
        path = directory / f"{number}.published"
        if not path.exists():
            problems.append(f"producer {number} did not end in order")
            continue
        found = json.loads(path.read_text())
        published.append(found)
        sent |= {(number, key): count for key, count in enumerate(found["confirmed"])}
        problems += [f"producer {number}: {failure}" for failure in found["failures"]]
    return sent, published


async def _until(condition: Any, what: str) -> None:
    """
    Raises:
        TimeoutError: says what has not happened.
    """
    deadline_s = time.monotonic() + SETTLE_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {SETTLE_S:.0f} s: {what}")
        await asyncio.sleep(LOOK_S)


def _runs(directory: Path) -> Iterator[Run]:
    """What all consumers have written down, in the order of its times."""
    journals = [records.read(path) for path in records.journals_in(directory)]
    return heapq.merge(*journals, key=lambda each: each.time_ns)


def _losses_ns(cluster: RealCluster, progress: Progress) -> list[int]:
    """When brokers were killed, or dropped what they served because their lease was over; by the
    clock of the records."""
    found_ms: list[float] = list(progress.killed_ms)
    for name in BROKERS:
        for line in cluster.log_text(name).splitlines():
            if any(f'"event": "{each}"' in line for each in _DROPS):
                found_ms.append(
                    datetime.fromisoformat(json.loads(line)["timestamp"]).timestamp() * 1e3
                )
    return sorted(round(each * 1e6) - _ahead_ns() for each in found_ms)


def _ahead_ns() -> int:
    """How far the wall clock is ahead of the monotonic one."""
    return time.time_ns() - time.monotonic_ns()


def _result(plan: Plan, progress: Progress, verdict: Verdict) -> dict[str, Any]:
    return {
        "ok": not verdict.problems_found,
        "seed": plan.seed,
        "bookies": plan.bookies,
        "kills": dict(progress.kills),
        "consumers": dict(progress.churn),
        "cycles": progress.cycles,
        "changes": len(progress.changes),
        "messages": verdict.distinct,
        "redelivered": verdict.redelivered,
        "stored_again": verdict.stored_again,
        "acknowledged": verdict.acknowledged,
        "acknowledged_before_a_loss": verdict.excused,
        "acknowledged_without_an_answer": verdict.unconfirmed,
        "acknowledged_and_judged": round(verdict.judged_share, 3),
        "backlog_max": progress.backlog_max,
        "cores": progress.cores,
    }


def _publishing(plan: Plan, progress: Progress, published: list[dict[str, Any]]) -> dict[str, Any]:
    """Rates, and what held them up."""
    ahead_ms = _ahead_ns() / 1e6
    gaps = Gaps(
        Gap(until_s * 1e3 + ahead_ms, since_s * 1e3 + ahead_ms, slot)
        for each in published
        for slot, since_s, until_s in each["gaps"]
    )
    changes = list(progress.changes.values())
    began_s, ended_s = progress.calm_s
    began_ms, ended_ms = began_s * 1e3 + ahead_ms, ended_s * 1e3 + ahead_ms
    calm_rate = sum(_rate(each["totals"], began_s, ended_s) for each in published)
    return {
        "rate": {
            "asked": plan.rate,
            "reached": round(sum(_rate(each["totals"]) for each in published)),
            "without_kills": round(calm_rate),
            "held_s": max((each["held_s"] for each in published), default=0.0),
        },
        "stalls_without_kills": stalls_of(
            [each for each in changes if began_ms <= each.begun_ms and each.ended_ms <= ended_ms],
            gaps,
        ),
        "stalls": stalls_of(changes, gaps),
        "gaps_without_kills_or_changes_ms": distribution(
            each.ms
            for each in gaps.besides(changes)
            if began_ms <= each.since_ms and each.until_ms <= ended_ms
        ),
        "gaps_left_off": sum(each["gaps_left_off"] for each in published),
    }


def _rate(
    totals: list[tuple[float, int]], began_s: float = 0.0, ended_s: float = float("inf")
) -> float:
    """Messages that were confirmed per second."""
    found = [each for each in totals if began_s <= each[0] <= ended_s]
    if len(found) < 2:
        return 0.0
    (first_s, first), (last_s, last) = found[0], found[-1]
    return (last - first) / (last_s - first_s)
