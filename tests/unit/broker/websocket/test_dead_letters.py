"""Messages that came too often, and a dead letter topic that takes its time."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.security.identity import NOBODY
from magnetar.broker.topic.publish_limits import PublishBudget
from magnetar.broker.websocket.access import Rights
from magnetar.broker.websocket.consumer_core import QueueSize
from magnetar.broker.websocket.consuming import ConsumerSession
from magnetar.broker.websocket.dead_letters import DeadLetters
from magnetar.broker.websocket.endpoint import ConsumerParameters, parse_target
from magnetar.broker.websocket.session import Links
from magnetar.ledger.system import SystemClock
from magnetar.sdk.consumer import Consumer
from magnetar.sdk.errors import SdkError
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.producing.outgoing import OutgoingMessage
from magnetar.sdk.wire import TopicName
from tests.unit.broker.harness import Harness
from tests.unit.broker.websocket.test_producing import FakeSocket
from tests.waiting import settle

_PATH = (
    "/ws/v2/consumer/persistent/public/default/topic/s?subscriptionType=Shared&maxRedeliverCount=1"
)


class SlowTopic:
    """Where dead letters go: nothing is stored until `gate` is set."""

    def __init__(self) -> None:
        self.budget = PublishBudget(100)
        self.gate = asyncio.Event()
        self.stored: list[bytes] = []
        self.failure: SdkError | None = None

    def client_for(self, _: TopicName) -> "SlowTopic":
        return self

    async def producer(self, *_: Any, **__: Any) -> "SlowTopic":
        return self

    async def send_message(self, message: OutgoingMessage) -> None:
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        self.stored.append(message.payload)

    async def close(self, **_: Any) -> None:
        """There is nothing to close."""


def dead(message_id: MessageId, topic: str = "persistent://public/default/topic") -> Message:
    """A message that came too often."""
    message = SimpleNamespace(
        data=bytes(1000),
        is_encrypted=False,
        redelivery_count=2,
        message_id=message_id,
        topic=topic,
        given_key=None,
        is_null=False,
        is_null_key=False,
        schema_version=b"",
        ordering_key=None,
        properties={},
        event_time_ms=0,
    )
    return cast(Message, message)


class DeadConsumer:
    """Has a number of messages, all of which came too often."""

    topic = "persistent://public/default/topic"

    def __init__(self, messages: int) -> None:
        self.left = messages
        self.acknowledged = 0

    def take(self, _room: int) -> tuple["DeadConsumer", list[Message]] | None:
        if not self.left:
            return None
        self.left -= 1
        return self, [dead(MessageId(1, self.left), self.topic)]

    def resize_queue(self, _messages: int) -> None:
        """Do nothing: the source sends what it has."""

    def acknowledge(self, _: Message) -> None:
        self.acknowledged += 1


async def test_dead_letters_that_wait_for_their_topic_are_bounded() -> None:
    endpoint, topic, consumer = parse_target(_PATH), SlowTopic(), DeadConsumer(100)
    session = ConsumerSession(
        endpoint,
        ConsumerParameters.of(endpoint.query, queue_max=10),
        Rights(NOBODY, Harness().services.authorizer, "client:1"),
        cast(Links, topic),
        BrokerSettings(websocket_queue_bytes_max=20_000),
        clock=SystemClock(),
    )
    vars(session._sources)["take"] = consumer.take
    session._sizes[cast(Any, consumer)] = QueueSize(messages_max=10, bytes_max=20_000)
    session.begin(FakeSocket())
    await settle()
    assert 0 < 100 - consumer.left <= 20
    topic.gate.set()
    for _ in range(20):
        await settle()
    assert consumer.left == 0
    assert consumer.acknowledged == len(topic.stored) == 100
    await session.close()


class Source:
    """Where dead letters come from: it remembers what becomes of them."""

    topic = "persistent://public/default/topic"

    def __init__(self) -> None:
        self.acknowledged: list[Message] = []
        self.asked_again: list[Message] = []

    def acknowledge(self, message: Message) -> None:
        self.acknowledged.append(message)

    def acknowledge_many(self, messages: list[Message]) -> None:
        self.acknowledged += messages

    def negative_acknowledge(self, message: Message) -> None:
        self.asked_again.append(message)


def letters_to(topic: SlowTopic) -> DeadLetters:
    return DeadLetters(cast(Links, topic), "s", "", bytes_max=1 << 20, on_room=lambda: None)


async def test_a_message_that_comes_again_before_its_letter_is_known_has_one_letter() -> None:
    """The message's batch is asked for once more by another message of it; and an acknowledgement
    takes its time, so that it may even come after the letter was stored."""
    topic, source = SlowTopic(), Source()
    letters, consumer = letters_to(topic), cast(Consumer, source)
    first, other = MessageId(1, 2, 0, -1, 2), MessageId(1, 2, 1, -1, 2)
    letters.put(consumer, [dead(first), dead(other)])
    letters.put(consumer, [dead(first), dead(other)])
    await settle()
    topic.gate.set()
    await settle()
    assert len(topic.stored) == len(source.acknowledged) == 2
    letters.put(consumer, [dead(other)])
    await settle()
    assert len(topic.stored) == 2
    assert [each.message_id for each in source.acknowledged] == [first, other, other]
    # It was delivered again: the broker counts anew, and so do we.
    letters.delivered([other])
    letters.put(consumer, [dead(other)])
    await settle()
    assert len(topic.stored) == 3
    await letters.close()


async def test_a_letter_that_fails_asks_for_its_message_as_it_came_last() -> None:
    """What was of an attachment before cannot be asked for."""
    topic, source = SlowTopic(), Source()
    topic.failure = SdkError("no room")
    letters, consumer = letters_to(topic), cast(Consumer, source)
    before, now = dead(MessageId(1, 2)), dead(MessageId(1, 2))
    letters.put(consumer, [before])
    letters.put(consumer, [now])
    await settle()
    topic.gate.set()
    await settle()
    assert source.asked_again == [now]
    assert source.asked_again[0] is now
    topic.failure = None
    letters.put(consumer, [now])
    await settle()
    assert (len(topic.stored), source.acknowledged) == (1, [now])
    await letters.close()
