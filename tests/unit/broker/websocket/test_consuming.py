"""Consumer and reader sessions without a broker: counts, acknowledgements, positions by time."""

import asyncio
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.security.identity import NOBODY
from magnetar.broker.websocket.access import Rights
from magnetar.broker.websocket.consumer_core import FIRST, QueueSize
from magnetar.broker.websocket.consuming import ConsumerSession, ReaderSession
from magnetar.broker.websocket.endpoint import ConsumerParameters, ReaderParameters, parse_target
from magnetar.broker.websocket.errors import UpgradeRefusedError
from magnetar.broker.websocket.frames import id_text
from magnetar.broker.websocket.session import Links
from magnetar.ledger.system import SystemClock
from magnetar.sdk.consumer import Consumer
from magnetar.sdk.errors import SdkError
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.reader import Reader
from magnetar.sdk.settings import ConsumerSettings, ReaderSettings
from magnetar.sdk.wire import TopicName
from tests.unit.broker.harness import Harness
from tests.unit.broker.websocket.test_producing import FakeSocket
from tests.waiting import settle

NAMESPACE = "persistent://public/default/"
PATTERN = f"/ws/v3/consumer/s?topicsPattern={NAMESPACE}.*"
CONSUMER = "/ws/v2/consumer/persistent/public/default/topic/s?subscriptionType=Shared"


def a_message(
    entry_id: int, size: int, *, is_encrypted: bool = False, redeliveries: int = 0
) -> Message:
    message = SimpleNamespace(
        data=bytes(size),
        is_encrypted=is_encrypted,
        redelivery_count=redeliveries,
        message_id=MessageId(1, entry_id),
        properties={},
        publish_time_ms=1,
        event_time_ms=0,
        key=None,
        given_key=None,
        is_null=False,
    )
    return cast(Message, message)


class OneTake:
    """A consumer whose messages are all taken at once; it remembers acknowledgements."""

    topic = "persistent://public/default/topic"

    def __init__(self, messages: Sequence[Message]) -> None:
        self.left = list(messages)
        self.acknowledged: list[Message] = []
        self.read_up_to: MessageId | None = None

    def take(self, _room: int) -> tuple["OneTake", list[Message]] | None:
        taken, self.left = self.left, []
        return (self, taken) if taken else None

    def resize_queue(self, _messages: int) -> None:
        """Do nothing: there is one take."""

    def acknowledge_many(self, messages: list[Message]) -> None:
        self.acknowledged += messages

    def resume_id(self, message_id: MessageId) -> MessageId:
        return message_id

    def acknowledge_cumulative(self, message_id: MessageId) -> None:
        self.read_up_to = message_id


