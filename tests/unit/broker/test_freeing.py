"""Closed connections are freed by themselves: nothing is left for a collection of garbage.

A full collection comes once a minute at most; until then a thousand clients a second that connect
and go would be a gigabyte.
"""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from magnetar.broker.protocol.connection import BinaryServer, Connection
from magnetar.ledger.ports import Listener
from magnetar.ledger.system import SystemNetwork
from magnetar.ledger.turns import Opening, opening
from magnetar.sdk.wire import BaseCommand, encode_command
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness
from tests.unit.broker.memory_parts import TOPIC
from tests.unit.broker.scalable.v5_scene import look_up, register
from tests.unit.broker.security.test_login import Secured
from tests.waiting import settle

pytestmark = pytest.mark.usefixtures("no_collections")


class Watched:
    """What a connection consists of, without holding it."""

    def __init__(self, connection: Connection) -> None:
        parts = (
            connection,
            connection.link,
            connection.publishing,
            connection.consuming,
            connection.lookups,
            connection.watchers,
            connection.transactions,
            connection.layouts,
            connection.segment_consumers,
            connection.scalable_watches,
            connection.login,
        )
        self._parts = [weakref.ref(each) for each in parts]

    @property
    def alive(self) -> list[str]:
        """What is still there of it. Its producers and consumers hold parts of it."""
        return [type(part).__name__ for each in self._parts if (part := each()) is not None]


async def _nothing(_client: Client) -> None:
    """Do nothing: the client connects and goes."""


async def _publishes(client: Client) -> None:
    await client.produce()
    client.publish(0, 1)
    for _ in range(2):
        await client.next(BaseCommand.SEND_RECEIPT)


async def _consumes(client: Client, sub_type: int) -> None:
    await _publishes(client)
    await client.subscribe(subType=sub_type)
    client.flow(10)
    delivered = 0
    while delivered < 2:
        delivered += (await client.next()).type == BaseCommand.MESSAGE


async def _looks_up(client: Client) -> None:
    for topic in (TOPIC, "persistent://no/such/topic"):
        lookup = pb.CommandLookupTopic(topic=topic, request_id=client.next_request_id())
        client.send(BaseCommand.LOOKUP, lookupTopic=lookup)
        await client.next(BaseCommand.LOOKUP_RESPONSE)


async def _watches(client: Client) -> None:
    watch = pb.CommandWatchTopicList(
        request_id=1, watcher_id=1, namespace="public/default", topics_pattern=".*"
    )
    client.send(BaseCommand.WATCH_TOPIC_LIST, watchTopicList=watch)
    await client.next(BaseCommand.WATCH_TOPIC_LIST_SUCCESS)


async def _follows_a_layout(client: Client) -> None:
    assert not (await look_up(client)).HasField("error")


async def _registers_as_a_stream_consumer(client: Client) -> None:
    assert not (await register(client)).HasField("error")


async def _watches_coordinators(client: Client) -> None:
    watch = pb.CommandWatchTcAssignments(watch_id=1)
    client.send(BaseCommand.WATCH_TC_ASSIGNMENTS, watchTcAssignments=watch)
    answer = await client.next(BaseCommand.WATCH_TC_ASSIGNMENTS_UPDATE)
    assert not answer.watchTcAssignmentsUpdate.HasField("error")


async def _ends_a_transaction(client: Client) -> None:
    await client.produce()
    end = pb.CommandEndTxnOnPartition(request_id=1, topic=TOPIC)
    client.send(BaseCommand.END_TXN_ON_PARTITION, endTxnOnPartition=end)
    await client.next(BaseCommand.END_TXN_ON_PARTITION_RESPONSE)


async def _is_probed(client: Client) -> None:
    probe = asyncio.ensure_future(client.connection.link.is_alive())
    await settle()
    client.send(BaseCommand.PONG, pong=pb.CommandPong())
    assert await probe


def _consumes_as(sub_type: int) -> Callable[[Client], Awaitable[None]]:
    async def consumes(client: Client) -> None:
        await _consumes(client, sub_type)

    return consumes


