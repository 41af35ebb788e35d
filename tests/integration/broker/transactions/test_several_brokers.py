"""Transactions over the topics of two brokers: unloaded, and killed, before they are committed."""

import asyncio
from collections.abc import Iterator

import pytest

from magnetar.sdk import (
    Client,
    ClientSettings,
    Consumer,
    ConsumerSettings,
    InitialPosition,
    Producer,
    SubscriptionType,
    Transaction,
)
from tests.http_calls import ask
from tests.real_cluster import RealCluster

BROKERS = ("broker-1", "broker-2")
TOPICS = [f"several-{number}" for number in range(6)]
PATIENT = ClientSettings(operation_timeout_ms=120_000)
SHARED = ConsumerSettings(
    initial_position=InitialPosition.EARLIEST, subscription_type=SubscriptionType.SHARED
)
WAIT_S = 120.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with RealCluster(
        tmp_path_factory.mktemp("transactions") / "cluster",
        bookies=1,
        brokers=2,
        environment={
            "MAGNETAR_BROKER_SHEDDING": "false",
            # A broker that is busy with something else is given no bundles: judge by those alone.
            "MAGNETAR_BROKER_LOAD_CPU_CORES": "100",
        },
    ) as started:
        yield started


async def owner(cluster: RealCluster, topic: str) -> str:
    """Name of the broker that serves a topic, by its path."""
    for broker in BROKERS:
        if cluster.is_running(broker):
            port = cluster.server(broker).ports["http"]
            answer = await ask(port, "GET", f"/lookup/v2/topic/persistent/{topic}")
            if answer.status == 200:
                return next(
                    each for each in BROKERS if cluster.url(each) == answer.json["brokerUrl"]
                )
    raise AssertionError(f"nobody serves {topic}")


async def test_a_transaction_is_one_over_several_brokers_whatever_happens_to_them(
    cluster: RealCluster,
) -> None:
    async with Client(cluster.service_url, PATIENT) as client:
        producers = [await client.producer(each) for each in TOPICS]
        consumers = [await client.consumer(each, "s", SHARED) for each in TOPICS]
        owners = {await owner(cluster, f"public/default/{each}") for each in TOPICS}
        assert owners == set(BROKERS)

        async with client.transaction() as txn:
            await _send_everywhere(producers, b"0", txn)
        messages = [await each.receive(timeout_s=WAIT_S) for each in consumers]
        assert {each.data for each in messages} == {b"0"}

        unloaded = await client.transaction().begin()
        await _send_everywhere(producers, b"1", unloaded)
        for message, consumer in zip(messages, consumers, strict=True):
            await consumer.acknowledge(message, transaction=unloaded)
        for broker in BROKERS:
            port = cluster.server(broker).ports["http"]
            for topic in TOPICS:
                path = f"/admin/v2/persistent/public/default/{topic}/unload"
                assert (await ask(port, "PUT", path)).status in (204, 307)
        await unloaded.commit()
        # What was acknowledged in it does not come again, though its broker changed meanwhile.
        await _expect_everywhere(consumers, b"1", again=False)

        killed = await client.transaction().begin()
        await _send_everywhere(producers, b"2", killed)
        assignment = f"transaction_coordinator_assign-partition-{killed.id[0]}"
        name = await owner(cluster, f"pulsar/system/{assignment}")
        await asyncio.to_thread(cluster.kill, name)
        await killed.commit()
        await _expect_everywhere(consumers, b"2")
        await asyncio.to_thread(cluster.start, name)


async def _send_everywhere(producers: list[Producer], payload: bytes, txn: Transaction) -> None:
    for producer in producers:
        await producer.send(payload, transaction=txn)


async def _expect_everywhere(
    consumers: list[Consumer], payload: bytes, *, again: bool = True
) -> None:
    """Each has it next; `again`: what came before it may come once more."""
    for consumer in consumers:
        while True:
            message = await consumer.receive(timeout_s=WAIT_S)
            consumer.acknowledge(message)
            if message.data == payload:
                break
            assert again
            assert message.data < payload
