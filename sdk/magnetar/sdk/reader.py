"""The reader: messages from any place on, without a subscription that outlives it."""

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from magnetar.sdk.batch import MessageBatch
from magnetar.sdk.consumer import Consumer
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId


class Reader:
    """Reads one topic. Made by `Client.reader`.

    A consumer underneath: exclusive, not durable. After a reconnect it goes on behind the last
    message that was taken, so that nothing comes twice.
    """

    def __init__(self, consumer: Consumer, start: MessageId, *, start_inclusive: bool) -> None:
        self._consumer = consumer
        self._start = start
        self._start_inclusive = start_inclusive

    @property
    def consumer(self) -> Consumer:
        """What reads: for `take_nowait` and `on_ready`; acknowledging is then up to you."""
        return self._consumer

    @property
    def topic(self) -> str:
        return self._consumer.topic

    @property
    def is_connected(self) -> bool:
        return self._consumer.is_connected

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages for ever, or until the end of a terminated topic."""
        async for message in self._consumer:
            self._consumer.acknowledge_cumulative(message)
            yield message

    async def read_next(self, *, timeout_s: float | None = None) -> Message:
        """The next message; waits for it.

        Raises:
            TimeoutError: none came in time.
            SdkError: see `Consumer.receive`.
        """
        message = await self._consumer.receive(timeout_s=timeout_s)
        # Tells the broker how far we are: it shows a backlog and may drop what was read.
        self._consumer.acknowledge_cumulative(message)
        return message

    async def read_many(
        self, messages_max: int, *, timeout_s: float | None = None
    ) -> list[Message]:
        """Up to `messages_max` messages; see `Consumer.receive_many`."""
        messages = await self._consumer.receive_many(messages_max, timeout_s=timeout_s)
        if messages:
            self._consumer.acknowledge_cumulative(messages[-1])
        return messages

    async def read_batches(
        self, entries_max: int, *, timeout_s: float | None = None
    ) -> list[MessageBatch]:
        """Up to `entries_max` whole entries; see `Consumer.receive_batches`."""
        batches = await self._consumer.receive_batches(entries_max, timeout_s=timeout_s)
        if batches:
            self._consumer.acknowledge_cumulative(batches[-1])
        return batches

    async def has_message_available(self) -> bool:
        """Whether there is a message behind the last one that was read.

        Raises:
            SdkError: the broker could not be asked.
        """
        consumer = self._consumer
        if consumer.has_queued():
            return True
        last, mark_delete = await consumer.last_ids()
        if last.entry_id < 0:
            return False
        taken = consumer.last_taken
        if taken is not None:
            return taken < last
        if self._start == MessageId.LATEST:
            return mark_delete is not None and mark_delete.entry < last.entry
        if self._start == MessageId.EARLIEST:
            return True
        start, inclusive = self._start, self._start_inclusive
        if start.batch_index < 0:
            start, last = start.entry, last.entry
        return start < last or (inclusive and start == last)

    async def last_message_id(self) -> MessageId:
        """The last message of the topic; entry id -1 if there is none."""
        return await self._consumer.last_message_id()

    async def seek(self, message_id: MessageId) -> None:
        """Go on with that message; see `Consumer.seek`."""
        await self._consumer.seek(message_id)
        self._start, self._start_inclusive = message_id, True

    async def seek_to_time(self, publish_time_ms: int) -> None:
        """Go on with the first message published at or after a time."""
        await self._consumer.seek_to_time(publish_time_ms)
        self._start, self._start_inclusive = MessageId.EARLIEST, True

    async def close(self) -> None:
        await self._consumer.close()