@pytest.mark.parametrize(
    "use",
    [
        _nothing,
        _publishes,
        _consumes_as(pb.CommandSubscribe.Exclusive),
        _consumes_as(pb.CommandSubscribe.Failover),
        _consumes_as(pb.CommandSubscribe.Shared),
        _consumes_as(pb.CommandSubscribe.Key_Shared),
        _looks_up,
        _watches,
        _follows_a_layout,
        _registers_as_a_stream_consumer,
        _watches_coordinators,
        _ends_a_transaction,
        _is_probed,
    ],
)
async def test_a_closed_connection_is_freed_whatever_it_was_used_for(
    use: Callable[[Client], Awaitable[None]],
) -> None:
    harness = Harness()
    client = harness.client()
    await use(client)
    watched = Watched(client.connection)
    client.connection.lost()
    del client
    await settle()
    assert watched.alive == []


async def test_a_refused_connection_is_freed() -> None:
    harness = Harness()
    client = harness.client()
    watched = Watched(client.connection)
    client.send_bytes(b"\xff" * 64)
    assert client.io.is_closed
    del client
    await settle()
    assert watched.alive == []


async def test_a_lost_connection_lives_until_its_publishes_are_stored() -> None:
    harness = Harness()
    harness.log.is_immediate = False
    client = harness.client()
    await client.produce()
    client.publish(0, 1)
    watched = Watched(client.connection)
    client.connection.lost()
    del client
    await settle()
    assert harness.services.budget.pending_bytes > 0
    harness.log.confirm()
    assert harness.services.budget.pending_bytes == 0
    await settle()
    assert watched.alive == []


async def test_requests_that_may_be_given_up_end_with_the_connection() -> None:
    harness = Harness()
    harness.topics.gate = asyncio.Event()
    client = harness.client()
    client.send_subscribe()
    producer = pb.CommandProducer(topic=TOPIC, producer_id=0, request_id=1)
    client.send(BaseCommand.PRODUCER, producer=producer)
    await settle()
    watched = Watched(client.connection)
    client.connection.lost()
    del client
    await settle()
    assert watched.alive == []
    assert harness.services.counters.requests_failed == 0


async def test_a_request_that_must_finish_does_so_and_then_all_is_freed() -> None:
    harness = Harness()
    client = harness.client()
    await client.subscribe()
    harness.log.read_gate = gate = asyncio.Event()
    harness.log.store(b"entry")
    await client.seek(message_publish_time=1)
    await settle()
    watched = Watched(client.connection)
    client.connection.lost()
    del client
    await settle()
    assert "Consuming" in watched.alive
    gate.set()
    await settle()
    assert watched.alive == []


async def test_what_the_broker_was_asked_to_decide_goes_on_without_the_client() -> None:
    harness = Secured()
    client, _ = await harness.login(harness.token("root"))
    await client.produce()
    harness.topics.gate = gate = asyncio.Event()
    end = pb.CommandEndTxnOnPartition(request_id=1, topic=TOPIC)
    client.send(BaseCommand.END_TXN_ON_PARTITION, endTxnOnPartition=end)
    await settle()
    watched = Watched(client.connection)
    client.connection.lost()
    del client
    await settle()
    assert "TransactionCommands" in watched.alive
    gate.set()
    await settle()
    assert watched.alive == []


class _Below(asyncio.Transport):
    """A socket's transport: like the real ones it forgets its protocol, which has heard of the end
    then."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: asyncio.Protocol | None = None
        self.written = bytearray()
        self._is_closing = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = cast(asyncio.Protocol, protocol)

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 4711) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """None here."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self._lose)

    def abort(self) -> None:
        self.close()

    def _lose(self) -> None:
        protocol, self.protocol = self.protocol, None
        assert protocol is not None
        protocol.connection_lost(None)


class _Port:
    port = 6650

    async def close(self) -> None:
        """Nothing."""


class _Network(SystemNetwork):
    """Sockets come when the test opens them."""

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> Listener:
        self._make: Callable[[], Opening] = opening(factory)
        return _Port()

    def open(self) -> _Below:
        below = _Below()
        self._make().connection_made(below)
        return below


