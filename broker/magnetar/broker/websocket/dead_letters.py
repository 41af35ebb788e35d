"""Dead letters: messages that were delivered too often are stored in another topic, and
acknowledged."""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

import structlog

from magnetar.broker.websocket.session import Links
from magnetar.sdk.consumer import Consumer
from magnetar.sdk.consuming.dead_letters import LettersOnce
from magnetar.sdk.consuming.message_copies import MessageCopies
from magnetar.sdk.errors import SdkError
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.wire.topic_name import TopicName

_log = structlog.get_logger()

REAL_TOPIC = "REAL_TOPIC"
REAL_SUBSCRIPTION = "REAL_SUBSCRIPTION"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"

_COST_BYTES = 1024
"""Estimated cost of a message beside its payload: it limits the number of small ones, too."""


class DeadLetters:
    """Dead letters of one session."""

    def __init__(
        self,
        links: Links,
        subscription: str,
        topic: str,
        *,
        initial_subscription: str = "",
        bytes_max: int,
        on_room: Callable[[], None],
    ) -> None:
        """Store dead letters of one subscription.

        Args:
            topic: as the client gave it; empty for `{topic}-{subscription}-DLQ` of each topic.
            initial_subscription: subscription of the dead letter topic, made before its first
                message.
            bytes_max: bytes that may be in flight; the session takes no more messages above this,
                until `on_room` is called.
        """
        self._bytes_max = bytes_max
        self._on_room = on_room
        self._bytes = 0
        self._subscription = subscription
        self._topic = topic
        self._initial_subscription = initial_subscription
        self._copies = MessageCopies(lambda topic: links.client_for(topic), needs_schema=False)
        self._tasks: set[asyncio.Task[None]] = set()
        self._once = LettersOnce()

    @property
    def is_full(self) -> bool:
        """Whether as many bytes are in flight as may be. Dead letters take no slots of the
        client."""
        return self._bytes >= self._bytes_max

    def put(self, consumer: Consumer, messages: list[Message]) -> None:
        """Store messages in the dead letter topic; those that cannot be stored are redelivered."""
        wanted, done = self._once.sort(messages)
        if done:
            consumer.acknowledge_many(done)
        if not wanted:
            return
        size = sum(_COST_BYTES + len(each.data) for each in wanted)
        self._bytes += size
        task = asyncio.create_task(self._put(consumer, wanted), name="dead-letters")
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, size))

    def delivered(self, ids: Iterable[MessageId]) -> None:
        """Note that messages were sent to the client."""
        if self._once.has_stored:
            for each in ids:
                self._once.delivered(each.ledger_id, each.entry_id)

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
                await self._copies.store(
                    message,
                    target,
                    self._properties(message),
                    initial_subscription=self._initial_subscription,
                )
            except SdkError as error:
                _log.warning("dead_letter_failed", topic=str(target), error=str(error))
                consumer.negative_acknowledge(self._once.failed(message))
            else:
                self._once.stored(message)
                consumer.acknowledge(message)

    def _properties(self, message: Message) -> dict[str, str]:
        return {
            REAL_TOPIC: str(TopicName.parse(message.topic).partitioned),
            REAL_SUBSCRIPTION: self._subscription,
            ORIGIN_MESSAGE_ID: str(message.message_id),
            **message.properties,
        }

    async def close(self) -> None:
        """Cancel what is in flight; messages that were not stored stay unacknowledged. Does not
        raise."""
        self._on_room = _tell_nobody  # Drop the reference to the session, to free both.
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._copies.close()


def _tell_nobody() -> None:
    """Do nothing: the session is over."""


def dead_letter_topic(topic: str, subscription: str, chosen: str) -> TopicName:
    """Return the topic for a topic's dead letters; partitions share one.

    Raises:
        TopicNameError: the chosen one is not a topic name.
    """
    if chosen:
        return TopicName.parse(chosen)
    source = TopicName.parse(topic).partitioned
    return TopicName.parse(f"{source}-{subscription}-DLQ")
