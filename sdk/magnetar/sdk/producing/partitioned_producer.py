"""Producer of a partitioned topic: one producer for each partition, and the routing between them.

Partitions that are added later are noticed within `partitions_refresh_ms`, and used from then on.
With `lazy_partitions` a partition's producer is created at the first message for it. Messages wait
here for the producer, in their order, within the pending limits. When it is ready, it gets them all
at once, together with the room that they hold. Calls that wait for room keep their turn, and later
calls come after them.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from magnetar.sdk.context import ClientContext
from magnetar.sdk.errors import (
    AlreadyClosedError,
    NotSupportedError,
    PendingLimitError,
    SdkError,
)
from magnetar.sdk.following import Follower
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.pending_sends import OnSent
from magnetar.sdk.producer import OnConfirmed, Producer
from magnetar.sdk.producing.outgoing import OutgoingMessage
from magnetar.sdk.producing.routing import PartitionRouter
from magnetar.sdk.producing.send_room import SendRoom, Turn
from magnetar.sdk.producing.topic_producer import TopicProducer, settle
from magnetar.sdk.producing.under_way import tell
from magnetar.sdk.producing.value_encoder import ValueEncoder
from magnetar.sdk.schema import Schema, T
from magnetar.sdk.settings import ProducerSettings
from magnetar.sdk.stats import ProducerStats
from magnetar.sdk.transaction import Transaction
from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata
from magnetar.sdk.wire.topic_name import TopicName

_log = logging.getLogger("magnetar.sdk")

_Share = TypeVar("_Share", bytes, OutgoingMessage)
_Send = Callable[[TopicProducer, list[_Share], Turn], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A message sent before its partition's producer was ready."""

    message: OutgoingMessage
    on_sent: OnSent | None
    future: asyncio.Future[MessageId] | None = None
    """The future that `on_sent` settles, if that is its purpose; None otherwise."""

    def fail(self, error: Exception) -> SdkError | None:
        """Report that the message will not be sent; return the error if there is no callback."""
        if self.future is not None:
            if not self.future.done():
                self.future.set_exception(error)
            return None
        known = error
        if not isinstance(known, SdkError):
            known = SdkError(f"{type(error).__name__}: {error}")
            known.__cause__ = error
        if self.on_sent is None:
            return known
        tell(self.on_sent, None, known)
        return None


@dataclass(slots=True)
class _Slot:
    """State of one partition."""

    room: SendRoom
    """Room for messages sent before the producer is ready; then the producer's own room."""
    producer: TopicProducer | None = None
    starting: asyncio.Task[None] | None = None
    waiting: deque[_Waiting] = field(default_factory=deque)
    waiting_bytes: int = 0

    def push(self, one: _Waiting) -> None:
        self.waiting.append(one)
        self.waiting_bytes += len(one.message.payload)
        self.room.hold(self.waiting_bytes)

    def pop(self) -> None:
        self.waiting_bytes -= len(self.waiting.popleft().message.payload)
        self.room.hold(self.waiting_bytes)