_CONNECT = encode_command(
    BaseCommand(
        type=BaseCommand.CONNECT,
        connect=pb.CommandConnect(client_version="test", protocol_version=20),
    )
)


@pytest.mark.parametrize(
    "said",
    [b"", b"\x00\x00", b"\xff" * 64, _CONNECT, _CONNECT + b"\xff" * 64],
    ids=["nothing", "a part of a frame", "noise", "connect", "connect and noise"],
)
async def test_a_connection_and_its_socket_are_freed_together(said: bytes) -> None:
    """The connection of a client that never finishes CONNECT is freed, too."""
    network = _Network()
    server = BinaryServer(Harness().services, network)
    await server.start()
    below = network.open()
    assert below.protocol is not None
    parts = [weakref.ref(each) for each in (below.protocol, *server.clients)]
    assert len(parts) == 2
    if said:
        below.protocol.data_received(said)
    await settle()
    below.close()
    await settle()
    assert server.connections == 0
    assert [part for each in parts if (part := each()) is not None] == []


async def test_a_socket_that_is_not_admitted_is_freed() -> None:
    network = _Network()
    server = BinaryServer(Harness().services, network)
    await server.start()
    await server.stop_accepting()
    below = network.open()
    assert below.protocol is not None
    shell = weakref.ref(below.protocol)
    await settle()
    assert shell() is None


async def test_connections_that_are_lost_together_leave_in_several_turns_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One client can open thousands, and close them all at once."""
    harness = Harness()
    network = _Network()
    server = BinaryServer(replace(harness.services, clock=harness.clock), network)
    await server.start()
    sockets = [network.open() for _ in range(10)]
    left: list[Connection] = []

    def leave(connection: Connection) -> None:
        left.append(connection)
        harness.clock.steady_s += 0.002

    monkeypatch.setattr(Connection, "lost", leave)
    connections = list(server.clients)
    for below in sockets:
        assert below.protocol is not None
        below.protocol.connection_lost(None)
    assert server.connections == 0
    counts = [len(left)]
    while len(left) < len(connections):
        await asyncio.sleep(0)
        counts.append(len(left))
    assert counts == [3, 6, 9, 10]
    assert left == connections


def _held_by_cycles() -> list[str]:
    """The types of our objects that only a collection of garbage frees."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        types = map(type, gc.garbage)
        return [each.__name__ for each in types if each.__module__.startswith("magnetar.")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def _sticky(**fields: bool) -> pb.KeySharedMeta:
    ranges = [pb.IntRange(start=0, end=65535)]
    return pb.KeySharedMeta(keySharedMode=pb.KeySharedMode.STICKY, hashRanges=ranges, **fields)


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
@pytest.mark.parametrize(
    "fields",
    [
        {"subType": pb.CommandSubscribe.Exclusive},
        {"subType": pb.CommandSubscribe.Failover},
        {"subType": pb.CommandSubscribe.Shared},
        {"subType": pb.CommandSubscribe.Key_Shared},
        {"subType": pb.CommandSubscribe.Key_Shared, "keySharedMeta": _sticky()},
        {
            "subType": pb.CommandSubscribe.Key_Shared,
            "keySharedMeta": _sticky(entryBucketDispatch=True),
        },
    ],
    ids=["exclusive", "failover", "shared", "key_shared", "sticky", "buckets"],
)
async def test_a_subscription_that_goes_is_freed_with_its_dispatcher(
    domain: str, fields: dict[str, Any]
) -> None:
    harness = Harness()
    name = TOPIC.replace("persistent", domain)
    client = harness.client()
    await client.produce(topic=name)
    await client.subscribe(topic=name, **fields)
    client.flow(10)
    client.publish(0, 1)
    await settle()
    client.received()
    gc.collect()
    unsubscribe = pb.CommandUnsubscribe(consumer_id=0, request_id=99)
    client.send(BaseCommand.UNSUBSCRIBE, unsubscribe=unsubscribe)
    await client.next(BaseCommand.SUCCESS)
    client.connection.lost()
    del client
    await settle()
    assert _held_by_cycles() == []
