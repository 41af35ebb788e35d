"""Producers and consumers of a scalable topic whose segments are at several brokers, which come and
go."""

import asyncio
from collections.abc import Iterator

import pytest

from magnetar.sdk import Client, ClientSettings, ConsumerSettings, InitialPosition
from tests.integration.broker.balance.test_several_brokers import (
    NAMESPACE,
    bundle_of,
    follow,
    lookup,
)
from tests.integration.sdk.scalable.scene import RECEIVE_S, Layouts, Load, Received, consume
from tests.real_cluster import RealCluster
from tests.waiting import until

_NAME = "over-brokers"
_TOPIC = f"topic://public/default/{_NAME}"
_EARLIEST = ConsumerSettings(initial_position=InitialPosition.EARLIEST)
_PATIENT = ClientSettings(reconnect_delay_min_ms=20, reconnect_delay_max_ms=500)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """Two brokers that move, split and merge nothing by themselves."""
    with RealCluster(
        tmp_path_factory.mktemp("sdk-scalable") / "cluster",
        bookies=1,
        brokers=2,
        environment={
            "MAGNETAR_BROKER_SHEDDING": "false",
            "MAGNETAR_BROKER_BUNDLE_AUTO_SPLIT": "false",
            "MAGNETAR_BROKER_SCALABLE_AUTO_SCALE": "false",
        },
    ) as started:
        yield started


async def _unload(cluster: RealCluster) -> None:
    """Have the coordinator, and whatever is in its bundle, go to the other broker."""
    owner = await asyncio.to_thread(lookup, cluster, "broker-1", _NAME)
    (other,) = {"broker-1", "broker-2"} - {owner}
    bundle = await asyncio.to_thread(bundle_of, cluster, _NAME)
    path = f"{NAMESPACE}/{bundle}/unload?destinationBroker={other}"
    assert (await asyncio.to_thread(follow, cluster, owner, "PUT", path)).status == 204


async def test_moves_of_the_coordinator_and_the_end_of_a_broker_keep_order(
    cluster: RealCluster,
) -> None:
    stream, queue = Received(), Received()
    async with (
        Client(cluster.service_url, _PATIENT) as client,
        client.producer(_TOPIC) as producer,
        client.stream_consumer(_TOPIC, "s", _EARLIEST) as one,
        client.stream_consumer(_TOPIC, "s", _EARLIEST) as other,
        client.queue_consumer(_TOPIC, "q", _EARLIEST) as third,
        asyncio.TaskGroup() as group,
    ):
        load = Load(producer)
        layouts = Layouts(cluster.http_url("broker-1"), _TOPIC)
        sending = group.create_task(load.run())
        tasks = [
            group.create_task(consume(each, into))
            for each, into in ((one, stream), (other, stream), (third, queue))
        ]
        await layouts.split(0)
        await _unload(cluster)
        await layouts.split(1)
        await layouts.split(0)
        await _unload(cluster)
        await layouts.merge(1)
        cluster.kill("broker-2")
        await layouts.split(0)
        load.stop()
        await sending
        await until(lambda: stream.distinct == queue.distinct == load.total, within_s=2 * RECEIVE_S)
        for task in tasks:
            task.cancel()
    # A message whose receipt the kill took away may be stored twice.
    stream.assert_in_order(load.sent)
