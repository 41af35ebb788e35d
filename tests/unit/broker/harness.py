"""The broker's core without sockets, ledgers or metadata: for tests of the protocol itself.

What it stands on is in `memory_parts.py`; `Client` is a connection's other end: it sends commands
and takes the answers apart.
"""

import asyncio
import random
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

from magnetar.broker.base import naming
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.ownership import SoleOwner
from magnetar.broker.features.scalable import Layouts, PartitionLayouts, SegmentCoordinators
from magnetar.broker.features.transactions.coordinator_places import CoordinatorPlaces
from magnetar.broker.features.transactions.coordinators import Coordinators
from magnetar.broker.features.transactions.owner_links import OwnerLinks
from magnetar.broker.policies.registry import PolicyRegistry
from magnetar.broker.protocol.connection import COMMAND_COST_BYTES, Connection
from magnetar.broker.security.composition import Security
from magnetar.broker.topic import Topic
from magnetar.broker.topic.publish_limits import PublishBudget
from magnetar.broker.topics import Topics
from magnetar.broker.topics.followed_lists import FollowedLists
from magnetar.broker.topics.services import Services
from magnetar.broker.topics.upkeep import Keeping
from magnetar.ledger.position import Position
from magnetar.ledger.system import SystemClock, SystemNetwork
from magnetar.ledger.turns import TurnShares
from magnetar.sdk.wire import (
    FRAME_BYTES_MAX,
    BaseCommand,
    FrameDecoder,
    MessageMetadata,
    encode_command,
    encode_payload,
    encode_payload_command,
)
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.dictionary_store import DictionaryStore
from tests.unit.broker.memory_log import ManualClock, MemoryLog
from tests.unit.broker.memory_parts import TOPIC, MemoryPolicies, MemoryTopics
from tests.unit.broker.schemas.memory_schemas import memory_schemas

SERVICE_URL = "pulsar://127.0.0.1:6650"
WAIT_S = 5.0


class MemoryIO:
    """The shell's side of a connection, remembered."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.is_closed = False
        self.is_aborted = False
        self.is_paused = False
        self.unsent_bytes = 0
        self.writes = 0
        self.changed = asyncio.Event()

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.sent += data
        self.writes += 1
        self.changed.set()

    def close(self) -> None:
        self.is_closed = True
        self.changed.set()

    def abort(self) -> None:
        self.is_aborted = True
        self.close()

    def pause_reading(self) -> None:
        assert not self.is_paused
        self.is_paused = True

    def resume_reading(self) -> None:
        assert self.is_paused
        self.is_paused = False


class Harness:
    """A broker's worth of shared things, and clients of it."""

    def __init__(self, **settings: Any) -> None:
        self.settings = BrokerSettings(**{"liveness_probe_timeout_ms": 20, **settings})
        self.policies = MemoryPolicies(self.settings)
        self.topics = MemoryTopics(self.settings, self.policies)
        self._names = 0
        self.clock = ManualClock()
        self.store = DictionaryStore()
        self.security = Security(
            self.settings,
            cast(PolicyRegistry, self.policies),
            self.store,
            clock=self.clock,
            network=SystemNetwork(),
            random=random.Random(1),
            read=lambda path: self.files[path],
        )
        self.files: dict[str, bytes] = {}
        ownership = SoleOwner(lambda: SERVICE_URL)
        coordinators = Coordinators(
            self.settings,
            cast(Topics, self.topics),
            cast(PolicyRegistry, self.policies),
            OwnerLinks(
                SystemNetwork(),
                plain_network=SystemNetwork(),
                over_tls=False,
                host="127.0.0.1",
                port=lambda: 0,
                advertised=lambda: [SERVICE_URL],
                client_token=lambda: b"",
                timeout_ms=1000,
            ),
            SystemClock(),
            is_leader=lambda: True,
        )
        layouts = Layouts([PartitionLayouts(self.store, self.topics.partitioned)], SystemClock())
        self.services = Services(
            settings=self.settings,
            topics=cast(Topics, self.topics),
            topic_lists=FollowedLists(
                self.store,
                self.topics.names,
                SystemClock(),
                pause_ms=self.settings.topic_list_pause_ms,
            ),
            policies=cast(PolicyRegistry, self.policies),
            scalable_lists=FollowedLists(
                self.store,
                self._no_names,
                SystemClock(),
                pause_ms=self.settings.topic_list_pause_ms,
                path_of=naming.scalable_topics_path,
            ),
            schemas=memory_schemas(self.settings),
            ownership=ownership,
            budget=PublishBudget(self.settings.publish_bytes_max),
            shares=TurnShares(self.settings.turn_bytes_max, request_cost_bytes=COMMAND_COST_BYTES),
            keeping=Keeping(SystemClock()),
            coordinators=coordinators,
            coordinator_places=CoordinatorPlaces(
                coordinators,
                ownership,
                interval_ms=self.settings.coordinator_watch_interval_ms,
            ),
            layouts=layouts,
            segment_coordinators=SegmentCoordinators(
                layouts,
                ownership,
                SystemClock(),
                grace_ms=self.settings.scalable_consumer_grace_ms,
                consumers_max=self.settings.scalable_consumers_per_subscription_max,
                wait_ms=self.settings.lookup_wait_ms,
            ),
            authenticator=self.security.authenticator,
            authorizer=self.security.authorizer,
            clock=SystemClock(),
            random=random.Random(1),
            server_version="Magnetar-test",
            next_producer_name=self._next_name,
        )

    async def _no_names(self, _namespace: str) -> list[str]:
        return []

    def _next_name(self) -> str:
        self._names += 1
        return f"generated-{self._names}"

    @property
    def log(self) -> MemoryLog:
        return self.topics.logs.setdefault(TOPIC, MemoryLog())

    @property
    def topic(self) -> Topic:
        return self.topics.topic()

    def client(self, *, version: int = 20, connect: bool = True) -> "Client":
        client = Client(self, f"client:{self._names}")
        if connect:
            client.connect(version=version)
        return client

    async def connected(self) -> "Client":
        """A client that has connected: in a later turn, if so much was done in this one."""
        client = self.client(connect=False)
        hello = pb.CommandConnect(client_version="test", protocol_version=20)
        client.send(BaseCommand.CONNECT, connect=hello)
        await client.next(BaseCommand.CONNECTED)
        return client


