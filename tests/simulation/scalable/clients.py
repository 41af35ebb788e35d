"""Clients of the topic, as those of Pulsar 5 are: a producer that routes by key, stream consumers,
queue consumers, and a checkpoint consumer.

To one segment they speak by the SDK's producers, consumers and readers, as to any topic. What comes
to that is here: which segments there are, and what becomes of messages whose segment has ended.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from weakref import WeakSet

from mmh3 import mmh3_32_uintdigest

from magnetar.sdk.errors import SdkError
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.producer import Producer
from magnetar.sdk.settings import (
    ConsumerSettings,
    InitialPosition,
    KeySharedPolicy,
    ProducerSettings,
    SubscriptionType,
)
from magnetar.sdk.wire.errors import TopicTerminatedError
from tests.simulation.cluster.clients import SEND_TIMEOUT_MS, SimConsumer, SimReaderOf, SimUser
from tests.simulation.cluster.events import Confirmed, Published
from tests.simulation.history import Said
from tests.simulation.scalable.events import ReadingFrom, Routed
from tests.simulation.scalable.link import (
    Buckets,
    KnownLayout,
    KnownSegment,
    LayoutSession,
    Registration,
)

_RETRY_S = 0.1
_RECEIVE_S = 0.5
_HIGH_BITS = 16


def hash_of(key: str) -> int:
    """Place of a key on the ring: the high 16 bits of Murmur3."""
    return mmh3_32_uintdigest(key.encode()) >> _HIGH_BITS


def key_of(payload: bytes) -> str:
    """The key that a message was published with."""
    return payload.decode().split(":")[2]


def number_of(payload: bytes) -> int:
    """The number of a message among those of its producer."""
    return int(payload.decode().split(":")[1])


# Producers


@dataclass(slots=True)
class _OfSegment:
    """The producer of one segment."""

    segment: KnownSegment
    producer: Producer | None = None
    has_ended: bool = False
    """Whether the segment takes nothing any more; what it had is given to others."""
    in_flight: dict[bytes, None] = field(default_factory=dict)


class V5Producer:
    """Publishes each message to the segment that has its key.

    A message whose segment has ended is given to the one that comes after it. Messages of one key
    are given to another segment only when all before them are settled.
    """

    def __init__(self, user: SimUser, hosts: list[str]) -> None:
        self.user = user
        self._session = LayoutSession(user, hosts, lambda _: self._look())
        self._segments: dict[int, _OfSegment] = {}
        self._parked: list[bytes] = []
        """Messages that no segment has, in order."""
        self.given: list[bytes] = []
        """All that the application has published."""
        self.confirmed: list[bytes] = []
        user.spawn(self._session.follow(), "layout")

    @property
    def published(self) -> int:
        return len(self.given)

    @property
    def pending(self) -> int:
        return len(self.given) - len(self.confirmed)

    def publish(self, key: str) -> None:
        """Publish the next message."""
        payload = f"{self.user.name}:{self.published}:{key}".encode()
        self.given.append(payload)
        self.user.record(Published(self.user.name, "t", payload))
        self._parked.append(payload)
        self._pump()

    def _look(self) -> None:
        layout = self._session.known
        assert layout is not None
        known = {each.id for each in layout.segments}
        for number, each in self._segments.items():
            if number not in known and not each.has_ended:
                self._end(each)
        self._pump()

    def _pump(self) -> None:
        """Give messages to segments, as far as that can be now."""
        layout = self._session.known
        if layout is None:
            return
        held: set[str] = set()
        parked, self._parked = self._parked, []
        for payload in parked:
            key = key_of(payload)
            target = layout.segment_of(hash_of(key))
            if key in held or target is None or not self._give(payload, key, target):
                held.add(key)
                self._parked.append(payload)

    def _give(self, payload: bytes, key: str, target: KnownSegment) -> bool:
        found = self._segments.get(target.id)
        if found is None:
            found = self._segments[target.id] = _OfSegment(target)
            self.user.spawn(self._open(found), "open")
        if found.producer is None or found.has_ended:
            return False
        for other in self._segments.values():
            if other is not found and any(key_of(each) == key for each in other.in_flight):
                return False
        self.user.record(Routed(self.user.name, target.name, payload))
        found.in_flight[payload] = None
        try:
            on_sent = partial(self._on_sent, found, payload)
            found.producer.send_nowait(payload, key=key, on_sent=on_sent)
        except SdkError:
            found.in_flight.pop(payload, None)
            self._end(found)
            return False
        return True

    async def _open(self, found: _OfSegment) -> None:
        name = f"{self.user.name}-seg-{found.segment.id}"
        settings = ProducerSettings(name=name, batching=False, send_timeout_ms=SEND_TIMEOUT_MS)
        while not found.has_ended:
            try:
                producer = await self.user.client.producer(found.segment.name, settings)
            except TopicTerminatedError:
                found.has_ended = True
            except SdkError as error:
                self.user.record(Said(f"no producer: {type(error).__name__}: {error}"))
                await asyncio.sleep(_RETRY_S)
            else:
                found.producer = producer
                self._pump()
                return

    def _on_sent(
        self, found: _OfSegment, payload: bytes, place: MessageId | None, error: SdkError | None
    ) -> None:
        if payload not in found.in_flight:
            return
        del found.in_flight[payload]
        if place is not None:
            self.confirmed.append(payload)
            confirmed = Confirmed(
                self.user.name, found.segment.name, payload, place.ledger_id, place.entry_id, -1
            )
            self.user.record(confirmed)
        else:
            found.has_ended = True
            self._park(payload)
            self.user.record(Said(f"{payload!r} is not stored: {type(error).__name__}: {error}"))
        self.user.process.call_soon(self._pump)

    def _park(self, payload: bytes) -> None:
        self._parked.append(payload)
        self._parked.sort(key=number_of)

    def _end(self, found: _OfSegment) -> None:
        """The segment is gone: what it has not confirmed is given to others."""
        found.has_ended = True
        if found.producer is not None:
            self.user.spawn(found.producer.close(flush=False), "close")


# Consumers


Acknowledged = Callable[[str, bytes], None]
"""Told of each message that an application has acknowledged: subscription and payload."""


class _Segments:
    """What runs for each segment: begun and ended as somebody says which there are."""

    def __init__(self, user: SimUser, work: Callable[[str], Coroutine[object, object, None]]):
        self._user = user
        self._work = work
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def set(self, names: Iterable[str]) -> None:
        """Work for these, and for no others."""
        wanted = list(names)
        for gone in [each for each in self._tasks if each not in wanted]:
            self._tasks.pop(gone).cancel()
        for name in wanted:
            if name not in self._tasks:
                self._tasks[name] = self._user.spawn(self._work(name), "consume")

    async def end(self) -> None:
        """End all, in order."""
        tasks, self._tasks = self._tasks, {}
        for each in tasks.values():
            each.cancel()
        if tasks:
            await asyncio.wait(tasks.values())


class V5Consumer:
    """What stream consumers and queue consumers have in common: they consume segments."""

    def __init__(
        self,
        user: SimUser,
        subscription: str,
        kind: SubscriptionType,
        random: Random,
        *,
        start: InitialPosition,
        ack_share: float,
        on_acknowledged: Acknowledged,
    ) -> None:
        self.user = user
        self.subscription = subscription
        self.attached: set[str] = set()
        """Segments to which it has subscribed."""
        self.on_attached: Callable[[], None] = lambda: None
        self._kind = kind
        self._random = random
        self._start = start
        self._ack_share = ack_share
        self._on_acknowledged = on_acknowledged
        self._alone: WeakSet[SimConsumer] = WeakSet()
        """Consumers that have their segment for themselves, and acknowledge cumulatively."""
        self._work = _Segments(user, self._consume)
        self.tasks: list[asyncio.Task[None]] = []

    async def end(self) -> None:
        """Leave in order."""
        for each in self.tasks:
            each.cancel()
        await self._work.end()

    async def _consume(self, name: str) -> None:
        consumer: SimConsumer | None = None
        waiting: list[Message] = []
        try:
            while True:
                try:
                    if consumer is None:
                        consumer = await self._open(name)
                        waiting.clear()
                    message = await consumer.consumer.receive(timeout_s=_RECEIVE_S)
                except TimeoutError:
                    self._acknowledge(consumer, waiting)
                    continue
                except SdkError as error:
                    self.user.record(Said(f"consuming: {type(error).__name__}: {error}"))
                    await asyncio.sleep(_RETRY_S)
                    continue
                consumer.note(message)
                waiting.append(message)
                if self._random.random() < self._ack_share:
                    self._acknowledge(consumer, waiting)
        finally:
            if consumer is not None:
                self._acknowledge(consumer, waiting)
                await consumer.consumer.close()

    def _settings(self, name: str) -> ConsumerSettings:
        """How a segment is consumed."""
        return ConsumerSettings(
            name=f"{self.user.name}-seg-{name.rpartition('-')[2]}",
            subscription_type=self._kind,
            initial_position=self._start,
            receiver_queue_messages=self._random.choice((1, 5, 100)),
            ack_group_ms=0,
            nack_delay_ms=200,
        )

    async def _open(self, name: str) -> SimConsumer:
        settings = self._settings(name)
        client = self.user.client
        consumer = await client.consumer(name, self.subscription, settings)
        self.attached.add(name)
        self.on_attached()
        made = SimConsumer(self.user, consumer)
        if settings.subscription_type is SubscriptionType.EXCLUSIVE:
            self._alone.add(made)
        return made

    def _acknowledge(self, consumer: SimConsumer | None, messages: list[Message]) -> None:
        if consumer is None or not messages:
            return
        if consumer in self._alone:
            consumer.ack_here(messages[-1], cumulative=True)
        else:
            consumer.ack_here(*messages)
        for message in messages:
            self._on_acknowledged(self.subscription, message.data)
        messages.clear()


class StreamConsumer(V5Consumer):
    """Consumes the segments that a coordinator gives it in order, each alone, or the entry buckets
    of one that the broker gives it."""

    def __init__(
        self,
        user: SimUser,
        hosts: list[str],
        subscription: str,
        random: Random,
        *,
        name: str,
        ack_share: float,
        on_acknowledged: Acknowledged,
    ) -> None:
        """`name`: as the coordinator knows it."""
        super().__init__(
            user,
            subscription,
            SubscriptionType.EXCLUSIVE,
            random,
            start=InitialPosition.EARLIEST,
            ack_share=ack_share,
            on_acknowledged=on_acknowledged,
        )
        self.name = name
        self._buckets: Mapping[str, Buckets] = {}
        self._registration = Registration(
            user, hosts, subscription=subscription, name=name, on_segments=self._look
        )
        self.tasks.append(user.spawn(self._registration.run(), "register"))

    def _look(self, segments: Mapping[str, Buckets]) -> None:
        """What is shared from now on, or not any more, is consumed anew."""
        before, self._buckets = self._buckets, segments
        self._work.set(each for each in segments if before.get(each) == segments[each])
        self._work.set(segments)

    def _settings(self, name: str) -> ConsumerSettings:
        settings, buckets = super()._settings(name), self._buckets.get(name)
        if not buckets:
            return settings
        return replace(
            settings,
            subscription_type=SubscriptionType.KEY_SHARED,
            key_shared=KeySharedPolicy(hash_ranges=buckets, entry_buckets=True),
        )

    async def end(self) -> None:
        self._registration.leave()
        await super().end()


class QueueConsumer(V5Consumer):
    """Consumes all segments, beside others."""

    def __init__(
        self,
        user: SimUser,
        hosts: list[str],
        subscription: str,
        random: Random,
        *,
        start: InitialPosition = InitialPosition.EARLIEST,
        on_acknowledged: Acknowledged,
    ) -> None:
        super().__init__(
            user,
            subscription,
            SubscriptionType.SHARED,
            random,
            start=start,
            ack_share=1.0,
            on_acknowledged=on_acknowledged,
        )
        self._session = LayoutSession(user, hosts, self._look)
        self.tasks.append(user.spawn(self._session.follow(), "layout"))

    @property
    def known(self) -> KnownLayout | None:
        """The newest layout that it was told."""
        return self._session.known

    def _look(self, layout: KnownLayout) -> None:
        self._work.set(each.name for each in layout.segments)
        self.on_attached()


class CheckpointReader:
    """Reads all segments without a subscription, and may go back to a former checkpoint."""

    def __init__(self, user: SimUser, hosts: list[str]) -> None:
        self.user = user
        self._lives = 0
        self._positions: dict[str, MessageId] = {}
        self.checkpoint: dict[str, MessageId] = {}
        """Where it stood when that was asked for last."""
        self._names: list[str] = []
        self._work = _Segments(user, self._read)
        session = LayoutSession(user, hosts, self._look)
        user.spawn(session.follow(), "layout")

    def _look(self, layout: KnownLayout) -> None:
        self._names = [each.name for each in layout.segments]
        self._work.set(self._names)

    def take_checkpoint(self) -> None:
        """Remember where it stands."""
        self.checkpoint = dict(self._positions)

    async def go_back(self) -> None:
        """Go on from the last checkpoint."""
        await self._work.end()
        self._lives += 1
        self._positions = dict(self.checkpoint)
        self._work.set(self._names)

    async def _read(self, name: str) -> None:
        who = f"{self.user.name}/{self._lives}"
        start = self._positions.get(name)
        place = None if start is None else (start.ledger_id, start.entry_id)
        reader: SimReaderOf | None = None
        try:
            while True:
                try:
                    if reader is None:
                        begin = start or MessageId.EARLIEST
                        made = await self.user.client.reader(name, begin)
                        reader = SimReaderOf(self.user, made, who)
                        self.user.record(ReadingFrom(who, name, place))
                    await reader.take_here(timeout_s=_RECEIVE_S)
                    ledger_id, entry_id, _ = reader.got[-1]
                    self._positions[name] = MessageId(ledger_id, entry_id)
                except TimeoutError:
                    continue
                except SdkError as error:
                    self.user.record(Said(f"reading: {type(error).__name__}: {error}"))
                    await asyncio.sleep(_RETRY_S)
        finally:
            if reader is not None:
                await reader.reader.close()
