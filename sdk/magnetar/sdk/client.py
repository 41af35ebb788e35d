"""The client: the way to producers, consumers and readers.

async with Client("pulsar://localhost:6650") as client:
    producer = await client.producer("orders")
    await producer.send(b"hello")
"""

import asyncio
import random as random_module
from types import TracebackType
from typing import Self

from magnetar.sdk.connection import Connection
from magnetar.sdk.connection_pool import ConnectionPool
from magnetar.sdk.consumer import Consumer
from magnetar.sdk.context import ClientContext, Closable
from magnetar.sdk.errors import AlreadyClosedError, NotSupportedError
from magnetar.sdk.lookup import Lookup
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.ports import Clock, Network, SystemClock, SystemNetwork
from magnetar.sdk.producer import Producer
from magnetar.sdk.reader import Reader
from magnetar.sdk.service_url import ServiceUrl
from magnetar.sdk.settings import (
    ClientSettings,
    ConsumerSettings,
    InitialPosition,
    ProducerSettings,
    ReaderSettings,
)
from magnetar.sdk.tls import tls_context
from magnetar.sdk.wire.topic_name import TopicName

_PLAIN_TOPICS_MAX = 100_000
"""Topics that are remembered as not partitioned; then all are asked for again."""


class Client:
    """Connects to brokers as needed; everything it made is closed with it."""

    def __init__(
        self,
        url: str = "pulsar://127.0.0.1:6650",
        settings: ClientSettings | None = None,
        *,
        network: Network | None = None,
        clock: Clock | None = None,
        random: random_module.Random | None = None,
    ) -> None:
        """Nothing is connected before the first producer, consumer or reader is made.

        Raises:
            InvalidUrlError: the URL cannot be used.
            TlsFileError: a certificate, or list of authorities, cannot be used.
        """
        self._settings = settings or ClientSettings()
        service_url = ServiceUrl.parse(url)
        if network is None:
            network = SystemNetwork(tls_context(self._settings) if service_url.is_tls else None)
        self._pool = ConnectionPool(self._settings, network)
        self._lookup = Lookup(service_url, self._pool, listener_name=self._settings.listener_name)
        self._open: dict[Closable, None] = {}  # in the order of their making
        self._context = ClientContext(
            settings=self._settings,
            find=self._find,
            clock=clock or SystemClock(),
            random=random or random_module.Random(),
            forget=lambda user: self._open.pop(user, None) and None,
        )
        self._next_producer_id = 0
        self._next_consumer_id = 0
        self._plain_topics: set[TopicName] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(flush=kind is None)

    async def producer(self, topic: str, settings: ProducerSettings | None = None) -> Producer:
        """A producer, connected and ready.

        Raises:
            TopicNameError: no valid topic name.
            ServiceError: the broker refused; its class says why.
            BrokerUnavailableError, OperationTimeoutError: not ready in time.
            NotSupportedError: the topic is partitioned.
        """
        name = self._parse(topic)
        producer_id, self._next_producer_id = self._next_producer_id, self._next_producer_id + 1
        producer = Producer(self._context, name, producer_id, settings or ProducerSettings())
        await producer.start()
        self._open[producer] = None
        return producer

    async def consumer(
        self, topic: str, subscription: str, settings: ConsumerSettings | None = None
    ) -> Consumer:
        """A consumer, subscribed.

        Raises:
            As `producer`; ConsumerBusyError if the subscription is taken.
        """
        name = self._parse(topic)
        chosen = settings or ConsumerSettings()
        # For a subscription that is not durable brokers go by the start alone.
        from_start = not chosen.durable and chosen.initial_position is InitialPosition.EARLIEST
        start = MessageId.EARLIEST if from_start else None
        return await self._consume(name, subscription, chosen, start=start)

    async def reader(
        self,
        topic: str,
        start: MessageId = MessageId.EARLIEST,
        settings: ReaderSettings | None = None,
    ) -> Reader:
        """A reader that begins behind `start` (or with it, if `start_inclusive`).

        Raises:
            As `producer`.
        """
        name = self._parse(topic)
        chosen = settings or ReaderSettings()
        suffix = f"{self._context.random.getrandbits(40):010x}"
        consumer = await self._consume(
            name,
            f"reader-{suffix}",
            ConsumerSettings(
                name=chosen.name,
                durable=False,
                initial_position=InitialPosition.LATEST,
                receiver_queue_messages=chosen.receiver_queue_messages,
                verify_checksum=chosen.verify_checksum,
                decompressed_bytes_max=chosen.decompressed_bytes_max,
                read_compacted=chosen.read_compacted,
            ),
            start=start,
            start_inclusive=chosen.start_inclusive,
        )
        return Reader(consumer, start, start_inclusive=chosen.start_inclusive)

    async def partitions(self, topic: str) -> int:
        """Number of partitions of a topic; 0 if it is not partitioned.

        Raises:
            TopicNameError, ServiceError, BrokerUnavailableError, OperationTimeoutError
        """
        return await self._lookup.partitions(str(TopicName.parse(topic)))

    async def close(self, *, flush: bool = True) -> None:
        """Close producers, consumers and connections.

        With `flush` that waits for the receipts of what is pending, at most the send timeout.

        Raises:
            SdkError: a message failed that nobody watched; everything is closed all the same.
        """
        if self._closed:
            return
        self._closed = True
        try:
            results = await asyncio.gather(
                *(user.close(flush=flush) for user in list(self._open)), return_exceptions=True
            )
        finally:
            await self._pool.close()
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _consume(
        self,
        topic: TopicName,
        subscription: str,
        settings: ConsumerSettings,
        *,
        start: MessageId | None = None,
        start_inclusive: bool = False,
    ) -> Consumer:
        consumer_id, self._next_consumer_id = self._next_consumer_id, self._next_consumer_id + 1
        consumer = Consumer(
            self._context,
            topic,
            subscription,
            consumer_id,
            settings,
            start=start,
            start_inclusive=start_inclusive,
        )
        await consumer.start()
        self._open[consumer] = None
        return consumer

    def _parse(self, topic: str) -> TopicName:
        if self._closed:
            raise AlreadyClosedError("the client is closed")
        return TopicName.parse(topic)

    async def _find(self, topic: TopicName) -> Connection:
        if topic.partition_index < 0 and topic not in self._plain_topics:
            if await self._lookup.partitions(str(topic)):
                raise NotSupportedError(
                    f"{topic} is partitioned; this client does not spread over partitions yet: "
                    f"use {topic.partition(0)} and so on"
                )
            if len(self._plain_topics) >= _PLAIN_TOPICS_MAX:
                self._plain_topics.clear()
            self._plain_topics.add(topic)
        return await self._lookup.connection_for(str(topic))