class PartitionedProducer(Producer[T]):
    """Sends to all partitions of a topic, through one `TopicProducer` each."""

    def __init__(
        self,
        context: ClientContext,
        topic: TopicName,
        partitions: int,
        settings: ProducerSettings,
        schema: Schema[T] | None,
        *,
        make: Callable[[TopicName], TopicProducer],
        count: Callable[[], Awaitable[int]],
    ) -> None:
        """Create the producer without connecting.

        `make` creates the producer of a partition, not started. `count` asks for the number of
        partitions.
        """
        self.topic = str(topic)
        self._name = topic
        self._context = context
        self._settings = settings
        self._make, self._count = make, count
        self._loop = asyncio.get_running_loop()
        self._clock = context.clock
        # Interceptors are called by the producers of the partitions.
        self._values = ValueEncoder(self.topic, schema, ())
        self._router = PartitionRouter(
            settings.routing,
            settings.hashing,
            batch=(
                (
                    settings.batch_messages_max,
                    settings.batch_bytes_max,
                    settings.batch_delay_ms / 1000,
                )
                if settings.batching
                else None
            ),
            random=context.random,
        )
        self._slots = [self._new_slot() for _ in range(partitions)]
        self._on_confirmed: OnConfirmed | None = None
        self._unreported: SdkError | None = None
        self._closing = False
        self._growth = Follower(
            self._look,
            interval_s=settings.partitions_refresh_ms / 1000,
            pause_min_s=context.settings.reconnect_delay_min_ms / 1000,
            random=context.random,
            name=f"partitions of {topic}",
        )

    # -- public

    @property
    def partitions(self) -> int:
        """Number of partitions in use."""
        return len(self._slots)

    @property
    def name(self) -> str:
        producers = self._producers
        return self._settings.name or (producers[0].name if producers else "")

    @property
    def is_connected(self) -> bool:
        return all(producer.is_connected for producer in self._producers)

    @property
    def last_sequence_id(self) -> int:
        """Highest sequence id sent to any partition; each partition counts for itself."""
        return max((each.last_sequence_id for each in self._producers), default=-1)

    @property
    def last_stored_sequence_id(self) -> int:
        """Highest sequence id stored in any partition; each partition counts for itself."""
        return max((each.last_stored_sequence_id for each in self._producers), default=-1)

    @property
    def pending_messages(self) -> int:
        waiting = sum(len(slot.waiting) for slot in self._slots)
        return waiting + sum(each.pending_messages for each in self._producers)

    @property
    def pending_bytes(self) -> int:
        waiting = sum(slot.waiting_bytes for slot in self._slots)
        return waiting + sum(each.pending_bytes for each in self._producers)

    @property
    def topic_epoch(self) -> int | None:
        """Highest topic epoch of all partitions; each partition has its own."""
        epochs = [each.topic_epoch for each in self._producers]
        return max((epoch for epoch in epochs if epoch is not None), default=None)

    @property
    def on_confirmed(self) -> OnConfirmed | None:
        return self._on_confirmed

    @on_confirmed.setter
    def on_confirmed(self, told: OnConfirmed | None) -> None:
        self._on_confirmed = told
        for producer in self._producers:
            producer.on_confirmed = told

    def stats(self) -> ProducerStats:
        return ProducerStats.total(each.stats() for each in self._producers)

    def stats_by_partition(self) -> dict[int, ProducerStats]:
        """Return the statistics of each partition whose producer exists."""
        return {
            index: slot.producer.stats()
            for index, slot in enumerate(self._slots)
            if slot.producer is not None
        }

    async def send_message(
        self, message: OutgoingMessage, transaction: Transaction | None = None
    ) -> MessageId:
        slot = self._route(message)
        if transaction is not None:
            with slot.room.turn() as turn:
                await turn.wait(lambda: False)
                producer = await self._started(slot)
            return await producer.send_message(message, transaction)
        if slot.producer is not None:
            return await slot.producer.send_message(message)
        is_full = partial(self._is_full, slot, len(message.payload))
        if slot.room.is_waited_for or is_full():
            await slot.room.wait_turn(is_full)
        future: asyncio.Future[MessageId] = self._loop.create_future()
        on_sent = partial(settle, future)
        if slot.producer is not None:  # ready meanwhile, and this call has its turn
            slot.producer.give(message, on_sent)
        else:
            self._queue(slot, _Waiting(message, on_sent, future))
        return await future

    def send_message_nowait(self, message: OutgoingMessage, on_sent: OnSent | None) -> None:
        slot = self._route(message)
        if slot.producer is not None:
            slot.producer.send_message_nowait(message, on_sent)
        elif slot.room.is_waited_for or self._is_full(slot, len(message.payload)):
            raise PendingLimitError(
                f"{self.topic}: {len(slot.waiting)} messages already wait until the producer of a "
                "partition is created"
            )
        else:
            self._queue(slot, _Waiting(message, on_sent))

    def send_encoded_nowait(
        self, body: bytes, metadata: MessageMetadata, *, on_sent: OnSent | None = None
    ) -> None:
        key = metadata.partition_key if metadata.HasField("partition_key") else None
        slot = self._route(OutgoingMessage(payload=body, key=key))
        if slot.producer is None:
            self._begin(slot)
            raise PendingLimitError(
                f"{self.topic}: the producer of the partition is still being created"
            )
        slot.producer.send_encoded_nowait(body, metadata, on_sent=on_sent)

    async def send_entry(
        self, body: bytes, *, messages: int, sequence_id: int, extra: bytes = b""
    ) -> None:
        raise NotSupportedError(
            f"{self.topic} is partitioned: entries with sequence ids are for one partition, such "
            f"as {self._name.partition(0)}"
        )

    async def send_many(self, values: Sequence[T | None]) -> None:
        self._check_usable()
        payloads = self._values.payloads(values)
        if payloads is None or self._settings.interceptors:
            messages: dict[int, list[OutgoingMessage]] = {}
            for message in [self._values.message(value) for value in values]:
                messages.setdefault(self._choose(message), []).append(message)
            await self._send_shares(messages, TopicProducer.send_messages)
            return
        shares: dict[int, list[bytes]] = {}
        if self._router.is_blind:
            run = self._router.run_messages_max
            for at in range(0, len(payloads), run):
                index = self._router.next_run(len(self._slots))
                shares.setdefault(index, []).extend(payloads[at : at + run])
        else:
            for payload in payloads:
                index = self._choose(OutgoingMessage(payload=payload))
                shares.setdefault(index, []).append(payload)
        await self._send_shares(shares, TopicProducer.send_payloads)

    async def flush(self) -> None:
        # Messages that wait for a partition's producer are sent by it when it is ready. `wait` does
        # not cancel its start when this call is cancelled, and raises nothing: the senders get the
        # error.
        starting = [slot.starting for slot in self._slots if slot.starting is not None]
        if starting:
            await asyncio.wait(starting)
        results = await asyncio.gather(
            *(producer.flush() for producer in self._producers), return_exceptions=True
        )
        error, self._unreported = self._unreported, None
        for each in (error, *results):
            if each is not None:
                raise each

    async def close(self, *, flush: bool = True) -> None:
        if self._closing:
            return
        failure: BaseException | None = None
        try:
            if flush:
                await self.flush()
        except SdkError as error:
            failure = error
        finally:
            self._closing = True
            # Runs to its end even if the caller is cancelled: nothing else would close the rest.
            await asyncio.shield(self._end())
        if failure is not None:
            raise failure

    # -- starting and closing

    async def start(self) -> None:
        """Start the producers of the partitions. The client calls this once.

        Raises:
            SdkError: a producer could not be started; all of them are closed again.
        """
        eager = not self._settings.lazy_partitions
        first = self._slots if eager else [self._slots[self._router.next_run(len(self._slots))]]
        try:
            await self._start_all(first)
        except BaseException:
            self._closing = True
            await asyncio.shield(self._end())
            raise
        if self._settings.partitions_refresh_ms:
            self._growth.start()

    async def _start_all(self, slots: Sequence[_Slot]) -> None:
        # All run to their ends: a start given up half way would be in the way of a later producer.
        results = await asyncio.gather(
            *(self._started(slot) for slot in slots), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _started(self, slot: _Slot) -> TopicProducer:
        """Return the slot's producer, started if necessary.

        Raises:
            SdkError: the reason why it could not be started.
        """
        self._check_usable()
        if slot.producer is None:
            starting = self._begin(slot)
            # Several calls may wait for the start: cancelling one must not cancel it for the
            # others.
            await asyncio.wait([starting])
            if starting.cancelled():  # the start was cancelled, not this call
                raise self._closed_error()
            starting.result()
        assert slot.producer is not None
        return slot.producer

    def _begin(self, slot: _Slot) -> asyncio.Task[None]:
        """Start the slot's producer, unless a start is running."""
        if slot.starting is None:
            slot.starting = asyncio.create_task(self._start(slot))
            # The senders get a failure; no caller need await the task.
            slot.starting.add_done_callback(lambda task: task.cancelled() or task.exception())
        return slot.starting

    async def _start(self, slot: _Slot) -> None:
        try:
            producer = self._make(self._name.partition(self._slots_index(slot)))
            try:
                await producer.start()
                self._hand_over(slot, producer)
            except BaseException:
                slot.producer = None
                await producer.close(flush=False)
                raise
        except BaseException as error:
            slot.starting = None  # the next message tries again
            self._give_up(slot, error if isinstance(error, Exception) else self._closed_error())
            raise
        slot.starting = None

    def _hand_over(self, slot: _Slot, producer: TopicProducer) -> None:
        """Give the waiting messages and the room to the producer. Without `await`, so no call comes
        in between."""
        for _ in range(len(slot.waiting)):
            self._give_first(slot, producer)
        slot.producer = producer
        producer.on_confirmed = self._on_confirmed
        # Senders that were notified of a failure may have sent more, which was queued behind the
        # rest.
        while slot.waiting:
            self._give_first(slot, producer)
        producer.enter(slot.room)

    def _give_first(self, slot: _Slot, producer: TopicProducer) -> None:
        first = slot.waiting[0]
        try:
            producer.give(first.message, first.on_sent, has_room=True)
        except Exception as error:  # noqa: BLE001  # Whatever it is, it is about this one only.
            self._fail(first, error)
        slot.pop()

    def _give_up(self, slot: _Slot, error: Exception) -> None:
        """Fail all waiting messages; calls that wait for room check again."""
        waiting, slot.waiting, slot.waiting_bytes = slot.waiting, deque(), 0
        slot.room.hold(0)
        for one in waiting:
            self._fail(one, error)
        slot.room.wake_all()

    def _slots_index(self, slot: _Slot) -> int:
        return next(index for index, each in enumerate(self._slots) if each is slot)

    async def _look(self) -> None:
        partitions = await self._count()
        new = [self._new_slot() for _ in range(partitions - len(self._slots))]
        if new:
            await self._grow(new)

    async def _grow(self, new: list[_Slot]) -> None:
        """Use new partitions. Those that cannot be reached now are tried again with their
        messages."""
        first = len(self._slots)
        self._slots += new
        _log.info("partitions_added topic=%s partitions=%s", self.topic, len(self._slots))
        if not self._settings.lazy_partitions:
            await self._start_all(self._slots[first:])

    async def _end(self) -> None:
        await self._growth.close()
        tasks = [slot.starting for slot in self._slots if slot.starting is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for slot in self._slots:
            self._give_up(slot, self._closed_error())
        await asyncio.gather(
            *(producer.close(flush=False) for producer in self._producers), return_exceptions=True
        )
        self._context.forget(self)

    # -- sending

    @property
    def _producers(self) -> list[TopicProducer]:
        return [slot.producer for slot in self._slots if slot.producer is not None]

    def _choose(self, message: OutgoingMessage) -> int:
        return self._router.choose(message, len(self._slots), self._clock.monotonic_s())

    def _route(self, message: OutgoingMessage) -> _Slot:
        self._check_usable()
        return self._slots[self._choose(message)]

    def _queue(self, slot: _Slot, one: _Waiting) -> None:
        """Queue a message until its partition's producer is ready."""
        slot.push(one)
        self._begin(slot)

    def _is_full(self, slot: _Slot, size: int) -> bool:
        """Whether a further message must wait, with or without a producer."""
        self._check_usable()
        if slot.producer is not None:
            return slot.producer.is_full(size)
        return slot.room.is_full(len(slot.waiting), slot.waiting_bytes, size)

    def _new_slot(self) -> _Slot:
        return _Slot(SendRoom(self._settings, self._context.memory))

    async def _send_shares(self, shares: dict[int, list[_Share]], send: _Send[_Share]) -> None:
        """Send to several partitions at once. In each partition the share keeps its turn among
        other calls."""

        async def send_share(slot: _Slot, share: list[_Share], turn: Turn) -> None:
            try:
                await send(await self._started(slot), share, turn)
            finally:
                turn.leave()  # later calls need not wait for the other shares

        slots = {index: self._slots[index] for index in shares}
        with ExitStack() as turns:
            taken = {at: turns.enter_context(slot.room.turn()) for at, slot in slots.items()}
            # All run to their ends: a turn is for the whole share.
            results = await asyncio.gather(
                *(send_share(slots[at], share, taken[at]) for at, share in shares.items()),
                return_exceptions=True,
            )
        for result in results:
            if result is not None:
                raise result

    def _fail(self, one: _Waiting, error: Exception) -> None:
        untold = one.fail(error)
        if self._unreported is None:
            self._unreported = untold

    def _closed_error(self) -> AlreadyClosedError:
        return AlreadyClosedError(f"the producer on {self.topic} is closed")

    def _check_usable(self) -> None:
        if self._closing:
            raise self._closed_error()
