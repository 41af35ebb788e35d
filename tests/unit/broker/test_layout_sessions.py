"""SCALABLE_TOPIC_LOOKUP: layouts, newer layouts, refusals, and what ends a session."""

import asyncio

import pytest

from magnetar.broker.protocol.revoking import Revoking, no_sessions
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import SERVICE_URL, Harness
from tests.unit.broker.scalable.v5_scene import (
    NAME,
    TOPIC,
    Scene,
    close_session,
    is_alive,
    look_up,
    next_update,
    send_lookup,
)
from tests.unit.broker.security.test_login import Secured
from tests.waiting import settle

_FLAGS = ("supports_scalable_topics", "supports_tc_metadata_discovery")


async def test_the_handshake_says_that_there_are_layouts() -> None:
    client = Harness().client(connect=False)
    flags = client.connect().connected.feature_flags
    assert [getattr(flags, name) for name in _FLAGS] == [True, True]


async def test_without_transactions_the_handshake_promises_no_coordinators() -> None:
    client = Harness(transaction_coordinator_enabled=False).client(connect=False)
    flags = client.connect().connected.feature_flags
    assert [getattr(flags, name) for name in _FLAGS] == [True, False]


async def test_a_broker_without_the_feature_promises_nothing_and_refuses_the_lookup() -> None:
    client = Harness(scalable_topics=False).client(connect=False)
    flags = client.connect().connected.feature_flags
    assert [getattr(flags, name) for name in _FLAGS] == [False, False]
    answer = await look_up(client)
    assert answer.error == pb.ServerError.NotAllowedError
    assert answer.message.startswith("Scalable topics are disabled on this broker")
    assert await is_alive(client)


async def test_a_topic_without_partitions_has_one_segment_under_its_own_name() -> None:
    scene = Scene()
    answer = await look_up(scene.client(), session_id=7)
    assert (answer.session_id, answer.HasField("error")) == (7, False)
    assert answer.resolved_topic_name == "topic://public/default/t"
    assert (answer.dag.epoch, answer.dag.controller_broker_url) == (0, SERVICE_URL)
    (segment,) = answer.dag.segments
    assert (segment.segment_id, segment.hash_start, segment.hash_end) == (0, 0, 65535)
    assert (segment.state, segment.legacy_topic_name) == (pb.ACTIVE, NAME)
    assert segment.created_at_epoch == 0
    assert segment.created_at_ms > 0
    assert not segment.parent_ids
    assert not segment.HasField("sealed_at_epoch")
    assert not segment.entry_bucket_splits
    assert not answer.dag.segment_brokers


async def test_each_partition_is_a_segment() -> None:
    scene = Scene()
    scene.partitions.set(TOPIC, 3)
    dag = (await look_up(scene.client())).dag
    assert [(each.segment_id, each.legacy_topic_name) for each in dag.segments] == [
        (number, f"{NAME}-partition-{number}") for number in range(3)
    ]


async def test_a_short_name_means_the_persistent_topic() -> None:
    answer = await look_up(Scene().client(), "t")
    assert answer.dag.segments[0].legacy_topic_name == NAME


async def test_a_lookup_creates_no_topic() -> None:
    scene = Scene()
    await look_up(scene.client())
    assert not scene.harness.topics.loaded


@pytest.mark.parametrize(("creates", "segments"), [(True, 4), (False, 1)])
async def test_a_new_topic_has_the_partitions_that_the_namespace_gives_if_it_may_be_created(
    creates: bool, segments: int
) -> None:
    scene = Scene(auto_topic_type="partitioned", auto_topic_partitions=4)
    answer = await look_up(scene.client(), create_if_missing=creates)
    assert len(answer.dag.segments) == segments


# News


async def test_growth_is_pushed_whole_with_a_higher_epoch_to_every_session() -> None:
    scene = Scene()
    scene.partitions.set(TOPIC, 2)
    clients = [scene.client() for _ in range(3)]
    for client in clients:
        assert (await look_up(client)).dag.epoch == 2
    scene.partitions.set(TOPIC, 5)
    for client in clients:
        update = await next_update(client)
        assert (update.session_id, update.dag.epoch, len(update.dag.segments)) == (1, 5, 5)
        assert update.resolved_topic_name == "topic://public/default/t"
        assert update.dag.controller_broker_url == SERVICE_URL


async def test_a_topic_that_becomes_partitioned_is_pushed_also_with_one_partition() -> None:
    scene = Scene()
    client = scene.client()
    assert (await look_up(client)).dag.epoch == 0
    scene.partitions.set(TOPIC, 1)
    update = await next_update(client)
    assert (update.dag.epoch, update.dag.segments[0].legacy_topic_name) == (
        1,
        f"{NAME}-partition-0",
    )


