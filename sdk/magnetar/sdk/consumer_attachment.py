"""A consumer's session with its broker: SUBSCRIBE, SEEK, UNSUBSCRIBE and the like, over reconnects.

After a reconnect the broker sends unacknowledged messages again, so the receiver queue is dropped
with every attachment. A reader continues after the last message that was taken.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Protocol

from magnetar.sdk.acknowledger import Acknowledger
from magnetar.sdk.batch import words_from_mask
from magnetar.sdk.connection import Connection, ConsumerListener
from magnetar.sdk.context import ClientContext
from magnetar.sdk.errors import (
    AlreadyClosedError,
    BrokerUnavailableError,
    SdkError,
    ServiceError,
    service_error,
)
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.receiver_queue import ReceiverQueue
from magnetar.sdk.schema import SchemaInfo
from magnetar.sdk.session import Session
from magnetar.sdk.settings import ConsumerSettings, SubscriptionType
from magnetar.sdk.wire.hot_commands import encode_flow
from magnetar.sdk.wire.pulsar_pb2 import (
    BaseCommand,
    CommandCloseConsumer,
    CommandConsumerStats,
    CommandConsumerStatsResponse,
    CommandGetLastMessageId,
    CommandSeek,
    CommandSubscribe,
    CommandUnsubscribe,
    IntRange,
    KeySharedMeta,
    KeySharedMode,
    KeyValue,
    MessageIdData,
)
from magnetar.sdk.wire.topic_name import TopicName


class AttachedConsumer(ConsumerListener, Protocol):
    """Callbacks from the attachment to its consumer."""

    def on_attachment_failed(self) -> None:
        """Handle the end of the session: wake the waiting calls."""

    def on_moved(self) -> None:
        """Handle a moved subscription, on a broker that does not close consumers for it."""


class ConsumerAttachment:
    """The attachment of one consumer to its broker, and its requests there."""

    def __init__(
        self,
        context: ClientContext,
        topic: TopicName,
        subscription: str,
        consumer_id: int,
        settings: ConsumerSettings,
        *,
        consumer: AttachedConsumer,
        name: str,
        queue: ReceiverQueue,
        acknowledger: Acknowledger,
        start: MessageId | None,
        schema: SchemaInfo | None = None,
    ) -> None:
        """Take the consumer's parts.

        `start` is for readers: the position where a non-durable subscription begins.
        """
        self.connection: Connection | None = None
        """The connection while the consumer is attached; None otherwise."""
        self.is_closing = False
        self._consumer = consumer
        self._topic = str(topic)
        self._subscription = subscription
        self._id = consumer_id
        self._name = name
        self._settings = settings
        self._client_settings = context.settings
        self._queue = queue
        self._acknowledger = acknowledger
        self._start = start
        self._schema = schema
        self._is_reader = not settings.durable
        self._session = Session(
            f"consumer {consumer_id} of {subscription} on {topic}",
            find=partial(context.find, topic),
            attach=self._attach,
            detach=self._detach,
            on_failed=self._on_failed,
            settings=context.settings,
            clock=context.clock,
            random=context.random,
        )

    @property
    def is_attached(self) -> bool:
        return self.connection is not None

    @property
    def begins_at(self) -> MessageId | None:
        """Position where a reader attaches again if it has read nothing."""
        return self._start

    def grant(self, messages: int) -> bool:
        """Permit the broker to send so many more messages; return false if the consumer is not
        attached."""
        if self.connection is None:
            return False
        self.connection.write((encode_flow(self._id, messages),))
        return True

    def check_usable(self) -> None:
        """Check that the consumer can be used.

        Raises:
            SdkError: the session is over.
            AlreadyClosedError: the consumer was closed.
        """
        failure = self._session.failure
        if failure is not None:
            raise failure
        if self.is_closing:
            raise AlreadyClosedError(f"the consumer of {self._subscription} is closed")

    # -- attaching and detaching

    async def start(self) -> None:
        """Attach for the first time.

        Raises:
            SdkError: the reason why the consumer could not attach.
        """
        await self._session.start()

    async def close(self) -> None:
        """Close the consumer at the broker, and end the session."""
        await self._session.close()

    def lose(self, connection: Connection) -> None:
        """Handle a consumer closed by the broker, or a broken connection."""
        if connection is self.connection:
            self.connection = None
        self._session.lose(connection)

    async def _attach(self, connection: Connection) -> None:
        queue = self._queue
        self._begin_behind_taken()
        asked = self._start
        request_id = connection.next_request_id()
        connection.consumers[self._id] = self._consumer
        try:
            await connection.request(request_id, self._subscribe_command(request_id))
        except ServiceError:
            connection.consumers.pop(self._id, None)
            raise
        except BaseException:
            # The broker may have made the consumer all the same: it must not keep the subscription
            # taken.
            connection.consumers.pop(self._id, None)
            connection.send(self._close_command(connection.next_request_id()))
            raise
        # The broker may have closed the consumer in the very read that brought the answer.
        if connection.consumers.get(self._id) is not self._consumer:
            return
        if queue.is_held:
            self._acknowledger.forget()  # a seek is under way
        else:
            # Another client may have moved the subscription: what was known of its position is
            # void.
            self._acknowledger.end_deliveries()
            if not self._is_reader:
                queue.skip = queue.taken = None
        self._begin_behind_taken()  # more queued messages may have been taken meanwhile
        if self._is_reader and asked and self._start and self._start < asked:
            # Or messages were put back that the broker would not send any more.
            connection.send(self._close_command(connection.next_request_id()))
            await self._attach(connection)
            return
        queue.clear()
        self.connection = connection
        last = queue.last_taken
        if self._is_reader and last is not None and last.entry_id >= 0:
            # The new position begins with that message: tell the broker that it is read.
            self._acknowledger.tell_read(last)
        # Before the permits: acknowledged messages must not be delivered again.
        self._acknowledger.flush()
        queue.begin()

    def _begin_behind_taken(self) -> None:
        """Let a reader start after the last message taken; durable subscriptions need no start."""
        last = self._queue.last_taken
        if self._is_reader and last is not None:
            self._start = self._acknowledger.resume_id(last)
            self._queue.skip = (last, False)

    def _subscribe_command(self, request_id: int) -> BaseCommand:
        settings = self._settings
        keeps_order = settings.subscription_type.keeps_order
        return BaseCommand(
            type=BaseCommand.SUBSCRIBE,
            subscribe=CommandSubscribe(
                topic=self._topic,
                subscription=self._subscription,
                subType=settings.subscription_type.wire,
                consumer_id=self._id,
                request_id=request_id,
                consumer_name=self._name,
                priority_level=settings.priority_level,
                durable=settings.durable,
                start_message_id=self._start_data(),
                read_compacted=settings.read_compacted,
                replicate_subscription_state=settings.replicate_subscription_state or None,
                initialPosition=settings.initial_position.wire,
                consumer_epoch=self._queue.epoch if keeps_order else None,
                schema=None if self._schema is None else self._schema.to_wire(),
                force_topic_creation=None if settings.create_topic else False,
                keySharedMeta=_key_shared_meta(settings),
                metadata=_pairs(settings.metadata),
                subscription_properties=_pairs(settings.subscription_properties),
            ),
        )

    def _start_data(self) -> MessageIdData | None:
        if not self._is_reader or self._start is None:
            return None
        # Behind the last chunk of a message, what began between its chunks would lack a beginning.
        data = (self._start.first_chunk or self._start).to_data()
        data.ClearField("batch_size")
        return data

    async def _detach(self) -> None:
        connection, self.connection = self.connection, None
        if connection is None or not connection.is_open:
            return
        request_id = connection.next_request_id()
        timeout_ms = self._client_settings.close_timeout_ms
        try:
            await connection.request(
                request_id, self._close_command(request_id), timeout_ms=timeout_ms
            )
        except SdkError:
            pass  # the broker drops the consumer with the connection, or has done so already
        finally:
            connection.consumers.pop(self._id, None)

    def _close_command(self, request_id: int) -> BaseCommand:
        return BaseCommand(
            type=BaseCommand.CLOSE_CONSUMER,
            close_consumer=CommandCloseConsumer(consumer_id=self._id, request_id=request_id),
        )

    def _on_failed(self, error: SdkError) -> None:
        self.connection = None
        self._consumer.on_attachment_failed()

    # -- requests

    async def seek(self, message_id: MessageId) -> None:
        """Move the subscription to a message; to the first chunk of a chunked message.

        Raises:
            SdkError: the broker did not confirm it.
        """
        message_id = message_id.first_chunk or message_id
        given = message_id.to_data()
        data = MessageIdData(ledgerId=given.ledgerId, entryId=given.entryId)
        index, size = message_id.batch_index, message_id.batch_size
        if 0 < index < size:
            # Brokers without batch index acks ignore the words, and move to the start of the entry.
            data.ack_set.extend(words_from_mask((1 << size) - (1 << index)))
        # Earlier messages of the batch are skipped here, too.
        skip = (message_id, True) if index > 0 else None
        command = CommandSeek(consumer_id=self._id, request_id=0, message_id=data)
        await self._seek(command, message_id, skip)
        if message_id == MessageId.LATEST:
            await self.settle_start()

    async def seek_to_time(self, publish_time_ms: int) -> None:
        """Move the subscription to a publish time.

        Raises:
            SdkError: the broker did not confirm it.
        """
        command = CommandSeek(
            consumer_id=self._id, request_id=0, message_publish_time=publish_time_ms
        )
        await self._seek(command, self._start, None)
        await self.settle_start()

    async def settle_start(self) -> None:
        """Get the position of a reader whose start has no id, such as LATEST or a time.

        The reader starts there after a reconnect: by then LATEST would skip the messages stored
        meanwhile. If the broker cannot be asked, the start stays as it is.
        """
        if not self._is_reader:
            return
        try:
            last, mark_delete = await self.last_ids()
        except SdkError:
            return
        if self._queue.last_taken is not None:
            return
        if mark_delete is not None:
            self._start, self._queue.skip = mark_delete, (mark_delete, False)
        elif last.entry_id < 0:
            self._start = MessageId.EARLIEST  # the reader is before all messages to come

    async def _seek(
        self, command: CommandSeek, start: MessageId | None, skip: tuple[MessageId, bool] | None
    ) -> None:
        connection = await self._wait_connection()
        queue = self._queue
        attachments = self._session.attachments
        command.request_id = connection.next_request_id()
        self._acknowledger.flush()
        self._session.expect_loss()
        queue.hold()
        old = (self._start, queue.skip)
        # The broker closes the consumer, which attaches again, before the broker answers.
        self._start, queue.skip = start, skip
        try:
            await connection.request(
                command.request_id, BaseCommand(type=BaseCommand.SEEK, seek=command)
            )
        except BaseException:
            if self._session.attachments == attachments:
                self._start, queue.skip = old
                queue.release()
                self._consumer.on_messages([])
            raise
        if self.connection is connection and self._session.attachments == attachments:
            # This broker did not close the consumer. Messages in flight may be of the old position.
            # A fresh subscription is the only clean cut, but would delete a reader's.
            self._consumer.on_moved()
            if self._is_reader:
                self._acknowledger.forget()
                queue.drop()
                queue.release()
                queue.taken = None
                return
            await self._detach()
            self._session.lose(connection)
        await self._wait_attached(attachments)

    async def last_ids(self) -> tuple[MessageId, MessageId | None]:
        """Return the topic's last message, and the subscription's mark-delete position if known.

        Raises:
            SdkError
        """
        connection = await self._wait_connection()
        request_id = connection.next_request_id()
        answer = await connection.request(
            request_id,
            BaseCommand(
                type=BaseCommand.GET_LAST_MESSAGE_ID,
                getLastMessageId=CommandGetLastMessageId(
                    consumer_id=self._id, request_id=request_id
                ),
            ),
        )
        response = answer.getLastMessageIdResponse
        mark_delete: MessageId | None = None
        if response.HasField("consumer_mark_delete_position"):
            mark_delete = MessageId.from_data(response.consumer_mark_delete_position)
        return MessageId.from_data(response.last_message_id), mark_delete

    async def stats(self) -> CommandConsumerStatsResponse:
        """Return the broker's statistics of this consumer.

        Raises:
            SdkError
        """
        connection = await self._wait_connection()
        request_id = connection.next_request_id()
        command = await connection.request(
            request_id,
            BaseCommand(
                type=BaseCommand.CONSUMER_STATS,
                consumerStats=CommandConsumerStats(request_id=request_id, consumer_id=self._id),
            ),
        )
        answer = command.consumerStatsResponse
        if answer.HasField("error_code"):
            raise service_error(answer.error_code, str(answer.error_message))
        return answer

    async def unsubscribe(self, *, force: bool) -> None:
        """Delete the subscription, which also ends the attachment.

        Raises:
            SdkError: the subscription still exists.
        """
        connection = await self._wait_connection()
        self._acknowledger.flush()
        request_id = connection.next_request_id()
        await connection.request(
            request_id,
            BaseCommand(
                type=BaseCommand.UNSUBSCRIBE,
                unsubscribe=CommandUnsubscribe(
                    consumer_id=self._id, request_id=request_id, force=force or None
                ),
            ),
        )
        connection.consumers.pop(self._id, None)
        self.connection = None

    # -- the connection

    def require_connection(self) -> Connection:
        """Return the connection.

        Raises:
            SdkError: the consumer is not connected now, or closed for good.
        """
        self.check_usable()
        if self.connection is None:
            raise self._not_connected()
        return self.connection

    async def _wait_connection(self) -> Connection:
        """Return the connection; wait for it during a reconnect.

        Raises:
            SdkError: the consumer is closed, or the broker was not back in time.
        """
        self.check_usable()
        if self.connection is None:
            await self._wait_attached(self._session.attachments)
        return self.require_connection()

    async def _wait_attached(self, attachments: int) -> None:
        try:
            async with asyncio.timeout(self._client_settings.operation_timeout_ms / 1000):
                await self._session.wait_attached(attachments)
        except TimeoutError:
            raise self._not_connected() from None

    def _not_connected(self) -> BrokerUnavailableError:
        return BrokerUnavailableError(f"the consumer of {self._subscription} is not connected")


def _key_shared_meta(settings: ConsumerSettings) -> KeySharedMeta | None:
    policy = settings.key_shared
    if settings.subscription_type is not SubscriptionType.KEY_SHARED and not policy.hash_ranges:
        return None
    return KeySharedMeta(
        keySharedMode=KeySharedMode.STICKY if policy.hash_ranges else KeySharedMode.AUTO_SPLIT,
        hashRanges=[IntRange(start=start, end=end) for start, end in policy.hash_ranges],
        allowOutOfOrderDelivery=policy.allow_out_of_order or None,
        entryBucketDispatch=policy.entry_buckets or None,
    )


def _pairs(values: Mapping[str, str]) -> list[KeyValue]:
    return [KeyValue(key=key, value=value) for key, value in values.items()]
