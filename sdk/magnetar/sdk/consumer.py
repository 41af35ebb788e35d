"""Consumer API, for one topic or several.

A consumer has three parts. The queue holds entries until they are taken. The acknowledger sends
acknowledgements. The attachment keeps the consumer subscribed. `TopicConsumer` has the parts for
one topic (`ReceiverQueue`, `Acknowledger`, `ConsumerAttachment`), `TopicsConsumer` those for
several. `Client.consumer` chooses between them.

Calls that wait for messages are woken one by one, in turn. A call that takes a message and leaves
others wakes the next; so one message wakes one call, not all.
"""

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, Protocol

from magnetar.sdk.acknowledger import Acknowledgeable
from magnetar.sdk.batch import MessageBatch
from magnetar.sdk.closing import Closing
from magnetar.sdk.consuming.dead_letters import DeadLetters
from magnetar.sdk.consuming.running import run_handler
from magnetar.sdk.context import ClientContext
from magnetar.sdk.errors import CorruptMessageError, NotSupportedError
from magnetar.sdk.interceptors import Interceptors
from magnetar.sdk.message import Message, T_co
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.opening import DONE
from magnetar.sdk.schema import Schema
from magnetar.sdk.settings import BatchReceivePolicy, ConsumerSettings
from magnetar.sdk.stats import BrokerStats, ConsumerStats
from magnetar.sdk.transaction import Transaction


class MessageQueue(Protocol):
    """Messages that wait for the application; see `ReceiverQueue`."""

    @property
    def received_messages(self) -> int: ...
    @property
    def received_bytes(self) -> int: ...
    @property
    def has_some(self) -> bool: ...
    @property
    def has_entries(self) -> bool: ...
    @property
    def last_taken(self) -> MessageId | None: ...
    def has_message(self) -> bool: ...
    def take(self) -> Message[Any] | None: ...
    def take_more(self, messages: list[Message[Any]], messages_max: int) -> None: ...
    def take_batches(self, entries_max: int) -> list[MessageBatch]: ...
    def is_current(self, what: Message[Any] | MessageBatch) -> bool: ...
    def put_back(self, messages: Sequence[Message[Any]]) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def clear(self) -> None: ...


class Acknowledging(Protocol):
    """Acknowledgements and redelivery requests of the application; see `Acknowledger`."""

    @property
    def acknowledged(self) -> int: ...
    @property
    def negatively_acknowledged(self) -> int: ...
    @property
    def timed_out(self) -> int: ...
    @property
    def watches_timeouts(self) -> bool: ...
    def add(self, what: Acknowledgeable) -> None: ...
    def add_many(self, what: Iterable[Acknowledgeable]) -> None: ...
    def add_cumulative(self, what: Acknowledgeable) -> None: ...
    def resume_id(self, last: MessageId) -> MessageId: ...
    def add_negative(self, what: Acknowledgeable) -> None: ...
    def redeliver(self, what: Iterable[Acknowledgeable]) -> None: ...
    def redeliver_all(self) -> None: ...
    def track(self, messages: Iterable[Message[Any] | MessageBatch]) -> None: ...
    def flush(self) -> None: ...
    async def confirm(self, what: Iterable[Acknowledgeable] = ()) -> None: ...
    def close(self) -> None: ...


class Attaching(Protocol):
    """A consumer's subscriptions at its brokers; see `ConsumerAttachment`."""

    is_closing: bool

    @property
    def is_attached(self) -> bool: ...
    def check_usable(self) -> None: ...
    async def start(self) -> None: ...
    async def close(self) -> None: ...
    async def seek(self, message_id: MessageId) -> None: ...
    async def seek_to_time(self, publish_time_ms: int) -> None: ...
    async def unsubscribe(self, *, force: bool) -> None: ...


