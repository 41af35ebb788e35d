"""The handshake, keep-alive, requests that are not built, and what ends a connection."""

import asyncio

import pytest

from magnetar.broker.base.replies import TAKES_ACKS
from magnetar.sdk.wire import PING_FRAME, BaseCommand, encode_command
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Harness, entry, send_frame
from tests.unit.broker.memory_parts import TOPIC
from tests.waiting import settle


async def test_connected_announces_version_limit_and_flags() -> None:
    client = Harness().client(connect=False)
    connected = client.connect(version=20).connected
    assert connected.server_version  # trap 14: the official client insists on it
    assert connected.protocol_version == 20
    assert connected.max_message_size == 5 * 1024 * 1024
    assert connected.feature_flags.supports_get_partitioned_metadata_without_auto_creation
    assert connected.feature_flags.supports_topic_watchers
    assert connected.feature_flags.supports_topic_watcher_reconcile


@pytest.mark.parametrize(("offered", "agreed"), [(7, 7), (20, 20), (99, 21)])
async def test_the_version_is_the_lower_of_both(offered: int, agreed: int) -> None:
    client = Harness().client(connect=False)
    assert client.connect(version=offered).connected.protocol_version == agreed


async def test_anything_before_connect_ends_the_connection() -> None:
    harness = Harness()
    for frame in (PING_FRAME, send_frame(0, 0)):
        client = harness.client(connect=False)
        client.send_bytes(frame)
        assert client.io.is_closed
        assert client.received() == []


async def test_a_second_connect_ends_the_connection() -> None:
    client = Harness().client()
    client.send(BaseCommand.CONNECT, connect=pb.CommandConnect(client_version="again"))
    assert client.io.is_closed


async def test_no_handshake_within_an_interval_ends_the_connection() -> None:
    client = Harness().client(connect=False)
    client.connection.on_tick()
    assert client.io.is_closed


async def test_a_large_frame_is_refused_before_and_accepted_after_the_handshake() -> None:
    harness = Harness()
    frame = send_frame(0, 0, payload=entry(b"x" * 1_000_000))
    early = harness.client(connect=False)
    early.send_bytes(frame[:1000])
    assert early.io.is_closed
    late = harness.client()
    await late.produce()
    late.send_bytes(frame)
    assert (await late.next()).type == BaseCommand.SEND_RECEIPT


async def test_a_ping_is_always_answered() -> None:
    client = Harness().client()
    client.connection.on_tick()  # trap 13: also while the broker's own PING is under way
    client.send_bytes(PING_FRAME)
    assert client.commands() == [BaseCommand.PING, BaseCommand.PONG]


async def test_a_silent_client_is_dropped_at_the_second_tick() -> None:
    client = Harness().client()
    client.connection.on_tick()
    assert not client.io.is_closed
    client.connection.on_tick()
    assert client.io.is_closed


async def test_any_command_answers_a_ping() -> None:
    client = Harness().client()
    for _ in range(5):
        client.connection.on_tick()
        client.flow(1, consumer_id=99)
    assert not client.io.is_closed


async def test_a_client_that_is_dead_has_broken_no_protocol() -> None:
    harness = Harness(liveness_probe_timeout_ms=10)
    silent, unheard, probed = (harness.client(connect=at > 0) for at in range(3))
    silent.connection.on_tick()
    for _ in range(2):
        unheard.connection.on_tick()
    assert not await probed.connection.link.is_alive()
    assert all(each.io.is_closed for each in (silent, unheard, probed))
    counters = harness.services.counters
    assert (counters.connections_timed_out, counters.protocol_violations) == (3, 0)


async def test_a_closing_connection_is_cut_when_its_client_reads_nothing_for_an_interval() -> None:
    harness = Harness()
    client = harness.client()
    client.io.unsent_bytes = 100
    client.connection.close()
    for left in (100, 60, 20):  # The first tick may come at once; then the client reads slowly.
        client.io.unsent_bytes = left
        client.connection.on_tick()
        assert not client.io.is_aborted
    client.connection.on_tick()
    assert client.io.is_aborted
    assert client.commands() == []
    assert harness.services.counters.connections_timed_out == 1