class Namespace:
    """Topics without partitions; some cannot be consumed, or are unknown to the client's rights."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.busy: set[str] = set()
        self.queues: dict[str, int] = {}
        self.decompressed_bytes_max: list[int] = []
        self.consumers: list[AsyncMock] = []

    async def names_of(self, _: str) -> list[str]:
        return [NAMESPACE + name for name in self.names]

    async def topics_of(self, topic: TopicName) -> list[TopicName]:
        return [topic]

    def client_for(self, _: TopicName) -> "Namespace":
        return self

    async def consumer(self, topic: str, _: str, settings: ConsumerSettings) -> Consumer:
        name = topic.removeprefix(NAMESPACE)
        if name in self.busy:
            raise SdkError("it has a consumer already")
        self.queues[name] = settings.receiver_queue_messages
        self.decompressed_bytes_max.append(settings.decompressed_bytes_max)
        made = AsyncMock(spec=Consumer)
        made.take_nowait = lambda _: []
        self.consumers.append(made)
        return cast(Consumer, made)

    async def reader(self, _topic: str, _start: object, settings: ReaderSettings) -> Reader:
        self.decompressed_bytes_max.append(settings.decompressed_bytes_max)
        made = AsyncMock(spec=Reader)
        made.consumer = AsyncMock(spec=Consumer)
        return cast(Reader, made)


def names_in(session: ConsumerSession) -> list[str]:
    return [str(topic).removeprefix(NAMESPACE) for topic in session.topics]


def rights() -> Rights:
    return Rights(NOBODY, Harness().services.authorizer, "client:1")


def consumer_session(path: str, links: object = None, **settings: int) -> ConsumerSession:
    endpoint = parse_target(path)
    return ConsumerSession(
        endpoint,
        ConsumerParameters.of(endpoint.query, queue_max=10),
        rights(),
        cast(Links, links),
        BrokerSettings(**cast(Any, settings)),
        clock=SystemClock(),
    )


async def give(session: ConsumerSession | ReaderSession, consumer: OneTake) -> FakeSocket:
    vars(session._sources)["take"] = consumer.take
    session._sizes[cast(Any, consumer)] = QueueSize(messages_max=10, bytes_max=20_000)
    socket = FakeSocket()
    session.begin(socket)
    await settle()
    return socket


async def test_traffic_counts_the_bytes_of_messages_that_the_client_gets() -> None:
    session = consumer_session(CONSUMER + "&maxRedeliverCount=1&cryptoFailureAction=DISCARD")
    letters: list[Message] = []
    vars(session._dead_letters)["put"] = lambda _, messages: letters.extend(messages)
    dead, unwanted = a_message(0, 10, redeliveries=2), a_message(1, 100, is_encrypted=True)
    consumer = OneTake([dead, unwanted, a_message(2, 1000), a_message(3, 10_000)])
    socket = await give(session, consumer)
    assert (letters, consumer.acknowledged, len(socket.answers)) == ([dead], [unwanted], 2)
    assert (session.traffic.messages, session.traffic.payload_bytes) == (2, 11_000)
    await session.close()


async def test_a_reader_goes_on_past_messages_that_its_client_does_not_want() -> None:
    endpoint = parse_target("/ws/v2/reader/persistent/public/default/topic")
    session = ReaderSession(
        endpoint.topic,
        ReaderParameters.of(endpoint.query, queue_max=10),
        rights(),
        cast(Links, None),
        BrokerSettings(),
        clock=SystemClock(),
    )
    consumer = OneTake([a_message(0, 1, is_encrypted=True), a_message(1, 1, is_encrypted=True)])
    assert (await give(session, consumer)).answers == []
    assert consumer.read_up_to == MessageId(1, 1)
    assert session.traffic.payload_bytes == 0
    await session.close()


async def test_a_pattern_gains_topics_up_to_the_limit_however_many_match() -> None:
    namespace = Namespace("a")
    session = consumer_session(PATTERN, namespace, websocket_topics_max=3)
    await session.open()
    namespace.names = ["d", "c", "b", "a"]
    await session.discover()
    assert sorted(names_in(session)) == ["a", "c", "d"]
    namespace.names.append("e")
    await session.discover()
    assert sorted(names_in(session)) == ["a", "c", "d"]
    await session.close()


async def test_a_pattern_that_matches_too_many_topics_at_first_is_refused() -> None:
    session = consumer_session(PATTERN, Namespace("a", "b", "c"), websocket_topics_max=2)
    with pytest.raises(UpgradeRefusedError, match="3 topics and partitions; the limit is 2"):
        await session.open()
    await session.close()


async def test_a_topic_that_the_client_may_not_consume_keeps_it_from_no_other() -> None:
    namespace = Namespace("a")
    session = consumer_session(PATTERN, namespace, websocket_topics_max=2)
    await session.open()
    forbidden = UpgradeRefusedError(403, "no right")

    async def check(topic: TopicName) -> None:
        if str(topic).endswith("forbidden"):
            raise forbidden

    vars(session)["_check_rights"] = check
    namespace.names = ["forbidden", "b", "a"]
    await session.discover()
    assert names_in(session) == ["a", "b"]
    await session.close()


async def test_a_topic_that_cannot_be_opened_keeps_a_pattern_from_no_other() -> None:
    namespace = Namespace("a")
    session = consumer_session(PATTERN, namespace)
    await session.open()
    namespace.names, namespace.busy = ["a", "busy", "b"], {"busy"}
    await session.discover()
    assert names_in(session) == ["a", "b"]
    namespace.busy.clear()
    await session.discover()
    assert names_in(session) == ["a", "b", "busy"]
    await session.close()


async def test_a_setting_lets_sessions_read_larger_batches() -> None:
    """Another client may have stored a batch of more than 65,536 messages."""
    namespace, bytes_max = Namespace("a"), 1 << 30
    session = consumer_session(CONSUMER, namespace, websocket_decompressed_bytes_max=bytes_max)
    await session.open()
    topic = TopicName.parse(f"{NAMESPACE}topic")
    reader = ReaderSession(
        topic,
        ReaderParameters.of({}, queue_max=10),
        rights(),
        cast(Links, namespace),
        BrokerSettings(websocket_decompressed_bytes_max=bytes_max),
        clock=SystemClock(),
    )
    await reader.open()
    assert namespace.decompressed_bytes_max == [bytes_max, bytes_max]
    await session.close()
    await reader.close()


async def test_topics_that_come_later_share_the_queue_of_their_session() -> None:
    namespace = Namespace("a")
    session = consumer_session(PATTERN + "&receiverQueueSize=1000", namespace)
    await session.open()
    namespace.names = list("abcdefgh")
    await session.discover()
    assert namespace.queues == {"a": FIRST} | dict.fromkeys("bcdefgh", 1)
    await session.close()


async def test_messages_answered_during_an_unsubscribe_that_fails_stay_answered() -> None:
    namespace = Namespace("topic")
    session = consumer_session(CONSUMER, namespace)
    await session.open()
    session.begin(FakeSocket())
    (consumer,) = namespace.consumers
    answered = asyncio.Event()

    async def unsubscribe() -> None:
        await answered.wait()
        raise SdkError("there is another consumer")

    consumer.unsubscribe.side_effect = unsubscribe
    session.on_text(b'{"type": "unsubscribe"}')
    await settle()
    one, other = MessageId(1, 1), MessageId(1, 2)
    session.on_text(json.dumps({"messageId": id_text(one)}).encode())
    session.on_text(
        json.dumps({"type": "negativeAcknowledge", "messageId": id_text(other)}).encode()
    )
    answered.set()
    await settle()
    consumer.acknowledge.assert_called_once_with(one)
    consumer.negative_acknowledge.assert_called_once_with(other)
    await session.close()


async def test_answers_after_an_unsubscribe_are_ignored() -> None:
    namespace = Namespace("topic")
    session = consumer_session(CONSUMER, namespace)
    await session.open()
    session.begin(FakeSocket())
    session.on_text(b'{"type": "unsubscribe"}')
    await settle()
    session.on_text(json.dumps({"messageId": id_text(MessageId(1, 1))}).encode())
    namespace.consumers[0].acknowledge.assert_not_called()
    await session.close()
