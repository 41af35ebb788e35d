"""The consumer: messages to the application, and what it says of them to the broker.

Its parts: the receiver queue, where entries lie until they are taken; the acknowledger, which sends
acknowledgements; the attachment, which keeps it subscribed. Here is who waits for messages.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import Self

from magnetar.sdk.ack_grouping import AckGrouping
from magnetar.sdk.acknowledger import Acknowledgeable, Acknowledger
from magnetar.sdk.batch import EntrySource, MessageBatch
from magnetar.sdk.connection import Connection
from magnetar.sdk.consumer_attachment import ConsumerAttachment
from magnetar.sdk.context import ClientContext
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.receiver_queue import Delivery, ReceiverQueue
from magnetar.sdk.settings import ConsumerSettings
from magnetar.sdk.wire.topic_name import TopicName


class Consumer:
    """Receives the messages of one subscription of one topic. Made by `Client.consumer`."""

    def __init__(
        self,
        context: ClientContext,
        topic: TopicName,
        subscription: str,
        consumer_id: int,
        settings: ConsumerSettings,
        *,
        start: MessageId | None = None,
        start_inclusive: bool = False,
    ) -> None:
        """`start` is for readers: where a subscription that is not durable begins."""
        self.topic = str(topic)
        self.subscription = subscription
        self.is_active: bool | None = None
        """In a Failover subscription, whether this consumer is the active one."""
        self.on_active: Callable[[bool], None] | None = None
        """Called when that changes."""
        self.on_ready: Callable[[], None] | None = None
        """Called when there may be more for `take_nowait`: messages, an end, or a failure."""
        self.reached_end = False
        """The topic was terminated, and everything in it was acknowledged."""
        self._context = context
        self._name = settings.name or f"{context.random.getrandbits(40):010x}"
        self._loop = asyncio.get_running_loop()
        self._waiters: deque[asyncio.Future[None]] = deque()
        acks = AckGrouping(batch_index_ack=settings.batch_index_ack)
        self._queue = ReceiverQueue(
            EntrySource(
                self.topic,
                topic.partition_index,
                settings.verify_checksum,
                settings.decompressed_bytes_max,
            ),
            acks,
            messages_max=settings.receiver_queue_messages,
            is_reader=not settings.durable,
            grant=lambda messages: self._attachment.grant(messages),
        )
        if start is not None and start not in (MessageId.EARLIEST, MessageId.LATEST):
            self._queue.skip = (start, start_inclusive)
        self._acknowledger = Acknowledger(
            consumer_id,
            settings,
            acks,
            self._queue,
            clock=context.clock,
            connection=lambda: self._attachment.connection,
        )
        self._attachment = ConsumerAttachment(
            context,
            topic,
            subscription,
            consumer_id,
            settings,
            consumer=self,
            name=self._name,
            queue=self._queue,
            acknowledger=self._acknowledger,
            start=start,
        )

    # -- public: receiving

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_connected(self) -> bool:
        return self._attachment.connection is not None

    @property
    def last_taken(self) -> MessageId | None:
        """The last message that the application took; None before the first."""
        return self._queue.last_taken

    def has_queued(self) -> bool:
        """Whether a message lies here that can be taken without waiting."""
        return self._queue.has_message()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Message]:
        """Messages for ever, or until the end of a terminated topic."""
        return self._iterate()

    async def receive(self, *, timeout_s: float | None = None) -> Message:
        """The next message; waits for it.

        Raises:
            TimeoutError: none came in time.
            CorruptMessageError: the next message cannot be read; the one after it can be asked for.
            AlreadyClosedError, SdkError: the consumer is closed, or lost for good.
        """
        message = self._take()
        if message is not None:
            return message
        async with asyncio.timeout(timeout_s):
            while message is None:
                await self._wait_message()
                message = self._take()
        return message

    async def receive_many(
        self, messages_max: int, *, timeout_s: float | None = None
    ) -> list[Message]:
        """Up to `messages_max` messages: waits for the first, takes what is there of the others.

        An empty list if none came in time.

        Raises:
            CorruptMessageError, AlreadyClosedError, SdkError: as `receive`.
        """
        try:
            result = [await self.receive(timeout_s=timeout_s)]
        except TimeoutError:
            return []
        self._queue.take_more(result, messages_max)
        if self._waiters and self._queue.has_some:
            self._wake()
        return result

    def take_nowait(self, messages_max: int) -> list[Message]:
        """Up to `messages_max` messages of those that lie here, without waiting; see `on_ready`.

        Raises:
            CorruptMessageError, AlreadyClosedError, SdkError: as `receive`.
        """
        message = self._take()
        if message is None:
            return []
        result = [message]
        self._queue.take_more(result, messages_max)
        return result

    async def receive_batches(
        self, entries_max: int, *, timeout_s: float | None = None
    ) -> list[MessageBatch]:
        """Up to `entries_max` whole entries, undecoded: the fastest way to consume.

        Waits for the first; an empty list if none came in time. Not to be mixed with `receive` on
        one consumer: what `receive` has already split is not among the entries.

        Raises:
            CorruptMessageError, AlreadyClosedError, SdkError: as `receive`.
        """
        queue = self._queue
        if not queue.has_entries:
            try:
                async with asyncio.timeout(timeout_s):
                    while not queue.has_entries:
                        await self._wait_message()
            except TimeoutError:
                return []
        batches = queue.take_batches(entries_max)
        if self._waiters and queue.has_some:
            self._wake()
        return batches

    # -- public: acknowledging

    def acknowledge(self, what: Acknowledgeable) -> None:
        """Acknowledge one message, or all of an entry; sent with others, within `ack_group_ms`."""
        self._acknowledger.add(what)

    def acknowledge_many(self, what: Iterable[Acknowledgeable]) -> None:
        """`acknowledge` for many; fastest for entries."""
        self._acknowledger.add_many(what)

    def acknowledge_cumulative(self, what: Acknowledgeable) -> None:
        """Acknowledge everything up to and including `what` (not for Shared subscriptions)."""
        self._acknowledger.add_cumulative(what)

    async def flush_acks(self, *, confirmed: bool = False) -> None:
        """Send the collected acknowledgements now; if `confirmed`, wait for the broker's answer.

        Raises:
            SdkError: only if `confirmed`: not known to be carried out.
        """
        if not confirmed:
            self._acknowledger.flush()
        elif self._acknowledger.has_waiting:
            await self._acknowledger.flush_confirmed(self._attachment.require_connection())

    def negative_acknowledge(self, what: Acknowledgeable) -> None:
        """Ask for a message again, after `nack_delay_ms`; of a batch, for the whole entry.

        On Exclusive and Failover subscriptions everything from the first unacknowledged message on
        comes again.
        """
        self._acknowledger.add_negative(what)

    def redeliver(self, what: Iterable[Acknowledgeable]) -> None:
        """Ask for messages again, at once; otherwise as `negative_acknowledge`."""
        self._acknowledger.redeliver(what)

    def redeliver_unacknowledged(self) -> None:
        """Ask for everything again that was delivered here and not acknowledged."""
        self._acknowledger.redeliver_all()

    # -- public: position

    async def seek(self, message_id: MessageId) -> None:
        """Move the subscription: the next message will be that one (or the next that exists).

        Raises:
            SdkError: not known to be carried out.
        """
        await self._attachment.seek(message_id)

    async def seek_to_time(self, publish_time_ms: int) -> None:
        """Move the subscription to the first message published at or after a time.

        Raises:
            SdkError: not known to be carried out.
        """
        await self._attachment.seek_to_time(publish_time_ms)

    async def last_message_id(self) -> MessageId:
        """The last message of the topic; entry id -1 if there is none.

        Raises:
            SdkError
        """
        return (await self.last_ids())[0]

    async def last_ids(self) -> tuple[MessageId, MessageId | None]:
        """The last message of the topic, and the subscription's mark-delete position if known."""
        return await self._attachment.last_ids()

    # -- public: the ends

    async def start(self) -> None:
        """Called once by the client."""
        await self._attachment.start()

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription, and close the consumer.

        Raises:
            SdkError: the subscription is still there, for example because others are connected.
        """
        await self._attachment.unsubscribe(force=force)
        await self.close()

    async def close(self, *, flush: bool = True) -> None:
        """Send what acknowledgements wait (unless `flush` is false), tell the broker, and end."""
        if self._attachment.is_closing:
            return
        self._attachment.is_closing = True
        try:
            if flush:
                self._acknowledger.flush()
            await self._attachment.close()
        finally:
            self._acknowledger.close()
            self._queue.clear()
            self._wake_all()
            self._context.forget(self)

    # -- from the connection and the attachment

    def on_messages(self, messages: list[Delivery]) -> None:
        """From the connection: what one network read brought."""
        if not self._attachment.is_receiving:
            return
        self._queue.extend(messages)
        if self._waiters:
            self._wake()
        elif self.on_ready is not None:
            self.on_ready()

    def on_active_change(self, is_active: bool) -> None:
        """From the connection: another consumer of the subscription took over, or this one."""
        self.is_active = is_active
        if self.on_active is not None:
            self.on_active(is_active)

    def on_end_of_topic(self) -> None:
        """From the connection: see `reached_end`."""
        self.reached_end = True
        self._wake_all()

    def on_session_lost(self, connection: Connection) -> None:
        """From the connection: the broker closed the consumer, or the connection broke."""
        self._attachment.lose(connection)

    def on_attachment_failed(self) -> None:
        """From the attachment: it is over for good."""
        self._wake_all()

    # -- taking and waiting

    def _take(self) -> Message | None:
        """The next message; wakes the next who waits if it is not the last."""
        message = self._queue.take()
        if message is None:
            self._attachment.check_usable()
        elif self._waiters and self._queue.has_some:
            self._wake()
        return message

    async def _iterate(self) -> AsyncIterator[Message]:
        while True:
            message = self._take()
            while message is None:
                if self.reached_end:
                    return
                await self._wait_message()
                message = self._take()
            yield message

    async def _wait_message(self) -> None:
        """Wait until there may be something to take; who takes checks again."""
        self._attachment.check_usable()
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(future)
        try:
            await future
        except asyncio.CancelledError:
            # We may have been woken already: the message is for the next one who waits.
            if future.done() and not future.cancelled():
                self._wake()
            raise
        self._attachment.check_usable()

    def _wake(self) -> None:
        """Wake one; whoever takes a message and leaves others wakes the next."""
        while self._waiters:
            future = self._waiters.popleft()
            if not future.done():
                future.set_result(None)
                return

    def _wake_all(self) -> None:
        while self._waiters:
            self._wake()
        if self.on_ready is not None:
            self.on_ready()