@pytest.mark.parametrize(
    "frame",
    [
        b"\xff" * 64,
        b"\x00\x00\x00\x05\x00\x00\x00\x09\x08",
        bytes.fromhex("0000000a00000006 08c83eaa0600"),  # a type from the future
        encode_command(BaseCommand(type=BaseCommand.PONG)),  # says PONG, holds none
    ],
    ids=["noise", "sizes", "unknown type", "empty"],
)
async def test_what_is_no_command_ends_the_connection(frame: bytes) -> None:
    harness = Harness()
    client = harness.client()
    client.send_bytes(frame)
    assert client.io.is_closed
    assert harness.services.counters.protocol_violations == 1


async def test_a_command_that_is_for_clients_ends_the_connection() -> None:
    client = Harness().client()
    client.send(BaseCommand.SUCCESS, success=pb.CommandSuccess(request_id=1))
    assert client.io.is_closed


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        (BaseCommand.NEW_TXN, {"newTxn": pb.CommandNewTxn(request_id=3)}),
        (BaseCommand.END_TXN, {"endTxn": pb.CommandEndTxn(request_id=3)}),
        (
            BaseCommand.ADD_PARTITION_TO_TXN,
            {"addPartitionToTxn": pb.CommandAddPartitionToTxn(request_id=3)},
        ),
        (
            BaseCommand.TC_CLIENT_CONNECT_REQUEST,
            {"tcClientConnectRequest": pb.CommandTcClientConnectRequest(request_id=3, tc_id=0)},
        ),
    ],
)
async def test_transactions_that_are_off_are_refused_and_the_connection_stays(
    kind: int, command: dict[str, object]
) -> None:
    client = Harness(transaction_coordinator_enabled=False).client()
    client.send(kind, **command)
    error = client.take(BaseCommand.ERROR).error
    assert (error.request_id, error.error) == (3, pb.ServerError.NotAllowedError)
    assert not client.io.is_closed


async def test_request_id_zero_and_colliding_ids_are_answered_each() -> None:
    """Trap 3: clients run two counters, so the same number may be in flight twice."""
    harness = Harness()
    client = harness.client()
    client.send(
        BaseCommand.LOOKUP,
        lookupTopic=pb.CommandLookupTopic(topic=TOPIC, request_id=0, authoritative=False),
    )
    client.send(
        BaseCommand.PRODUCER,
        producer=pb.CommandProducer(topic=TOPIC, producer_id=0, request_id=0),
    )
    first, second = await client.next(), await client.next()
    assert {first.type, second.type} == {
        BaseCommand.LOOKUP_RESPONSE,
        BaseCommand.PRODUCER_SUCCESS,
    }
    assert first.HasField("lookupTopicResponse")
    assert first.lookupTopicResponse.request_id == second.producer_success.request_id == 0


async def test_too_many_unanswered_requests_are_refused() -> None:
    harness = Harness(requests_per_connection_max=2)
    harness.topics.gate = asyncio.Event()
    client = harness.client()
    for consumer_id in range(3):
        client.send_subscribe(consumer_id, subscription=f"s{consumer_id}")
    await settle()
    assert client.take(BaseCommand.ERROR).error.error == pb.ServerError.TooManyRequests
    harness.topics.gate.set()
    assert (await client.next()).type == BaseCommand.SUCCESS
    assert (await client.next()).type == BaseCommand.SUCCESS


