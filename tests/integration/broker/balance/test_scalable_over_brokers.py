"""Clients of Pulsar 5 at several broker processes: who coordinates, and what follows a move."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from magnetar.broker.base import naming
from magnetar.broker.features.scalable import ScalableTopicRecord
from magnetar.broker.features.scalable.changes import begin_split
from magnetar.broker.policies.records import change_record
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.system import SystemClock
from magnetar.sdk.wire import BaseCommand, parse_topic_name
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


async def test_a_topic_is_split_whatever_broker_owns_its_segments(cluster: RealCluster) -> None:
    """Both brokers are asked; sessions at both hear of it; the segments are sealed at once. Their
    children are loaded before that, whoever owns them."""
    name = "topic://public/default/divides"
    path = "/admin/v2/scalable/public/default/divides"
    answer = await asyncio.to_thread(
        call, cluster, "broker-1", "PUT", f"{path}?numInitialSegments=4"
    )
    assert answer.status == 204, answer
    clients = [await connected(cluster, each) for each in _BROKERS]
    for client in clients:
        assert (await look_up(client, name)).dag.epoch == 1
    for epoch, (broker, segment) in enumerate(((_BROKERS[0], 0), (_BROKERS[1], 1)), 2):
        answer = await asyncio.to_thread(call, cluster, broker, "POST", f"{path}/split/{segment}")
        assert answer.status == 204, answer
        for client in clients:
            update = (await client.next(BaseCommand.SCALABLE_TOPIC_UPDATE)).scalableTopicUpdate
            assert update.dag.epoch == epoch
    answer = await asyncio.to_thread(call, cluster, "broker-2", "GET", f"{path}/stats")
    segments = answer.json["layout"]["segments"]
    assert [key for key, each in segments.items() if each["state"] == "SEALED"] == ["0", "1"]
    lines = [line for each in _BROKERS for line in cluster.log_text(each).splitlines()]
    ahead = {json.loads(line)["topic"] for line in lines if '"topic_opened_ahead"' in line}
    assert {each["name"] for each in list(segments.values())[4:]} <= ahead
    answer = await asyncio.to_thread(call, cluster, "broker-2", "DELETE", path)
    assert answer.status == 204, answer
    for client in clients:
        update = (await client.next(BaseCommand.SCALABLE_TOPIC_UPDATE)).scalableTopicUpdate
        assert update.error == pb.ServerError.TopicNotFound
        await client.close()


async def test_a_split_is_finished_though_the_owner_of_the_segment_is_killed(
    cluster: RealCluster,
) -> None:
    """The record says what was begun; the other broker carries it on, and owns the segment."""
    topic = parse_topic_name("persistent://public/default/survives")
    path = "/admin/v2/scalable/public/default/survives"
    answer = await asyncio.to_thread(call, cluster, "broker-1", "PUT", path)
    assert answer.status == 204, answer
    stats = await asyncio.to_thread(call, cluster, "broker-1", "GET", f"{path}/stats")
    address = stats.json["layout"]["segments"]["0"]["ownerBroker"]
    owner = next(name for name in _BROKERS if cluster.http_url(name).endswith(address))
    (other,) = set(_BROKERS) - {owner}
    client = await connected(cluster, other)
    assert (await look_up(client, "topic://public/default/survives")).dag.epoch == 1
    cluster.kill(owner)
    store = await open_store(cluster.metadata_url)
    now_ms = SystemClock().wall_ms()
    try:
        await change_record(
            store,
            ScalableTopicRecord,
            naming.scalable_topic_path(topic),
            lambda record: begin_split(topic, record, 0, now_ms=now_ms, segments_max=8),
        )
    finally:
        await store.close()
    update = (await client.next(BaseCommand.SCALABLE_TOPIC_UPDATE)).scalableTopicUpdate
    assert update.dag.epoch == 2
    for each in update.dag.segments[1:]:
        name = topic.segment(each.segment_id, start=each.hash_start, end=each.hash_end)
        produced = await client.produce(str(name), each.segment_id)
        assert produced.type == BaseCommand.PRODUCER_SUCCESS
    await client.close()
    await asyncio.to_thread(cluster.start, owner)
