"""Clients of Pulsar 5 at several broker processes: who coordinates, and what follows a move."""

import asyncio
from collections.abc import Iterator

import pytest

from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.integration.broker.balance.test_several_brokers import (
    NAMESPACE,
    bundle_of,
    call,
    connected,
    follow,
    lookup,
)
from tests.integration.broker.test_scalable_commands import (
    look_up,
    next_topics,
    register,
    topics_of,
)
from tests.integration.broker.wire_client import WireClient
from tests.real_cluster import RealCluster

_BROKERS = ("broker-1", "broker-2")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """Two brokers that move nothing by themselves."""
    with RealCluster(
        tmp_path_factory.mktemp("scalable") / "cluster",
        bookies=1,
        brokers=2,
        environment={
            "MAGNETAR_BROKER_SHEDDING": "false",
            "MAGNETAR_BROKER_BUNDLE_AUTO_SPLIT": "false",
        },
    ) as started:
        yield started


def _partitions(cluster: RealCluster, topic: str, count: int, *, grows: bool = False) -> None:
    path = f"/admin/v2/persistent/public/default/{topic}/partitions"
    answer = call(cluster, "broker-1", "POST" if grows else "PUT", path, count)
    assert answer.status == 204, answer


async def _owner_and_other(cluster: RealCluster, topic: str) -> tuple[str, str]:
    owner = await asyncio.to_thread(lookup, cluster, "broker-1", topic)
    (other,) = set(_BROKERS) - {owner}
    return owner, other


async def test_a_session_at_any_broker_hears_of_a_growth_and_knows_the_coordinator(
    cluster: RealCluster,
) -> None:
    await asyncio.to_thread(_partitions, cluster, "grows", 2)
    owner, _ = await _owner_and_other(cluster, "grows")
    clients = [await connected(cluster, name) for name in _BROKERS]
    for client in clients:
        dag = (await look_up(client, "persistent://public/default/grows")).dag
        assert (dag.epoch, dag.controller_broker_url) == (2, cluster.url(owner))
    await asyncio.to_thread(lambda: _partitions(cluster, "grows", 3, grows=True))
    for client in clients:
        update = (await client.next(BaseCommand.SCALABLE_TOPIC_UPDATE)).scalableTopicUpdate
        assert (update.dag.epoch, len(update.dag.segments)) == (3, 3)
        await client.close()


async def test_only_the_owner_of_the_topics_name_coordinates(cluster: RealCluster) -> None:
    name = "persistent://public/default/owned"
    await asyncio.to_thread(_partitions, cluster, "owned", 2)
    owner, other = await _owner_and_other(cluster, "owned")
    at_owner, at_other = [await connected(cluster, each) for each in (owner, other)]
    refused = await register(at_other, name, "a")
    assert refused.error == pb.ServerError.ServiceNotReady
    assert len(topics_of((await register(at_owner, name, "a")).assignment)) == 2
    for client in (at_owner, at_other):
        await client.close()


async def test_consumers_register_where_the_bundle_of_their_topic_goes(
    cluster: RealCluster,
) -> None:
    """The coordinator that loses it closes their connections; names alone divide the segments, so
    the next one finds the same assignment."""
    name = "persistent://public/default/moves"
    await asyncio.to_thread(_partitions, cluster, "moves", 4)
    owner, other = await _owner_and_other(cluster, "moves")
    clients = [await connected(cluster, owner) for _ in range(2)]
    await register(clients[0], name, "a")
    second = topics_of((await register(clients[1], name, "b")).assignment)
    first = await next_topics(clients[0])
    bundle = await asyncio.to_thread(bundle_of, cluster, "moves")
    path = f"{NAMESPACE}/{bundle}/unload?destinationBroker={other}"
    answer = await asyncio.to_thread(follow, cluster, owner, "PUT", path)
    assert answer.status == 204
    for client in clients:
        await client.closed()
        await client.close()
    back = [await connected(cluster, other) for _ in range(2)]
    dag = (await look_up(back[0], name)).dag
    assert dag.controller_broker_url == cluster.url(other)
    await register(back[0], name, "a")
    assert topics_of((await register(back[1], name, "b")).assignment) == second
    assert await next_topics(back[0]) == first
    for client in back:
        await client.close()


async def _places(client: WireClient) -> dict[int, str]:
    """Where the coordinators of transactions are, by the next message of the watch."""
    update = await client.next(BaseCommand.WATCH_TC_ASSIGNMENTS_UPDATE)
    snapshot = update.watchTcAssignmentsUpdate.snapshot
    return {each.tc_id: each.broker_service_url for each in snapshot.assignments}


async def test_a_transaction_coordinator_that_moves_is_told_to_those_who_watch(
    cluster: RealCluster,
) -> None:
    client = await connected(cluster, "broker-1")
    client.send(
        BaseCommand.WATCH_TC_ASSIGNMENTS,
        watchTcAssignments=pb.CommandWatchTcAssignments(watch_id=1),
    )
    places = await _places(client)
    assert set(places.values()) <= {cluster.url(name) for name in _BROKERS}
    topic = "transaction_coordinator_assign-partition-0"
    path = f"/lookup/v2/topic/persistent/pulsar/system/{topic}/bundle"
    bundle = (await asyncio.to_thread(call, cluster, "broker-1", "GET", path)).text
    owner = next(name for name in _BROKERS if cluster.url(name) == places[0])
    (other,) = set(_BROKERS) - {owner}
    path = f"/admin/v2/namespaces/pulsar/system/{bundle}/unload?destinationBroker={other}"
    answer = await asyncio.to_thread(follow, cluster, owner, "PUT", path)
    assert answer.status == 204, answer
    while (await _places(client)).get(0) != cluster.url(other):
        pass  # While it moves, its owner cannot be told.
    await client.close()
