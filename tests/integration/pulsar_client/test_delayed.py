"""Delayed messages with the official client: at their time, on Shared and Key_Shared, and once."""

import asyncio
import random
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.broker.features.delayed.bucket_ledgers import COMPONENT, delayed_index_refers
from magnetar.ledger.ledger_manager import LedgerManager
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.system import SystemClock
from tests.http_calls import admin, topic_path
from tests.integration.pulsar_client.support import (
    assert_nothing_left,
    connect,
    publish,
    receive,
)
from tests.standalone import Standalone
from tests.waiting import wait_until

_TICK_S = 1.0
"""By which a message may be early: `delayed_delivery_tick_ms`, its default."""
_CLOCK_S = 0.05


def _unload(server: Standalone, topic: str) -> None:
    admin(server, "PUT", f"{topic_path(topic)}/unload")


def _stats(server: Standalone, topic: str) -> Any:
    return admin(server, "GET", f"{topic_path(topic)}/stats")


def _publish_delayed(
    producer: pulsar.Producer, delays_s: dict[bytes, float], *, is_absolute: bool = False
) -> dict[bytes, float]:
    """Publish with these delays; returns when each message is due, by the wall clock.

    What has none is an ordinary message, due at once.
    """
    due_s = {}
    for payload, delay_s in delays_s.items():
        due_s[payload] = time.time() + delay_s
        if not delay_s:
            producer.send(payload)
        elif is_absolute:
            producer.send(payload, deliver_at=int(due_s[payload] * 1000))
        else:
            producer.send(payload, deliver_after=timedelta(seconds=delay_s))
    return due_s


def _receive_due(consumer: pulsar.Consumer, due_s: dict[bytes, float]) -> list[bytes]:
    """Receive and acknowledge them all; none is earlier than a tick before its time."""
    received: list[bytes] = []
    while len(received) < len(due_s):
        message = receive(consumer)
        payload = message.data()
        assert payload not in received
        assert time.time() >= due_s[payload] - _TICK_S - _CLOCK_S, "too early"
        consumer.acknowledge(message)
        received.append(payload)
    return received


