"""The consuming side of one connection: SUBSCRIBE, FLOW, ACK and everything about a consumer.

FLOW, ACK and redelivery are handled at once; what touches a cursor's place (SUBSCRIBE, UNSUBSCRIBE,
SEEK) runs as a task. Commands for a consumer that is gone are normal (acknowledgements may arrive
after an unsubscribe) and ignored, unless they are requests, which get an answer.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from magnetar.broker import naming, replies
from magnetar.broker.consumer import (
    EXCLUSIVE,
    KEY_SHARED,
    SHARED,
    TYPE_NAMES,
    Consumer,
    HashRange,
    KeySharedMode,
)
from magnetar.broker.errors import (
    BrokerMetadataError,
    ConsumerNotFoundError,
    NotAllowedError,
    ProtocolViolationError,
    RequestError,
    ServiceNotReadyError,
    UnknownFailureError,
)
from magnetar.broker.positions import position_at_time, position_of
from magnetar.broker.schemas import check_schema
from magnetar.broker.security import Action
from magnetar.broker.security import Subscription as SubscriptionResource
from magnetar.broker.subscription import Subscription
from magnetar.broker.topic import OpenCursor, Topic
from magnetar.cursors import NonDurableCursor, SubscriptionCursor
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.position import EARLIEST, LATEST, Position
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire.pulsar_pb2 import (
    STICKY,
    CommandAck,
    CommandCloseConsumer,
    CommandConsumerStats,
    CommandConsumerStatsResponse,
    CommandFlow,
    CommandGetLastMessageId,
    CommandRedeliverUnacknowledgedMessages,
    CommandSeek,
    CommandSubscribe,
    CommandUnsubscribe,
)

if TYPE_CHECKING:
    from magnetar.broker.connection import Connection

_BATCH_INDEX_NONE = -1

# A range costs about as much as this many single acknowledgements.
_RANGE_ENTRIES_MIN = 4


class _Attached:
    """A consumer and the place it has."""

    __slots__ = ("consumer", "subscription", "topic")

    def __init__(self, consumer: Consumer, subscription: Subscription, topic: Topic) -> None:
        self.consumer = consumer
        self.subscription = subscription
        self.topic = topic


class _Pending:
    """A consumer that is being created; closing it before that is done cancels it."""

    __slots__ = ("is_cancelled",)

    def __init__(self) -> None:
        self.is_cancelled = False


class Consuming:
    """Consumers of one connection."""

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._services = connection.services
        self._consumers: dict[int, _Attached] = {}
        self._creating: dict[int, _Pending] = {}
        self._closed_until_s: dict[int, float] = {}
        """Consumers that the broker closed: acknowledgements under way are told so for a while."""

    def handlers(self) -> dict[int, Callable[[BaseCommand], None]]:
        return {
            BaseCommand.SUBSCRIBE: lambda command: self._on_subscribe(command.subscribe),
            BaseCommand.FLOW: lambda command: self._on_flow(command.flow),
            BaseCommand.ACK: lambda command: self._on_ack(command.ack),
            BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: lambda command: self._on_redeliver(
                command.redeliverUnacknowledgedMessages
            ),
            BaseCommand.UNSUBSCRIBE: lambda command: self._on_unsubscribe(command.unsubscribe),
            BaseCommand.CLOSE_CONSUMER: lambda command: self._on_close(command.close_consumer),
            BaseCommand.SEEK: lambda command: self._on_seek(command.seek),
            BaseCommand.GET_LAST_MESSAGE_ID: lambda command: self._on_last_message_id(
                command.getLastMessageId
            ),
            BaseCommand.CONSUMER_STATS: lambda command: self._on_stats(command.consumerStats),
        }

    def wake(self) -> None:
        """The connection can take more."""
        for attached in list(self._consumers.values()):
            attached.subscription.wake()

    # SUBSCRIBE

    def _on_subscribe(self, request: CommandSubscribe) -> None:
        connection = self._connection
        request_id, consumer_id = request.request_id, request.consumer_id
        refuse = partial(_refuse, request_id)
        settings = self._services.settings
        if consumer_id in self._consumers:
            connection.write(replies.success(request_id))
        elif consumer_id in self._creating:
            connection.write(
                refuse(ServiceNotReadyError(f"consumer {consumer_id} is being created"))
            )
        elif len(self._consumers) + len(self._creating) >= settings.consumers_per_connection_max:
            connection.write(refuse(NotAllowedError("too many consumers on this connection")))
        else:
            pending = self._creating[consumer_id] = _Pending()
            connection.start(self._subscribe(request, pending), refuse)

    async def _subscribe(self, request: CommandSubscribe, pending: _Pending) -> None:
        consumer_id = request.consumer_id
        try:
            attached = await self._attach(request)
        except ServiceNotReadyError as error:
            # The official client hangs on a retryable error here (trap 10); it recovers from a
            # lost connection. The load was tried for as long as the client waits anyway.
            raise ProtocolViolationError(f"subscribe is given up: {error}") from error
        finally:
            if self._creating.get(consumer_id) is pending:
                del self._creating[consumer_id]
        if self._connection.is_closed or pending.is_cancelled:
            attached.topic.consumer_left(attached.subscription, attached.consumer)
            return
        if attached.consumer.is_closed:
            # The topic was closed in the same moment: as if it had happened a little later.
            self._connection.write(replies.success(request.request_id))
            self._connection.write(replies.close_consumer(consumer_id))
            return
        self._closed_until_s.pop(consumer_id, None)
        self._consumers[consumer_id] = attached
        self._connection.write(replies.success(request.request_id))

    async def _attach(self, request: CommandSubscribe) -> _Attached:
        """Load the topic and join the subscription; a topic that closes meanwhile is loaded again.

        Raises:
            RequestError
        """
        topics = self._services.topics
        name = naming.topic_of(request.topic)
        naming.check_subscription(request.subscription)
        naming.check_text(request.consumer_name)
        await self._connection.login.check(
            Action.CONSUME, SubscriptionResource(name, request.subscription)
        )
        for each in request.subscription_properties:
            naming.check_text(each.key, each.value)
        _check_subscribe(request)
        deadline_s = (
            self._services.clock.monotonic_s()
            + self._services.settings.topic_load_timeout_ms / 1000
        )
        while True:
            topic = await topics.get(name, may_create=request.force_topic_creation)
            self._check_rate(topic, request)
            consumer = Consumer(
                self._connection,
                request.consumer_id,
                name=request.consumer_name,
                sub_type=request.subType,
                priority=request.priority_level,
                epoch=request.consumer_epoch if request.HasField("consumer_epoch") else -1,
                connected_at_ms=self._services.clock.wall_ms(),
                key_shared=_key_shared_mode(request),
                hash_ranges=_hash_ranges(request),
                reads_compacted=request.read_compacted,
            )
            try:
                subscription = await topic.subscribe(
                    request.subscription,
                    consumer,
                    is_durable=request.durable,
                    open_cursor=self._cursor_opener(request, topic, consumer),
                )
            except ServiceNotReadyError:
                if self._services.clock.monotonic_s() >= deadline_s:
                    raise
            else:
                return _Attached(consumer, subscription, topic)

    def _check_rate(self, topic: Topic, request: CommandSubscribe) -> None:
        """
        Raises:
            NotAllowedError: this consumer subscribes too often.
        """
        host = self._connection.address.rpartition(":")[0]
        consumer = (host, request.subscription, request.consumer_name, request.consumer_id)
        now_s = self._services.clock.monotonic_s()
        topic.subscribe_rate.check(str(topic.name), topic.policies, consumer, now_s)

    def _cursor_opener(
        self, request: CommandSubscribe, topic: Topic, consumer: Consumer
    ) -> OpenCursor:
        topics = self._services.topics

        async def open_cursor() -> SubscriptionCursor:
            initial, words = await self._initial_position(request, topic)
            consumer.start = initial
            if not request.durable:
                return NonDurableCursor(
                    topic.log, request.subscription, initial=initial, words=words
                )
            properties = {each.key: each.value for each in request.subscription_properties}
            return await topics.open_cursor(
                topic, topics.log_of(topic), request.subscription, initial, properties
            )

        return open_cursor

    async def _initial_position(
        self, request: CommandSubscribe, topic: Topic
    ) -> tuple[Position, Sequence[int]]:
        """The first entry that a new subscription delivers."""
        rollback_s = request.start_message_rollback_duration_sec
        if rollback_s > 0:
            since_ms = max(0, self._services.clock.wall_ms() - rollback_s * 1000)
            return await position_at_time(topic.log, since_ms), ()
        if not request.durable and request.HasField("start_message_id"):
            return position_of(request.start_message_id), ()
        if request.durable and request.initialPosition == CommandSubscribe.Earliest:
            return EARLIEST, ()
        return LATEST, ()

    # FLOW, ACK, redelivery

    def _on_flow(self, flow: CommandFlow) -> None:
        attached = self._consumers.get(flow.consumer_id)
        if attached is not None and flow.messagePermits > 0:
            attached.subscription.flow(attached.consumer, flow.messagePermits)

    def _on_ack(self, ack: CommandAck) -> None:
        error: RequestError | None = None
        attached = self._consumers.get(ack.consumer_id)
        if ack.txnid_most_bits or ack.txnid_least_bits:
            error = NotAllowedError("transactions are not supported by this broker")
        elif attached is not None and attached.topic.tenure.holds():
            self._acknowledge(attached, ack)
        elif attached is not None or ack.consumer_id in self._closed_until_s:
            # Not taken: the message comes again, wherever the topic is served now.
            error = ServiceNotReadyError(f"the topic of consumer {ack.consumer_id} has moved")
        if not ack.HasField("request_id"):
            return
        if error is None:
            answer = replies.ack_response(ack.consumer_id, ack.request_id)
        else:
            answer = replies.ack_response(
                ack.consumer_id, ack.request_id, code=error.code, message=str(error)
            )
        self._connection.write(answer)

    def _acknowledge(self, attached: _Attached, ack: CommandAck) -> None:
        subscription = attached.subscription
        last = attached.topic.log.last_confirmed
        if ack.ack_type == CommandAck.Cumulative:
            if len(ack.message_id) == 1:
                message_id = ack.message_id[0]
                position = position_of(message_id)
                if position <= last:
                    subscription.acknowledge_through(
                        position, message_id.ack_set, message_id.batch_size
                    )
            return
        consumer = attached.consumer
        # Clients collect acknowledgements, and most of them are consecutive: take them as ranges.
        # Plain attribute reads: ids of entries that exist are never negative.
        singles: list[Position] = []
        ledger_id = first = final = -1

        def take_range() -> None:
            if final - first < _RANGE_ENTRIES_MIN:
                singles.extend([Position(ledger_id, each) for each in range(first, final + 1)])
            else:
                subscription.acknowledge(consumer, ledger_id, first, final)

        for message_id in ack.message_id:
            entry_id = message_id.entryId
            if message_id.ack_set:
                position = Position(message_id.ledgerId, entry_id)
                if position <= last:
                    subscription.acknowledge_indexes(
                        consumer, position, message_id.ack_set, message_id.batch_size
                    )
            elif entry_id == final + 1 and message_id.ledgerId == ledger_id:
                final = entry_id
            else:
                if final >= 0:
                    take_range()
                ledger_id, first, final = message_id.ledgerId, entry_id, entry_id
        if final >= 0:
            take_range()
        if singles:
            subscription.acknowledge_each(consumer, [each for each in singles if each <= last])

    def _on_redeliver(self, request: CommandRedeliverUnacknowledgedMessages) -> None:
        attached = self._consumers.get(request.consumer_id)
        if attached is None:
            return
        positions = list(map(position_of, request.message_ids)) or None
        epoch = request.consumer_epoch if request.HasField("consumer_epoch") else -1
        attached.subscription.redeliver(attached.consumer, positions, epoch=epoch)

    # UNSUBSCRIBE, CLOSE_CONSUMER

    def _on_unsubscribe(self, request: CommandUnsubscribe) -> None:
        self._connection.start(
            self._unsubscribe(request), partial(_refuse, request.request_id), must_finish=True
        )

    async def _unsubscribe(self, request: CommandUnsubscribe) -> None:
        attached = self._consumers.get(request.consumer_id)
        if attached is None:
            raise BrokerMetadataError(f"there is no consumer {request.consumer_id}")
        await attached.topic.unsubscribe(
            attached.subscription, attached.consumer, is_forced=request.force
        )
        self._forget(attached)
        self._connection.write(replies.success(request.request_id))

    def _on_close(self, request: CommandCloseConsumer) -> None:
        pending = self._creating.pop(request.consumer_id, None)
        if pending is not None:
            pending.is_cancelled = True
        attached = self._consumers.pop(request.consumer_id, None)
        if attached is not None:
            attached.topic.consumer_left(attached.subscription, attached.consumer)
        self._connection.write(replies.success(request.request_id))

    def closed_by_broker(self, consumer: Consumer, url: str) -> None:
        """The consumer was closed: tell the client, which subscribes again under the same id.

        `url`: where the topic is now; empty: the client looks that up.
        """
        attached = self._consumers.get(consumer.consumer_id)
        if attached is not None and attached.consumer is consumer:
            del self._consumers[consumer.consumer_id]
            self._closed_until_s[consumer.consumer_id] = (
                self._services.clock.monotonic_s()
                + self._services.settings.keep_alive_interval_ms / 1000
            )
            self._connection.write(replies.close_consumer(consumer.consumer_id, url))

    def on_tick(self) -> None:
        """Forget closed consumers whose last acknowledgements must have arrived."""
        now_s = self._services.clock.monotonic_s()
        for consumer_id in [each for each, until in self._closed_until_s.items() if until <= now_s]:
            del self._closed_until_s[consumer_id]

    def _forget(self, attached: _Attached) -> None:
        consumer_id = attached.consumer.consumer_id
        if self._consumers.get(consumer_id) is attached:
            del self._consumers[consumer_id]

    def lost(self) -> None:
        """The connection is gone: everybody leaves."""
        consumers, self._consumers = self._consumers, {}
        for attached in consumers.values():
            attached.topic.consumer_left(attached.subscription, attached.consumer)

    # SEEK

    def _on_seek(self, request: CommandSeek) -> None:
        self._connection.start(
            self._seek(request), partial(_refuse, request.request_id), must_finish=True
        )

    async def _seek(self, request: CommandSeek) -> None:
        attached = self._consumers.get(request.consumer_id)
        if attached is None:
            raise BrokerMetadataError(f"there is no consumer {request.consumer_id}")
        if request.HasField("message_id") == request.HasField("message_publish_time"):
            raise BrokerMetadataError("a seek takes either a message id or a publish time")

        async def find() -> tuple[Position, Sequence[int]]:
            if request.HasField("message_publish_time"):
                return await position_at_time(attached.topic.log, request.message_publish_time), ()
            return position_of(request.message_id), request.message_id.ack_set

        try:
            await attached.subscription.seek(attached.consumer, find)
        except LedgerError as error:
            raise UnknownFailureError(f"the position was not found: {error}") from error
        self._connection.write(replies.success(request.request_id))

    # Questions

    def _on_last_message_id(self, request: CommandGetLastMessageId) -> None:
        self._connection.start(self._last_message_id(request), partial(_refuse, request.request_id))

    async def _last_message_id(self, request: CommandGetLastMessageId) -> None:
        attached = self._consumers.get(request.consumer_id)
        if attached is None:
            raise BrokerMetadataError(f"there is no consumer {request.consumer_id}")
        partition = attached.topic.name.partition_index
        topic = attached.topic
        last = None
        if attached.consumer.reads_compacted and topic.compaction is not None:
            last = await topic.compaction.last_message()
        position, batch_index = last if last is not None else await topic.last_message()
        if not attached.topic.tenure.holds():
            raise ServiceNotReadyError(f"{attached.topic.name} has moved")  # and may have grown
        mark_delete = attached.subscription.cursor.mark_delete
        self._connection.write(
            replies.last_message_id(
                request.request_id,
                last=replies.message_id(position, partition=partition, batch_index=batch_index),
                mark_delete=(
                    replies.message_id(mark_delete, partition=partition)
                    if mark_delete.ledger_id >= 0
                    else None
                ),
            )
        )

    def _on_stats(self, request: CommandConsumerStats) -> None:
        attached = self._consumers.get(request.consumer_id)
        if attached is None:
            error = ConsumerNotFoundError(f"there is no consumer {request.consumer_id}")
            response = CommandConsumerStatsResponse(
                request_id=request.request_id, error_code=error.code, error_message=str(error)
            )
        else:
            response = self._stats(request.request_id, attached)
        self._connection.write(replies.consumer_stats(response))

    def _stats(self, request_id: int, attached: _Attached) -> CommandConsumerStatsResponse:
        consumer = attached.consumer
        seconds = max(1e-3, (self._services.clock.wall_ms() - consumer.connected_at_ms) / 1000)
        since = datetime.fromtimestamp(consumer.connected_at_ms / 1000, UTC)
        return CommandConsumerStatsResponse(
            request_id=request_id,
            # Averages over the consumer's life.
            msgRateOut=consumer.messages_out / seconds,
            msgThroughputOut=consumer.bytes_out / seconds,
            msgRateRedeliver=consumer.messages_redelivered / seconds,
            consumerName=consumer.name,
            availablePermits=max(0, consumer.permits),
            unackedMessages=consumer.unacked_messages,
            blockedConsumerOnUnackedMsgs=consumer.is_blocked,
            address=consumer.peer.address,
            connectedSince=since.isoformat(timespec="milliseconds"),
            type=TYPE_NAMES[consumer.sub_type],
            msgRateExpired=0.0,
            msgBacklog=attached.subscription.cursor.backlog_entries,
            messageAckRate=0.0,
        )


def _refuse(request_id: int, error: RequestError) -> bytes:
    return replies.error(request_id, error.code, str(error))


def _key_shared_mode(request: CommandSubscribe) -> KeySharedMode:
    meta = request.keySharedMeta
    if request.subType != KEY_SHARED or not request.HasField("keySharedMeta"):
        return KeySharedMode()
    return KeySharedMode(
        is_sticky=meta.keySharedMode == STICKY,
        is_unordered=meta.allowOutOfOrderDelivery,
    )


def _hash_ranges(request: CommandSubscribe) -> Sequence[HashRange]:
    """The hashes that the consumer asks for; they mean nothing with AUTO_SPLIT."""
    if request.subType == EXCLUSIVE or _key_shared_mode(request).is_sticky:
        return tuple(HashRange(each.start, each.end) for each in request.keySharedMeta.hashRanges)
    return ()


def _check_subscribe(request: CommandSubscribe) -> None:
    """Refuse what is not built.

    Raises:
        NotAllowedError
    """
    if request.read_compacted and request.subType in (SHARED, KEY_SHARED):
        raise NotAllowedError("read_compacted needs an Exclusive or Failover subscription")
    if request.HasField("schema"):
        check_schema(request.schema)