async def test_no_epoch_is_told_twice() -> None:
    scene = Scene()
    scene.partitions.set(TOPIC, 2)
    client = scene.client()
    await look_up(client)
    scene.partitions.set(TOPIC, 2)
    scene.partitions.set(TOPIC, 2, is_deleted=True)
    await settle()
    assert client.commands() == []


async def test_a_deleted_topic_ends_the_session_with_topic_not_found() -> None:
    scene = Scene()
    scene.partitions.set(TOPIC, 2)
    client = scene.client()
    await look_up(client)
    scene.partitions.set(TOPIC, 0)
    update = await next_update(client)
    assert (update.error, update.HasField("dag")) == (pb.ServerError.TopicNotFound, False)
    scene.partitions.set(TOPIC, 4)
    await settle()
    assert client.commands() == []
    assert len(scene.layouts) == 0
    assert await is_alive(client)


async def test_a_topic_that_came_back_smaller_closes_the_connection() -> None:
    """No epoch can say so, and an error would keep the client from asking again."""
    scene = Scene()
    scene.partitions.set(TOPIC, 5)
    client = scene.client()
    await look_up(client)
    scene.partitions.set(TOPIC, 3)
    await client.closed()
    assert len(scene.layouts) == 0


async def test_a_client_that_does_not_read_is_told_the_newest_layout_when_it_does() -> None:
    scene = Scene()
    client = scene.client()
    await look_up(client)
    client.connection.on_writable(False)
    for partitions in (1, 2, 3):
        scene.partitions.set(TOPIC, partitions)
        await settle()
    assert client.commands() == []
    client.connection.on_writable(True)
    assert (await next_update(client)).dag.epoch == 3
    assert client.commands() == []


# Sessions


async def test_a_closed_session_hears_nothing_and_frees_the_watch() -> None:
    scene = Scene()
    client = scene.client()
    await look_up(client)
    close_session(client)
    assert (len(scene.layouts), scene.store.watches) == (0, {})
    scene.partitions.set(TOPIC, 2)
    await settle()
    assert client.commands() == []


async def test_to_close_a_session_that_is_not_there_is_no_error() -> None:
    client = Scene().client()
    close_session(client, 99)
    assert await is_alive(client)


async def test_a_lost_connection_frees_its_sessions() -> None:
    scene = Scene()
    client = scene.client()
    await look_up(client)
    await look_up(client, "other", session_id=2)
    assert len(scene.layouts) == 2
    client.connection.lost()
    assert (len(scene.layouts), scene.store.watches) == (0, {})


async def test_a_lookup_with_the_id_of_a_session_puts_a_new_one_in_its_place() -> None:
    scene = Scene()
    client = scene.client()
    await look_up(client)
    assert (await look_up(client, "other")).resolved_topic_name == "topic://public/default/other"
    assert len(client.connection.layouts) == len(scene.layouts) == 1
    scene.partitions.set(TOPIC, 2)
    await settle()
    assert client.commands() == []


async def test_a_session_that_is_closed_before_its_answer_gets_none() -> None:
    scene = Scene()
    client = scene.client()
    send_lookup(client)
    close_session(client)
    await settle()
    assert client.commands() == []
    assert len(scene.layouts) == 0


async def test_sessions_at_the_limit_are_served_and_one_more_is_refused() -> None:
    scene = Scene(scalable_sessions_per_connection_max=2)
    client = scene.client()
    for session_id in (1, 2):
        assert not (await look_up(client, session_id=session_id)).HasField("error")
    refused = await look_up(client, session_id=3)
    assert refused.error == pb.ServerError.NotAllowedError
    assert "scalable_sessions_per_connection_max" in refused.message
    assert not (await look_up(client, session_id=2)).HasField("error")
    close_session(client, 1)
    assert not (await look_up(client, session_id=3)).HasField("error")


async def test_a_layout_larger_than_a_frame_is_refused_and_named() -> None:
    scene = Scene(message_bytes_max=65_536)
    scene.partitions.set(TOPIC, 2_000)
    client = scene.client()
    refused = await look_up(client)
    assert refused.error == pb.ServerError.NotAllowedError
    assert "2000 segments" in refused.message
    assert len(scene.layouts) == 0
    assert await is_alive(client)