class Client:
    """One connection's other end."""

    def __init__(self, harness: Harness, address: str) -> None:
        self.io = MemoryIO()
        self.connection = Connection(self.io, harness.services, address)
        self._decoder = FrameDecoder(FRAME_BYTES_MAX + 1024)
        self._received: deque[tuple[BaseCommand, bytes]] = deque()
        self._request_ids = 100

    # Sending

    def send_bytes(self, data: bytes) -> None:
        self.connection.receive(data)

    def send(self, kind: Any, **fields: Any) -> None:
        """One command, e.g. `send(BaseCommand.FLOW, flow=CommandFlow(…))`."""
        self.send_bytes(encode_command(BaseCommand(type=kind, **fields)))

    def connect(self, *, version: int = 20, client_version: str = "test") -> BaseCommand:
        self.send(
            BaseCommand.CONNECT,
            connect=pb.CommandConnect(client_version=client_version, protocol_version=version),
        )
        return self.take(BaseCommand.CONNECTED)

    def next_request_id(self) -> int:
        self._request_ids += 1
        return self._request_ids

    async def produce(self, producer_id: int = 0, **fields: Any) -> BaseCommand:
        """PRODUCER, and its answer."""
        fields = {"topic": TOPIC, "request_id": self.next_request_id(), **fields}
        self.send(
            BaseCommand.PRODUCER,
            producer=pb.CommandProducer(producer_id=producer_id, **fields),
        )
        return await self.next()

    def publish(self, *sequence_ids: int, producer_id: int = 0, body: bytes = b"body") -> None:
        """SENDs in one read."""
        self.send_bytes(
            b"".join(
                send_frame(producer_id, each, body=body + b"-%d" % each) for each in sequence_ids
            )
        )

    async def subscribe(self, consumer_id: int = 0, **fields: Any) -> BaseCommand:
        """SUBSCRIBE, and its answer."""
        self.send_subscribe(consumer_id, **fields)
        return await self.next()

    def send_subscribe(self, consumer_id: int = 0, **fields: Any) -> None:
        fields = {
            "topic": TOPIC,
            "subscription": "s",
            "subType": pb.CommandSubscribe.Exclusive,
            "request_id": self.next_request_id(),
            "initialPosition": pb.CommandSubscribe.Earliest,
            **fields,
        }
        self.send(
            BaseCommand.SUBSCRIBE, subscribe=pb.CommandSubscribe(consumer_id=consumer_id, **fields)
        )

    def flow(self, permits: int, consumer_id: int = 0) -> None:
        self.send(
            BaseCommand.FLOW, flow=pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits)
        )

    def ack(self, *positions: Position, consumer_id: int = 0, **fields: Any) -> None:
        self.send(
            BaseCommand.ACK,
            ack=pb.CommandAck(
                consumer_id=consumer_id,
                ack_type=fields.pop("ack_type", pb.CommandAck.Individual),
                message_id=[id_of(each) for each in positions],
                **fields,
            ),
        )

    def ack_indexes(self, position: Position, words: Sequence[int], consumer_id: int = 0) -> None:
        self.send(
            BaseCommand.ACK,
            ack=pb.CommandAck(
                consumer_id=consumer_id,
                ack_type=pb.CommandAck.Individual,
                message_id=[
                    pb.MessageIdData(
                        ledgerId=position.ledger_id, entryId=position.entry_id, ack_set=words
                    )
                ],
            ),
        )

    def redeliver(self, *positions: Position, consumer_id: int = 0) -> None:
        self.send(
            BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES,
            redeliverUnacknowledgedMessages=pb.CommandRedeliverUnacknowledgedMessages(
                consumer_id=consumer_id, message_ids=[id_of(each) for each in positions]
            ),
        )

    async def seek(self, consumer_id: int = 0, **target: Any) -> int:
        """SEEK; returns its request id. The answers are for the test to look at."""
        request_id = self.next_request_id()
        self.send(
            BaseCommand.SEEK,
            seek=pb.CommandSeek(consumer_id=consumer_id, request_id=request_id, **target),
        )
        return request_id

    # Receiving

    def received(self) -> list[tuple[BaseCommand, bytes]]:
        """Everything that has arrived and was not taken yet."""
        self._decode()
        taken = list(self._received)
        self._received.clear()
        return taken

    def commands(self) -> list[int]:
        """The types of everything that has arrived."""
        return [command.type for command, _ in self.received()]

    def take(self, kind: int | None = None) -> BaseCommand:
        """The next command, which must be there already."""
        self._decode()
        command, _ = self._received.popleft()
        assert kind is None or command.type == kind, command
        return command

    async def next(self, kind: int | None = None) -> BaseCommand:
        """Wait for the next command."""
        return (await self.next_frame(kind))[0]

    async def next_frame(self, kind: int | None = None) -> tuple[BaseCommand, bytes]:
        async with asyncio.timeout(WAIT_S):
            while True:
                self.io.changed.clear()
                self._decode()
                if self._received:
                    command, payload = self._received.popleft()
                    assert kind is None or command.type == kind, command
                    return command, payload
                assert not self.io.is_closed, "the connection was closed"
                await self.io.changed.wait()

    async def messages(self, count: int) -> list[tuple[pb.CommandMessage, bytes]]:
        """Wait for so many MESSAGEs, with the entries they carry."""
        found = []
        for _ in range(count):
            command, payload = await self.next_frame(BaseCommand.MESSAGE)
            found.append((command.message, payload))
        return found

    async def closed(self) -> None:
        """Wait until the broker has closed the connection."""
        async with asyncio.timeout(WAIT_S):
            while not self.io.is_closed:
                self.io.changed.clear()
                await self.io.changed.wait()

    def _decode(self) -> None:
        if self.io.sent:
            data = bytes(self.io.sent)
            self.io.sent.clear()
            self._received.extend(self._decoder.feed(data))