async def test_what_was_refused_for_too_many_requests_can_be_asked_for_again() -> None:
    harness = Harness(requests_per_connection_max=1)
    harness.topics.gate = asyncio.Event()
    client = harness.client()
    client.send_subscribe(1)
    assert (await client.produce(7)).error.error == pb.ServerError.TooManyRequests
    assert (await client.subscribe(2)).error.error == pb.ServerError.TooManyRequests
    watch = pb.CommandWatchTopicList(
        request_id=1, watcher_id=1, namespace="public/default", topics_pattern=".*"
    )
    client.send(BaseCommand.WATCH_TOPIC_LIST, watchTopicList=watch)
    assert (await client.next()).error.error == pb.ServerError.TooManyRequests
    assert client.connection.watchers.namespaces() == set()
    harness.topics.gate.set()
    assert (await client.next()).type == BaseCommand.SUCCESS
    await settle()
    assert (await client.produce(7)).type == BaseCommand.PRODUCER_SUCCESS
    await settle()
    assert (await client.subscribe(2, subscription="other")).type == BaseCommand.SUCCESS


async def test_an_unread_connection_is_not_read_until_the_client_reads() -> None:
    harness = Harness(write_buffer_bytes_max=4096, write_buffer_bytes_high=4096)
    client = harness.client()
    client.io.unsent_bytes = 5000
    client.connection.on_writable(False)
    assert client.io.is_paused
    client.io.unsent_bytes = 0
    client.connection.on_writable(True)
    assert not client.io.is_paused


async def test_a_lost_connection_leaves_nothing_behind() -> None:
    harness = Harness()
    client = harness.client()
    await client.produce()
    await client.subscribe()
    client.connection.lost()
    assert not harness.topic.producers
    assert not harness.topic.subscriptions["s"].consumers


async def test_names_that_are_no_text_are_refused() -> None:
    harness = Harness()
    client = harness.client()

    def spoilt(command: BaseCommand) -> bytes:
        return encode_command(command).replace(b"@@", b"\xff\xfe")

    subscribe = pb.CommandSubscribe(
        topic=TOPIC,
        subscription="@@",
        subType=pb.CommandSubscribe.Shared,
        consumer_id=0,
        request_id=1,
    )
    client.send_bytes(spoilt(BaseCommand(type=BaseCommand.SUBSCRIBE, subscribe=subscribe)))
    assert (await client.next()).error.error == pb.ServerError.ProducerBusy
    subscribe.subscription = "s"
    subscribe.consumer_name = "@@"
    client.send_bytes(spoilt(BaseCommand(type=BaseCommand.SUBSCRIBE, subscribe=subscribe)))
    assert (await client.next()).error.error == pb.ServerError.MetadataError
    producer = pb.CommandProducer(topic=TOPIC, producer_id=0, request_id=2, producer_name="@@")
    client.send_bytes(spoilt(BaseCommand(type=BaseCommand.PRODUCER, producer=producer)))
    assert (await client.next()).error.error == pb.ServerError.MetadataError
    lookup = pb.CommandLookupTopic(topic="@@", request_id=3)
    client.send_bytes(spoilt(BaseCommand(type=BaseCommand.LOOKUP, lookupTopic=lookup)))
    answer = (await client.next()).lookupTopicResponse
    assert answer.error == pb.ServerError.InvalidTopicName


@pytest.mark.parametrize(
    ("is_replicator", "is_enabled"), [(True, True), (True, False), (False, True)]
)
async def test_replicators_alone_are_told_that_single_acknowledgements_are_taken(
    is_replicator: bool, is_enabled: bool
) -> None:
    """Others show the version to people."""
    harness = Harness(replicated_subscriptions_acks_enabled=is_enabled)
    client = harness.client(connect=False)
    flags = pb.FeatureFlags(supports_repl_dedup_by_lid_and_eid=is_replicator)
    client.send(
        BaseCommand.CONNECT,
        connect=pb.CommandConnect(client_version="c", protocol_version=20, feature_flags=flags),
    )
    ((command, _),) = client.received()
    assert command.connected.server_version.endswith(TAKES_ACKS) is (is_replicator and is_enabled)
