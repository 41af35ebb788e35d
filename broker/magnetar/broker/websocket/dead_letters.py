"""Dead letters: messages that came too often go to a topic of their own; then they are done."""

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from magnetar.broker.websocket.encryption import copy_of
from magnetar.broker.websocket.session import Links
from magnetar.sdk.consumer import Consumer
from magnetar.sdk.errors import SdkError
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.producer import Producer
from magnetar.sdk.settings import ProducerSettings
from magnetar.sdk.wire.pulsar_pb2 import KeyValue
from magnetar.sdk.wire.topic_name import TopicName

_log = structlog.get_logger()

REAL_TOPIC = "REAL_TOPIC"
REAL_SUBSCRIPTION = "REAL_SUBSCRIPTION"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"

_COST_BYTES = 1024
"""Of a message beside its payload, about: small ones are bounded in number, too."""


class DeadLetters:
    """Of one session."""

    def __init__(
        self,
        links: Links,
        subscription: str,
        topic: str,
        *,
        bytes_max: int,
        on_room: Callable[[], None],
    ) -> None:
        """`topic` as the client gave it; empty: `{topic}-{subscription}-DLQ` of each topic.
        `bytes_max`: above so many on their way no more are to come, until `on_room` is called."""
        self._bytes_max = bytes_max
        self._on_room = on_room
        self._bytes = 0
        self._links = links
        self._subscription = subscription
        self._topic = topic
        self._producers: dict[TopicName, asyncio.Task[Producer]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_full(self) -> bool:
        """As much is on its way as may be: they take no slots of the client's."""
        return self._bytes >= self._bytes_max

    def put(self, consumer: Consumer, messages: list[Message]) -> None:
        """Store messages there; those that cannot be stored come again."""
        size = sum(_COST_BYTES + len(each.data) for each in messages)
        self._bytes += size
        task = asyncio.create_task(self._put(consumer, messages), name="dead-letters")
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, size))

    def _ended(self, size: int, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        was_full = self.is_full
        self._bytes -= size
        if was_full and not self.is_full:
            self._on_room()

    async def _put(self, consumer: Consumer, messages: list[Message]) -> None:
        target = dead_letter_topic(consumer.topic, self._subscription, self._topic)
        for message in messages:
            try:
                producer = await self._producer(target)
                if message.is_encrypted:
                    await self._send_encrypted(producer, message)
                    consumer.acknowledge(message)
                    continue
                await producer.send(
                    message.data,
                    key=message.key,
                    ordering_key=message.ordering_key,
                    properties=self._properties(message),
                    event_time_ms=message.event_time_ms or None,
                )
            except SdkError as error:
                _log.warning("dead_letter_failed", topic=str(target), error=str(error))
                consumer.negative_acknowledge(message)
            else:
                consumer.acknowledge(message)

    async def _send_encrypted(self, producer: Producer, message: Message) -> None:
        """As it is, with what whoever has the keys needs. Raises: SdkError: it is not stored."""
        metadata = copy_of(message.metadata)
        metadata.properties.extend(
            KeyValue(key=key, value=value) for key, value in self._properties(message).items()
        )
        if message.key is not None:
            metadata.partition_key = message.key
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_sent(message_id: MessageId | None, error: SdkError | None) -> None:
            if stored.done():
                return  # the session is closed
            if error is not None:
                stored.set_exception(error)
            else:
                stored.set_result(None)

        producer.send_encoded_nowait(message.data, metadata, on_sent=on_sent)
        await stored

    def _properties(self, message: Message) -> dict[str, str]:
        return {
            REAL_TOPIC: str(TopicName.parse(message.topic).partitioned),
            REAL_SUBSCRIPTION: self._subscription,
            ORIGIN_MESSAGE_ID: str(message.message_id),
            **message.properties,
        }

    async def _producer(self, target: TopicName) -> Producer:
        task = self._producers.get(target)
        if task is None or (task.done() and task.exception() is not None):
            client = self._links.client_for(target)
            task = asyncio.create_task(
                client.producer(str(target), ProducerSettings(batching=False)),
                name=f"dead-letters of {target}",
            )
            self._producers[target] = task
        return await asyncio.shield(task)

    async def close(self) -> None:
        """End what is under way: what was not stored stays unacknowledged. Does not raise."""
        self._on_room = _tell_nobody  # the session has this, and is to be freed with it
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for made in self._producers.values():
            made.cancel()
        results = await asyncio.gather(*self._producers.values(), return_exceptions=True)
        producers = [each for each in results if isinstance(each, Producer)]
        await asyncio.gather(
            *(each.close(flush=False) for each in producers), return_exceptions=True
        )


def _tell_nobody() -> None:
    """The session is over."""


def dead_letter_topic(topic: str, subscription: str, chosen: str) -> TopicName:
    """Where the dead letters of a topic go; partitions share one.

    Raises:
        TopicNameError: the chosen one is no topic.
    """
    if chosen:
        return TopicName.parse(chosen)
    source = TopicName.parse(topic).partitioned
    return TopicName.parse(f"{source}-{subscription}-DLQ")
