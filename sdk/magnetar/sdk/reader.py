"""Reader: messages from any position on, without a durable subscription."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Generic

from magnetar.sdk.batch import MessageBatch
from magnetar.sdk.closing import Closing
from magnetar.sdk.consumer import Consumer
from magnetar.sdk.consuming.topics_consumer import TopicsConsumer
from magnetar.sdk.message import Message, T_co
from magnetar.sdk.message_id import MessageId


class Reader(Closing, Generic[T_co]):
    """Reads a topic, or several. Made by `Client.reader`.

    A reader uses an exclusive, non-durable consumer. After a reconnect it continues after the last
    message that was taken, so that no message comes twice.
    """

    def __init__(self, consumer: Consumer[T_co]) -> None:
        self._consumer = consumer

    def __repr__(self) -> str:
        state = "connected" if self.is_connected else "not connected"
        return f"<Reader of {self.topic}, {state}>"

    @property
    def consumer(self) -> Consumer[T_co]:
        """The consumer that reads, for `take_nowait` and `on_ready`; the application then
        acknowledges."""
        return self._consumer

    @property
    def topic(self) -> str:
        return self._consumer.topic

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics and partitions that are read now."""
        return self._consumer.topics

    @property
    def is_connected(self) -> bool:
        return self._consumer.is_connected

    async def __aiter__(self) -> AsyncIterator[Message[T_co]]:
        """Iterate over messages without end, or until the end of a terminated topic."""
        async for message in self._consumer:
            self._consumer.acknowledge_cumulative(message)
            yield message

    async def read_next(self, *, timeout_s: float | None = None) -> Message[T_co]:
        """Wait for the next message, and return it.

        Raises:
            TimeoutError: no message came within `timeout_s`.
            SdkError: see `Consumer.receive`.
        """
        message = await self._consumer.receive(timeout_s=timeout_s)
        # Tells the broker the reader's position: it shows a backlog and may drop what was read.
        self._consumer.acknowledge_cumulative(message)
        return message

    async def read_many(
        self, messages_max: int, *, timeout_s: float | None = None
    ) -> list[Message[T_co]]:
        """Return up to `messages_max` messages; see `Consumer.receive_many`."""
        messages = await self._consumer.receive_many(messages_max, timeout_s=timeout_s)
        self._read(messages)
        return messages

    async def read_batches(
        self, entries_max: int, *, timeout_s: float | None = None
    ) -> list[MessageBatch]:
        """Return up to `entries_max` whole entries; see `Consumer.receive_batches`."""
        batches = await self._consumer.receive_batches(entries_max, timeout_s=timeout_s)
        self._read(batches)
        return batches

    async def has_message_available(self) -> bool:
        """Whether there is a message after the last one that was read.

        Raises:
            SdkError: the broker could not be asked.
        """
        return await self._consumer.has_message_available()

    async def last_message_id(self) -> MessageId:
        """Return the id of the topic's last message; entry id -1 if the topic has none."""
        return await self._consumer.last_message_id()

    async def seek(self, message_id: MessageId) -> None:
        """Continue with a message; see `Consumer.seek`."""
        await self._consumer.seek(message_id)

    async def seek_to_time(self, publish_time_ms: int) -> None:
        """Continue with the first message published at or after a time."""
        await self._consumer.seek_to_time(publish_time_ms)

    async def last_message_ids(self) -> dict[str, MessageId]:
        """Return the last message of each topic and partition; entry id -1 for one that has
        none."""
        return await self._consumer.last_message_ids()

    def _read(self, what: Sequence[Message[Any] | MessageBatch]) -> None:
        consumer = self._consumer
        if not what:
            return
        if isinstance(consumer, TopicsConsumer):
            for last in {each.topic: each for each in what}.values():
                consumer.acknowledge_cumulative(last)
        else:
            consumer.acknowledge_cumulative(what[-1])

    async def close(self) -> None:
        await self._consumer.close()