def entry(
    body: bytes = b"body", *, sequence_id: int = 0, publish_time: int = 1, **fields: Any
) -> bytes:
    """What a producer sends from the 0x0e01 magic on."""
    fields = {"producer_name": "p", **fields}
    metadata = MessageMetadata(sequence_id=sequence_id, publish_time=publish_time, **fields)
    return encode_payload(metadata.SerializeToString(), body)


def batch(size: int, **fields: Any) -> bytes:
    """An entry with a batch of so many messages."""
    return entry(b"batch", num_messages_in_batch=size, **fields)


def send_frame(
    producer_id: int,
    sequence_id: int,
    *,
    body: bytes = b"body",
    payload: bytes | None = None,
    **fields: Any,
) -> bytes:
    """A SEND frame; further fields are CommandSend's."""
    if payload is None:
        payload = entry(body, sequence_id=sequence_id)
    send = pb.CommandSend(producer_id=producer_id, sequence_id=sequence_id, **fields)
    return encode_payload_command(BaseCommand(type=BaseCommand.SEND, send=send), payload)


def id_of(position: Position) -> pb.MessageIdData:
    mask = (1 << 64) - 1
    return pb.MessageIdData(ledgerId=position.ledger_id & mask, entryId=position.entry_id & mask)


def position_in(message: pb.CommandMessage) -> Position:
    return Position(message.message_id.ledgerId, message.message_id.entryId)


async def consuming(harness: Harness, *, permits: int = 1000, **fields: Any) -> Client:
    """A client that is subscribed, and has given credit."""
    client = harness.client()
    answer = await client.subscribe(**fields)
    assert answer.type == BaseCommand.SUCCESS, answer
    if permits:
        client.flow(permits)
    return client


def delivered_to(client: Client) -> list[int]:
    """Entry ids of all MESSAGEs that have arrived."""
    return [
        command.message.message_id.entryId
        for command, _ in client.received()
        if command.type == BaseCommand.MESSAGE
    ]
