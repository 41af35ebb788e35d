"""SCALABLE_TOPIC_SUBSCRIBE: stream and checkpoint consumers on one connection and on several."""

import asyncio
from typing import Any

import pytest

from magnetar.broker.protocol.revoking import Revoking, no_sessions
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client
from tests.unit.broker.scalable.v5_scene import NAME, TOPIC, Scene, is_alive, register, unregister
from tests.unit.broker.security.test_login import Secured
from tests.waiting import settle, until

_BYTES_MAX = 1024


async def _news(client: Client) -> tuple[int, int, list[int]]:
    """The next assignment: of which consumer, its epoch and segments."""
    update = await client.next(BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE)
    told = update.scalableTopicAssignmentUpdate
    return told.consumer_id, told.assignment.layout_epoch, _ids(told.assignment)


def _ids(assignment: pb.ScalableConsumerAssignment) -> list[int]:
    return [each.segment_id for each in assignment.segments]


async def test_a_consumer_of_a_plain_topic_has_its_one_segment() -> None:
    answer = await register(Scene().client())
    assert (answer.HasField("error"), answer.assignment.layout_epoch) == (False, 0)
    (segment,) = answer.assignment.segments
    assert (segment.segment_id, segment.segment_topic) == (0, NAME)
    assert (segment.hash_start, segment.hash_end) == (0, 65535)
    assert not segment.bucket_ranges


async def test_two_consumers_share_the_partitions_and_the_first_is_told() -> None:
    scene = Scene()
    scene.partitions.set(TOPIC, 4)
    first, second = scene.client(), scene.client()
    assert _ids((await register(first, "a", 5)).assignment) == [0, 1, 2, 3]
    answer = await register(second, "b")
    assert [each.segment_topic for each in answer.assignment.segments] == [
        f"{NAME}-partition-{number}" for number in (1, 3)
    ]
    assert await _news(first) == (5, 4, [0, 2])
    assert second.commands() == []


async def test_growth_gives_consumers_their_share_of_the_new_partitions() -> None:
    scene = Scene()
    scene.partitions.set(TOPIC, 2)
    first, second = scene.client(), scene.client()
    await register(first, "a")
    await register(second, "b")
    await _news(first)
    scene.partitions.set(TOPIC, 4)
    assert await _news(first) == (1, 4, [0, 2])
    assert await _news(second) == (1, 4, [1, 3])


async def test_a_consumer_that_unregisters_leaves_its_segments_at_once() -> None:
    scene = Scene()
    scene.partitions.set(TOPIC, 2)
    first, second = scene.client(), scene.client()
    await register(first, "a")
    await register(second, "b")
    await _news(first)
    assert (await unregister(second)).type == BaseCommand.SUCCESS
    assert await _news(first) == (1, 2, [0, 1])


async def test_to_unregister_a_consumer_that_is_not_there_succeeds() -> None:
    assert (await unregister(Scene().client(), 77)).type == BaseCommand.SUCCESS


async def test_a_consumer_that_comes_back_on_another_connection_moves_nobody() -> None:
    scene = Scene()
    scene.partitions.set(TOPIC, 2)
    first, second = scene.client(), scene.client()
    await register(first, "a")
    await register(second, "b")
    await _news(first)
    second.connection.lost()
    answer = await register(scene.client(), "b", 9)
    assert _ids(answer.assignment) == [1]
    assert first.commands() == []


async def test_a_consumer_that_stays_away_is_given_up() -> None:
    scene = Scene(scalable_consumer_grace_ms=1)
    scene.partitions.set(TOPIC, 2)
    first, second = scene.client(), scene.client()
    await register(first, "a")
    await register(second, "b")
    await _news(first)
    second.connection.lost()
    assert await _news(first) == (1, 2, [0, 1])
    first.connection.lost()
    await until(lambda: len(scene.coordinators) == 0, "nothing is left")
    assert (len(scene.layouts), scene.store.watches) == (0, {})


async def test_the_same_consumer_may_register_again_on_its_connection() -> None:
    scene = Scene()
    scene.partitions.set(TOPIC, 2)
    first, second = scene.client(), scene.client()
    await register(first, "a")
    await register(second, "b")
    await _news(first)
    assert _ids((await register(second, "b")).assignment) == [1]
    assert first.commands() == []
    assert len(second.connection.segment_consumers) == 1


async def test_another_consumer_under_the_id_of_one_takes_its_place() -> None:
    scene = Scene()
    scene.partitions.set(TOPIC, 2)
    client = scene.client()
    await register(client, "a")
    assert _ids((await register(client, "b")).assignment) == [0, 1]
    assert len(client.connection.segment_consumers) == 1


async def test_a_client_that_does_not_read_is_told_its_newest_assignment_when_it_does() -> None:
    scene = Scene()
    scene.partitions.set(TOPIC, 1)
    client = scene.client()
    await register(client)
    client.connection.on_writable(False)
    for partitions in (2, 3):
        scene.partitions.set(TOPIC, partitions)
        await settle()
    assert client.commands() == []
    client.connection.on_writable(True)
    assert await _news(client) == (1, 3, [0, 1, 2])
    assert client.commands() == []


async def test_consumers_are_disconnected_when_the_topic_goes_to_another_broker() -> None:
    scene = Scene()
    client = scene.client()
    await register(client)
    scene.coordinators.end([TOPIC])
    await client.closed()


