"""Client processes of brokers: the real SDK, with everything the application hears recorded.

It does what the official client does: looks topics up, sends again what has no receipt, subscribes
anew when it is dropped. Producers send one message per entry unless told otherwise.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from typing import TypeVar

from magnetar.sdk.client import Client
from magnetar.sdk.consumer import Consumer
from magnetar.sdk.errors import SdkError
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.producer import Producer
from magnetar.sdk.reader import Reader
from magnetar.sdk.settings import (
    ClientSettings,
    ConsumerSettings,
    InitialPosition,
    ProducerSettings,
    SubscriptionType,
)
from tests.simulation.cluster.events import AckCalled, Confirmed, Got, Published, PublishFailed
from tests.simulation.cluster.front import Front
from tests.simulation.history import Event, Fault, History, Said
from tests.simulation.loop import ProcessState, SimLoop, SimProcess
from tests.simulation.network import SimNetwork
from tests.simulation.worker import SimClock

T = TypeVar("T")

CLIENT_SETTINGS = ClientSettings(
    connect_timeout_ms=500,
    operation_timeout_ms=8_000,
    close_timeout_ms=500,
    keep_alive_ms=1_000,
    reconnect_delay_min_ms=20,
    reconnect_delay_max_ms=300,
)
"""Short, so that a story stays short; virtual time costs nothing."""

SEND_TIMEOUT_MS = 60_000
NAMESPACE = "persistent://public/default/"


def full_name(topic: str) -> str:
    return topic if "://" in topic else NAMESPACE + topic


class SimUser:
    """One client process. Names are short: they are the actors of the history."""

    def __init__(
        self,
        name: str,
        loop: SimLoop,
        front: Front,
        history: History,
        *,
        url: str,
        seed: str,
        settings: ClientSettings = CLIENT_SETTINGS,
    ) -> None:
        self.name = name
        self.loop = loop
        self.front = front
        self._history = history
        self.process = SimProcess(loop, name)
        self.client = self.call(
            lambda: Client(
                url,
                settings,
                network=SimNetwork(front, self.process),
                clock=SimClock(loop),
                random=Random(f"{seed}/user"),
            )
        )

    # The process

    async def run(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run something in this process, and wait for it."""
        return await self.process.spawn(coroutine)

    def spawn(
        self, coroutine: Coroutine[object, object, T], name: str | None = None
    ) -> asyncio.Task[T]:
        return self.process.spawn(coroutine, name)

    def call(self, what: Callable[[], T]) -> T:
        """Call something in this process."""
        assert self.process.state is ProcessState.RUNNING, f"{self.name} does not run"
        return self.process.context.copy().run(what)

    def crash(self) -> None:
        if self.process.is_alive:
            self.record(Fault("crashes"))
            self.process.kill()
            self.front.on_process_gone(self.process)

    def pause(self) -> None:
        self.record(Fault("is paused"))
        self.process.pause()

    def resume(self) -> None:
        self.record(Fault("goes on"))
        self.process.resume()

    def record(self, event: Event) -> None:
        self._history.add(self.loop.time(), self.name, event)

    # What it does

    async def producer(
        self, topic: str, *, name: str = "", batching: bool = False
    ) -> "SimProducer":
        """A producer, ready. Its name is that of the process, if nothing else is said."""
        return await self.run(self.producer_here(topic, name=name, batching=batching))

    async def producer_here(
        self, topic: str, *, name: str = "", batching: bool = False
    ) -> "SimProducer":
        settings = ProducerSettings(
            name=name or self.name, batching=batching, send_timeout_ms=SEND_TIMEOUT_MS
        )
        return SimProducer(self, await self.client.producer(full_name(topic), settings))

    async def consumer(
        self,
        topic: str,
        subscription: str = "s",
        *,
        kind: SubscriptionType = SubscriptionType.EXCLUSIVE,
        queue: int = 100,
        ack_group_ms: int = 0,
        start: InitialPosition = InitialPosition.EARLIEST,
    ) -> "SimConsumer":
        """A consumer, subscribed."""
        return await self.run(
            self.consumer_here(
                topic, subscription, kind=kind, queue=queue, ack_group_ms=ack_group_ms, start=start
            )
        )

    async def consumer_here(
        self,
        topic: str,
        subscription: str = "s",
        *,
        kind: SubscriptionType = SubscriptionType.EXCLUSIVE,
        queue: int = 100,
        ack_group_ms: int = 0,
        start: InitialPosition = InitialPosition.EARLIEST,
    ) -> "SimConsumer":
        settings = ConsumerSettings(
            name=self.name,
            subscription_type=kind,
            initial_position=start,
            receiver_queue_messages=queue,
            ack_group_ms=ack_group_ms,
            nack_delay_ms=200,
        )
        consumer = await self.client.consumer(full_name(topic), subscription, settings)
        return SimConsumer(self, consumer)

    async def reader(
        self, topic: str, *, start: MessageId = MessageId.EARLIEST, name: str = ""
    ) -> "SimReaderOf":
        return await self.run(self.reader_here(topic, start=start, name=name))

    async def reader_here(
        self, topic: str, *, start: MessageId = MessageId.EARLIEST, name: str = ""
    ) -> "SimReaderOf":
        return SimReaderOf(self, await self.client.reader(full_name(topic), start), name)


