"""Client: the entry point for producers, consumers and readers.

async with Client("pulsar://localhost:6650") as client:
    producer = await client.producer("orders")
    await producer.send(b"hello")
"""

import asyncio
import logging
import os
import random as random_module
import re
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self, cast, overload

from magnetar.sdk.backoff import Backoff
from magnetar.sdk.connection import Connection, ConnectionPool
from magnetar.sdk.consumer import Consumer
from magnetar.sdk.consuming.dead_letters import DeadLetters
from magnetar.sdk.consuming.topic_consumer import TopicConsumer
from magnetar.sdk.consuming.topic_source import (
    GivenTopics,
    MatchingTopics,
    TopicPattern,
    TopicSource,
    wait_topics,
)
from magnetar.sdk.consuming.topics_consumer import TopicsConsumer
from magnetar.sdk.context import ClientContext, Closable
from magnetar.sdk.errors import (
    AlreadyClosedError,
    ForkedError,
    NotSupportedError,
    OperationTimeoutError,
    SchemaDefinitionError,
    SdkError,
)
from magnetar.sdk.lookup import Lookup
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.opening import WARNING_AFTER_S, OpenedT, Opening, warned
from magnetar.sdk.ports import Clock, Network, SystemClock, SystemNetwork
from magnetar.sdk.producer import Producer
from magnetar.sdk.producing.partitioned_producer import PartitionedProducer
from magnetar.sdk.producing.send_room import MemoryLimit
from magnetar.sdk.producing.topic_producer import TopicProducer
from magnetar.sdk.reader import Reader
from magnetar.sdk.scalable.checkpoint import Checkpoint
from magnetar.sdk.scalable.checkpoint_consumer import CheckpointConsumer, CheckpointReading
from magnetar.sdk.scalable.names import LayoutName, is_scalable_name
from magnetar.sdk.scalable.queue_consumer import QueueConsumer
from magnetar.sdk.scalable.scalable_producer import ScalableProducer
from magnetar.sdk.scalable.stream_consumer import StreamConsumer
from magnetar.sdk.schema import Schema, SchemaInfo, T
from magnetar.sdk.schema_versions import get_or_create_schema, get_schema
from magnetar.sdk.service_url import ServiceUrl
from magnetar.sdk.session import until
from magnetar.sdk.settings import (
    ClientSettings,
    ConsumerSettings,
    InitialPosition,
    ProducerSettings,
    ReaderSettings,
    check_settings,
)
from magnetar.sdk.stats import ProducerStats
from magnetar.sdk.table_view import TableView
from magnetar.sdk.tls import renewed_tls_context, tls_context
from magnetar.sdk.transaction import Transaction, TransactionCoordinators
from magnetar.sdk.wire.errors import TopicNameError
from magnetar.sdk.wire.topic_name import TopicName

_log = logging.getLogger("magnetar.sdk")

_PLAIN_TOPICS_MAX = 100_000
"""Topics remembered as not partitioned. At this bound all are forgotten, and asked for again."""

Topics = str | Sequence[str] | re.Pattern[str]
"""One topic, several, or a pattern that topic names match."""


