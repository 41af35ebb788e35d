"""A bundle that grows over a limit is split by its owner, and nobody notices."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.broker import Broker
from magnetar.broker.cluster.balance.bundles import hash_of
from magnetar.broker.cluster.balance.layouts import Layouts
from magnetar.ledger.system import SystemClock, SystemNetwork
from magnetar.sdk.wire import BaseCommand
from tests.http_calls import ask
from tests.integration.broker.wire_client import WAIT_S, WireClient
from tests.integration.ledger.cluster import Cluster, cluster_of

NAMESPACE = "public/default"


@asynccontextmanager
async def member_on(cluster: Cluster, **settings: Any) -> AsyncIterator[Broker]:
    """A broker that may have others beside it."""
    async with cluster.client() as client:
        broker = Broker(
            BrokerSettings(port=0, http_port=0, load_sample_interval_ms=20, **settings),
            client,
            cluster.store,
            clock=SystemClock(),
            network=SystemNetwork(),
            random=random.Random(5),
            is_clustered=True,
        )
        await broker.start()
        try:
            yield broker
        finally:
            await broker.stop()


def layouts_of(broker: Broker) -> Layouts:
    assert broker.cluster is not None
    return broker.cluster.layouts


async def test_a_bundle_with_too_many_topics_is_split_until_each_has_few(tmp_path: Path) -> None:
    names = [f"persistent://public/default/t-{number}" for number in range(40)]
    async with (
        cluster_of(1, tmp_path) as cluster,
        member_on(cluster, bundles_per_namespace=1, bundle_topics_max=8) as broker,
    ):
        client = await WireClient.open(broker.port)
        for producer_id, name in enumerate(names):
            answer = await client.produce(name, producer_id)
            assert answer.type == BaseCommand.PRODUCER_SUCCESS
        changed = asyncio.Event()
        layouts_of(broker).on_change(lambda namespace: changed.set())
        async with asyncio.timeout(WAIT_S):
            while True:
                layout = await layouts_of(broker).layout_of(NAMESPACE)
                held = [sum(hash_of(name) in each for name in names) for each in layout.bundles]
                if max(held) <= 8:
                    break
                changed.clear()
                await changed.wait()
        assert len(layout) <= 16  # by halves of as many topics, and no further than needed
        path = f"/magnetar/v1/namespaces/{NAMESPACE}/bundles"
        shown = (await ask(broker.http_port, "GET", path)).json
        assert {each["broker"] for each in shown} == {broker.name}
        for producer_id in range(len(names)):
            client.publish(0, b"body", producer_id)
        kinds = [(await client.next()).type for _ in names]
        assert kinds == [BaseCommand.SEND_RECEIPT] * len(names)
        await client.close()


async def test_a_namespace_has_at_most_so_many_bundles(tmp_path: Path) -> None:
    limits = {"bundles_per_namespace": 1, "bundles_per_namespace_max": 3, "bundle_topics_max": 1}
    async with cluster_of(1, tmp_path) as cluster, member_on(cluster, **limits) as broker:
        client = await WireClient.open(broker.port)
        for number in range(10):
            await client.produce(f"persistent://public/default/t-{number}", number)
        changed = asyncio.Event()
        layouts_of(broker).on_change(lambda namespace: changed.set())
        async with asyncio.timeout(WAIT_S):
            while len(await layouts_of(broker).layout_of(NAMESPACE)) < 3:
                changed.clear()
                await changed.wait()
        assert broker.cluster is not None
        assert broker.cluster.balancer is not None
        for _ in range(3):
            await broker.cluster.balancer.reporter.look()
        assert len(await layouts_of(broker).verified(NAMESPACE)) == 3
        await client.close()
