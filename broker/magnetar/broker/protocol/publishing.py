"""The publishing side of one connection: PRODUCER, SEND, CLOSE_PRODUCER.

SENDs are the hot path. All SENDs of one read are collected per producer, and go to the topic as one
batch per producer (`flush`). Each message costs a checksum and a few list appends, and no await.
Refusals are answered in the order of the SENDs.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from magnetar.broker.base import naming, replies
from magnetar.broker.base.entry import MARKER, admit, messages_in, metadata_of
from magnetar.broker.base.errors import (
    BrokerMetadataError,
    MessageChecksumError,
    NotAllowedError,
    ProtocolViolationError,
    RequestError,
    ServiceNotReadyError,
    TopicNotFoundError,
    TopicTerminatedError,
)
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.ownership.protocol import Destination
from magnetar.broker.features.transactions.errors import (
    AlreadyStoredError,
    TransactionsDisabledError,
)
from magnetar.broker.features.transactions.ids import TransactionId
from magnetar.broker.features.transactions.markers import id_in, with_transaction
from magnetar.broker.protocol.link import Link
from magnetar.broker.protocol.login import Login
from magnetar.broker.security import Action, Subscription
from magnetar.broker.security import Topic as TopicResource
from magnetar.broker.topic import PublishBatch, Topic
from magnetar.broker.topic.access import SHARED, Access
from magnetar.broker.topic.admission import check_initial_subscription
from magnetar.broker.topic.producer import Producer
from magnetar.broker.topic.publish_limits import PublishRate
from magnetar.broker.topics.schema_admission import version_for_producer
from magnetar.broker.topics.services import Services
from magnetar.ledger.position import EARLIEST
from magnetar.sdk.wire import BaseCommand, Send, TopicName, split_payload
from magnetar.sdk.wire.pulsar_pb2 import (
    CommandCloseProducer,
    CommandProducer,
)

PRODUCER_NAME_BYTES_MAX = 1024
"""Limit in UTF-8 bytes. The name is in every message, and a topic with deduplication stores it."""


_LEAVING_PER_TURN = 25
"""Producers of a lost connection that leave in one turn of the event loop."""


class _Pending:
    """A producer that is being created; closing it before the end cancels the creation."""

    __slots__ = ("cancel", "is_cancelled")

    def __init__(self) -> None:
        self.is_cancelled = False
        self.cancel: Callable[[], None] | None = None
        """Cancels the wait of a producer in the queue for exclusive access; None if it does not
        wait."""


class Publishing:
    """Producers of one connection, and their unpersisted publishes."""

    def __init__(self, link: Link, services: Services, login: Login) -> None:
        self.write = link.write
        """Used by producers, for which this object represents the connection."""
        self._link = link
        self._services = services
        self._login = login
        self._settings = services.settings
        self._message_bytes_max = self._settings.message_bytes_max
        self._budget = services.budget
        self._clock = services.clock
        self._latency = services.counters.publish_latency
        self._sizes = services.counters.entry_sizes
        self._producers: dict[int, Producer] = {}
        self._creating: dict[int, _Pending] = {}
        self._batches: dict[int, PublishBatch] = {}
        self._leaving: set[int] = set()
        """Producers that are about to be closed; their further messages are not taken."""
        self._closed_until_s: dict[int, float] = {}
        """Until when, monotonic seconds, late SENDs of producers that the broker closed are
        ignored."""
        self._rates: dict[PublishRate, None] = {}
        """Rates of topics that this connection published to, which may be exceeded."""
        self._pending_messages = 0
        self._pending_bytes = 0

    def producers(self) -> Sequence[Producer]:
        """Return the connected producers."""
        return list(self._producers.values())

    # The connection as its producers see it

    @property
    def address(self) -> str:
        """Address of the client, host:port."""
        return self._link.address

    @property
    def client_version(self) -> str:
        """Name and version that the client reports."""
        return self._link.client_version

    @property
    def is_closed(self) -> bool:
        """Whether the connection is lost; some of its producers may leave in later turns."""
        return self._link.is_lost

    @property
    def is_partial_producer(self) -> bool:
        """Whether the client creates producers only for the partitions that it needs."""
        return self._link.is_partial_producer

    async def is_alive(self) -> bool:
        """Probe the client with a PING. A client that does not answer is disconnected."""
        return await self._link.is_alive()

    # Commands

    def handlers(self) -> dict[int, Callable[[BaseCommand], None]]:
        return {
            BaseCommand.PRODUCER: lambda command: self._on_producer(command.producer),
            BaseCommand.CLOSE_PRODUCER: lambda command: self._on_close(command.close_producer),
        }

    # SEND

    def on_send(self, send: Send, payload: bytes) -> None:
        """Add one message to its producer's batch.

        Raises:
            ProtocolViolationError: there is no such producer.
        """
        producer_id, sequence_id, highest_id, txn = send
        batch = self._batches.get(producer_id)
        if batch is None:
            producer = self._producers.get(producer_id)
            if producer is not None and producer_id in self._leaving:
                return
            if producer is None:
                self._unknown_producer(producer_id)
                return
            batch = self._batches[producer_id] = PublishBatch(
                producer_id, producer.name, producer.checks, producer
            )
        size = len(payload)
        try:
            metadata = admit(payload)
            if size > self._message_bytes_max:
                self._check_size(payload)
            if txn is not None and not self._takes_transactions(producer_id):
                return
            if highest_id and highest_id < sequence_id:
                raise BrokerMetadataError(
                    f"the message has sequence ids from {sequence_id} down to {highest_id}; they "
                    "must ascend"
                )
            if txn is not None and id_in(metadata_of(payload)) is None:
                payload = with_transaction(payload, TransactionId(*txn))
                metadata, size = metadata_of(payload), len(payload)
            if batch.checks:
                seen = metadata_of(payload) if metadata is None else metadata
                for check in batch.checks:
                    check(batch, send, seen, payload)
            if metadata is not None and metadata.HasField("marker_type"):
                _check_marker(batch)
        except AlreadyStoredError:
            self._flush_one(producer_id)
            producer = self._producers.get(producer_id)
            if producer is not None:  # Not closed by the flush.
                producer.receipt_again(sequence_id, highest_id)
            return
        except RequestError as error:
            batch.forget_next()
            self._reject(send, error)
            return
        if metadata is None:
            messages = 1
        else:
            messages = messages_in(metadata)
            if metadata.num_chunks_from_msg > 1:
                batch.note_chunk()
            elif messages == MARKER or metadata.deliver_at_time:
                batch.is_plain = False
        batch.payloads.append(payload)
        batch.counts.append(messages)
        batch.sequence_ids.append(sequence_id)
        batch.highest_ids.append(highest_id)
        if highest_id:
            batch.has_highest_ids = True
        batch.messages += messages
        batch.size_bytes += size

    def _takes_transactions(self, producer_id: int) -> bool:
        """Whether the topic is ready for transactions.

        If not, the topic is being prepared, and the producer is closed once its earlier messages
        are answered. Its client reconnects, and sends this message again.

        Raises:
            NotAllowedError: the topic takes part in no transactions.
        """
        producer = self._producers[producer_id]
        if producer.line.takes_transactions():
            return True
        self._flush_one(producer_id)
        self._close_when_answered(producer_id, producer)
        return False

    def _close_when_answered(self, producer_id: int, producer: Producer) -> None:
        """Take no more messages of a producer, and close it once all earlier ones are answered.

        Its client reconnects, and sends again what has no receipt.
        """
        if producer.is_closed:
            return  # A later producer with its id must not count as leaving.
        self._leaving.add(producer_id)
        producer.close_by_client(producer.close_by_broker)

    def _check_size(self, payload: bytes) -> None:
        """Refuse a message that is too large.

        The limit is for the payload alone: a chunk of the official client fills it completely, and
        its metadata come on top.

        Raises:
            NotAllowedError
        """
        _, body_at = split_payload(payload)
        size, limit = len(payload) - body_at, self._settings.message_bytes_max
        if size > limit:
            raise NotAllowedError(f"the message has {size} bytes; the limit is {limit}")

    def _reject(self, send: Send, error: RequestError) -> None:
        producer_id, sequence_id, highest_id, _ = send
        if isinstance(error, MessageChecksumError):
            self._services.counters.checksum_errors += 1
        self._flush_one(producer_id)
        producer = self._producers.get(producer_id)
        if producer is None:
            return
        producer.reject(max(sequence_id, highest_id), error)
        if producer.line.closes_after_refusal(send) or naming.is_replicator(producer.name):
            # The client may send the message again. If later ones were taken meanwhile, a topic
            # with deduplication or transactions would answer that as a duplicate of a message that
            # is not stored.
            self._close_when_answered(producer_id, producer)

    def _unknown_producer(self, producer_id: int) -> None:
        if self._clock.monotonic_s() >= self._closed_until_s.get(producer_id, 0.0):
            raise ProtocolViolationError(f"a message of producer {producer_id}, which is unknown")

    def flush(self) -> None:
        """Hand the collected batches to the topics."""
        if not self._batches:
            return
        batches, self._batches = self._batches, {}
        now_s = self._clock.monotonic_s()
        for producer_id, batch in batches.items():
            self._publish(producer_id, batch, now_s)

    def _flush_one(self, producer_id: int) -> None:
        batch = self._batches.pop(producer_id, None)
        if batch is not None:
            self._publish(producer_id, batch, self._clock.monotonic_s())

    def _publish(self, producer_id: int, batch: PublishBatch, now_s: float) -> None:
        producer = self._producers.get(producer_id)
        if producer is None or not batch.payloads:
            return  # closed since: the client resends what has no receipt
        batch.arrived_s = now_s
        self._pending_messages += len(batch.payloads)
        self._pending_bytes += batch.size_bytes
        self._budget.take(batch.size_bytes)
        rate = producer.line.rate
        if rate.is_limited:
            rate.spend(batch.messages, batch.size_bytes)
            self._rates[rate] = None
        producer.publish(batch)

    # Back-pressure

    def on_publishes_done(self, batch: PublishBatch) -> None:
        """Release the pending counts of publishes that are durable, or have failed."""
        entries = len(batch.payloads)
        self._pending_messages -= entries
        self._pending_bytes -= batch.size_bytes
        self._budget.give_back(batch.size_bytes)
        if batch.error is None:
            self._latency.observe(self._clock.monotonic_s() - batch.arrived_s, entries)
            self._sizes.observe(batch.size_bytes / entries, entries)
        if self._link.is_full:
            self._link.on_room()

    def resume_publishing(self) -> None:
        """Resume reading: the broker, or a topic, has room for publishes again."""
        self._link.on_room()

    def is_full(self, *, was_paused: bool) -> bool:
        """Whether the connection must not be read. Once paused, it waits until half of a limit is
        free."""
        settings = self._settings
        share = 2 if was_paused else 1
        if self._budget.is_exhausted and self._pending_bytes:
            self._budget.wait(self)
            return True
        if self._rates and self._is_over_a_rate():
            return True
        return (
            self._pending_messages * share >= settings.publishes_per_connection_max
            or self._pending_bytes * share >= settings.publish_bytes_per_connection_max
        )

    def _is_over_a_rate(self) -> bool:
        """Whether a topic that this connection published to is over its rate; if so, wait for that
        rate."""
        for rate in list(self._rates):
            if rate.wait_s() > 0:
                rate.wait(self)
                return True
            rate.forget(self)
            del self._rates[rate]
        return False

    # PRODUCER

    def _on_producer(self, request: CommandProducer) -> None:
        link = self._link
        request_id, producer_id = request.request_id, request.producer_id
        existing = self._producers.get(producer_id)
        refuse = partial(_refuse, request_id)
        if existing is not None:
            link.write(_success(request_id, existing))
        elif producer_id in self._creating:
            link.write(refuse(ServiceNotReadyError(f"producer {producer_id} is being created")))
        elif (
            len(self._producers) + len(self._creating)
            >= self._settings.producers_per_connection_max
        ):
            link.write(refuse(NotAllowedError("too many producers on this connection")))
        else:
            pending = self._creating[producer_id] = _Pending()
            if not link.start(self._create(request, pending), refuse):
                del self._creating[producer_id]

    async def _create(self, request: CommandProducer, pending: _Pending) -> None:
        services = self._services
        producer_id = request.producer_id
        try:
            name = naming.topic_of(request.topic)
            naming.check_client_metadata(
                request.producer_name,
                request.initial_subscription_name,
                properties=request.metadata,
                bytes_max=services.settings.client_metadata_bytes_max,
            )
            await self._check_rights(name, request)
            _check_producer(request, services.settings)
            producer_name = request.producer_name or services.next_producer_name()
            topic = await self._topic(name)
            await services.gate.enter()
            topic.check_open_to_clients()
            await topic.line.admit_producer(producer_name, is_transactional=request.txn_enabled)
            if request.producer_access_mode == SHARED:  # Other modes may wait for room.
                await topic.access.admit(self, producer_name)
            await services.keeping.quotas.check_producer(topic, producer_name)
            schema_version = await version_for_producer(services.schemas, topic, request)
            if request.initial_subscription_name:
                await self._ensure_subscription(topic, request.initial_subscription_name)
            producer = await topic.access.join(
                self,
                producer_id,
                name=producer_name,
                epoch=request.epoch,
                access=Access(
                    request.producer_access_mode,
                    topic_epoch=request.topic_epoch if request.HasField("topic_epoch") else None,
                    is_encrypted=request.encrypted,
                    on_queued=partial(self._queued, request, pending, producer_name),
                ),
            )
            try:
                # The rights may have been revoked while it waited.
                await self._check_rights(name, request)
            except BaseException:
                producer.close()
                raise
            if producer.is_closed:
                raise ServiceNotReadyError(f"{name} has closed the producer meanwhile")
            producer.schema_version = schema_version
            producer.metadata = {each.key: each.value for each in request.metadata}
        finally:
            if self._creating.get(producer_id) is pending:
                del self._creating[producer_id]
        if self.is_closed or pending.is_cancelled:
            producer.close()
            return
        self._closed_until_s.pop(producer_id, None)
        self._producers[producer_id] = producer
        self._link.write(_success(request.request_id, producer))

    async def _topic(self, name: TopicName) -> Topic:
        """Return a topic, or refuse a segment that is deleted as terminated.

        The producer of a terminated segment moves to its children. If the topic counted as not
        found, the client would look it up again and again.
        """
        topics = self._services.topics
        try:
            return await topics.get(name)
        except TopicNotFoundError as error:
            if name.is_segment and await topics.scalable.is_gone(name):
                raise TopicTerminatedError(f"{name} is gone: it takes no more messages") from error
            raise

    async def _check_rights(self, name: TopicName, request: CommandProducer) -> None:
        login = self._login
        await login.check(Action.PRODUCE, TopicResource(name))
        if naming.is_replicator(request.producer_name):
            # A replicator's messages may set their time, place and producer of publishing (rule
            # 15.2).
            await login.check(Action.ADMINISTER, TopicResource(name))
        if request.initial_subscription_name:
            wanted = Subscription(name, request.initial_subscription_name)
            await login.check(Action.CONSUME, wanted)

    def _queued(
        self,
        request: CommandProducer,
        pending: _Pending,
        producer_name: str,
        cancel: Callable[[], None],
    ) -> None:
        """Tell the client that its producer waits in a queue; it is notified at its turn."""
        pending.cancel = cancel
        self._link.write(
            replies.producer_success(
                request.request_id, producer_name=producer_name, is_ready=False
            )
        )

    async def _ensure_subscription(self, topic: Topic, subscription: str) -> None:
        """Create the subscription that a dead-letter producer requests, so that it misses no
        message.

        A non-persistent topic needs none.
        """
        naming.check_subscription(subscription)
        if not topic.name.is_persistent:
            return
        if subscription not in topic.subscriptions:
            check_initial_subscription(str(topic.name), topic.policies, subscription)
        topics = self._services.topics
        open_cursor = partial(
            topics.open_cursor, topic, topics.log_of(topic), subscription, EARLIEST, {}
        )
        await topic.subscriptions.ensure(subscription, open_cursor)

    # Closing

    def _on_close(self, request: CommandCloseProducer) -> None:
        answer = replies.success(request.request_id)
        pending = self._creating.pop(request.producer_id, None)
        if pending is not None:
            pending.is_cancelled = True
            if pending.cancel is not None:
                pending.cancel()
        producer = self._producers.pop(request.producer_id, None)
        self._leaving.discard(request.producer_id)
        if producer is None:
            self._link.write(answer)
            return
        producer.close_by_client(partial(self._closed, producer, answer))

    def _closed(self, producer: Producer, answer: bytes) -> None:
        producer.close()
        self._link.write(answer)

    def producer_leaves(self, producer: Producer) -> None:
        """Take no more messages of a producer that is closed once earlier ones are answered."""
        if self._producers.get(producer.producer_id) is producer:
            self._leaving.add(producer.producer_id)

    def producer_closed(self, producer: Producer, destination: Destination | None) -> None:
        """Tell the client that the producer was closed, and ignore its late SENDs for a while."""
        if self._producers.get(producer.producer_id) is not producer:
            return
        del self._producers[producer.producer_id]
        self._leaving.discard(producer.producer_id)
        self._batches.pop(producer.producer_id, None)
        self._closed_until_s[producer.producer_id] = (
            self._clock.monotonic_s() + self._settings.keep_alive_interval_ms / 1000
        )
        url = self._link.url_of(destination)
        self._link.write(replies.close_producer(producer.producer_id, url))

    def on_tick(self) -> None:
        """Forget closed producers whose last SENDs must have arrived by now."""
        now_s = self._clock.monotonic_s()
        for producer_id in [each for each, until in self._closed_until_s.items() if until <= now_s]:
            del self._closed_until_s[producer_id]

    def lost(self) -> None:
        """Handle the loss of the connection: its producers leave."""
        self._budget.forget(self)
        self._batches.clear()
        for rate in self._rates:
            rate.forget(self)
        producers, self._producers = self._producers, {}
        _leave(list(producers.values()))


def _leave(leaving: list[Producer]) -> None:
    """Close producers of a lost connection, some at once and some in each later turn."""
    for producer in leaving[:_LEAVING_PER_TURN]:
        producer.close()
    rest = leaving[_LEAVING_PER_TURN:]
    if rest:
        asyncio.get_running_loop().call_soon(_leave, rest)


def _check_marker(batch: PublishBatch) -> None:
    """Refuse a marker of a client, which other brokers would obey.

    Raises:
        NotAllowedError: the producer is no replicator.
    """
    if not naming.is_replicator(batch.producer_name):
        raise NotAllowedError(
            f"producer {batch.producer_name} may not publish markers: only brokers write them"
        )


def _refuse(request_id: int, error: RequestError) -> bytes:
    return replies.error(request_id, error.code, str(error))


def _success(request_id: int, producer: Producer) -> bytes:
    return replies.producer_success(
        request_id,
        producer_name=producer.name,
        last_sequence_id=producer.line.last_sequence_id(producer.name),
        topic_epoch=producer.topic_epoch,
        schema_version=producer.schema_version,
    )


def _check_producer(request: CommandProducer, settings: BrokerSettings) -> None:
    """Refuse transactions if they are off, and names that are too long.

    Raises:
        NotAllowedError
    """
    size = len(request.producer_name.encode())
    if size > PRODUCER_NAME_BYTES_MAX:
        raise NotAllowedError(
            f"the producer name has {size} bytes; the limit is {PRODUCER_NAME_BYTES_MAX}"
        )
    if request.txn_enabled and not settings.transaction_coordinator_enabled:
        raise TransactionsDisabledError()
