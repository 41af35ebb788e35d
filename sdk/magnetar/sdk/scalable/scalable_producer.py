"""The producer of a topic with a layout: one producer for each segment, and messages that move.

A key goes to the segment that has its hash. When a segment is split or merged, its unstored
messages are sent to the segments that follow it, in the order of the calls (`lanes.py` says when).
Until the next layout such messages wait, at most for the send timeout. The producer of a segment is
created when the first message for it comes. Exclusive access is claimed for all active segments,
one after the other by their ids, so that two producers never have some each.

One limit holds for all segments together: `pending_messages_max` and `pending_bytes_max`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from magnetar.sdk.context import ClientContext
from magnetar.sdk.errors import (
    AlreadyClosedError,
    NotSupportedError,
    OperationTimeoutError,
    PendingLimitError,
    SdkError,
    SendTimeoutError,
)
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.pending_sends import OnSent
from magnetar.sdk.producer import OnConfirmed, Producer
from magnetar.sdk.producing.outgoing import OutgoingMessage
from magnetar.sdk.producing.routing import PartitionRouter, RoutingMode
from magnetar.sdk.producing.send_room import SendRoom
from magnetar.sdk.producing.topic_producer import TopicProducer, settle
from magnetar.sdk.producing.under_way import tell
from magnetar.sdk.producing.value_encoder import ValueEncoder
from magnetar.sdk.scalable.lanes import SegmentLanes
from magnetar.sdk.scalable.layout import Layout, Segment
from magnetar.sdk.scalable.layout_session import LayoutSession
from magnetar.sdk.scalable.names import LayoutName
from magnetar.sdk.schema import Schema, T
from magnetar.sdk.settings import AccessMode, ProducerSettings
from magnetar.sdk.stats import ProducerStats
from magnetar.sdk.transaction import Transaction
from magnetar.sdk.wire.errors import TopicNotFoundError, TopicTerminatedError
from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata
from magnetar.sdk.wire.topic_name import TopicName

MANAGED_MARK = {"__pulsar.v5.managed": "true"}
"""Shows brokers that a client of an ordinary topic follows its layout: the topic may be migrated
while the client is connected."""

MakeProducer = Callable[[ClientContext, TopicName, ProducerSettings, Sequence[int]], TopicProducer]


class _Send:
    """A message without a confirmation; called with its outcome."""

    __slots__ = ("_outcome", "given_at_s", "key", "message", "on_sent", "order", "segment_id")

    def __init__(
        self,
        outcome: "_Outcome",
        message: OutgoingMessage,
        on_sent: OnSent | None,
        order: int,
        given_at_s: float,
    ) -> None:
        self._outcome, self.message, self.on_sent = outcome, message, on_sent
        self.order, self.given_at_s = order, given_at_s
        self.segment_id = -1
        self.key = None if message.key is None else message.metadata_key.encode()

    def __call__(self, message_id: MessageId | None, error: SdkError | None) -> None:
        self._outcome(self, message_id, error)


_Outcome = Callable[[_Send, MessageId | None, SdkError | None], None]


class ScalableProducer(Producer[T]):
    """Producer of a topic with a layout, over the producers of its segments."""

    def __init__(
        self,
        context: ClientContext,
        name: LayoutName,
        settings: ProducerSettings,
        schema: Schema[T] | None,
        *,
        make: MakeProducer,
    ) -> None:
        """`make` returns the producer of a segment, not started. It gets the first hashes of the
        segment's entry buckets, without the first bucket.

        Raises:
            NotSupportedError: a routing function, which is for partitions.
        """
        if not isinstance(settings.routing, RoutingMode):
            raise NotSupportedError(f"{name}: a routing function is for partitioned topics only")
        self.topic = str(name)
        self._settings = settings
        self._context, self._clock = context, context.clock
        # The memory limit of the client is enforced here, for all segments.
        self._segment_context = replace(context, memory=None, forget=lambda _: None)
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._values = ValueEncoder(self.topic, schema, settings.interceptors)
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
        self._room = SendRoom(settings, context.memory)
        self._session = LayoutSession(context, name, may_create=True, on_change=self._on_layout)
        self._outcome = self._on_outcome
        self._lanes: SegmentLanes[_Send]
        self._is_started = False
        self._producers: dict[int, TopicProducer] = {}
        self._opening: dict[int, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._retired = ProducerStats()
        self._on_confirmed: OnConfirmed | None = None
        self._messages = self._bytes = self._failed = self._order = 0
        self._flushing: deque[_Flush] = deque()
        self._unreported: SdkError | None = None
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._is_stepping = self._closing = False

    # -- public

    @property
    def name(self) -> str:
        names = (each.name for each in self._producers.values())
        return self._settings.name or next(names, "")

    @property
    def is_connected(self) -> bool:
        return self._session.is_attached and all(
            each.is_connected for each in self._producers.values()
        )

    @property
    def last_sequence_id(self) -> int:
        """The highest one of all segments; each segment counts separately."""
        return max((each.last_sequence_id for each in self._producers.values()), default=-1)

    @property
    def last_stored_sequence_id(self) -> int:
        """The highest one of all segments; each segment counts separately."""
        return max((each.last_stored_sequence_id for each in self._producers.values()), default=-1)

    @property
    def pending_messages(self) -> int:
        return self._messages

    @property
    def pending_bytes(self) -> int:
        return self._bytes

    @property
    def topic_epoch(self) -> int | None:
        """The highest one of all segments; each segment has one of its own."""
        epochs = [each.topic_epoch for each in self._producers.values()]
        return max((epoch for epoch in epochs if epoch is not None), default=None)

    @property
    def on_confirmed(self) -> OnConfirmed | None:
        return self._on_confirmed

    @on_confirmed.setter
    def on_confirmed(self, told: OnConfirmed | None) -> None:
        self._on_confirmed = told
        for producer in self._producers.values():
            producer.on_confirmed = told

    @property
    def segments(self) -> tuple[str, ...]:
        """The topics of the segments that take messages now."""
        return tuple(str(each.topic) for each in self._session.layout.active)

    def stats(self) -> ProducerStats:
        total = ProducerStats.total(
            [self._retired, *(each.stats() for each in self._producers.values())]
        )
        return replace(
            total,
            messages_failed=self._failed,
            messages_pending=self._messages,
            bytes_pending=self._bytes,
        )

    async def send_message(
        self, message: OutgoingMessage, transaction: Transaction | None = None
    ) -> MessageId:
        if transaction is not None:
            raise NotSupportedError(
                f"{self.topic}: this client sends to scalable topics outside transactions only"
            )
        size = len(message.payload)
        if self._room.is_waited_for or self._is_full(size):
            await self._room.wait_turn(partial(self._is_full, size))
        future: asyncio.Future[MessageId] = self._loop.create_future()
        self._give(message, partial(settle, future))
        return await future

    def send_message_nowait(self, message: OutgoingMessage, on_sent: OnSent | None) -> None:
        if self._room.is_waited_for or self._is_full(len(message.payload)):
            raise PendingLimitError(
                f"{self.topic}: {self._messages} unconfirmed messages of {self._bytes} bytes: the "
                "producer's pending limit or the client's memory limit is reached"
            )
        self._give(message, on_sent)

    def send_encoded_nowait(
        self, body: bytes, metadata: MessageMetadata, *, on_sent: OnSent | None = None
    ) -> None:
        raise NotSupportedError(f"{self.topic}: encoded messages are for ordinary topics only")

    async def send_entry(
        self, body: bytes, *, messages: int, sequence_id: int, extra: bytes = b""
    ) -> None:
        raise NotSupportedError(
            f"{self.topic}: entries with sequence ids are for one ordinary topic or partition"
        )

    async def send_many(self, values: Sequence[T | None]) -> None:
        messages = [self._values.message(value) for value in values]
        with self._room.turn() as turn:
            await turn.wait(lambda: False)
            for message in messages:
                size = len(message.payload)
                if self._is_full(size):
                    await turn.wait(partial(self._is_full, size))
                self._give(message, None)

    async def flush(self) -> None:
        if self._messages:
            flush = _Flush(self._order, self._messages, self._loop.create_future())
            self._flushing.append(flush)
            # Open batches close now; the outcomes of their messages are counted here.
            closing = [each.flush() for each in self._producers.values()]
            try:
                await asyncio.gather(*closing, return_exceptions=True)
                await flush.done
            finally:
                with suppress(ValueError):
                    self._flushing.remove(flush)
        error, self._unreported = self._unreported, None
        if error is not None:
            raise error

    async def close(self, *, flush: bool = True) -> None:
        if self._closing:
            return
        failure: SdkError | None = None
        try:
            if flush:
                await self.flush()
        except SdkError as error:
            failure = error
        finally:
            self._closing = True
            # Runs to its end even if the caller is cancelled: no other code would do the rest.
            await asyncio.shield(self._end())
        if failure is not None:
            raise failure

    # -- life

    async def start(self) -> None:
        """Get the layout and the first producers; called once by the client.

        This is the producer of one segment, or of all segments if access is to be exclusive.

        Raises:
            SdkError: the reason for the failure; all that was created is closed again.
        """
        try:
            await self._session.start()
            self._lanes = SegmentLanes(self._session.layout, self._in_turn)
            self._is_started = True
            await self._start_first()
        except BaseException:
            self._closing = True
            await asyncio.shield(self._end())
            raise

    async def _start_first(self) -> None:
        """Create the first producers.

        If a segment ends meanwhile, its children replace it, within the operation timeout.

        Raises:
            SdkError: the producers cannot be created.
        """
        timeout_ms = self._context.settings.operation_timeout_ms
        cause: SdkError | None = None
        try:
            waits = self._settings.access_mode is AccessMode.WAIT_FOR_EXCLUSIVE
            async with asyncio.timeout(None if waits else timeout_ms / 1000):
                while True:
                    self._changed.clear()
                    try:
                        return await self._claim()
                    except (TopicTerminatedError, TopicNotFoundError) as error:
                        if isinstance(error, TopicNotFoundError) and self._lanes.layout.by_modulo:
                            raise
                        cause = error
                    await self._changed.wait()
        except TimeoutError:
            raise cause or OperationTimeoutError(
                f"{self.topic}: no producer within {timeout_ms} ms"
            ) from None

    async def _claim(self) -> None:
        active = sorted(self._lanes.layout.active, key=lambda each: each.id)
        if self._settings.access_mode is AccessMode.SHARED:
            active = [active[self._router.next_run(len(active))]]
        for segment in active:
            if segment.id in self._producers:
                continue
            starting = self._opening.get(segment.id)
            if starting is None:
                self._lanes.require(segment.id)
                starting = self._begin(segment)
            await asyncio.wait([starting])
            if starting.cancelled():
                raise self._closed_error()
            starting.result()

    def _begin(self, segment: Segment) -> asyncio.Task[None]:
        task = asyncio.create_task(self._open(segment), name=f"magnetar producer {segment.topic}")
        self._opening[segment.id] = task
        # The senders get a failure; the task itself need not be awaited.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _open(self, segment: Segment) -> None:
        """Create the producer of a segment."""
        try:
            producer = self._make(
                self._segment_context,
                segment.topic,
                _settings_of(self._settings, segment),
                segment.bucket_splits,
            )
            try:
                await producer.start()
            except BaseException:
                await producer.close(flush=False)
                raise
        except SdkError as error:
            self._opening.pop(segment.id, None)
            # A segment that does not exist yet, or any more, belongs to another layout.
            is_gone = isinstance(error, TopicNotFoundError) and not segment.is_legacy
            has_ended = is_gone or isinstance(error, TopicTerminatedError)
            for send in self._lanes.not_ready(segment.id, has_ended=has_ended):
                self._fail(send, error)
            self._step()
            raise
        self._opening.pop(segment.id, None)
        producer.on_confirmed = self._on_confirmed
        self._producers[segment.id] = producer
        if not self._lanes.ready(segment.id):
            self._retire(segment.id)  # The segment was sealed meanwhile.
        self._step()

    def _on_layout(self, layout: Layout) -> None:
        """Adopt another layout of the topic, from the session."""
        if self._closing or not self._is_started:
            return
        self._lanes.change(layout)
        self._changed.set()
        self._step()
        if self._settings.access_mode is not AccessMode.SHARED:
            for segment in sorted(layout.active, key=lambda each: each.id):
                if segment.id not in self._producers and segment.id not in self._opening:
                    self._lanes.require(segment.id)
                    self._begin(segment)

    def _retire(self, segment_id: int) -> None:
        """Close the producer of a segment that takes no more messages."""
        producer = self._producers.pop(segment_id, None)
        if producer is not None:
            self._retired = ProducerStats.total([self._retired, producer.stats()])
            task = asyncio.create_task(
                producer.close(flush=False), name=f"magnetar end of {producer.topic}"
            )
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _end(self) -> None:
        await self._session.close()
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._opening.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        producers = list(self._producers.values())
        await asyncio.gather(
            *(each.close(flush=False) for each in producers), *self._ending, return_exceptions=True
        )
        if self._is_started:
            for send, _ in self._lanes.take_waiting(lambda _: True):
                self._fail(send, self._closed_error())
        self._room.wake_all()
        self._context.forget(self)

    # -- sending

    def _give(self, message: OutgoingMessage, on_sent: OnSent | None) -> None:
        """Send a message that has room.

        Raises:
            SdkError, ValueError: the message cannot be sent.
        """
        self._check_usable()
        if self._values.interceptors is not None:
            message, on_sent = self._values.intercept(message, on_sent, unwatched=self._keep_error)
        self._order += 1
        now_s = self._clock.monotonic_s()
        send = _Send(self._outcome, message, on_sent, self._order, now_s)
        segment = self._lanes.put(send)
        self._messages += 1
        self._bytes += len(message.payload)
        self._room.hold(self._bytes)
        if segment is None:
            self._arm_timer()
        else:
            try:
                self._leave(segment, send)
            except Exception:
                self._lanes.done(send)
                self._settle(send)
                self._step()
                raise
        self._step()

    def _leave(self, segment: Segment, send: _Send) -> None:
        """Hand a message to the producer of its segment.

        Raises:
            SdkError, ValueError: the message cannot be sent; it still counts as in flight.
        """
        try:
            self._producers[segment.id].give(send.message, send, has_room=True)
        except TopicTerminatedError:
            self._refuse(send)

    def _refuse(self, send: _Send) -> None:
        self._lanes.refused(send)
        self._retire(send.segment_id)

    def _on_outcome(
        self, send: _Send, message_id: MessageId | None, error: SdkError | None
    ) -> None:
        """Handle the outcome of a message from a segment's producer: stored, or not known to be."""
        if isinstance(error, TopicTerminatedError) and not self._closing:
            self._refuse(send)
            self._step()
            return
        self._lanes.done(send)
        if error is not None:
            self._fail(send, error)
        else:
            self._settle(send)
            if send.on_sent is not None:
                tell(send.on_sent, message_id, None)
        self._step()

    def _fail(self, send: _Send, error: SdkError) -> None:
        self._failed += 1
        self._settle(send)
        if send.on_sent is not None:
            tell(send.on_sent, None, error)
        else:
            self._keep_error(None, error)

    def _keep_error(self, _: MessageId | None, error: SdkError | None) -> None:
        """Keep the error of a message without a callback for the next `flush`; an `OnSent`."""
        if self._unreported is None:
            self._unreported = error

    def _settle(self, send: _Send) -> None:
        """Remove a message from the pending ones."""
        self._messages -= 1
        self._bytes -= len(send.message.payload)
        self._room.hold(self._bytes)
        self._room.wake(self._messages)
        for flush in self._flushing:
            flush.on_settled(send.order)

    def _step(self) -> None:
        """Run the actions of the lanes, until there are no more."""
        if self._is_stepping or self._closing or not self._lanes.is_due:
            return
        self._is_stepping = True
        try:
            while self._lanes.is_due:
                step = self._lanes.step()
                for segment_id in step.closed:
                    self._retire(segment_id)
                for segment, sends in step.given:
                    for send in sends:
                        self._leave_later(segment, send)
                for segment in step.opened:
                    self._begin(segment)
        finally:
            self._is_stepping = False
        self._arm_timer()

    def _leave_later(self, segment: Segment, send: _Send) -> None:
        """Hand over a message that had to wait; its caller gets a failure as the outcome."""
        if segment.id not in self._producers:  # An earlier message found the segment's end.
            self._lanes.refused(send)
            return
        try:
            self._leave(segment, send)
        except Exception as error:  # noqa: BLE001  # Whatever it is, it is about this one only.
            known = error
            if not isinstance(known, SdkError):
                known = SdkError(f"{type(error).__name__}: {error}")
                known.__cause__ = error
            self._lanes.done(send)
            self._fail(send, known)

    def _in_turn(self, send: _Send, segments: int) -> int:
        """Choose a segment for a message without a key."""
        return self._router.choose(send.message, segments, self._clock.monotonic_s())

    # -- the send timeout of messages that wait here

    def _arm_timer(self) -> None:
        timeout_s = self._settings.send_timeout_ms / 1000
        if self._timer is not None or not timeout_s or self._closing:
            return
        first = self._lanes.first_waiting()
        if first is not None:
            delay_s = first.given_at_s + timeout_s - self._clock.monotonic_s()
            self._timer = self._loop.call_later(max(0.0, delay_s), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        # By this clock, a timer may fire slightly early: a millisecond does not matter.
        before_s = self._clock.monotonic_s() - self._settings.send_timeout_ms / 1000 + 0.001
        for send, has_ended in self._lanes.take_waiting(lambda each: each.given_at_s <= before_s):
            text = f"within {self._settings.send_timeout_ms} ms; the message is not stored"
            self._fail(
                send,
                TopicTerminatedError(
                    f"{self.topic}: its segment has ended, and none follows {text}"
                )
                if has_ended
                else SendTimeoutError(f"{self.topic}: its segment has no broker {text}"),
            )
        self._arm_timer()

    # -- inside

    def _is_full(self, size: int) -> bool:
        self._check_usable()
        return self._room.is_full(self._messages, self._bytes, size)

    def _check_usable(self) -> None:
        if self._closing:
            raise self._closed_error()

    def _closed_error(self) -> AlreadyClosedError:
        return AlreadyClosedError(f"the producer on {self.topic} is closed")


class _Flush:
    """A call of `flush`, and its number of messages without an outcome."""

    __slots__ = ("_count", "_order", "done")

    def __init__(self, order: int, count: int, done: "asyncio.Future[None]") -> None:
        self._order, self._count, self.done = order, count, done

    def on_settled(self, order: int) -> None:
        """Count a message that is not pending any more."""
        if order <= self._order:
            self._count -= 1
            if not self._count and not self.done.done():
                self.done.set_result(None)


def _settings_of(settings: ProducerSettings, segment: Segment) -> ProducerSettings:
    """Return the settings for the producer of a segment."""
    return replace(
        settings,
        name=f"{settings.name}-seg-{segment.id}" if settings.name else "",
        properties={**settings.properties, **(MANAGED_MARK if segment.is_legacy else {})},
        # Interceptors have already processed the message.
        interceptors=(),
    )