# Refusals


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("topic://public/default/t", pb.ServerError.TopicNotFound),
        ("topic://public/nothing/t", pb.ServerError.TopicNotFound),
        ("persistent://public/nothing/t", pb.ServerError.TopicNotFound),
        (f"{NAME}-partition-0", pb.ServerError.TopicNotFound),
        ("non-persistent://public/default/t", pb.ServerError.NotAllowedError),
    ],
)
async def test_what_has_no_layout_is_refused_and_the_connection_lives_on(
    name: str, code: pb.ServerError
) -> None:
    scene = Scene()
    scene.partitions.set(TOPIC, 2)
    client = scene.client()
    answer = await look_up(client, name)
    assert (answer.error, answer.HasField("dag")) == (code, False)
    assert answer.message
    assert await is_alive(client)
    assert (len(client.connection.layouts), len(scene.layouts)) == (0, 0)


async def test_the_refusal_of_a_scalable_topic_says_which_name_to_use() -> None:
    answer = await look_up(Scene().client(), "topic://public/default/t")
    assert answer.message.endswith(f"use {NAME}")


async def test_a_topic_that_is_being_deleted_is_not_found() -> None:
    scene = Scene()
    scene.partitions.set(TOPIC, 2, is_deleted=True)
    answer = await look_up(scene.client())
    assert answer.error == pb.ServerError.TopicNotFound
    assert len(scene.layouts) == 0


@pytest.mark.parametrize("name", ["segment://public/default/t/0000-ffff-0", "a/b", "topic://a/b"])
async def test_a_bad_name_ends_the_connection(name: str) -> None:
    client = Scene().client()
    send_lookup(client, name)
    await client.closed()


async def test_a_namespace_that_cannot_be_read_is_an_error_of_the_session_alone() -> None:
    scene = Scene()
    scene.harness.policies.unreadable.add("public/default")
    client = scene.client()
    assert (await look_up(client)).error == pb.ServerError.MetadataError
    scene.harness.policies.unreadable.clear()
    assert not (await look_up(client)).HasField("error")


async def test_a_lookup_of_a_scalable_name_is_answered_like_that_of_the_topic() -> None:
    client = Harness().client()
    for name in ("topic://public/default/t", NAME):
        lookup = pb.CommandLookupTopic(topic=name, request_id=1)
        client.send(BaseCommand.LOOKUP, lookupTopic=lookup)
        answer = (await client.next()).lookupTopicResponse
        assert answer.response == pb.CommandLookupTopicResponse.Connect
        assert answer.brokerServiceUrl == SERVICE_URL


async def test_a_producer_of_a_scalable_name_is_refused_as_ever() -> None:
    answer = await Harness().client().produce(topic="topic://public/default/t")
    assert answer.error.error == pb.ServerError.InvalidTopicName


# Rights


async def test_a_stranger_is_told_no_layout() -> None:
    harness = Secured()
    scene = Scene(harness)
    client, _ = await harness.login(harness.token("stranger"))
    for name in (NAME, "topic://public/default/t"):
        answer = await look_up(client, name)
        assert answer.error == pb.ServerError.AuthorizationError
    assert await is_alive(client)
    assert len(scene.layouts) == 0


async def test_a_session_ends_with_the_right_to_look_the_topic_up() -> None:
    harness = Secured()
    scene = Scene(harness)
    harness.grant(reader=("consume",))
    client, _ = await harness.login(harness.token("reader"))
    assert not (await look_up(client)).HasField("error")

    revoking = Revoking(lambda: [client.connection], no_sessions, recheck_interval_s=0)
    revoking.changed("public/other")
    await settle()
    assert client.commands() == []
    harness.grant()
    revoking.changed("public/default")
    assert (await next_update(client)).error == pb.ServerError.AuthorizationError
    assert len(scene.layouts) == 0
    revoking.close()


async def test_a_right_that_is_taken_away_while_a_layout_is_read_is_gone() -> None:
    harness = Secured()
    scene = Scene(harness)
    harness.grant(reader=("consume",))
    client, _ = await harness.login(harness.token("reader"))
    scene.partitions.gate = asyncio.Event()
    send_lookup(client)
    await settle()
    harness.grant()
    revoking = Revoking(lambda: [client.connection])
    revoking.changed("public/default")
    await settle()
    scene.partitions.gate.set()
    assert (await next_update(client)).error == pb.ServerError.AuthorizationError
    await settle()
    assert client.commands() == []
    assert (len(client.connection.layouts), len(scene.layouts)) == (0, 0)


async def test_a_lookup_that_fails_after_another_took_its_id_gets_no_answer() -> None:
    """The client would take it for an answer to the other one."""
    scene = Scene()
    client = scene.client()
    scene.partitions.gate = asyncio.Event()
    send_lookup(client, "topic://public/default/t")  # It is refused: not scalable.
    send_lookup(client)
    await settle()
    scene.partitions.gate.set()
    assert not (await next_update(client)).HasField("error")
    await settle()
    assert client.commands() == []