class Waiters:
    """Calls of one consumer that wait for messages."""

    def __init__(self) -> None:
        self._waiters: deque[asyncio.Future[None]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiters)

    async def wait(self) -> None:
        """Wait to be woken. The caller then checks again whether there is a message."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                # This call has been woken already: the message is for the next one in line.
                self.wake()
            else:
                with suppress(ValueError):  # a wake in this very turn has passed it over
                    self._waiters.remove(future)
            raise

    def wake(self) -> None:
        """Wake the first waiting call."""
        while self._waiters:
            future = self._waiters.popleft()
            if not future.done():
                future.set_result(None)
                return

    def wake_all(self) -> None:
        while self._waiters:
            self.wake()


class Consumer(Closing, Generic[T_co]):
    """Receives the messages of one subscription. Made by `Client.consumer`."""

    _queue: MessageQueue
    _acknowledger: Acknowledging
    _attachment: Attaching
    _schema: Schema[object] | None
    _letters: DeadLetters | None
    _start: MessageId | None
    _start_inclusive: bool

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        subscription: str,
        settings: ConsumerSettings,
        name: str,
    ) -> None:
        """Set the common state. Subclasses set the parts."""
        self.topic = topic
        self.subscription = subscription
        self.is_active: bool | None = None
        """Whether this consumer is the active one of a Failover subscription; None if not known."""
        self.on_active: Callable[[bool], None] | None = None
        """Called when the broker says whether this consumer is the active one."""
        self.on_ready: Callable[[], None] | None = None
        """Called when `take_nowait` may have something: messages, an end, or a failure."""
        self.reached_end = False
        """Whether the topic was terminated, and all its messages were acknowledged."""
        self._context = context
        self._settings = settings
        self._name = name
        self._waiters = Waiters()
        self._interceptors = Interceptors(topic, settings.interceptors)
        self._is_watched = bool(settings.interceptors or settings.ack_timeout_ms)
        self._letters = None
        self._owns_letters = True

    def __repr__(self) -> str:
        state = "connected" if self.is_connected else "not connected"
        return f"<Consumer {self._name} of {self.topic}, subscription {self.subscription}, {state}>"

    # -- public: receiving

    @property
    def name(self) -> str:
        return self._name

    @property
    @abstractmethod
    def topics(self) -> tuple[str, ...]:
        """Topics and partitions that are consumed now."""

    @property
    def is_connected(self) -> bool:
        """Whether the consumer is attached to the brokers of all its topics."""
        return self._attachment.is_attached

    @property
    def last_taken(self) -> MessageId | None:
        """Id of the last message that the application took; None before the first."""
        return self._queue.last_taken

    def has_queued(self) -> bool:
        """Whether a message is queued that can be taken without waiting."""
        return self._queue.has_message()

    def __aiter__(self) -> AsyncIterator[Message[T_co]]:
        """Iterate over messages without end, or until the end of a terminated topic."""
        return self._iterate()

    async def receive(self, *, timeout_s: float | None = None) -> Message[T_co]:
        """Wait for the next message, and return it.

        Raises:
            TimeoutError: no message came within `timeout_s`.
            CorruptMessageError: the next message cannot be read; the next call continues after it.
            AlreadyClosedError, SdkError: the consumer is closed, or lost for good.
        """
        message = self._take() if self._schema is None else await self._take_readable()
        if message is None:
            async with asyncio.timeout(timeout_s):
                message = await self._wait_first()
        return self._given([message])[0] if self._is_watched else message

    async def receive_many(
        self, messages_max: int, *, timeout_s: float | None = None
    ) -> list[Message[T_co]]:
        """Wait for a message; return it with queued ones, up to `messages_max` in all.

        Returns an empty list if no message came within `timeout_s`.

        Raises:
            CorruptMessageError: the next message cannot be read; the next call continues after it.
            AlreadyClosedError, SdkError: the consumer is closed, or lost for good.
        """
        message = self._take() if self._schema is None else await self._take_readable()
        if message is None:
            try:
                async with asyncio.timeout(timeout_s):
                    message = await self._wait_first()
            except TimeoutError:
                return []
        result = [message]
        self._take_more(result, messages_max)
        if self._waiters and self._queue.has_some:
            self._waiters.wake()
        return self._given(result) if self._is_watched else result

    async def receive_batch(self) -> list[Message[T_co]]:
        """Return messages, once the `batch_receive` policy has enough or its timeout is over.

        Returns an empty list if no message came in time. A cancelled call takes nothing.

        Raises:
            CorruptMessageError: a message cannot be read; those before it are for the next call.
            AlreadyClosedError, SdkError: the consumer is closed, or lost for good.
        """
        return await self._collect(self._settings.batch_receive)

    async def batches(
        self,
        messages_max: int = 1_000,
        *,
        wait_s: float = 0.1,
        bytes_max: int = 10 * 1024 * 1024,
    ) -> AsyncIterator[list[Message[T_co]]]:
        """Iterate over batches of messages without end, or until the end of a terminated topic.

        An error or a cancellation ends the iterator, as with every asynchronous generator: call
        `batches` again to continue.

        Args:
            messages_max: most messages of a batch; it has at least one.
            wait_s: how long a batch that is not full waits for more; at least a millisecond.
            bytes_max: most payload bytes of a batch; a single message may be larger.

        Raises:
            ValueError: a number is too small.
            CorruptMessageError: the next message cannot be read; the next call continues after it.
            AlreadyClosedError, SdkError: the consumer is closed, or lost for good.
        """
        policy = BatchReceivePolicy(
            messages_max=messages_max, bytes_max=bytes_max, timeout_ms=max(1, round(wait_s * 1000))
        )
        while True:
            while not (self._queue.has_some or self._queue.has_entries):
                if self.reached_end:
                    return
                await self._wait_message()
            batch = await self._collect(policy)
            if batch:
                yield batch

    async def run(
        self,
        handler: Callable[[Message[T_co]], Awaitable[object]],
        *,
        concurrency: int = 1,
        stop: asyncio.Event | None = None,
        stop_on_signals: bool = False,
        grace_s: float = 30.0,
    ) -> None:
        """Call `handler` with each message, until `stop` is set or the topic has ended.

        A message whose handler returns is acknowledged. If the handler raises, the message is
        delivered again after `nack_delay_ms`. After `dead_letters.redeliveries_max` redeliveries it
        goes to the dead letter topic. A handler may raise `RetryLater` or `GiveUp`
        (`magnetar.sdk.consuming.running`) to decide for one message. Messages with one key are
        handled one after the other, in order.

        Args:
            concurrency: how many handlers run at a time.
            stop: event that ends the call: no further handler begins, running ones get `grace_s`.
            stop_on_signals: whether SIGTERM and SIGINT stop the call, too. Main thread only.
            grace_s: seconds until running handlers are cancelled; their messages come again.

        Raises:
            ValueError: `concurrency` is below 1.
            AlreadyClosedError, SdkError: the consumer is closed, or lost for good.
            Exception: the outcome of a message could not be carried out, for an unexpected reason.
        """
        await run_handler(
            self,
            handler,
            concurrency=concurrency,
            stop=stop or asyncio.Event(),
            stop_on_signals=stop_on_signals,
            grace_s=grace_s,
        )

    async def _collect(self, policy: BatchReceivePolicy) -> list[Message[T_co]]:
        queue = self._queue
        result: list[Message[T_co]] = []
        size = 0
        try:
            async with asyncio.timeout(policy.timeout_ms / 1000 if policy.timeout_ms else None):
                while len(result) < policy.messages_max and size < policy.bytes_max:
                    message = self._take() if self._schema is None else await self._take_readable()
                    if message is None:
                        await self._wait_message()
                        continue
                    if result and size + len(message.data) > policy.bytes_max:
                        self._put_back([message])
                        break
                    result.append(message)
                    size += len(message.data)
        except TimeoutError:
            pass  # the messages that came in time are the batch
        except BaseException:
            # Messages that are redelivered anyway, or lie before a seek, are not for the next call.
            self._put_back([each for each in result if queue.is_current(each)])
            raise
        return self._given(result) if self._is_watched else result

    @abstractmethod
    async def load_schemas(self, messages: Iterable[Message[Any]]) -> None:
        """Get the schema definitions that `value` of these messages needs.

        Only for messages from `take_nowait` or `receive_batches`; the other calls do it before they
        return a message.

        Raises:
            BrokerUnavailableError, OperationTimeoutError: the broker could not be asked.
        """

    def take_nowait(self, messages_max: int) -> list[Message[T_co]]:
        """Return up to `messages_max` queued messages, without waiting; see `on_ready`.

        Raises:
            CorruptMessageError: the next message cannot be read; the next call continues after it.
            AlreadyClosedError, SdkError: the consumer is closed, or lost for good.
        """
        message = self._take()
        if message is None:
            return []
        result = [message]
        self._take_more(result, messages_max)
        return self._given(result) if self._is_watched else result

    async def receive_batches(
        self, entries_max: int, *, timeout_s: float | None = None
    ) -> list[MessageBatch]:
        """Return up to `entries_max` whole entries, undecoded: the fastest way to consume.

        Waits for the first entry; returns an empty list if none came within `timeout_s`. Do not mix
        with `receive` on one consumer: entries that `receive` has already split are not returned.

        Raises:
            CorruptMessageError: the next entry cannot be read; the next call continues after it.
            AlreadyClosedError, SdkError: the consumer is closed, or lost for good.
        """
        queue = self._queue
        if not queue.has_entries:
            try:
                async with asyncio.timeout(timeout_s):
                    while not queue.has_entries:
                        await self._wait_message()
            except TimeoutError:
                return []
        try:
            batches = queue.take_batches(entries_max)
        except CorruptMessageError:
            self._waiters.wake()
            raise
        if self._waiters and queue.has_some:
            self._waiters.wake()
        if self._is_watched:
            self._acknowledger.track(batches)
        return batches

    def pause(self) -> None:
        """Stop requesting messages. Messages in flight and queued ones still come."""
        self._queue.pause()

    @abstractmethod
    def resize_queue(self, messages_max: int) -> None:
        """Set how many messages the broker may send ahead from now on."""

    def resume(self) -> None:
        """Request messages from the broker again, after `pause`."""
        self._queue.resume()

    @abstractmethod
    async def has_message_available(self) -> bool:
        """Whether there is a message after the last one that was taken.

        Raises:
            SdkError: the broker could not be asked.
        """

    # -- public: acknowledging

    def acknowledge(
        self, what: Acknowledgeable, *, transaction: Transaction | None = None
    ) -> Awaitable[None]:
        """Acknowledge one message, or all of an entry; sent with others, within `ack_group_ms`.

        Awaiting the result is optional, and waits for nothing; `acknowledge_confirmed` waits for
        the broker's answer. With a `transaction`, await the result: the acknowledgement is sent at
        once, and counts when the transaction is committed. After an abort the message is delivered
        again.

        Raises:
            TransactionConflictError: it is acknowledged already, perhaps by another transaction.
            TransactionEndedError, ServiceError, BrokerUnavailableError, OperationTimeoutError: only
                with a transaction, which cannot be committed any more.
        """
        if transaction is None:
            self._acknowledger.add(what)
            return DONE
        return transaction.start(self._acknowledge_in(transaction, what, cumulative=False))

    @abstractmethod
    async def _acknowledge_in(
        self, transaction: Transaction, what: Acknowledgeable, *, cumulative: bool
    ) -> None: ...

    def acknowledge_many(self, what: Iterable[Acknowledgeable]) -> Awaitable[None]:
        """Acknowledge many messages or entries; fastest for entries. Awaiting the result is
        optional."""
        self._acknowledger.add_many(what)
        return DONE

    def acknowledge_cumulative(
        self, what: Acknowledgeable, *, transaction: Transaction | None = None
    ) -> Awaitable[None]:
        """Acknowledge everything up to and including `what`; but no chunks of a message that ends
        behind it, which would not come whole to the next consumer.

        Awaiting the result is optional, except in a transaction; see `acknowledge`, also for the
        errors there.

        Raises:
            NotSupportedError: the subscription is Shared or Key_Shared: other consumers may have
                messages before `what`. Or, in a transaction, a chunked message began before `what`
                and ends behind it; acknowledge singly, in a new transaction.
        """
        kind = self._settings.subscription_type
        if not kind.keeps_order:
            error = NotSupportedError(
                f"{self.topic}: acknowledge_cumulative does not work on {kind.value} "
                "subscriptions: other consumers may have earlier messages; use acknowledge or "
                "acknowledge_many"
            )
            if transaction is not None:
                transaction.fail(error)
            raise error
        if transaction is None:
            self._acknowledger.add_cumulative(what)
            return DONE
        return transaction.start(self._acknowledge_in(transaction, what, cumulative=True))

    async def flush_acks(self, *, confirmed: bool = False) -> None:
        """Send the collected acknowledgements now; if `confirmed`, wait for the broker's answer.

        Raises:
            SdkError: only if `confirmed`: the broker did not confirm them.
        """
        if confirmed:
            await self._acknowledger.confirm()
        else:
            self._acknowledger.flush()

    async def acknowledge_confirmed(self, *what: Acknowledgeable) -> None:
        """Acknowledge at once, and wait until the broker has confirmed it.

        Raises:
            SdkError: the broker did not confirm it; the messages may be delivered again.
        """
        await self._acknowledger.confirm(what)

    def negative_acknowledge(self, what: Acknowledgeable) -> Awaitable[None]:
        """Request redelivery of a message after `nack_delay_ms`; of a batch, the whole entry.

        Awaiting the result is optional. The delay grows with each redelivery if
        `nack_delay_multiplier` is set (for messages, not for ids). On Exclusive and Failover
        subscriptions everything from the first unacknowledged message on is delivered again.
        """
        self._acknowledger.add_negative(what)
        return DONE

    def redeliver(self, what: Iterable[Acknowledgeable]) -> None:
        """Request redelivery of messages at once; of batches, the whole entries.

        On Exclusive and Failover subscriptions everything from the first unacknowledged message on
        is delivered again.
        """
        self._acknowledger.redeliver(what)

    def redeliver_unacknowledged(self) -> None:
        """Request redelivery of everything that was delivered here and not acknowledged."""
        self._acknowledger.redeliver_all()

    async def reconsume_later(
        self,
        message: Message[Any],
        *,
        delay_s: float = 0.0,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Postpone a message: send it to the retry topic, and acknowledge it here.

        It is delivered from the retry topic after `delay_s`. After `dead_letters.redeliveries_max`
        times (16 without a policy) it goes to the dead letter topic instead.

        Raises:
            ValueError: the delay is no number, or longer than 100 years.
            NotSupportedError: the consumer has no retry topic; create it with `retry_topic=True`.
            SdkError: the broker did not confirm the copy; the message is not acknowledged.
        """
        if self._letters is None or not self._settings.retry_topic:
            raise NotSupportedError(
                f"the consumer of {self.subscription} has no retry topic: create it with "
                "ConsumerSettings(retry_topic=True)"
            )
        await self._letters.retry_later(message, delay_s=delay_s, properties=properties)
        self.acknowledge(message)

    async def give_up(self, message: Message[Any]) -> None:
        """Send a message to the dead letter topic now.

        The message is acknowledged when it is stored there, and delivered again if it cannot be
        stored.

        Raises:
            NotSupportedError: the consumer has no dead letter policy.
            UnknownTopicError: the topic of the message is no longer consumed.
        """
        if self._letters is None or self._settings.dead_letters is None:
            raise NotSupportedError(
                f"the consumer of {self.subscription} has no dead letter topic: create it with "
                "ConsumerSettings(dead_letters=DeadLetterPolicy(…))"
            )
        self._letters.put(self, [message])

    def untake(self, messages: Sequence[Message[Any]]) -> None:
        """Return to the queue messages that were taken last and not processed, in their order.

        The next calls get them. Messages that the broker sends again by itself are left out.
        """
        self._put_back([each for each in messages if self._queue.is_current(each)])

    # -- public: statistics

    def stats(self) -> ConsumerStats:
        """Return the statistics of this consumer since its start."""
        queue, acknowledger = self._queue, self._acknowledger
        return ConsumerStats(
            received_messages=queue.received_messages,
            received_bytes=queue.received_bytes,
            acknowledged=acknowledger.acknowledged,
            negatively_acknowledged=acknowledger.negatively_acknowledged,
            timed_out=acknowledger.timed_out,
            given_up=0 if self._letters is None else self._letters.given_up,
            topics=1,
            connected=int(self.is_connected),
        )

    @abstractmethod
    async def broker_stats(self) -> list[BrokerStats]:
        """Return the brokers' statistics of this consumer, topic by topic.

        Raises:
            SdkError
        """

    # -- public: position

    def resume_id(self, last: MessageId) -> MessageId:
        """Return the id for another reader to continue behind a message received here, without
        losing a chunked message that began before it and ends behind it.

        It equals `last`. Its `first_chunk`, if any, is where that reader begins; nothing up to
        `last` is delivered again. Call it before later messages are acknowledged or read.

        Raises:
            UnknownTopicError: the id does not identify its topic.
        """
        return self._acknowledger.resume_id(last)

    async def seek(self, message_id: MessageId) -> None:
        """Move the subscription: the next message is `message_id`, or the next one that exists.

        Raises:
            SdkError: the broker did not confirm it.
        """
        await self._attachment.seek(message_id)
        if not self._settings.durable:
            self._start, self._start_inclusive = message_id, True

    async def seek_to_time(self, publish_time_ms: int) -> None:
        """Move the subscription to the first message published at or after a time.

        Raises:
            SdkError: the broker did not confirm it.
        """
        await self._attachment.seek_to_time(publish_time_ms)
        if not self._settings.durable:
            self._start, self._start_inclusive = MessageId.EARLIEST, True

    async def last_message_id(self) -> MessageId:
        """Return the id of the topic's last message; entry id -1 if the topic has none.

        Raises:
            SdkError
        """
        return (await self.last_ids())[0]

    @abstractmethod
    async def last_ids(self) -> tuple[MessageId, MessageId | None]:
        """Return the topic's last message, and the subscription's mark-delete position if known."""

    @abstractmethod
    async def last_message_ids(self) -> dict[str, MessageId]:
        """Return the last message of each topic; entry id -1 for a topic that has none.

        Raises:
            SdkError
        """

    # -- public: starting and closing

    async def start(self) -> None:
        """Subscribe. The client calls this once."""
        await self._attachment.start()

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription, and close the consumer.

        Raises:
            SdkError: the subscription still exists, for example because others are connected.
        """
        await self._attachment.unsubscribe(force=force)
        await self.close()

    async def close(self, *, flush: bool = True) -> None:
        """Send waiting acknowledgements (unless `flush` is false), and leave the subscription."""
        if self._attachment.is_closing:
            return
        self._attachment.is_closing = True
        # Runs to its end even if the caller is cancelled: otherwise waiting calls would hang.
        await asyncio.shield(self._close(flush=flush))

    async def _close(self, *, flush: bool) -> None:
        try:
            if flush:
                self._acknowledger.flush()
            await self._attachment.close()
        finally:
            if self._letters is not None and self._owns_letters:
                await self._letters.close()
            self._end_parts()
            self._queue.clear()
            self._wake_all()
            self._context.forget(self)

    @abstractmethod
    def _end_parts(self) -> None:
        """Stop timers and other parts when the consumer closes."""

    # -- taking and waiting

    def _take(self) -> Message[Any] | None:
        """Take the next message; wake the next waiting call if more messages are queued."""
        try:
            message = self._queue.take()
        except CorruptMessageError:
            self._waiters.wake()  # the messages after it are for the next waiting call
            raise
        if message is None:
            self._attachment.check_usable()
        elif self._waiters and self._queue.has_some:
            self._waiters.wake()
        return message

    async def _iterate(self) -> AsyncIterator[Message[T_co]]:
        while True:
            message = self._take() if self._schema is None else await self._take_readable()
            while message is None:
                if self.reached_end:
                    return
                await self._wait_message()
                message = self._take() if self._schema is None else await self._take_readable()
            yield self._given([message])[0] if self._is_watched else message

    def _given(self, messages: list[Message[Any]]) -> list[Message[T_co]]:
        """Start ack timeouts and call the interceptors; return the messages for the application.

        Called only for consumers that have interceptors or an ack timeout.
        """
        self._acknowledger.track(messages)
        if not self._interceptors:
            return messages
        given: list[Message[Any]] = []
        given += map(self._interceptors.before_consume, messages)
        return given

    def _put_back(self, messages: list[Message[Any]]) -> None:
        """Return to the queue the messages of a call that ends without them."""
        if messages:
            self._queue.put_back(messages)
            self._waiters.wake()

    @abstractmethod
    async def _take_readable(self) -> Message[Any] | None:
        """Take the next message, after getting the definition of its schema version.

        The definition is requested before the message is taken: a cancelled call has taken nothing.
        """

    @abstractmethod
    def _take_more(self, result: list[Message[Any]], messages_max: int) -> None:
        """Append queued messages, up to the first whose schema version has to be requested."""

    async def _wait_message(self) -> None:
        """Wait until there may be something to take; the caller checks again."""
        self._attachment.check_usable()
        await self._waiters.wait()
        self._attachment.check_usable()

    async def _wait_first(self) -> Message[Any]:
        """Wait for a message, and take it."""
        message = None
        while message is None:
            await self._wait_message()
            try:
                message = self._take() if self._schema is None else await self._take_readable()
            except BaseException:
                self._waiters.wake()  # the message, or those after it, are for the next caller
                raise
        return message

    def _wake_all(self) -> None:
        self._waiters.wake_all()
        if self.on_ready is not None:
            self.on_ready()