async def test_a_deleted_topic_leaves_a_consumer_without_segments() -> None:
    scene = Scene()
    scene.partitions.set(TOPIC, 2)
    client = scene.client()
    await register(client)
    scene.partitions.set(TOPIC, 0)
    assert await _news(client) == (1, 2, [])
    assert (await unregister(client)).type == BaseCommand.SUCCESS


# Refusals


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "a/b"}, pb.ServerError.InvalidTopicName),
        ({"topic": "segment://public/default/t/0000-ffff-0"}, pb.ServerError.InvalidTopicName),
        ({"topic": "non-persistent://public/default/t"}, pb.ServerError.NotAllowedError),
        ({"topic": "topic://public/default/t"}, pb.ServerError.UnknownError),
        ({"topic": f"{NAME}-partition-0"}, pb.ServerError.UnknownError),
        ({"topic": "persistent://public/nothing/t"}, pb.ServerError.UnknownError),
        ({"subscription": ""}, pb.ServerError.UnknownError),
        ({"subscription": "s" * _BYTES_MAX}, pb.ServerError.NotAllowedError),
    ],
)
async def test_a_registration_that_makes_no_sense_is_refused_and_the_connection_lives_on(
    fields: dict[str, Any], code: pb.ServerError
) -> None:
    scene = Scene(client_metadata_bytes_max=_BYTES_MAX)
    scene.partitions.set(TOPIC, 2)
    client = scene.client()
    answer = await register(client, **fields)
    assert (answer.error, answer.HasField("assignment")) == (code, False)
    assert answer.message
    assert await is_alive(client)
    assert len(client.connection.segment_consumers) == 0
    assert (len(scene.coordinators), len(scene.layouts)) == (0, 0)


async def test_names_that_are_no_text_are_refused() -> None:
    client = Scene().client()
    request = pb.CommandScalableTopicSubscribe(
        request_id=1,
        topic=NAME,
        subscription="s",
        consumer_name="nobody",
        consumer_id=1,
        consumer_type=pb.STREAM,
    )
    raw = BaseCommand(
        type=BaseCommand.SCALABLE_TOPIC_SUBSCRIBE, scalableTopicSubscribe=request
    ).SerializeToString()
    raw = raw.replace(b"nobody", b"nob\xffdy")
    frame = len(raw).to_bytes(4, "big") + raw
    client.send_bytes(len(frame).to_bytes(4, "big") + frame)
    answer = (await client.next()).scalableTopicSubscribeResponse
    assert answer.error == pb.ServerError.UnknownError
    assert "UTF-8" in answer.message


async def test_consumers_of_a_connection_at_the_limit_register_and_one_more_is_refused() -> None:
    scene = Scene(scalable_sessions_per_connection_max=2)
    client = scene.client()
    for consumer_id in (1, 2):
        answer = await register(client, f"c{consumer_id}", consumer_id)
        assert not answer.HasField("error")
    refused = await register(client, "c3", 3)
    assert refused.error == pb.ServerError.NotAllowedError
    assert "scalable_sessions_per_connection_max" in refused.message


async def test_a_broker_without_the_feature_refuses_both_commands() -> None:
    client = Scene(scalable_topics=False).client()
    assert (await register(client)).error == pb.ServerError.NotAllowedError
    answer = await unregister(client)
    assert answer.error.error == pb.ServerError.NotAllowedError
    assert answer.error.message.startswith("Scalable topics are disabled on this broker")


# Rights


async def test_who_may_not_consume_is_not_registered() -> None:
    harness = Secured()
    scene = Scene(harness)
    harness.grant(writer=("produce",))
    client, _ = await harness.login(harness.token("writer"))
    assert (await register(client)).error == pb.ServerError.AuthorizationError
    assert len(scene.coordinators) == 0


async def test_who_may_not_consume_any_more_loses_its_segments_to_others() -> None:
    harness = Secured()
    scene = Scene(harness)
    scene.partitions.set(TOPIC, 2)
    harness.grant(one=("consume",), other=("consume",))
    one, _ = await harness.login(harness.token("one"))
    other, _ = await harness.login(harness.token("other"))
    await register(one, "a")
    await register(other, "b")
    await _news(one)
    harness.grant(one=("consume",))
    revoking = Revoking(
        lambda: [one.connection, other.connection], no_sessions, recheck_interval_s=0
    )
    revoking.changed("public/default")
    assert await _news(one) == (1, 2, [0, 1])
    assert await _news(other) == (1, 2, [])
    revoking.close()


async def test_a_right_that_is_taken_away_while_a_consumer_registers_is_gone() -> None:
    harness = Secured()
    scene = Scene(harness)
    harness.grant(reader=("consume",))
    client, _ = await harness.login(harness.token("reader"))
    scene.partitions.gate = asyncio.Event()
    answer = asyncio.create_task(register(client))
    await settle()
    harness.grant()
    revoking = Revoking(lambda: [client.connection])
    revoking.changed("public/default")
    await settle()
    scene.partitions.gate.set()
    assert (await answer).error == pb.ServerError.AuthorizationError
    await settle()
    assert client.commands() == []
    assert (len(client.connection.segment_consumers), len(scene.coordinators)) == (0, 0)
