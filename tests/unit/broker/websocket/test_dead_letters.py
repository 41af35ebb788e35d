"""Messages that came too often, and a dead letter topic that takes its time."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from magnetar.broker.publish_budget import PublishBudget
from magnetar.broker.security.identity import NOBODY
from magnetar.broker.websocket.access import Rights
from magnetar.broker.websocket.consuming import ConsumerSession
from magnetar.broker.websocket.endpoint import parse_target
from magnetar.broker.websocket.parameters import ConsumerParameters
from magnetar.broker.websocket.queue_size import QueueSize
from magnetar.broker.websocket.session import Links
from magnetar.broker.websocket.settings import WebSocketSettings
from magnetar.ledger.system import SystemClock
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.producing.outgoing import OutgoingMessage
from magnetar.sdk.wire import TopicName
from tests.unit.broker.harness import Harness, settle
from tests.unit.broker.websocket.test_producing import FakeSocket

_PATH = (
    "/ws/v2/consumer/persistent/public/default/topic/s?subscriptionType=Shared&maxRedeliverCount=1"
)


class SlowTopic:
    """Where dead letters go: nothing is stored until `gate` is set."""

    def __init__(self) -> None:
        self.budget = PublishBudget(100)
        self.gate = asyncio.Event()
        self.stored: list[bytes] = []

    def client_for(self, _: TopicName) -> "SlowTopic":
        return self

    async def producer(self, *_: Any, **__: Any) -> "SlowTopic":
        return self

    async def send_message(self, message: OutgoingMessage) -> None:
        await self.gate.wait()
        self.stored.append(message.payload)

    async def close(self, **_: Any) -> None:
        """There is nothing to close."""


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
        message = SimpleNamespace(
            data=bytes(1000),
            is_encrypted=False,
            redelivery_count=2,
            message_id=MessageId(1, self.left),
            topic=self.topic,
            given_key=None,
            is_null=False,
            is_null_key=False,
            schema_version=b"",
            ordering_key=None,
            properties={},
            event_time_ms=0,
        )
        return self, [cast(Message, message)]

    def resize_queue(self, _messages: int) -> None:
        """It sends what it has."""

    def acknowledge(self, _: Message) -> None:
        self.acknowledged += 1


async def test_dead_letters_that_wait_for_their_topic_are_bounded() -> None:
    endpoint, topic, consumer = parse_target(_PATH), SlowTopic(), DeadConsumer(100)
    session = ConsumerSession(
        endpoint,
        ConsumerParameters.of(endpoint.query, queue_max=10),
        Rights(NOBODY, Harness().services.authorizer, "client:1"),
        cast(Links, topic),
        WebSocketSettings(websocket_queue_bytes_max=20_000),
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
