"""The consumer: credit to the broker, messages to the application, acknowledgements back.

Entries lie as they came until the application takes them; only then are they checked, decompressed
and split. Credit (FLOW) counts messages and is returned when half of the receiver queue was taken.
After a reconnect the broker sends again what was not acknowledged, so the queue is dropped.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Self

from magnetar.sdk.ack_grouping import AckGrouping, ack_frame
from magnetar.sdk.batch import EntrySource, MessageBatch
from magnetar.sdk.connection import Connection
from magnetar.sdk.context import ClientContext
from magnetar.sdk.errors import (
    AlreadyClosedError,
    BrokerUnavailableError,
    CorruptMessageError,
    SdkError,
    ServiceError,
    service_error,
)
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId, signed
from magnetar.sdk.redelivery import Redelivery
from magnetar.sdk.session import Session
from magnetar.sdk.settings import ConsumerSettings
from magnetar.sdk.wire.errors import MalformedPayloadError
from magnetar.sdk.wire.hot_commands import encode_flow
from magnetar.sdk.wire.payload import messages_in, split_payload
from magnetar.sdk.wire.pulsar_pb2 import (
    BaseCommand,
    CommandCloseConsumer,
    CommandGetLastMessageId,
    CommandMessage,
    CommandRedeliverUnacknowledgedMessages,
    CommandSeek,
    CommandSubscribe,
    CommandUnsubscribe,
    MessageIdData,
)
from magnetar.sdk.wire.topic_name import TopicName

Acknowledgeable = Message | MessageBatch | MessageId
"""What can be acknowledged: a message, its id, or all messages of an entry."""


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
        self.reached_end = False
        """The topic was terminated, and everything in it was acknowledged."""
        self._context = context
        self._settings = settings
        self._id = consumer_id
        self._source = EntrySource(
            self.topic,
            topic.partition_index,
            settings.verify_checksum,
            settings.decompressed_bytes_max,
        )
        self._loop = asyncio.get_running_loop()
        self._clock = context.clock
        self._name = settings.name or f"{context.random.getrandbits(40):010x}"
        self._connection: Connection | None = None
        self._start = start
        # Messages up to this id (the id itself too, unless the flag says otherwise) are left out.
        self._skip: tuple[MessageId, bool] | None = None
        if start is not None and start not in (MessageId.EARLIEST, MessageId.LATEST):
            self._skip = (start, start_inclusive)
        self._taken: Message | MessageBatch | None = None
        self._epoch = 0
        self._discarding = False
        self._incoming: deque[tuple[CommandMessage, bytes]] = deque()
        self._ready: deque[Message] = deque()
        self._corrupt: CorruptMessageError | None = None
        self._credit_due = 0
        self._credit_step = max(1, settings.receiver_queue_messages // 2)
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._acks = AckGrouping(batch_index_ack=settings.batch_index_ack)
        self._ack_timer: asyncio.Handle | None = None
        self._redelivery = Redelivery(settings.nack_delay_ms / 1000)
        self._redelivery_timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._session = Session(
            f"consumer {consumer_id} of {subscription} on {self.topic}",
            find=partial(context.find, topic),
            attach=self._attach,
            on_failed=self._on_failed,
            settings=context.settings,
            clock=context.clock,
            random=context.random,
        )

    # -- public: receiving

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    def has_queued(self) -> bool:
        """Whether a message lies here that can be taken without waiting."""
        incoming = self._incoming
        while self._skip is not None and incoming and _is_skipped(incoming[0], self._skip):
            self._return_credit(_credit_of(incoming.popleft()[1]))
        return bool(self._ready or incoming or self._corrupt is not None)

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
            while True:
                await self._wait_message()
                message = self._take()
                if message is not None:
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
        ready = self._ready
        while len(result) < messages_max:
            if ready:
                some = min(len(ready), messages_max - len(result))
                result += [ready.popleft() for _ in range(some)]
                self._on_taken(result[-1], some)
                continue
            try:
                message = self._take()
            except CorruptMessageError as error:
                # The good ones first; the bad one is met again by the next call.
                self._corrupt = error
                break
            if message is None:
                break
            result.append(message)
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
        if not self._incoming and self._corrupt is None:
            try:
                async with asyncio.timeout(timeout_s):
                    while not self._incoming:
                        await self._wait_message()
            except TimeoutError:
                return []
        result: list[MessageBatch] = []
        incoming = self._incoming
        while (incoming or self._corrupt is not None) and len(result) < entries_max:
            try:
                batch = self._open_next()
            except CorruptMessageError as error:
                if not result:
                    raise
                self._corrupt = error
                break
            if batch is not None:
                self._on_taken(batch, batch.count)
                result.append(batch)
        return result

    # -- public: acknowledging

    def acknowledge(self, what: Acknowledgeable) -> None:
        """Acknowledge one message, or all of an entry; sent with others, within `ack_group_ms`."""
        if isinstance(what, MessageBatch):
            self._acks.add_entry(what.ledger_id, what.entry_id)
        else:
            self._acks.add(what.ledger_id, what.entry_id, what.batch_index, what.batch_size)
        if self._redelivery.next_s is not None:
            self._redelivery.discard(what.ledger_id, what.entry_id)
        self._after_ack()

    def acknowledge_many(self, what: Iterable[Acknowledgeable]) -> None:
        """`acknowledge` for many; fastest for entries."""
        acks, redelivery = self._acks, self._redelivery
        has_nacks = redelivery.next_s is not None
        for one in what:
            if isinstance(one, MessageBatch):
                acks.add_entry(one.ledger_id, one.entry_id)
            else:
                acks.add(one.ledger_id, one.entry_id, one.batch_index, one.batch_size)
            if has_nacks:
                redelivery.discard(one.ledger_id, one.entry_id)
        self._after_ack()

    def acknowledge_cumulative(self, what: Acknowledgeable) -> None:
        """Acknowledge everything up to and including `what` (not for Shared subscriptions)."""
        self._acks.add_cumulative(what if isinstance(what, MessageId) else what.message_id)
        self._after_ack()

    async def flush_acks(self, *, confirmed: bool = False) -> None:
        """Send the collected acknowledgements now; if `confirmed`, wait for the broker's answer.

        Raises:
            SdkError: only if `confirmed`: not known to be carried out.
        """
        if not confirmed:
            self._flush_acks()
            return
        if not self._acks:
            return
        connection = self._require_connection()
        for command in self._acks.take(self._id).commands(self._id):
            command.request_id = connection.next_request_id()
            answer = await connection.request(command.request_id, ack_frame(command))
            if answer.ackResponse.HasField("error"):
                response = answer.ackResponse
                raise service_error(response.error, str(response.message))

    def negative_acknowledge(self, what: Acknowledgeable) -> None:
        """Ask for a message again, after `nack_delay_ms`; of a batch, for the whole entry.

        On Exclusive and Failover subscriptions everything from the first unacknowledged message on
        comes again.
        """
        now_s = self._clock.monotonic_s()
        self._redelivery.add(what.ledger_id, what.entry_id, now_s=now_s)
        self._arm_redelivery(now_s)

    def redeliver_unacknowledged(self) -> None:
        """Ask for everything again that was delivered here and not acknowledged."""
        self._flush_acks()
        self._redelivery.clear()
        self._send_redeliver([])

    # -- public: position

    async def seek(self, message_id: MessageId) -> None:
        """Move the subscription: the next message will be that one (or the next that exists).

        Raises:
            SdkError: not known to be carried out.
        """
        data = MessageIdData(
            ledgerId=message_id.to_data().ledgerId, entryId=message_id.to_data().entryId
        )
        # The broker moves to the start of an entry: what stands before in the batch is left out.
        skip = (message_id, True) if message_id.batch_index > 0 else None
        command = CommandSeek(consumer_id=self._id, request_id=0, message_id=data)
        await self._seek(command, message_id, skip)

    async def seek_to_time(self, publish_time_ms: int) -> None:
        """Move the subscription to the first message published at or after a time.

        Raises:
            SdkError: not known to be carried out.
        """
        command = CommandSeek(
            consumer_id=self._id, request_id=0, message_publish_time=publish_time_ms
        )
        await self._seek(command, self._start, None)

    async def last_message_id(self) -> MessageId:
        """The last message of the topic; entry id -1 if there is none.

        Raises:
            SdkError
        """
        return (await self.last_ids())[0]

    async def last_ids(self) -> tuple[MessageId, MessageId | None]:
        """The last message of the topic, and the subscription's mark-delete position if known."""
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

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription, and close the consumer.

        Raises:
            SdkError: the subscription is still there, for example because others are connected.
        """
        connection = await self._wait_connection()
        self._flush_acks()
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
        self._connection = None
        await self.close()

    async def close(self, *, flush: bool = True) -> None:
        """Send what acknowledgements wait (unless `flush` is false), tell the broker, and end."""
        if self._closing:
            return
        self._closing = True
        try:
            if flush:
                self._flush_acks()
            await self._detach()
        finally:
            await self._session.close()
            for timer in (self._ack_timer, self._redelivery_timer):
                if timer is not None:
                    timer.cancel()
            self._incoming.clear()
            self._ready.clear()
            self._wake_all()
            self._context.forget(self)

    # -- life of the session

    async def start(self) -> None:
        """Called once by the client."""
        await self._session.start()

    @property
    def _is_reader(self) -> bool:
        return not self._settings.durable

    @property
    def last_taken(self) -> MessageId | None:
        """The last message that the application took; None before the first."""
        taken = self._taken
        if isinstance(taken, MessageBatch):
            last = taken.batch_size - 1 if taken.batch_size else -1
            return MessageId(
                taken.ledger_id, taken.entry_id, last, taken.partition, taken.batch_size
            )
        return None if taken is None else taken.message_id

    async def _attach(self, connection: Connection) -> None:
        settings = self._settings
        if self._is_reader and self._taken is not None:
            self._start = last = self.last_taken
            self._skip = None if last is None else (last, False)
            self._taken = None
        request_id = connection.next_request_id()
        connection.consumers[self._id] = self
        keeps_order = settings.subscription_type.keeps_order
        try:
            await connection.request(
                request_id,
                BaseCommand(
                    type=BaseCommand.SUBSCRIBE,
                    subscribe=CommandSubscribe(
                        topic=self.topic,
                        subscription=self.subscription,
                        subType=settings.subscription_type.wire,
                        consumer_id=self._id,
                        request_id=request_id,
                        consumer_name=self._name,
                        priority_level=settings.priority_level,
                        durable=settings.durable,
                        start_message_id=self._start_data(),
                        read_compacted=settings.read_compacted,
                        initialPosition=settings.initial_position.wire,
                        consumer_epoch=self._epoch if keeps_order else None,
                    ),
                ),
            )
        except ServiceError:
            connection.consumers.pop(self._id, None)
            raise
        except BaseException:
            # The broker may have made it all the same: it must not keep the subscription taken.
            connection.consumers.pop(self._id, None)
            connection.send(self._close_command(connection.next_request_id()))
            raise
        # The broker may have dropped us in the very read that brought the answer.
        if connection.consumers.get(self._id) is not self:
            return
        self._incoming.clear()
        self._ready.clear()
        self._credit_due = 0
        self._discarding = False
        self._connection = connection
        # Before the credit: what was acknowledged need not come again.
        self._flush_acks()
        connection.write((encode_flow(self._id, settings.receiver_queue_messages),))

    def _start_data(self) -> MessageIdData | None:
        if not self._is_reader or self._start is None:
            return None
        data = self._start.to_data()
        data.ClearField("batch_size")
        return data

    async def _detach(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None or not connection.is_open:
            return
        request_id = connection.next_request_id()
        timeout_ms = self._context.settings.close_timeout_ms
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

    def on_session_lost(self, connection: Connection) -> None:
        """From the connection: the broker closed the consumer, or the connection broke."""
        if connection is self._connection:
            self._connection = None
        self._session.lose(connection)

    def _on_failed(self, error: SdkError) -> None:
        self._connection = None
        self._wake_all()

    # -- from the connection

    def on_messages(self, messages: list[tuple[CommandMessage, bytes]]) -> None:
        if self._discarding or self._connection is None:
            return
        if self._epoch:
            messages = self._of_this_epoch(messages)
        self._incoming.extend(messages)
        if self._waiters:
            self._wake()

    def on_active_change(self, is_active: bool) -> None:
        self.is_active = is_active
        if self.on_active is not None:
            self.on_active(is_active)

    def on_end_of_topic(self) -> None:
        self.reached_end = True
        self._wake_all()

    def _of_this_epoch(
        self, messages: list[tuple[CommandMessage, bytes]]
    ) -> list[tuple[CommandMessage, bytes]]:
        """Without those that the broker sent before it heard of our last redelivery request."""
        current: list[tuple[CommandMessage, bytes]] = []
        for message, payload in messages:
            if message.HasField("consumer_epoch") and message.consumer_epoch < self._epoch:
                self._return_credit(_credit_of(payload))
            else:
                current.append((message, payload))
        return current

    # -- taking messages

    def _take(self) -> Message | None:
        ready = self._ready
        while not ready:
            if self._corrupt is None and not self._incoming:
                self._check_usable()
                return None
            batch = self._open_next()
            if batch is not None:
                try:
                    ready.extend(batch.messages())
                except MalformedPayloadError as error:
                    self._return_credit(batch.count)
                    raise CorruptMessageError(batch.message_id, str(error)) from error
                # Messages that compaction took out of a batch cost credit and are not delivered.
                self._return_credit(batch.count - len(ready))
        message = ready.popleft()
        self._on_taken(message, 1)
        return message

    def _open_next(self) -> MessageBatch | None:
        """The next entry, with its metadata read; None if nothing of it is to be delivered."""
        error, self._corrupt = self._corrupt, None
        if error is not None:
            raise error
        message, payload = self._incoming.popleft()
        data = message.message_id
        ledger_id, entry_id = data.ledgerId, data.entryId
        try:
            batch = MessageBatch(
                payload,
                self._source,
                ledger_id,
                entry_id,
                message.redelivery_count,
                message.ack_set,
            )
        except MalformedPayloadError as failure:
            self._return_credit(_credit_of(payload))
            message_id = MessageId(signed(ledger_id), signed(entry_id), -1, self._source.partition)
            raise CorruptMessageError(message_id, str(failure)) from failure
        if self._leaves_out:
            charged = batch.count
            self._leave_out(batch)
            if batch.count < charged:
                self._return_credit(charged - batch.count)
            return batch if batch.count else None
        if batch.remaining is not None:
            self._leave_out(batch)
        return batch

    @property
    def _leaves_out(self) -> bool:
        """Whether parts of entries may have to be left out: seldom."""
        return self._skip is not None or self._acks.has_partial

    def _leave_out(self, batch: MessageBatch) -> None:
        """Restrict an entry to what is still to be delivered of it."""
        if batch.remaining is not None and not self._is_reader:
            self._acks.set_remaining(batch.ledger_id, batch.entry_id, batch.remaining)
        known = self._acks.remaining(batch.ledger_id, batch.entry_id)
        if known is not None:
            batch.restrict(known)
        if self._skip is None:
            return
        start, is_inclusive = self._skip
        place = (batch.ledger_id, batch.entry_id)
        if place > (start.ledger_id, start.entry_id):
            return
        if place < (start.ledger_id, start.entry_id):
            batch.restrict(0)
        elif batch.batch_size and start.batch_index >= 0:
            batch.restrict(-1 << (start.batch_index + (0 if is_inclusive else 1)))
        elif not is_inclusive:
            batch.restrict(0)
        if not self._is_reader and batch.remaining:
            self._acks.set_remaining(batch.ledger_id, batch.entry_id, batch.remaining)

    def _on_taken(self, what: Message | MessageBatch, count: int) -> None:
        self._taken = what
        self._return_credit(count)
        if self._waiters and (self._ready or self._incoming):
            self._wake()

    def _return_credit(self, count: int) -> None:
        self._credit_due += count
        if self._credit_due >= self._credit_step and self._connection is not None:
            self._connection.write((encode_flow(self._id, self._credit_due),))
            self._credit_due = 0

    async def _iterate(self) -> AsyncIterator[Message]:
        while True:
            message = self._take()
            while message is None:
                if self.reached_end:
                    return
                await self._wait_message()
                message = self._take()
            yield message

    # -- waiting

    async def _wait_message(self) -> None:
        """Wait until there may be something to take; who takes checks again."""
        self._check_usable()
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(future)
        try:
            await future
        except asyncio.CancelledError:
            # We may have been woken already: the message is for the next one who waits.
            if future.done() and not future.cancelled():
                self._wake()
            raise
        self._check_usable()

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

    def _check_usable(self) -> None:
        failure = self._session.failure
        if failure is not None:
            raise failure
        if self._closing:
            raise AlreadyClosedError(f"the consumer of {self.subscription} is closed")

    # -- acknowledgements and redelivery

    def _after_ack(self) -> None:
        if len(self._acks) >= self._settings.ack_group_max:
            self._flush_acks()
        elif self._ack_timer is None and len(self._acks):
            delay_ms = self._settings.ack_group_ms
            self._ack_timer = (
                self._loop.call_later(delay_ms / 1000, self._flush_acks)
                if delay_ms
                else self._loop.call_soon(self._flush_acks)
            )

    def _flush_acks(self) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        connection = self._connection
        if connection is None or not len(self._acks):
            return  # sent after the next attachment
        commands = self._acks.take(self._id)
        for command in commands.others:
            connection.send(ack_frame(command))
        connection.write(commands.encode_entries(self._id))

    def _arm_redelivery(self, now_s: float) -> None:
        next_s = self._redelivery.next_s
        if self._redelivery_timer is None and next_s is not None:
            self._redelivery_timer = self._loop.call_later(
                max(0.0, next_s - now_s), self._on_redelivery_timer
            )

    def _on_redelivery_timer(self) -> None:
        self._redelivery_timer = None
        now_s = self._clock.monotonic_s()
        # A timer may fire a hair too early by this clock: a millisecond does not matter.
        due = self._redelivery.take_due(now_s=now_s + 0.001)
        if due:
            self._flush_acks()
            self._send_redeliver(due)
        self._arm_redelivery(now_s)

    def _send_redeliver(self, entries: list[tuple[int, int]]) -> None:
        """Ask for entries again; none means all. Nothing to do unless attached: all comes again."""
        connection = self._connection
        if connection is None:
            return
        keeps_order = self._settings.subscription_type.keeps_order
        if keeps_order:
            # The broker goes back to the first unacknowledged message: what lies here, or is on
            # its way with the old epoch, comes again.
            self._epoch += 1
            self._drop_queue()
        connection.send(
            BaseCommand(
                type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES,
                redeliverUnacknowledgedMessages=CommandRedeliverUnacknowledgedMessages(
                    consumer_id=self._id,
                    message_ids=[
                        MessageIdData(ledgerId=ledger_id, entryId=entry_id)
                        for ledger_id, entry_id in entries
                    ],
                    consumer_epoch=self._epoch if keeps_order else None,
                ),
            )
        )

    def _drop_queue(self) -> None:
        dropped = len(self._ready) + sum(_credit_of(payload) for _, payload in self._incoming)
        self._ready.clear()
        self._incoming.clear()
        self._corrupt = None
        self._return_credit(dropped)

    # -- requests

    async def _seek(
        self, command: CommandSeek, start: MessageId | None, skip: tuple[MessageId, bool] | None
    ) -> None:
        connection = await self._wait_connection()
        attachments = self._session.attachments
        command.request_id = connection.next_request_id()
        self._flush_acks()
        self._acks = AckGrouping(batch_index_ack=self._settings.batch_index_ack)
        self._redelivery.clear()
        self._session.expect_loss()
        self._discarding = True
        old = (self._start, self._skip, self._taken)
        # The broker closes the consumer, and we attach again, before it answers.
        self._start, self._skip, self._taken = start, skip, None
        try:
            await connection.request(
                command.request_id, BaseCommand(type=BaseCommand.SEEK, seek=command)
            )
        except BaseException:
            self._discarding = False
            self._start, self._skip, self._taken = old
            raise
        if self._connection is connection and self._session.attachments == attachments:
            # This broker did not close the consumer. What is on its way may be of the old position:
            # a fresh subscription is the only clean cut, but would be the end of a reader's.
            if self._is_reader:
                self._discarding = False
                self._drop_queue()
                return
            await self._detach()
            self._session.lose(connection)
        await self._wait_attached(attachments)

    async def _wait_connection(self) -> Connection:
        """The connection; waits while we are between two.

        Raises:
            SdkError: the consumer is closed, or the broker was not back in time.
        """
        self._check_usable()
        if self._connection is None:
            await self._wait_attached(self._session.attachments)
        return self._require_connection()

    async def _wait_attached(self, attachments: int) -> None:
        try:
            async with asyncio.timeout(self._context.settings.operation_timeout_ms / 1000):
                await self._session.wait_attached(attachments)
        except TimeoutError:
            raise self._not_connected() from None

    def _require_connection(self) -> Connection:
        self._check_usable()
        if self._connection is None:
            raise self._not_connected()
        return self._connection

    def _not_connected(self) -> BrokerUnavailableError:
        return BrokerUnavailableError(f"the consumer of {self.subscription} is not connected")


def _is_skipped(entry: tuple[CommandMessage, bytes], skip: tuple[MessageId, bool]) -> bool:
    """Whether a whole entry lies before the place where a reader begins."""
    data, payload = entry[0].message_id, entry[1]
    start, is_inclusive = skip
    place = (data.ledgerId, data.entryId)
    if place != (start.ledger_id, start.entry_id):
        return place < (start.ledger_id, start.entry_id)
    if start.batch_index < 0:
        return not is_inclusive
    try:
        metadata, _ = split_payload(payload)
    except MalformedPayloadError:
        return False  # the application shall hear of it
    size = metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else 0
    if not size:
        return not is_inclusive
    return start.batch_index + (0 if is_inclusive else 1) >= size


def _credit_of(payload: bytes) -> int:
    """What an entry cost; 1 if it is too damaged to tell."""
    try:
        return messages_in(payload)
    except MalformedPayloadError:
        return 1
