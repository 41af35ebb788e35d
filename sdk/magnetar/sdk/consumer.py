"""The consumer as applications see it: of one topic, or of several.

Its parts: a queue, where entries lie until they are taken; an acknowledger, which sends
acknowledgements; an attachment, which keeps it subscribed. `TopicConsumer` has those of one topic
(`ReceiverQueue`, `Acknowledger`, `ConsumerAttachment`), `TopicsConsumer` those of several;
`Client.consumer` looks which of them is needed.

Calls that wait for messages are woken one by one, in turn. Whoever takes a message and leaves
others wakes the next; so one message wakes one, not all.
"""

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
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
    """What the application says of messages; see `Acknowledger`."""

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
    def add_negative(self, what: Acknowledgeable) -> None: ...
    def redeliver(self, what: Iterable[Acknowledgeable]) -> None: ...
    def redeliver_all(self) -> None: ...
    def track(self, messages: Iterable[Message[Any] | MessageBatch]) -> None: ...
    def flush(self) -> None: ...
    async def confirm(self, what: Iterable[Acknowledgeable] = ()) -> None: ...
    def close(self) -> None: ...


class Attaching(Protocol):
    """The consumer at its brokers; see `ConsumerAttachment`."""

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
    """Of one consumer."""

    def __init__(self) -> None:
        self._waiters: deque[asyncio.Future[None]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiters)

    async def wait(self) -> None:
        """Wait to be woken; who was looks again whether there is something."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        try:
            await future
        except asyncio.CancelledError:
            # We may have been woken already: the message is for the next one who waits.
            if future.done() and not future.cancelled():
                self.wake()
            raise

    def wake(self) -> None:
        """Wake one."""
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
        """The parts are for who inherits to set."""
        self.topic = topic
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
        """The topics and partitions that are consumed now."""

    @property
    def is_connected(self) -> bool:
        """To the brokers of all topics."""
        return self._attachment.is_attached

    @property
    def last_taken(self) -> MessageId | None:
        """The last message that the application took; None before the first."""
        return self._queue.last_taken

    def has_queued(self) -> bool:
        """Whether a message lies here that can be taken without waiting."""
        return self._queue.has_message()

    def __aiter__(self) -> AsyncIterator[Message[T_co]]:
        """Messages for ever, or until the end of a terminated topic."""
        return self._iterate()

    async def receive(self, *, timeout_s: float | None = None) -> Message[T_co]:
        """The next message; waits for it.

        Raises:
            TimeoutError: none came in time.
            CorruptMessageError: the next message cannot be read; the one after it can be asked for.
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
        """Up to `messages_max` messages: waits for the first, takes what is there of the others.

        An empty list if none came in time.

        Raises:
            CorruptMessageError, AlreadyClosedError, SdkError: as `receive`.
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
        """Messages until the `batch_receive` policy has enough of them or its time is over.

        An empty list if none came in time. A cancelled call takes nothing.

        Raises:
            CorruptMessageError, AlreadyClosedError, SdkError: as `receive`; what was collected
                before is the next call's.
        """
        return await self._collect(self._settings.batch_receive)

    async def batches(
        self,
        messages_max: int = 1_000,
        *,
        wait_s: float = 0.1,
        bytes_max: int = 10 * 1024 * 1024,
    ) -> AsyncIterator[list[Message[T_co]]]:
        """Batches of messages, for ever, or until the end of a terminated topic.

        Args:
            messages_max: a batch has at least one message, and at most so many.
            wait_s: how long a batch that is not full waits for more; at least a millisecond.
            bytes_max: of the payloads of a batch; a single message may be larger.

        Raises:
            ValueError: a number that is too small.
            CorruptMessageError, AlreadyClosedError, SdkError: as `receive`.
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
        """Call `handler` with each message, until it is to stop or the topic has ended.

        A message whose handler returns is acknowledged. If it raises, the message comes again
        after `nack_delay_ms`; after `dead_letters.redeliveries_max` times it goes to the dead
        letter topic. `RetryLater` and `GiveUp` (`magnetar.sdk.consuming.running`) decide for one
        message. Messages with one key are handled one after the other, in order.

        Args:
            concurrency: how many handlers run at a time.
            stop: set it to end: no handler begins any more, and those that run have `grace_s`.
            stop_on_signals: SIGTERM and SIGINT end it in that way. The main thread only.
            grace_s: handlers that take longer are cancelled; their messages come again.

        Raises:
            ValueError: a concurrency below 1.
            AlreadyClosedError, SdkError: the consumer is closed, or lost for good.
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
            pass  # what came in time is the batch
        except BaseException:
            # What comes again anyway, or is of the place before a seek, is not for the next call.
            self._put_back([each for each in result if queue.is_current(each)])
            raise
        return self._given(result) if self._is_watched else result

    @abstractmethod
    async def load_schemas(self, messages: Iterable[Message[Any]]) -> None:
        """Get the definitions that `value` of these messages needs, if they came by `take_nowait`
        or `receive_batches`; the other calls do it before they give a message.

        Raises:
            BrokerUnavailableError, OperationTimeoutError: the broker could not be asked.
        """

    def take_nowait(self, messages_max: int) -> list[Message[T_co]]:
        """Up to `messages_max` messages of those that lie here, without waiting; see `on_ready`.

        Raises:
            CorruptMessageError, AlreadyClosedError, SdkError: as `receive`.
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
        """Ask for no more messages; those on their way, and those that lie here, still come."""
        self._queue.pause()

    @abstractmethod
    def resize_queue(self, messages_max: int) -> None:
        """Let the broker send so many messages ahead from now on."""

    def resume(self) -> None:
        """Ask for messages again."""
        self._queue.resume()

    @abstractmethod
    async def has_message_available(self) -> bool:
        """Whether there is a message behind the last one that was taken.

        Raises:
            SdkError: the broker could not be asked.
        """

    # -- public: acknowledging

    def acknowledge(
        self, what: Acknowledgeable, *, transaction: Transaction | None = None
    ) -> Awaitable[None]:
        """Acknowledge one message, or all of an entry; sent with others, within `ack_group_ms`.

        It may be awaited, and there is nothing to wait for; `acknowledge_confirmed` waits for the
        broker's answer. In a transaction it is sent at once, and counts when that is committed; an
        abort has the message come again. To be awaited then.

        Raises:
            TransactionConflictError: it is acknowledged already, perhaps by another transaction.
            TransactionEndedError, ServiceError, BrokerUnavailableError, OperationTimeoutError: of
                one in a transaction; that cannot be committed any more.
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
        """`acknowledge` for many; fastest for entries. It may be awaited."""
        self._acknowledger.add_many(what)
        return DONE

    def acknowledge_cumulative(
        self, what: Acknowledgeable, *, transaction: Transaction | None = None
    ) -> Awaitable[None]:
        """Acknowledge everything up to and including `what`; awaited or in a transaction, as
        `acknowledge`.

        Raises:
            NotSupportedError: on a Shared or Key_Shared subscription: what lies before `what` may
                be with other consumers.
        """
        kind = self._settings.subscription_type
        if not kind.keeps_order:
            raise NotSupportedError(
                f"{self.topic}: acknowledge_cumulative does not work on {kind.value} "
                "subscriptions: other consumers may have earlier messages; use acknowledge or "
                "acknowledge_many"
            )
        if transaction is None:
            self._acknowledger.add_cumulative(what)
            return DONE
        return transaction.start(self._acknowledge_in(transaction, what, cumulative=True))

    async def flush_acks(self, *, confirmed: bool = False) -> None:
        """Send the collected acknowledgements now; if `confirmed`, wait for the broker's answer.

        Raises:
            SdkError: only if `confirmed`: not known to be carried out.
        """
        if confirmed:
            await self._acknowledger.confirm()
        else:
            self._acknowledger.flush()

    async def acknowledge_confirmed(self, *what: Acknowledgeable) -> None:
        """Acknowledge at once, and wait until the broker has answered that it is done.

        Raises:
            SdkError: not known to be carried out: the messages may come again.
        """
        await self._acknowledger.confirm(what)

    def negative_acknowledge(self, what: Acknowledgeable) -> Awaitable[None]:
        """Ask for a message again, after `nack_delay_ms`; of a batch, for the whole entry. It may
        be awaited.

        The delay grows with each redelivery if `nack_delay_multiplier` says so (for messages, not
        for ids). On Exclusive and Failover subscriptions everything from the first unacknowledged
        message on comes again.
        """
        self._acknowledger.add_negative(what)
        return DONE

    def redeliver(self, what: Iterable[Acknowledgeable]) -> None:
        """Ask for messages again, at once; otherwise as `negative_acknowledge`."""
        self._acknowledger.redeliver(what)

    def redeliver_unacknowledged(self) -> None:
        """Ask for everything again that was delivered here and not acknowledged."""
        self._acknowledger.redeliver_all()

    async def reconsume_later(
        self,
        message: Message[Any],
        *,
        delay_s: float = 0.0,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Put a message off: it goes to the retry topic, comes from there after the delay, and is
        acknowledged here. After `dead_letters.redeliveries_max` times (16 without a policy) it goes
        to the dead letter topic instead.

        Raises:
            NotSupportedError: the consumer has no retry topic; make it with `retry_topic=True`.
            SdkError: it is not known to be put off, and not acknowledged.
        """
        if self._letters is None or not self._settings.retry_topic:
            raise NotSupportedError(
                f"the consumer of {self.subscription} has no retry topic: create it with "
                "ConsumerSettings(retry_topic=True)"
            )
        await self._letters.retry_later(message, delay_s=delay_s, properties=properties)
        self.acknowledge(message)

    async def give_up(self, message: Message[Any]) -> None:
        """Send a message to the dead letter topic now; it is acknowledged when it is stored there,
        and comes again if it cannot be.

        Raises:
            NotSupportedError: the consumer has no dead letter policy.
        """
        if self._letters is None or self._settings.dead_letters is None:
            raise NotSupportedError(
                f"the consumer of {self.subscription} has no dead letter topic: create it with "
                "ConsumerSettings(dead_letters=DeadLetterPolicy(…))"
            )
        self._letters.put(self, [message])

    def untake(self, messages: Sequence[Message[Any]]) -> None:
        """Give back messages that were taken last and not looked at, in their order: they are the
        next ones. Those that the broker will send again by itself are left out."""
        self._put_back([each for each in messages if self._queue.is_current(each)])

    # -- public: statistics

    def stats(self) -> ConsumerStats:
        """What this consumer has done so far."""
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
        """What the brokers say of this consumer, topic by topic.

        Raises:
            SdkError
        """

    # -- public: position

    async def seek(self, message_id: MessageId) -> None:
        """Move the subscription: the next message will be that one (or the next that exists).

        Raises:
            SdkError: not known to be carried out.
        """
        await self._attachment.seek(message_id)
        if not self._settings.durable:
            self._start, self._start_inclusive = message_id, True

    async def seek_to_time(self, publish_time_ms: int) -> None:
        """Move the subscription to the first message published at or after a time.

        Raises:
            SdkError: not known to be carried out.
        """
        await self._attachment.seek_to_time(publish_time_ms)
        if not self._settings.durable:
            self._start, self._start_inclusive = MessageId.EARLIEST, True

    async def last_message_id(self) -> MessageId:
        """The last message of the topic; entry id -1 if there is none.

        Raises:
            SdkError
        """
        return (await self.last_ids())[0]

    @abstractmethod
    async def last_ids(self) -> tuple[MessageId, MessageId | None]:
        """The last message of the topic, and the subscription's mark-delete position if known."""

    @abstractmethod
    async def last_message_ids(self) -> dict[str, MessageId]:
        """The last message of each topic; entry id -1 where there is none.

        Raises:
            SdkError
        """

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
        # To its end, even if the caller is cancelled: nobody would do the rest, and wake who waits.
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
        """The next message; wakes the next who waits if it is not the last."""
        try:
            message = self._queue.take()
        except CorruptMessageError:
            self._waiters.wake()  # what is behind it is for the next who waits
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
        """What the application gets of messages that were taken: only for consumers that are
        watched by interceptors, or by a timeout for acknowledgements."""
        self._acknowledger.track(messages)
        if not self._interceptors:
            return messages
        given: list[Message[Any]] = []
        given += map(self._interceptors.before_consume, messages)
        return given

    def _put_back(self, messages: list[Message[Any]]) -> None:
        """A call that took messages ends without them: they are for the next one."""
        if messages:
            self._queue.put_back(messages)
            self._waiters.wake()

    @abstractmethod
    async def _take_readable(self) -> Message[Any] | None:
        """`_take`, with the definition of the message's schema version got first.

        It is asked for before the message is taken: a call that is cancelled has taken nothing.
        """

    @abstractmethod
    def _take_more(self, result: list[Message[Any]], messages_max: int) -> None:
        """Append what lies here, up to a message whose schema version has to be asked for."""

    async def _wait_message(self) -> None:
        """Wait until there may be something to take; who takes checks again."""
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
                self._waiters.wake()  # the message, or what is behind it, is for the next
                raise
        return message

    def _wake_all(self) -> None:
        self._waiters.wake_all()
        if self.on_ready is not None:
            self.on_ready()