class SimProducer:
    """A producer of a client process; what becomes of its messages is recorded."""

    def __init__(self, user: SimUser, producer: Producer) -> None:
        self.user = user
        self.producer = producer
        self.name = producer.name
        self.published = 0
        self.confirmed: list[tuple[bytes, tuple[int, int]]] = []
        self.failed: list[tuple[bytes, str]] = []

    @property
    def pending(self) -> int:
        return self.published - len(self.confirmed) - len(self.failed)

    def send(self, count: int = 1) -> None:
        """Publish messages without waiting; payloads tell producer and number."""
        self.user.call(lambda: self.send_here(count))

    def send_here(self, count: int = 1) -> None:
        for _ in range(count):
            payload = f"{self.name}:{self.published}".encode()
            self.published += 1
            self.user.record(Published(self.name, self.producer.topic, payload))
            self.producer.send_nowait(payload, on_sent=partial(self._on_sent, payload))

    async def publish(self, count: int = 1) -> None:
        """Publish messages, and wait until nothing is under way.

        Raises:
            AssertionError: one failed.
        """
        self.send(count)
        await self.user.loop.until(lambda: self.pending == 0)
        assert not self.failed, self.failed

    def _on_sent(self, payload: bytes, place: MessageId | None, error: SdkError | None) -> None:
        topic = self.producer.topic
        if place is None:
            text = f"{type(error).__name__}: {error}"
            self.failed.append((payload, text))
            self.user.record(PublishFailed(self.name, topic, payload, text))
            return
        self.confirmed.append((payload, (place.ledger_id, place.entry_id)))
        self.user.record(
            Confirmed(self.name, topic, payload, place.ledger_id, place.entry_id, place.batch_index)
        )


class SimConsumer:
    """A consumer of a client process."""

    def __init__(self, user: SimUser, consumer: Consumer) -> None:
        self.user = user
        self.consumer = consumer
        self.got: list[Message] = []

    async def take(self, count: int = 1, *, timeout_s: float = 30.0) -> list[bytes]:
        """The next messages; payloads, in the order of their arrival."""
        return await self.user.run(self.take_here(count, timeout_s=timeout_s))

    async def take_here(self, count: int = 1, *, timeout_s: float = 30.0) -> list[bytes]:
        payloads = []
        for _ in range(count):
            message = await self.consumer.receive(timeout_s=timeout_s)
            self.note(message)
            payloads.append(message.data)
        return payloads

    def note(self, message: Message) -> None:
        self.got.append(message)
        place = message.message_id
        self.user.record(
            Got(
                self.user.name,
                self.consumer.topic,
                self.consumer.subscription,
                place.ledger_id,
                place.entry_id,
                place.batch_index,
                message.data,
            )
        )

    def ack(self, *messages: Message, cumulative: bool = False) -> None:
        """Acknowledge messages, sent at the end of this turn."""
        self.user.call(lambda: self.ack_here(*messages, cumulative=cumulative))

    def ack_here(self, *messages: Message, cumulative: bool = False) -> None:
        for message in messages:
            self.user.record(
                AckCalled(
                    self.user.name,
                    self.consumer.topic,
                    self.consumer.subscription,
                    message.ledger_id,
                    message.entry_id,
                    cumulative,
                )
            )
            if cumulative:
                self.consumer.acknowledge_cumulative(message)
            else:
                self.consumer.acknowledge(message)

    async def has_nothing(self, *, for_s: float = 2.0) -> bool:
        """Whether no message comes within that time."""
        try:
            payloads = await self.take(timeout_s=for_s)
        except TimeoutError:
            return True
        self.user.record(Said(f"got {payloads} though nothing was expected"))
        return False


class SimReaderOf:
    """A reader of a client process. After a reconnect it goes on behind what was taken."""

    def __init__(self, user: SimUser, reader: Reader, name: str = "") -> None:
        self.user = user
        self.reader = reader
        self.name = name or f"{user.name}/r"
        self.got: list[tuple[int, int, bytes]] = []

    async def take(self, count: int = 1, *, timeout_s: float = 30.0) -> list[bytes]:
        return await self.user.run(self.take_here(count, timeout_s=timeout_s))

    async def take_here(self, count: int = 1, *, timeout_s: float = 30.0) -> list[bytes]:
        payloads = []
        for _ in range(count):
            message = await self.reader.read_next(timeout_s=timeout_s)
            place = message.message_id
            self.got.append((place.ledger_id, place.entry_id, message.data))
            payloads.append(message.data)
            self.user.record(
                Got(
                    self.name,
                    self.reader.topic,
                    "",
                    place.ledger_id,
                    place.entry_id,
                    place.batch_index,
                    message.data,
                )
            )
        return payloads