@pytest.mark.parametrize(
    ("kind", "is_absolute", "is_batched"),
    [
        (pulsar.ConsumerType.Shared, False, False),
        (pulsar.ConsumerType.Shared, True, True),
        (pulsar.ConsumerType.KeyShared, False, True),
        (pulsar.ConsumerType.KeyShared, True, False),
    ],
    ids=["shared", "shared-at-batched", "key-batched", "key-at"],
)
def test_messages_come_when_they_are_due(
    client: pulsar.Client,
    topic: str,
    kind: pulsar.ConsumerType,
    *,
    is_absolute: bool,
    is_batched: bool,
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    producer = client.create_producer(topic, batching_enabled=is_batched)
    _publish_delayed(producer, {b"in an hour": 3600}, is_absolute=is_absolute)
    delays_s = {b"late": 1.8, b"soon": 1.3, b"now": 0}
    due_s = _publish_delayed(producer, delays_s, is_absolute=is_absolute)
    # In any order: one tick may hold two, and what is published slowly is due at once.
    assert sorted(_receive_due(consumer, due_s)) == [b"late", b"now", b"soon"]


@pytest.mark.parametrize(
    "kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Failover], ids=["excl", "failover"]
)
def test_exclusive_and_failover_get_them_at_once(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    producer = client.create_producer(topic)
    producer.send(b"delayed", deliver_after=timedelta(hours=1))
    assert receive(consumer).data() == b"delayed"


def test_partitions_delay_alike(client: pulsar.Client, server: Standalone, topic: str) -> None:
    admin(server, "PUT", f"{topic_path(topic)}/partitions", 3)
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    delays_s = {b"%d" % at: 1.5 for at in range(9)}
    due_s = _publish_delayed(producer, {**delays_s, b"now": 0})
    assert len(_receive_due(consumer, due_s)) == 10


def test_an_unload_keeps_them_and_the_stats_tell(
    client: pulsar.Client, server: Standalone, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    _publish_delayed(producer, {b"in an hour %d" % at: 3600 for at in range(5)})
    producer.send(b"now")
    message = receive(consumer)
    assert message.data() == b"now"
    consumer.acknowledge(message)
    stats = _stats(server, topic)
    assert stats["subscriptions"]["s"]["msgDelayed"] == 5
    assert 3500 < stats["subscriptions"]["s"]["nextDelayedTime"] / 1000 - time.time() <= 3600
    assert stats["delayedMessageIndexSizeInBytes"] > 0
    # The client sends its acknowledgements late; one that the unload overtakes brings "now" again.
    wait_until(
        lambda: _stats(server, topic)["subscriptions"]["s"]["msgBacklog"] == 5,
        "the acknowledgement is with the server",
    )
    due_s = _publish_delayed(producer, {b"%d" % at: 4.0 for at in range(5)})
    _unload(server, topic)
    assert len(_receive_due(consumer, due_s)) == 5
    assert_nothing_left(client, consumer, topic)
    assert _stats(server, topic)["subscriptions"]["s"]["msgDelayed"] == 5


@pytest.fixture
def own_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Standalone]:
    """One that may be killed, with small buckets so that a few hundred messages fill some."""
    monkeypatch.setenv("MAGNETAR_BROKER_DELAYED_BUCKET_RECORDS", "100")
    monkeypatch.setenv("MAGNETAR_BROKER_DELAYED_SEGMENT_RECORDS", "30")
    with Standalone(tmp_path / "data") as server:
        yield server
        server.assert_log_clean()


def _index_ledgers(server: Standalone) -> list[bool]:
    """For each ledger that holds an index of delayed messages: whether a topic names it."""

    async def find() -> list[bool]:
        store = await open_store(f"embedded:{server.directory / 'metadata.db'}")
        manager = LedgerManager(store, random=random.Random(1), clock=SystemClock())
        is_named = delayed_index_refers(store)
        try:
            found = []
            async for ledger_id in manager.ledger_ids():
                metadata = (await manager.read(ledger_id)).metadata
                if metadata.custom_metadata.get("component") == COMPONENT:
                    found.append(await is_named(metadata))
            return found
        finally:
            await store.close()

    return asyncio.run(find())


def test_the_index_goes_with_its_topic(own_server: Standalone, topic: str) -> None:
    client = connect(own_server.url)
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    for at in range(250):
        producer.send_async(b"%d" % at, None, deliver_after=timedelta(hours=1))
    producer.flush()
    publish(producer, [b"now"])
    assert receive(consumer).data() == b"now"

    def is_stored() -> bool:
        named = _index_ledgers(own_server)
        return bool(named) and all(named)

    wait_until(is_stored, "the index is stored")
    client.close()
    admin(own_server, "DELETE", f"{topic_path(topic)}?force=true")
    assert _index_ledgers(own_server) == []


def test_kill_9_keeps_them(own_server: Standalone, topic: str) -> None:
    """Messages in the stored part of the index are kept, and those that it did not have yet."""
    count = 450
    client = connect(own_server.url)
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False, max_pending_messages=1000)
    due_s = time.time() + 4.5
    done: list[pulsar.Result] = []
    for at in range(count):
        producer.send_async(
            b"%d" % at,
            lambda result, _id: done.append(result),
            deliver_at=int(due_s * 1000),
        )
    producer.flush()
    assert done == [pulsar.Result.Ok] * count
    publish(producer, [b"now"])
    while receive(consumer).data() != b"now":
        pass  # published so slowly that it is due
    own_server.kill()
    client.shutdown()
    own_server.start()
    client = connect(own_server.url)
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    received: list[bytes] = []
    for _ in range(count + 1):
        message = receive(consumer)
        received.append(message.data())
        if received[-1] != b"now":
            assert time.time() >= due_s - _TICK_S - _CLOCK_S, "too early"
        consumer.acknowledge(message)
    assert sorted(received) == sorted([b"now", *(b"%d" % at for at in range(count))])
    assert_nothing_left(client, consumer, topic)
    client.close()
