"""Consumer and reader sessions: from the consumers of the SDK to frames, and back."""

import asyncio
from collections.abc import Sequence

import structlog

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.websocket.access import Rights
from magnetar.broker.websocket.consumer_core import (
    FIRST,
    Ask,
    ConsumerCore,
    Deliveries,
    Effect,
    QueueSize,
    ReaderCore,
)
from magnetar.broker.websocket.dead_letters import DeadLetters, dead_letter_topic
from magnetar.broker.websocket.endpoint import ConsumerParameters, Endpoint, ReaderParameters
from magnetar.broker.websocket.errors import UpgradeRefusedError
from magnetar.broker.websocket.frames import END_OF_TOPIC
from magnetar.broker.websocket.session import Links, Socket, Traffic
from magnetar.broker.websocket.sources import Sources
from magnetar.ledger.ports import Clock
from magnetar.sdk.consumer import Consumer
from magnetar.sdk.errors import SdkError
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.settings import ConsumerSettings, ReaderSettings
from magnetar.sdk.wire.topic_name import TopicName

_log = structlog.get_logger()

_QUEUE_ALL_TOPICS_MAX = 50_000
"""Messages that the queues of all partitions of a session hold together, as in Pulsar's clients."""


class _Receiving:
    """Common base of consumers and readers: takes messages while the core has room."""

    def __init__(
        self, core: ConsumerCore | ReaderCore, settings: BrokerSettings, *, clock: Clock
    ) -> None:
        self._core = core
        self._settings = settings
        self._clock = clock
        self._sources = Sources(on_ready=self._pump_soon)
        self._sizes: dict[Consumer, QueueSize] = {}
        self._topics_opened = 1
        self.traffic = Traffic()
        self._socket: Socket | None = None
        self._pump_handle: asyncio.Handle | None = None
        self._is_closed = False

    @property
    def topics(self) -> list[TopicName]:
        return self._sources.topics

    @property
    def discovers(self) -> bool:
        return False

    async def discover(self) -> None:
        """Do nothing; sessions that can gain topics override this."""

    def begin(self, socket: Socket) -> None:
        self._socket = socket
        self._pump_soon()

    def on_writable(self) -> None:
        self._pump_soon()

    def on_text(self, data: bytes) -> None:
        effect = self._core.on_text(data)
        if effect.ask is Ask.TELL_END:
            assert self._socket is not None
            self._socket.send([END_OF_TOPIC[self._sources.reached_end]])
            return
        self._carry_out(effect)
        self._pump_soon()

    async def close(self) -> None:
        self._is_closed = True
        self._socket = None
        if self._pump_handle is not None:
            self._pump_handle.cancel()
        await self._sources.close()

    def _carry_out(self, effect: Effect) -> None:
        """Act on a frame beyond its effect on slots."""

    async def _open_one(self, topic: TopicName) -> Consumer:
        raise NotImplementedError

    def _queue_size(self, messages_max: int) -> QueueSize:
        """Return the queue size of one consumer: its share of what the session may hold.

        Consumers that exist keep their share when topics are added, so all may hold more than that:
        by the logarithm of the number of topics if they come one by one.
        """
        most = max(1, min(messages_max, _QUEUE_ALL_TOPICS_MAX // self._topics_opened))
        return QueueSize(
            messages_max=most,
            bytes_max=self._settings.websocket_queue_bytes_max // self._topics_opened,
            first=max(1, FIRST // self._topics_opened),
        )

    def _check_count(self, topics: Sequence[TopicName]) -> None:
        most = self._settings.websocket_topics_max
        if len(topics) > most:
            raise UpgradeRefusedError(
                400, f"the consumer has {len(topics)} topics and partitions; the limit is {most}"
            )

    def _pump_soon(self) -> None:
        if self._pump_handle is None and not self._is_closed:
            self._pump_handle = asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Send available messages while there is room and the client reads."""
        self._pump_handle = None
        socket, core = self._socket, self._core
        if socket is None or self._is_closed:
            return
        now_s = self._clock.monotonic_s()
        while socket.is_writable and self._may_take and (room := core.room) > 0:
            taken = self._sources.take(room)
            if taken is None:
                break
            consumer, messages = taken
            size = sum(len(each.data) for each in messages)
            if self._sizes[consumer].took(len(messages), size):
                consumer.resize_queue(self._sizes[consumer].messages)
            deliveries = self._deliver(consumer, messages, now_s)
            if deliveries.dead:
                self._put_dead(consumer, deliveries.dead)
            if deliveries.discarded:
                consumer.acknowledge_many(deliveries.discarded)
            if deliveries.frames:
                self.traffic.messages += len(deliveries.frames)
                self.traffic.payload_bytes += deliveries.payload_bytes
                socket.send(deliveries.frames)
            self._after_take(consumer, messages[-1].message_id, deliveries.sent)

    @property
    def _may_take(self) -> bool:
        """Whether there is room for messages that do not go to the client."""
        return True

    def _deliver(self, consumer: Consumer, messages: list[Message], now_s: float) -> Deliveries:
        raise NotImplementedError

    def _put_dead(self, consumer: Consumer, messages: list[Message]) -> None:
        """Handle messages that were delivered too often."""

    def _after_take(self, consumer: Consumer, last: MessageId, sent: Sequence[MessageId]) -> None:
        """Note that the messages of a consumer up to `last` were taken, and which ones were
        sent."""


class ConsumerSession(_Receiving):
    """One consumer behind a web socket, on one or several topics."""

    def __init__(
        self,
        endpoint: Endpoint,
        parameters: ConsumerParameters,
        rights: Rights,
        links: Links,
        settings: BrokerSettings,
        *,
        clock: Clock,
    ) -> None:
        core = ConsumerCore(parameters, unacknowledged_max=settings.websocket_unacknowledged_max)
        super().__init__(core, settings, clock=clock)
        self._consumer_core = core
        self._endpoint = endpoint
        self._parameters = parameters
        self._rights = rights
        self._links = links
        self._dead_letters = DeadLetters(
            links,
            endpoint.subscription,
            parameters.dead_letter_topic,
            initial_subscription=parameters.dead_letter_subscription,
            bytes_max=settings.websocket_queue_bytes_max,
            on_room=self._pump_soon,
        )
        self._ack_timer: asyncio.TimerHandle | None = None
        self._unsubscribing: asyncio.Task[None] | None = None

    @property
    def discovers(self) -> bool:
        endpoint = self._endpoint
        return endpoint.pattern is not None or any(
            topic.partitioned in endpoint.topics
            for topic in self._sources.topics
            if topic.partition_index >= 0
        )

    async def open(self) -> None:
        parents = await self._find_parents()
        self._check_count(parents)
        for topic in parents:
            await self._check_rights(topic)
        found = await asyncio.gather(*(self._links.topics_of(topic) for topic in parents))
        topics = [topic for topics in found for topic in topics]
        self._check_count(topics)
        self._topics_opened = max(1, len(topics))
        await self._sources.open(topics, self._open_one)

    async def check_rights(self) -> None:
        if self._endpoint.pattern is not None:
            await self._rights.check_list(self._endpoint.pattern.namespace)
        for topic in dict.fromkeys(topic.partitioned for topic in self._sources.topics):
            await self._check_rights(topic)

    async def discover(self) -> None:
        """Open new topics and partitions, up to the limit.

        Skip those that the client may not consume, or that cannot be opened now: they must not keep
        the session from the others. Discovery tries them again, within the room that is left.
        """
        room = self._settings.websocket_topics_max - len(self._sources.topics)
        if self._unsubscribing is not None or room <= 0:
            return
        new = (await self._find_new(room))[:room]
        self._topics_opened = max(1, len(self._sources.topics) + len(new))
        results = await asyncio.gather(
            *(self._sources.open([topic], self._open_one) for topic in new), return_exceptions=True
        )
        for topic, result in zip(new, results, strict=True):
            if isinstance(result, BaseException):
                _skip(topic, result)

    async def close(self) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
        await self._dead_letters.close()
        if self._unsubscribing is not None:
            await asyncio.gather(self._unsubscribing, return_exceptions=True)
        await super().close()

    async def _find_parents(self) -> Sequence[TopicName]:
        """Return the topics of the session; a partition counts as its topic."""
        pattern = self._endpoint.pattern
        if pattern is None:
            return self._endpoint.topics
        await self._rights.check_list(pattern.namespace)
        return pattern.select(await self._links.names_of(pattern.namespace))

    async def _find_new(self, room: int) -> list[TopicName]:
        """Return topics and partitions that the session does not have: those of its topics, and
        those of at most `room` other topics."""
        known = set(self._sources.topics)
        known_parents = {topic.partitioned for topic in known}
        parents: list[TopicName] = []
        for topic in await self._find_parents():
            is_known = topic in known_parents
            if (is_known or room > 0) and await self._may_consume(topic):
                parents.append(topic)
                room -= not is_known
        results = await asyncio.gather(
            *(self._links.topics_of(topic) for topic in parents), return_exceptions=True
        )
        found: list[TopicName] = []
        for parent, result in zip(parents, results, strict=True):
            if isinstance(result, BaseException):
                _skip(parent, result)
            else:
                found += result
        # A topic that had no partitions when it was subscribed keeps its consumer.
        return [topic for topic in found if topic not in known and topic.partitioned not in known]

    async def _may_consume(self, topic: TopicName) -> bool:
        try:
            await self._check_rights(topic)
        except UpgradeRefusedError as error:
            _log.debug("websocket_topic_skipped", topic=str(topic), error=str(error))
            return False
        return True

    async def _check_rights(self, topic: TopicName) -> None:
        """Check the rights to consume, and to produce to the dead letter topic: a refusal comes
        now, not with the first dead letter."""
        parameters, subscription = self._parameters, self._endpoint.subscription
        await self._rights.check_consume(topic, subscription)
        if parameters.redeliveries_max is not None:
            target = dead_letter_topic(str(topic), subscription, parameters.dead_letter_topic)
            await self._rights.check_produce(target)
            if parameters.dead_letter_subscription:
                await self._rights.check_consume(target, parameters.dead_letter_subscription)

    async def _open_one(self, topic: TopicName) -> Consumer:
        parameters = self._parameters
        size = self._queue_size(parameters.queue_messages)
        consumer = await self._links.client_for(topic).consumer(
            str(topic),
            self._endpoint.subscription,
            ConsumerSettings(
                name=parameters.name,
                subscription_type=parameters.subscription_type,
                initial_position=parameters.initial_position,
                durable=parameters.durable,
                receiver_queue_messages=size.messages,
                batch_index_ack=True,
                nack_delay_ms=parameters.nack_delay_ms,
                priority_level=parameters.priority_level,
                decompressed_bytes_max=self._settings.websocket_decompressed_bytes_max,
            ),
        )
        self._sizes[consumer] = size
        return consumer

    def _carry_out(self, effect: Effect) -> None:
        if effect.ask is Ask.UNSUBSCRIBE:
            if self._unsubscribing is None:
                self._unsubscribing = asyncio.create_task(self._unsubscribe(), name="unsubscribe")
            return
        if effect.message_id is None or self._is_unsubscribed:
            return
        consumer = self._sources.consumer_of(effect.message_id)
        if consumer is None:
            _log.info("websocket_unknown_message", message_id=str(effect.message_id))
        elif effect.ask is Ask.ACKNOWLEDGE:
            consumer.acknowledge(effect.message_id)
        elif effect.ask is Ask.REDELIVER:
            consumer.negative_acknowledge(effect.message_id)

    @property
    def _is_unsubscribed(self) -> bool:
        """Whether the subscriptions are gone. An unsubscribe under way may still fail: what the
        client acknowledges until then must not be delivered again."""
        return self._unsubscribing is not None and self._unsubscribing.done()

    async def _unsubscribe(self) -> None:
        """Unsubscribe. The client gets no answer; a failure is logged."""
        try:
            await self._sources.unsubscribe()
        except SdkError as error:
            _log.info(
                "websocket_unsubscribe_failed",
                subscription=self._endpoint.subscription,
                error=str(error),
            )
            self._unsubscribing = None

    @property
    def _may_take(self) -> bool:
        return not self._dead_letters.is_full

    def _deliver(self, consumer: Consumer, messages: list[Message], now_s: float) -> Deliveries:
        return self._consumer_core.deliver(messages, now_s)

    def _put_dead(self, consumer: Consumer, messages: list[Message]) -> None:
        self._dead_letters.put(consumer, messages)

    def _after_take(self, consumer: Consumer, last: MessageId, sent: Sequence[MessageId]) -> None:
        self._dead_letters.delivered(sent)
        if self._ack_timer is None:
            self._arm_ack_timer()

    def _arm_ack_timer(self) -> None:
        next_s = self._consumer_core.credit.next_timeout_s
        if next_s is not None:
            delay_s = max(0.0, next_s - self._clock.monotonic_s())
            self._ack_timer = asyncio.get_running_loop().call_later(delay_s, self._on_ack_timer)

    def _on_ack_timer(self) -> None:
        self._ack_timer = None
        # A timer may fire slightly early by this clock; a millisecond of slack covers that.
        expired = self._consumer_core.credit.take_expired(self._clock.monotonic_s() + 0.001)
        by_consumer: dict[Consumer, list[MessageId]] = {}
        for message_id in expired:
            consumer = self._sources.consumer_of(message_id)
            if consumer is not None:
                by_consumer.setdefault(consumer, []).append(message_id)
        for consumer, ids in by_consumer.items():
            consumer.redeliver(ids)
        self._arm_ack_timer()
        self._pump_soon()


class ReaderSession(_Receiving):
    """One reader behind a web socket."""

    def __init__(
        self,
        topic: TopicName,
        parameters: ReaderParameters,
        rights: Rights,
        links: Links,
        settings: BrokerSettings,
        *,
        clock: Clock,
    ) -> None:
        core = ReaderCore(
            queue_messages=parameters.queue_messages, on_encrypted=parameters.on_encrypted
        )
        super().__init__(core, settings, clock=clock)
        self._reader_core = core
        self._topic = topic
        self._parameters = parameters
        self._rights = rights
        self._links = links

    async def open(self) -> None:
        await self._rights.check_read(self._topic)
        topics = await self._links.topics_of(self._topic)
        self._check_count(topics)
        start = self._parameters.start
        is_partitioned = topics != [self._topic]
        if is_partitioned and start not in (MessageId.EARLIEST, MessageId.LATEST):
            raise UpgradeRefusedError(
                400, f"messageId: {self._topic} is partitioned: use earliest or latest"
            )
        self._topics_opened = max(1, len(topics))
        await self._sources.open(topics, self._open_one)

    async def check_rights(self) -> None:
        await self._rights.check_read(self._topic)

    async def _open_one(self, topic: TopicName) -> Consumer:
        size = self._queue_size(self._parameters.queue_messages)
        reader = await self._links.client_for(topic).reader(
            str(topic),
            self._parameters.start,
            ReaderSettings(
                name=self._parameters.name,
                receiver_queue_messages=size.messages,
                decompressed_bytes_max=self._settings.websocket_decompressed_bytes_max,
            ),
        )
        self._sizes[reader.consumer] = size
        return reader.consumer

    def _deliver(self, consumer: Consumer, messages: list[Message], now_s: float) -> Deliveries:
        return self._reader_core.deliver(messages, consumer.resume_id)

    def _after_take(self, consumer: Consumer, last: MessageId, sent: Sequence[MessageId]) -> None:
        # Tells the broker the reader's position: for its backlog, and to let it drop read messages.
        consumer.acknowledge_cumulative(last)


def _skip(topic: TopicName, error: BaseException) -> None:
    """Log that a topic was not opened. Raise an error that is a defect."""
    if not isinstance(error, SdkError):
        raise error
    _log.info("websocket_topic_skipped", topic=str(topic), error=str(error))
