"""Tiered storage under kill -9 and a store with faults: nothing lost, nothing twice, no orphans.

A server moves ledgers to a bucket while messages are published. It is killed again and again, and
the way to the bucket loses requests and answers. Afterwards everything heals: all closed ledgers go
to the bucket, the bookies forget them, and the topic is read from its beginning. Every
acknowledged message must be there once, in order; the bucket must hold what the topic names, and
nothing else.
"""

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from magnetar.ledger.offloading.log_manifest import parse_manifest_key
from magnetar.sdk import Client, ClientSettings, MessageId, ProducerSettings
from magnetar.sdk.errors import SdkError
from tests.chaos.offloading.bad_store import BadStore
from tests.http_calls import call, topic_path
from tests.s3_server import S3Server
from tests.standalone import Standalone

BUCKET = "ledgers"
TOPIC = "persistent://public/default/moved"
LIKELY = 0.15
"""How likely a request to the bucket meets a fault."""
SETTLE_S = 180.0
_POLICIES = {
    "managedLedgerOffloadThresholdInBytes": 0,
    "managedLedgerOffloadDeletionLagInMillis": 200,
}
_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "anybody", "AWS_SECRET_ACCESS_KEY": "anything"}
_PATIENT = ClientSettings(operation_timeout_ms=120_000)


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    seed: int
    kills: int


@dataclass(slots=True)
class _Published:
    """Numbers of messages: all that were sent, and those that were acknowledged."""

    sent: int = 0
    acknowledged: list[int] = field(default_factory=list)
    is_over: bool = False


def settings_of(port: int) -> dict[str, str]:
    """Of a server whose bucket is behind a port."""
    store = {
        "name": "main",
        "url": f"s3://{BUCKET}/drill",
        "endpoint": f"http://127.0.0.1:{port}",
        "allow_http": True,
        "timeout_s": 5,
        "connect_timeout_s": 2,
        "retries_max": 1,
        "retry_time_max_s": 2,
    }
    return {
        "LEDGER_ENTRIES_MAX": "20",
        "LEDGER_AGE_MIN_S": "0",
        "RETENTION_MINUTES": "-1",
        "RETENTION_MIB": "-1",
        "OBJECT_STORES": json.dumps([store]),
        "OFFLOAD_STORE": "main",
        "OFFLOAD_CHECK_INTERVAL_S": "0.05",
        "OFFLOAD_RETRY_S": "0.05",
        "OFFLOAD_RETRY_S_MAX": "0.5",
        "OBJECT_BYTES_MIN": "0",
        "OBJECT_SWEEP_INTERVAL_S": "0.3",
        "OBJECT_GRACE_S": "1",
        "MANIFEST_INTERVAL_S": "0.2",
        "TAIL_CACHE_BYTES_MAX": "0",
    }


def run(plan: Plan, directory: Path) -> dict[str, Any]:
    """Carry out a plan; the result says what was seen, and whether it is `ok`."""
    directory.mkdir(parents=True, exist_ok=True)
    s3 = S3Server(directory)
    s3.create_bucket(BUCKET)
    bad = BadStore(s3.port, plan.seed)
    bad.start()
    try:
        settings = settings_of(bad.port)
        with Standalone(directory / "data", settings=settings, environment=_CREDENTIALS) as server:
            return asyncio.run(_run(plan, server, s3, bad))
    finally:
        bad.stop()
        s3.stop()


async def _run(plan: Plan, server: Standalone, s3: S3Server, bad: BadStore) -> dict[str, Any]:
    rng = random.Random(plan.seed)
    published = _Published()
    async with Client(server.url, _PATIENT) as client:
        call(server, "PUT", topic_path(TOPIC), expect=204)
        call(server, "POST", f"{topic_path(TOPIC)}/deduplicationEnabled", True, expect=204)
        producer = await client.producer(TOPIC, ProducerSettings(name="drill", send_timeout_ms=0))
        await producer.send(b"0")
        published.sent, published.acknowledged = 1, [0]
        call(server, "POST", f"{topic_path(TOPIC)}/offloadPolicies", _POLICIES, expect=204)
        publishing = asyncio.create_task(_publish(producer, published))
        bad.likely = LIKELY
        for _ in range(plan.kills):
            await asyncio.sleep(rng.uniform(0.1, 1.5))
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        published.is_over = True
        await publishing
        bad.likely = 0.0
        await producer.close()
        settled_s = await _settle(server, s3)
        read = await _read(client, published.acknowledged[-1])
    wrong = problems(published.acknowledged, read)
    left = _left(server, s3)
    return {
        "ok": not wrong and settled_s is not None and not left,
        "kills": plan.kills,
        "store_faults": bad.faults,
        "messages": len(published.acknowledged),
        "ledgers": len(_ledgers(server)),
        "settled_s": settled_s,
        "problems": wrong[:10],
        "objects": left[:10],
    }


async def _publish(producer: Any, published: _Published) -> None:
    while not published.is_over:
        numbers = range(published.sent, published.sent + 5)
        published.sent += 5
        try:
            await asyncio.gather(*(producer.send(b"%d" % number) for number in numbers))
        except SdkError:
            continue  # whether they are stored is not known
        published.acknowledged += numbers
        await asyncio.sleep(0.01)


def _ledgers(server: Standalone) -> list[dict[str, Any]]:
    answer = call(server, "GET", f"{topic_path(TOPIC)}/internalStats")
    found: list[dict[str, Any]] = answer.json["ledgers"] if answer.status == 200 else []
    return found


async def _settle(server: Standalone, s3: S3Server) -> float | None:
    """Until everything that is due was done; None: it was not."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < SETTLE_S:
        closed = [each for each in await asyncio.to_thread(_ledgers, server) if each["entries"]]
        is_moved = all(each.get("object", {}).get("state") == "only" for each in closed)
        if closed and is_moved and not await asyncio.to_thread(_left, server, s3):
            return round(time.monotonic() - began_s, 1)
        await asyncio.sleep(0.5)
    return None


def _left(server: Standalone, s3: S3Server) -> list[str]:
    """Keys that are in the bucket and not named, or the other way round; and manifests, if there is
    not just the newest one."""
    named = {each["object"]["key"] for each in _ledgers(server) if "object" in each}
    keys = {key.removeprefix("drill/") for key in s3.keys(BUCKET)}
    manifests = {key for key in keys if parse_manifest_key(key) is not None}
    stored = keys - manifests
    if len(manifests) != 1:
        return sorted(manifests) or ["no manifest"]
    return sorted(key.replace("%2525", "%25") for key in named ^ _plain(stored))


def _plain(keys: set[str]) -> set[str]:
    """As the topic names them: in the bucket a `%` is `%25`, which a listing may quote again."""
    return {key.replace("%25", "%") for key in keys}


async def _read(client: Client, last: int) -> list[int]:
    """All messages up to one, from the beginning."""
    found: list[int] = []
    reader = await client.reader(TOPIC, MessageId.EARLIEST)
    while not found or found[-1] < last:
        message = await reader.read_next(timeout_s=60)
        found.append(int(message.data))
    await reader.close()
    return found


def problems(acknowledged: Sequence[int], read: Sequence[int]) -> list[str]:
    """What is missing, twice, or out of order."""
    seen = set(read)
    wrong = [f"{number} is lost" for number in acknowledged if number not in seen]
    if len(seen) != len(read):
        wrong.append(f"{len(read) - len(seen)} messages are there twice")
    if list(read) != sorted(read):
        wrong.append("messages are out of order")
    return wrong