class Client:
    """Client of one cluster. Connects to brokers as needed; `close` closes all that it made."""

    def __init__(
        self,
        url: str = "pulsar://127.0.0.1:6650",
        settings: ClientSettings | None = None,
        *,
        network: Network | None = None,
        clock: Clock | None = None,
        random: random_module.Random | None = None,
    ) -> None:
        """Check the settings. The client connects when the first producer or consumer is made.

        Raises:
            InvalidUrlError: the URL cannot be used.
            TlsFileError: a certificate, or list of authorities, cannot be used.
            TypeError: `settings` is not a `ClientSettings`.
        """
        self._settings = check_settings(settings or ClientSettings(), ClientSettings)
        service_url = ServiceUrl.parse(url)
        self._url = url
        if network is None:
            network = SystemNetwork()
            if service_url.is_tls:
                tls_context(self._settings)  # Fails now if the TLS files cannot be used.
                network = SystemNetwork(partial(renewed_tls_context, self._settings))
        self._pool = ConnectionPool(self._settings, network)
        self._lookup = Lookup(service_url, self._pool, listener_name=self._settings.listener_name)
        self._open: dict[Closable, None] = {}  # in the order of creation
        memory_bytes = self._settings.memory_bytes_max
        self._context = ClientContext(
            settings=self._settings,
            find=self._find,
            find_any=self._lookup.service_connection,
            memory=MemoryLimit(memory_bytes) if memory_bytes else None,
            lookup=self._lookup,
            remember_plain=self._remember_plain,
            next_consumer_id=self._take_consumer_id,
            client=self,
            clock=clock or SystemClock(),
            random=random or random_module.Random(),
            forget=lambda user: self._open.pop(user, None) and None,
        )
        self._consuming = ConsumerMaking(self._context, self._opened)
        self._coordinators = TransactionCoordinators(
            count=self._lookup.partitions,
            find=lambda topic: self._lookup.connection_for(str(topic)),
            settings=self._settings,
            clock=self._context.clock,
        )
        self._next_producer_id = 0
        self._next_consumer_id = 0
        self._plain_topics: set[TopicName] = set()
        self._closed = False
        self._pid = os.getpid()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(flush=kind is None)

    def __repr__(self) -> str:
        kinds = {"producers": Producer, "consumers": Consumer}
        counts = [
            f"{sum(isinstance(each, kind) for each in self._open)} {name}"
            for name, kind in kinds.items()
        ]
        state = "closed" if self._closed else "open"
        return f"<Client of {self._url}, {state}, {', '.join(counts)}>"

    @overload
    def producer(
        self, topic: str, settings: ProducerSettings | None = None
    ) -> Opening[Producer]: ...
    @overload
    def producer(
        self, topic: str, settings: ProducerSettings | None = None, *, schema: Schema[T]
    ) -> Opening[Producer[T]]: ...
    def producer(
        self,
        topic: str,
        settings: ProducerSettings | None = None,
        *,
        schema: Schema[T] | None = None,
    ) -> Opening[Producer[T]]:
        """Create a producer, connected and ready. With a schema it sends values instead of bytes.

        Await the result, or enter it by `async with`, which closes it at the end of the block. To a
        scalable topic (`topic://tenant/namespace/name`) the producer sends by the topic's layout;
        to other topics only if `follow_layout` is set.

        Raises:
            TopicNameError: the topic name is not valid.
            IncompatibleSchemaError: the topic has another schema, which this one does not fit.
            ServiceError: the broker refused; the subclass says why.
            BrokerUnavailableError, OperationTimeoutError: not ready in time.
            TypeError: `settings` is not a `ProducerSettings`.
        """
        return self._opening(
            f"producer of {topic}", partial(self._producer, topic, settings, schema)
        )

    async def _producer(
        self, topic: str, settings: ProducerSettings | None, schema: Schema[T] | None
    ) -> Producer[T]:
        self._check_open()
        chosen = check_settings(settings or ProducerSettings(), ProducerSettings)
        by_layout = chosen.follow_layout or is_scalable_name(topic)
        layout_name = LayoutName.parse(topic) if by_layout else None
        name = layout_name.whole if layout_name is not None else TopicName.parse(topic)
        if schema is not None:
            schema = schema.for_topic()
            if schema.takes_topic_schema:
                schema.adopt(await self.schema(str(name)))
        if layout_name is not None:
            return await self._scalable_producer(layout_name, chosen, schema)
        if name.is_segment:
            # The entry buckets of a segment are in the layout, which is not followed here. So no
            # entry may hold keys of two buckets.
            chosen = replace(chosen, batch_by_key=True)
        partitions = await self._partition_count(name)
        producer: PartitionedProducer[T] | TopicProducer[T]
        if partitions:
            # Values are encoded before a partition is chosen; the broker gets the schema.
            told = cast("Schema[bytes] | None", schema)
            producer = PartitionedProducer(
                self._context,
                name,
                partitions,
                chosen,
                schema,
                make=lambda one: TopicProducer(
                    self._context, one, self._take_producer_id(), chosen, told
                ),
                count=lambda: self._lookup.partitions(str(name)),
            )
        else:
            producer = TopicProducer(self._context, name, self._take_producer_id(), chosen, schema)
        await producer.start()
        self._open[producer] = None
        return producer

    async def _scalable_producer(
        self, name: LayoutName, settings: ProducerSettings, schema: Schema[T] | None
    ) -> Producer[T]:
        # Values are encoded before a segment is chosen; the broker gets the schema.
        told = cast("Schema[bytes] | None", schema)
        producer = ScalableProducer(
            self._context,
            name,
            settings,
            schema,
            make=lambda context, segment, chosen, buckets: TopicProducer(
                context, segment, self._take_producer_id(), chosen, told, entry_buckets=buckets
            ),
        )
        await producer.start()
        self._open[producer] = None
        return producer

    @overload
    def consumer(
        self, topic: Topics, subscription: str, settings: ConsumerSettings | None = None
    ) -> Opening[Consumer]: ...
    @overload
    def consumer(
        self,
        topic: Topics,
        subscription: str,
        settings: ConsumerSettings | None = None,
        *,
        schema: Schema[T] | None,
    ) -> Opening[Consumer[T]]: ...
    def consumer(
        self,
        topic: Topics,
        subscription: str,
        settings: ConsumerSettings | None = None,
        *,
        schema: Schema[T] | None = None,
    ) -> Opening[Consumer[T]]:
        """Create a consumer and subscribe it. With a schema `Message.value` returns decoded values.

        Await the result, or enter it by `async with`, which closes it at the end of the block. It
        consumes one topic, with all partitions if it has some; several topics; or all topics that
        match a pattern (`re.compile("orders-.*")`), including topics created later.

        Raises:
            ConsumerBusyError: the subscription is taken.
            TopicNameError: a topic name is not valid.
            IncompatibleSchemaError: the topic has another schema, which this one does not fit.
            ServiceError: the broker refused; the subclass says why.
            BrokerUnavailableError, OperationTimeoutError: not ready in time.
            NotSupportedError: the settings do not go with several topics or a pattern.
            TypeError: `settings` is not a `ConsumerSettings`.
        """
        what = f"consumer of {_names_of(topic)}, subscription {subscription}"
        return self._opening(what, partial(self._consumer, topic, subscription, settings, schema))

    async def _consumer(
        self,
        topic: Topics,
        subscription: str,
        settings: ConsumerSettings | None,
        schema: Schema[T] | None,
    ) -> Consumer[T]:
        self._check_open()
        return await self._consuming.consumer(
            topic,
            subscription,
            check_settings(settings or ConsumerSettings(), ConsumerSettings),
            cast("Schema[object] | None", schema),
        )

    @overload
    def reader(
        self,
        topic: Topics,
        start: MessageId = MessageId.EARLIEST,
        settings: ReaderSettings | None = None,
    ) -> Opening[Reader]: ...
    @overload
    def reader(
        self,
        topic: Topics,
        start: MessageId = MessageId.EARLIEST,
        settings: ReaderSettings | None = None,
        *,
        schema: Schema[T] | None,
    ) -> Opening[Reader[T]]: ...
    def reader(
        self,
        topic: Topics,
        start: MessageId = MessageId.EARLIEST,
        settings: ReaderSettings | None = None,
        *,
        schema: Schema[T] | None = None,
    ) -> Opening[Reader[T]]:
        """Create a reader, which begins after `start` (or with it, if `start_inclusive`).

        Await the result, or enter it by `async with`, which closes it at the end of the block. A
        reader reads one topic, several, or those that match a pattern. With several topics or
        partitions `start` must be EARLIEST or LATEST.

        Raises:
            TopicNameError: a topic name is not valid.
            IncompatibleSchemaError: the topic has another schema, which this one does not fit.
            ServiceError: the broker refused; the subclass says why.
            BrokerUnavailableError, OperationTimeoutError: not ready in time.
            NotSupportedError: a start message id was given for several topics.
            TypeError: `settings` is not a `ReaderSettings`.
        """
        what = f"reader of {_names_of(topic)}"
        return self._opening(what, partial(self._reader, topic, start, settings, schema))

    async def _reader(
        self,
        topic: Topics,
        start: MessageId,
        settings: ReaderSettings | None,
        schema: Schema[T] | None,
    ) -> Reader[T]:
        self._check_open()
        return await self._consuming.reader(
            topic,
            start,
            check_settings(settings or ReaderSettings(), ReaderSettings),
            cast("Schema[object] | None", schema),
        )

    @overload
    def stream_consumer(
        self, topic: str, subscription: str, settings: ConsumerSettings | None = None
    ) -> Opening[Consumer]: ...
    @overload
    def stream_consumer(
        self,
        topic: str,
        subscription: str,
        settings: ConsumerSettings | None = None,
        *,
        schema: Schema[T] | None,
    ) -> Opening[Consumer[T]]: ...
    def stream_consumer(
        self,
        topic: str,
        subscription: str,
        settings: ConsumerSettings | None = None,
        *,
        schema: Schema[T] | None = None,
    ) -> Opening[Consumer[T]]:
        """Create a consumer that gets each key's messages in order, also over splits and merges.

        Await the result, or enter it by `async with`, which closes it at the end of the block. The
        consumers of a subscription divide the topic's segments among them. The topic is scalable,
        plain or partitioned.

        Raises:
            NotSupportedError: the broker has no layouts, or stream consumers lack one of the
                settings.
            TopicNameError, IncompatibleSchemaError, ServiceError, TypeError: see `consumer`.
            BrokerUnavailableError, OperationTimeoutError: not ready in time.
        """
        what = f"stream consumer of {topic}, subscription {subscription}"
        make = partial(StreamConsumer, schema=cast("Schema[object] | None", schema))
        return self._opening(what, partial(self._of_segments, make, topic, subscription, settings))

    @overload
    def queue_consumer(
        self, topic: str, subscription: str, settings: ConsumerSettings | None = None
    ) -> Opening[Consumer]: ...
    @overload
    def queue_consumer(
        self,
        topic: str,
        subscription: str,
        settings: ConsumerSettings | None = None,
        *,
        schema: Schema[T] | None,
    ) -> Opening[Consumer[T]]: ...
    def queue_consumer(
        self,
        topic: str,
        subscription: str,
        settings: ConsumerSettings | None = None,
        *,
        schema: Schema[T] | None = None,
    ) -> Opening[Consumer[T]]:
        """Create a consumer that shares its subscription's messages with others, without order.

        Await the result, or enter it by `async with`, which closes it at the end of the block. The
        topic is scalable, plain or partitioned. All consumers of a subscription share all segments.

        Raises:
            NotSupportedError: the broker has no layouts, or queue consumers lack one of the
                settings.
            TopicNameError, IncompatibleSchemaError, ServiceError, TypeError: see `consumer`.
            BrokerUnavailableError, OperationTimeoutError: not ready in time.
        """
        what = f"queue consumer of {topic}, subscription {subscription}"
        make = partial(QueueConsumer, schema=cast("Schema[object] | None", schema))
        return self._opening(what, partial(self._of_segments, make, topic, subscription, settings))

    async def _of_segments(
        self,
        make: Callable[[ClientContext, LayoutName, str, ConsumerSettings], Consumer[Any]],
        topic: str,
        subscription: str,
        settings: ConsumerSettings | None,
    ) -> Consumer[Any]:
        self._check_open()
        chosen = check_settings(settings or ConsumerSettings(), ConsumerSettings)
        consumer = make(self._context, LayoutName.parse(topic), subscription, chosen)
        await consumer.start()
        self._open[consumer] = None
        return consumer

    @overload
    def checkpoint_consumer(
        self,
        topic: str,
        start: Checkpoint = Checkpoint.EARLIEST,
        settings: ReaderSettings | None = None,
    ) -> Opening[CheckpointConsumer]: ...
    @overload
    def checkpoint_consumer(
        self,
        topic: str,
        start: Checkpoint = Checkpoint.EARLIEST,
        settings: ReaderSettings | None = None,
        *,
        schema: Schema[T] | None,
    ) -> Opening[CheckpointConsumer[T]]: ...
    def checkpoint_consumer(
        self,
        topic: str,
        start: Checkpoint = Checkpoint.EARLIEST,
        settings: ReaderSettings | None = None,
        *,
        schema: Schema[T] | None = None,
    ) -> Opening[CheckpointConsumer[T]]:
        """Create a reader of all segments whose position the application keeps, by `checkpoint()`.

        Await the result, or enter it by `async with`, which closes it at the end of the block. The
        messages of each key come in order. The topic is scalable, plain or partitioned.

        Raises:
            NotSupportedError: the broker has no layouts, or checkpoint consumers lack one of the
                settings.
            TopicNameError, IncompatibleSchemaError, ServiceError: see `consumer`.
            BrokerUnavailableError, OperationTimeoutError: not ready in time.
            TypeError: `start` is not a `Checkpoint`, or `settings` not a `ReaderSettings`.
        """
        what = f"checkpoint consumer of {topic}"
        return self._opening(
            what, partial(self._checkpoint_consumer, topic, start, settings, schema)
        )

    async def _checkpoint_consumer(
        self,
        topic: str,
        start: Checkpoint,
        settings: ReaderSettings | None,
        schema: Schema[T] | None,
    ) -> CheckpointConsumer[T]:
        self._check_open()
        if not isinstance(start, Checkpoint):
            raise TypeError(f"start must be a Checkpoint, not {type(start).__name__}")
        reading = CheckpointReading(
            self._context,
            LayoutName.parse(topic),
            start,
            check_settings(settings or ReaderSettings(), ReaderSettings),
            schema=cast("Schema[object] | None", schema),
        )
        await reading.start()
        self._open[reading] = None
        return CheckpointConsumer(reading)

    def table_view(
        self,
        topic: Topics,
        settings: ReaderSettings | None = None,
        *,
        changes_max: int = 10_000,
    ) -> Opening[TableView]:
        """Create a table view, which follows the newest value of each key of one topic or several.

        Await the result, or enter it by `async with`, which closes it at the end of the block. When
        the call returns, the view has all that was stored before the call.

        Args:
            settings: settings of the view's reader; by default it reads the compacted topic first.
            changes_max: changes that may wait for one `changes()`; a slower one gets TooSlowError.

        Raises:
            TopicNameError, IncompatibleSchemaError, ServiceError, TypeError: see `reader`.
            BrokerUnavailableError, OperationTimeoutError: not ready in time.
        """
        what = f"table view of {_names_of(topic)}"
        return self._opening(what, partial(self._table_view, topic, settings, changes_max))

    async def _table_view(
        self, topic: Topics, settings: ReaderSettings | None, changes_max: int
    ) -> TableView:
        self._check_open()
        view = TableView(
            partial(self._consuming.reader, topic, MessageId.EARLIEST),
            check_settings(settings or ReaderSettings(read_compacted=True), ReaderSettings),
            changes_max=changes_max,
        )
        await view.start()
        return view

    def transaction(self, timeout_ms: int = 60_000) -> Transaction:
        """Create a transaction, which begins with `async with` (or `begin`).

        The end of the block commits it. An exception in the block aborts it, and the broker aborts
        it after `timeout_ms`.
        """
        self._check_open()
        return Transaction(self._coordinators, timeout_ms)

    async def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic; 0 if it is not partitioned.

        Raises:
            TopicNameError, ServiceError, BrokerUnavailableError, OperationTimeoutError
        """
        return await self._lookup.partitions(str(self._parse(topic)))

    async def schema(self, topic: str, version: bytes = b"") -> SchemaInfo | None:
        """Return a version of a topic's schema, by default the latest; None if the topic has none.

        Raises:
            TopicNameError, ServiceError, BrokerUnavailableError, OperationTimeoutError
            SchemaVersionError: the schema is of a type that this client does not know.
        """
        name = self._parse(topic)
        found = await get_schema(await self._lookup.service_connection(), str(name), version)
        return None if found is None else found[0]

    async def register_schema(self, topic: str, schema: Schema[T] | SchemaInfo) -> bytes:
        """Register a schema with a topic that is in use, and return its version.

        A schema that the topic already has keeps its version.

        Raises:
            TopicNotFoundError: no client has used the topic since its broker took it over.
            IncompatibleSchemaError: the schema does not fit the topic's schemas.
            SchemaDefinitionError: a schema of bytes has nothing to register.
            TopicNameError, ServiceError, BrokerUnavailableError, OperationTimeoutError
        """
        name = self._parse(topic)
        info = schema.info if isinstance(schema, Schema) else schema
        if info is None:
            raise SchemaDefinitionError(f"{topic}: the schema has no definition")
        first = name.partition(0) if await self._lookup.partitions(str(name)) else name
        connection = await self._lookup.connection_for(str(first))
        return await get_or_create_schema(connection, str(first), info)

    def producer_stats(self) -> ProducerStats:
        """Return the statistics of all open producers, added up."""
        return ProducerStats.total(
            user.stats() for user in self._open if isinstance(user, Producer)
        )

    async def close(self, *, flush: bool = True) -> None:
        """Close producers, consumers and connections.

        With `flush`, wait for the receipts of pending messages, at most the send timeout. After a
        cancelled call, a second call closes what is left. In a child of a fork this does nothing,
        because everything belongs to the parent.

        Raises:
            SdkError: a message without a callback failed; everything is closed all the same.
        """
        if os.getpid() != self._pid:
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

    def _take_consumer_id(self) -> int:
        consumer_id, self._next_consumer_id = self._next_consumer_id, self._next_consumer_id + 1
        return consumer_id

    def _opened(self, user: Closable) -> None:
        self._open[user] = None

    def _opening(
        self, what: str, work: Callable[[], Coroutine[Any, Any, OpenedT]]
    ) -> Opening[OpenedT]:
        return Opening(warned(work, partial(self._warn_waiting, what)))

    def _warn_waiting(self, what: str) -> None:
        if self._pool.is_open:
            return  # A broker answers: something else takes long.
        _log.warning(
            "no_broker_yet %s: no broker of %s answers for %g s; trying on. Is one running there?",
            what,
            self._url,
            WARNING_AFTER_S,
        )

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedError(
                "the client was created before a fork: create one in the child process"
            )
        if self._closed:
            raise AlreadyClosedError("the client is closed")

    def _parse(self, topic: str) -> TopicName:
        self._check_open()
        return TopicName.parse(topic)

    def _take_producer_id(self) -> int:
        producer_id, self._next_producer_id = self._next_producer_id, self._next_producer_id + 1
        return producer_id

    async def _partition_count(self, topic: TopicName) -> int:
        """Return the number of partitions of a topic; 0 if it has none, or is a partition itself.

        Retries until a broker answers.

        Raises:
            ServiceError: a refusal that no retry can help.
            OperationTimeoutError: no broker answered within the operation timeout.
        """
        if topic.partition_index >= 0 or topic in self._plain_topics:
            return 0
        settings, clock = self._settings, self._context.clock
        backoff = Backoff(
            min_s=settings.reconnect_delay_min_ms / 1000,
            max_s=settings.reconnect_delay_max_ms / 1000,
            random=self._context.random,
        )
        deadline_s = clock.monotonic_s() + settings.operation_timeout_ms / 1000
        while True:
            try:
                count = await self._lookup.partitions(str(topic))
            except SdkError as error:
                if not error.retryable:
                    raise
                if clock.monotonic_s() >= deadline_s:
                    raise OperationTimeoutError(
                        f"{topic}: not ready within {settings.operation_timeout_ms} ms; "
                        f"last: {error}"
                    ) from error
                await asyncio.sleep(until(deadline_s, backoff.next_s(), clock))
                continue
            if not count:
                self._remember_plain(topic)
            return count

    def _remember_plain(self, topic: TopicName) -> None:
        if len(self._plain_topics) >= _PLAIN_TOPICS_MAX:
            self._plain_topics.clear()
        self._plain_topics.add(topic)

    async def _find(self, topic: TopicName) -> Connection:
        is_whole = topic.partition_index < 0 and not topic.is_segment
        if is_whole and topic not in self._plain_topics:
            if await self._lookup.partitions(str(topic)):
                raise NotSupportedError(
                    f"{topic} has become partitioned: create the producer again"
                )
            self._remember_plain(topic)
        return await self._lookup.connection_for(str(topic))


def _names_of(topic: Topics) -> str:
    """Return the topics as text for log lines."""
    return topic.pattern if isinstance(topic, re.Pattern) else str(topic)


class ConsumerMaking:
    """Makes the consumers and readers of one client."""

    def __init__(self, context: ClientContext, opened: Callable[[Closable], None]) -> None:
        """Take the client's context. `opened` gets all that must be closed with the client."""
        self._context = context
        self._opened = opened

    async def consumer(
        self,
        topic: Topics,
        subscription: str,
        settings: ConsumerSettings,
        schema: Schema[object] | None = None,
    ) -> Consumer[Any]:
        """Create and start a consumer.

        Raises:
            SdkError: see `Client.consumer`.
        """
        # For a non-durable subscription brokers ignore the initial position, and use the start.
        start = settings.start_message_id
        if start is None and not settings.durable:
            earliest = settings.initial_position is InitialPosition.EARLIEST
            start = MessageId.EARLIEST if earliest else MessageId.LATEST
        return await self._start(
            await self._make(topic, subscription, settings, start, settings.start_inclusive, schema)
        )

    async def reader(
        self,
        topic: Topics,
        start: MessageId,
        settings: ReaderSettings,
        schema: Schema[object] | None = None,
    ) -> Reader[Any]:
        """Create and start a reader, as a consumer with a subscription of its own.

        Raises:
            SdkError: see `Client.reader`.
        """
        suffix = f"{self._context.random.getrandbits(40):010x}"
        consumer = await self._make(
            topic,
            f"reader-{suffix}",
            settings.for_consumer(),
            start,
            settings.start_inclusive,
            schema,
        )
        return Reader(await self._start(consumer))

    async def _start(self, consumer: Consumer[Any]) -> Consumer[Any]:
        await consumer.start()
        self._opened(consumer)
        return consumer

    async def _make(
        self,
        topic: Topics,
        subscription: str,
        settings: ConsumerSettings,
        start: MessageId | None,
        start_inclusive: bool,
        schema: Schema[object] | None,
    ) -> Consumer[Any]:
        context = self._context
        if isinstance(topic, re.Pattern):
            pattern = TopicPattern.parse(topic)
            if settings.retry_topic:
                raise NotSupportedError("retry_topic needs topics by name, not a pattern")
            # A consumer of existing topics must not bring back a deleted one.
            settings = replace(settings, create_topic=False)
            several = partial(MatchingTopics, context.lookup, pattern, context.next_consumer_id())
            return self._several(
                topic.pattern, subscription, settings, several, None, start, start_inclusive, schema
            )
        names = [TopicName.parse(each) for each in ([topic] if isinstance(topic, str) else topic)]
        if not names:
            raise TopicNameError("no topic at all: give at least one")
        first = names[0]
        if settings.retry_topic:
            letters = DeadLetters(context, first, subscription, settings.dead_letters)
            names.append(letters.retry_topic)
        source = GivenTopics(context.lookup, names)
        if len(names) == 1 and await wait_topics(source, context) == names:
            context.remember_plain(first)
            return TopicConsumer(
                context,
                first,
                subscription,
                context.next_consumer_id(),
                settings,
                start=start,
                start_inclusive=start_inclusive,
                schema=schema,
            )
        only = str(first) if len(names) == 1 else f"{first} and {len(names) - 1} more"
        return self._several(
            only, subscription, settings, lambda _: source, first, start, start_inclusive, schema
        )

    def _several(
        self,
        name: str,
        subscription: str,
        settings: ConsumerSettings,
        make_source: Callable[[Callable[[], None]], TopicSource],
        first: TopicName | None,
        start: MessageId | None,
        start_inclusive: bool,
        schema: Schema[object] | None,
    ) -> TopicsConsumer:
        if start is not None and start not in (MessageId.EARLIEST, MessageId.LATEST):
            raise NotSupportedError(
                f"{name}: a start message id belongs to one topic, and these are several: start at "
                "EARLIEST or LATEST, and seek"
            )
        return TopicsConsumer(
            self._context,
            name,
            subscription,
            settings,
            make_source,
            first=first,
            start=start,
            start_inclusive=start_inclusive,
            schema=schema,
        )
