"""The consuming side of one connection: SUBSCRIBE, FLOW, ACK and all other commands of consumers.

FLOW, ACK and redelivery are handled at once. Commands that affect a cursor's place (SUBSCRIBE,
UNSUBSCRIBE, SEEK) run as tasks. Commands for a consumer that has left are normal (acknowledgements
may arrive after an unsubscribe) and ignored, unless they are requests, which get an answer.

A SUBSCRIBE loads the topic, creates the subscription if need be, and starts a new one where the
request says (`Attacher`). Clients collect acknowledgements, most of them consecutive, so they are
taken as ranges (`acknowledge`).
"""

import asyncio
from collections.abc import Callable, MutableSequence, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import UTC, datetime
from functools import partial

from magnetar.broker.base import naming, replies
from magnetar.broker.base.errors import (
    BrokerMetadataError,
    ConsumerNotFoundError,
    NotAllowedError,
    RequestError,
    ServiceNotReadyError,
    UnknownFailureError,
)
from magnetar.broker.cluster.ownership.protocol import Destination
from magnetar.broker.features.compaction import Compaction
from magnetar.broker.features.scalable import SegmentSealing
from magnetar.broker.features.transactions.ids import TransactionId
from magnetar.broker.features.transactions.pending_acks import Ack
from magnetar.broker.features.transactions.topic_transactions import transactions_of
from magnetar.broker.protocol.link import Link
from magnetar.broker.protocol.login import Login
from magnetar.broker.security import Action
from magnetar.broker.security import Subscription as SubscriptionResource
from magnetar.broker.topic import OpenCursor, Topic
from magnetar.broker.topic.consumer import (
    EXCLUSIVE,
    KEY_SHARED,
    SHARED,
    TYPE_NAMES,
    Consumer,
    HashRange,
    KeySharedMode,
    OnClosed,
)
from magnetar.broker.topic.positions import position_at_time, position_of
from magnetar.broker.topic.subscription import Subscription
from magnetar.broker.topics.schema_admission import check_consumer, is_auto_consume
from magnetar.broker.topics.services import Services
from magnetar.cursors import WORDS_MAX, NonDurableCursor, SubscriptionCursor
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.position import EARLIEST, LATEST, Position
from magnetar.sdk.wire import BaseCommand, SingleAck, TopicName
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
    MessageIdData,
)

_LEAVING_PER_TURN = 25
"""Consumers of a lost connection that leave in one turn of the event loop."""

_IDS_PER_TURN = 500
"""Message ids of an acknowledgement in a transaction that are read in one turn of the event
loop."""

# A range costs about as much as this many single acknowledgements.
_RANGE_ENTRIES_MIN = 4


class Attached:
    """A consumer with its subscription and topic."""

    __slots__ = ("consumer", "subscription", "topic")

    def __init__(self, consumer: Consumer, subscription: Subscription, topic: Topic) -> None:
        self.consumer = consumer
        self.subscription = subscription
        self.topic = topic


class _Pending:
    """A consumer that is being created; closing it before the end cancels the creation."""

    __slots__ = ("is_cancelled",)

    def __init__(self) -> None:
        self.is_cancelled = False


class Consuming:
    """Consumers of one connection."""

    def __init__(self, link: Link, services: Services, login: Login) -> None:
        self._link = link
        self._services = services
        self._login = login
        self._consumers: dict[int, Attached] = {}
        self._creating: dict[int, _Pending] = {}
        self._closed_until_s: dict[int, float] = {}
        """Until when, monotonic seconds, late acknowledgements of consumers that the broker closed
        get an error."""

    def consumers(self) -> Sequence[tuple[TopicName, Subscription, Consumer]]:
        """Return the connected consumers, each with its topic and subscription."""
        return [
            (each.topic.name, each.subscription, each.consumer) for each in self._consumers.values()
        ]

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
        """Wake the subscriptions: the connection can take more."""
        for attached in list(self._consumers.values()):
            attached.subscription.wake()

    def _attached(self, consumer_id: int) -> Attached:
        """Return the consumer with an id.

        Raises:
            BrokerMetadataError: there is no such consumer.
        """
        attached = self._consumers.get(consumer_id)
        if attached is None:
            raise BrokerMetadataError(f"there is no consumer {consumer_id}")
        return attached

    # SUBSCRIBE

    def _on_subscribe(self, request: CommandSubscribe) -> None:
        link = self._link
        request_id, consumer_id = request.request_id, request.consumer_id
        refuse = partial(_refuse, request_id)
        settings = self._services.settings
        if consumer_id in self._consumers:
            link.write(replies.success(request_id))
        elif consumer_id in self._creating:
            link.write(refuse(ServiceNotReadyError(f"consumer {consumer_id} is being created")))
        elif len(self._consumers) + len(self._creating) >= settings.consumers_per_connection_max:
            link.write(refuse(NotAllowedError("too many consumers on this connection")))
        else:
            pending = self._creating[consumer_id] = _Pending()
            if not link.start(self._subscribe(request, pending), refuse):
                del self._creating[consumer_id]

    async def _subscribe(self, request: CommandSubscribe, pending: _Pending) -> None:
        consumer_id = request.consumer_id
        try:
            attacher = Attacher(
                self._link, self._services, self._login, on_closed=self._closed_by_broker
            )
            attached = await attacher.attach(request)
        except ServiceNotReadyError as error:
            # The official client hangs on a retryable error here (trap 10); it recovers from a lost
            # connection. Loading was tried for as long as the client waits anyway.
            self._link.give_up(f"subscribe is given up: {error}")
            return
        finally:
            if self._creating.get(consumer_id) is pending:
                del self._creating[consumer_id]
        if self._link.is_closed or pending.is_cancelled:
            attached.topic.subscriptions.left(attached.subscription, attached.consumer)
            return
        if attached.consumer.is_closed:
            # The topic was closed at the same moment: answer as if that had happened a little
            # later.
            self._link.write(replies.success(request.request_id))
            self._link.write(replies.close_consumer(consumer_id))
            return
        self._closed_until_s.pop(consumer_id, None)
        self._consumers[consumer_id] = attached
        self._link.write(replies.success(request.request_id))

    # FLOW, ACK, redelivery

    def _on_flow(self, flow: CommandFlow) -> None:
        attached = self._consumers.get(flow.consumer_id)
        if attached is not None and flow.messagePermits > 0:
            attached.subscription.flow(attached.consumer, flow.messagePermits)

    def on_single_ack(self, ack: SingleAck) -> None:
        """Acknowledge one entry as a whole, without an answer: by far the most frequent kind."""
        attached = self._consumers.get(ack.consumer_id)
        if attached is not None and attached.topic.tenure.holds():
            position = Position(ack.ledger_id, ack.entry_id)
            if position <= attached.topic.log.last_confirmed:
                attached.subscription.acknowledge_each(attached.consumer, (position,))

    def _on_ack(self, ack: CommandAck) -> None:
        error: RequestError | None = None
        attached = self._consumers.get(ack.consumer_id)
        if ack.HasField("txnid_most_bits") or ack.HasField("txnid_least_bits"):
            self._on_transactional_ack(ack, attached)
            return
        if attached is not None and attached.topic.tenure.holds():
            acknowledge(attached, ack)
        elif attached is not None or ack.consumer_id in self._closed_until_s:
            # Not acknowledged: the message is delivered again, wherever the topic is served now.
            error = ServiceNotReadyError(f"the topic of consumer {ack.consumer_id} has moved")
        if not ack.HasField("request_id"):
            return
        if error is None:
            answer = replies.ack_response(ack.consumer_id, ack.request_id)
        else:
            answer = replies.ack_response(
                ack.consumer_id, ack.request_id, code=error.code, message=str(error)
            )
        self._link.write(answer)

    def _on_transactional_ack(self, ack: CommandAck, attached: Attached | None) -> None:
        answer = partial(replies.ack_response, ack.consumer_id, ack.request_id)

        def refuse(error: RequestError) -> bytes:
            if not ack.HasField("request_id"):
                return b""
            return answer(code=error.code, message=str(error))

        async def acknowledge_in_transaction() -> None:
            if attached is None:
                raise ServiceNotReadyError(f"there is no consumer {ack.consumer_id} any more")
            transactions = transactions_of(attached.topic)
            pending_max = self._services.settings.transaction_pending_acks_max
            if len(ack.message_id) > pending_max:
                raise NotAllowedError(
                    f"{len(ack.message_id)} acknowledgements in one transaction; the limit of a "
                    f"subscription is {pending_max}"
                )
            individual, cumulative = await transactional_acks(attached, ack)
            await transactions.acks.acknowledge(
                attached.subscription,
                attached.consumer,
                TransactionId(ack.txnid_most_bits, ack.txnid_least_bits),
                individual,
                cumulative,
            )
            if ack.HasField("request_id"):
                self._link.write(answer())

        self._link.start(acknowledge_in_transaction(), refuse)

    def may_split(self, command: BaseCommand) -> bool:
        """Whether the message ids of a command may be handled in pieces.

        An acknowledgement in a transaction stays whole: it is accepted or refused as a whole. So
        does a redelivery request where order counts: each piece would send everything again.
        """
        if command.type == BaseCommand.ACK:
            ack = command.ack
            is_of_transaction = ack.HasField("txnid_most_bits") or ack.HasField("txnid_least_bits")
            return not is_of_transaction and ack.ack_type == CommandAck.Individual
        attached = self._consumers.get(command.redeliverUnacknowledgedMessages.consumer_id)
        return attached is not None and _sends_singly(attached)

    def _on_redeliver(self, request: CommandRedeliverUnacknowledgedMessages) -> None:
        attached = self._consumers.get(request.consumer_id)
        if attached is None:
            return
        positions: list[Position] | None = None
        if request.message_ids and _sends_singly(attached):
            positions = list(map(position_of, request.message_ids))
        epoch = request.consumer_epoch if request.HasField("consumer_epoch") else -1
        attached.subscription.redeliver(attached.consumer, positions, epoch=epoch)

    # UNSUBSCRIBE, CLOSE_CONSUMER

    def _on_unsubscribe(self, request: CommandUnsubscribe) -> None:
        self._link.start(
            self._unsubscribe(request), partial(_refuse, request.request_id), must_finish=True
        )

    async def _unsubscribe(self, request: CommandUnsubscribe) -> None:
        attached = self._attached(request.consumer_id)
        await attached.topic.subscriptions.unsubscribe(
            attached.subscription, attached.consumer, is_forced=request.force
        )
        self._forget(attached)
        self._link.write(replies.success(request.request_id))

    def _on_close(self, request: CommandCloseConsumer) -> None:
        pending = self._creating.pop(request.consumer_id, None)
        if pending is not None:
            pending.is_cancelled = True
        attached = self._consumers.pop(request.consumer_id, None)
        if attached is not None:
            attached.topic.subscriptions.left(attached.subscription, attached.consumer)
        self._link.write(replies.success(request.request_id))

    def _closed_by_broker(self, consumer: Consumer, destination: Destination | None) -> None:
        """Tell the client that the consumer was closed; it subscribes again under the same id."""
        attached = self._consumers.get(consumer.consumer_id)
        if attached is not None and attached.consumer is consumer:
            del self._consumers[consumer.consumer_id]
            self._closed_until_s[consumer.consumer_id] = (
                self._services.clock.monotonic_s()
                + self._services.settings.keep_alive_interval_ms / 1000
            )
            url = self._link.url_of(destination)
            self._link.write(replies.close_consumer(consumer.consumer_id, url))

    def on_tick(self) -> None:
        """Forget closed consumers whose last acknowledgements must have arrived by now."""
        now_s = self._services.clock.monotonic_s()
        for consumer_id in [each for each, until in self._closed_until_s.items() if until <= now_s]:
            del self._closed_until_s[consumer_id]

    def _forget(self, attached: Attached) -> None:
        consumer_id = attached.consumer.consumer_id
        if self._consumers.get(consumer_id) is attached:
            del self._consumers[consumer_id]

    def lost(self) -> None:
        """Handle the loss of the connection: its consumers leave, some at once, some in each later
        turn."""
        consumers, self._consumers = self._consumers, {}
        _leave(list(consumers.values()))

    # SEEK

    def _on_seek(self, request: CommandSeek) -> None:
        self._link.start(
            self._seek(request), partial(_refuse, request.request_id), must_finish=True
        )

    async def _seek(self, request: CommandSeek) -> None:
        attached = self._attached(request.consumer_id)
        if request.HasField("message_id") == request.HasField("message_publish_time"):
            raise BrokerMetadataError("a seek needs either a message id or a publish time")

        async def find() -> tuple[Position, Sequence[int]]:
            if request.HasField("message_publish_time"):
                return await position_at_time(attached.topic.log, request.message_publish_time), ()
            return position_of(request.message_id), request.message_id.ack_set

        topic, subscription = attached.topic, attached.subscription
        sealing = topic.find(SegmentSealing)
        is_sealed_part = (
            sealing is not None and sealing.is_part and topic.log.terminated is not None
        )
        around: AbstractAsyncContextManager[None] = nullcontext()
        if is_sealed_part and subscription.is_durable:
            whole = self._services.topics.whole_subscriptions
            around = whole.rewinding(topic.name, subscription.name)
        try:
            async with around:
                await subscription.seek(attached.consumer, find)
        except LedgerError as error:
            raise UnknownFailureError(f"the position was not found: {error}") from error
        self._link.write(replies.success(request.request_id))

    # Queries

    def _on_last_message_id(self, request: CommandGetLastMessageId) -> None:
        self._link.start(self._last_message_id(request), partial(_refuse, request.request_id))

    async def _last_message_id(self, request: CommandGetLastMessageId) -> None:
        attached = self._attached(request.consumer_id)
        self._link.write(await last_message_id(request.request_id, attached))

    def _on_stats(self, request: CommandConsumerStats) -> None:
        attached = self._consumers.get(request.consumer_id)
        if attached is None:
            error = ConsumerNotFoundError(f"there is no consumer {request.consumer_id}")
            response = CommandConsumerStatsResponse(
                request_id=request.request_id, error_code=error.code, error_message=str(error)
            )
        else:
            now_ms = self._services.clock.wall_ms()
            response = stats_of(request.request_id, attached, now_ms=now_ms)
        self._link.write(replies.consumer_stats(response))


def _leave(leaving: list[Attached]) -> None:
    """Remove consumers from their subscriptions, those of one subscription together.

    With thousands of consumers this takes a while, during which other connections must not wait.
    """
    groups: dict[Subscription, list[Attached]] = {}
    for attached in leaving[:_LEAVING_PER_TURN]:
        groups.setdefault(attached.subscription, []).append(attached)
    for subscription, group in groups.items():
        consumers = [attached.consumer for attached in group]
        group[0].topic.subscriptions.left_all(subscription, consumers)
    rest = leaving[_LEAVING_PER_TURN:]
    if rest:
        asyncio.get_running_loop().call_soon(_leave, rest)


def _refuse(request_id: int, error: RequestError) -> bytes:
    return replies.error(request_id, error.code, str(error))


class Attacher:
    """Attaches consumers of one connection to subscriptions."""

    def __init__(
        self, link: Link, services: Services, login: Login, *, on_closed: OnClosed
    ) -> None:
        self._link = link
        self._services = services
        self._login = login
        self._on_closed = on_closed

    async def attach(self, request: CommandSubscribe) -> Attached:
        """Load the topic and join the subscription.

        A topic that closes meanwhile is loaded again, and a cursor that cannot be opened now is
        retried: an error would hang the official client (trap 10).

        Raises:
            RequestError
        """
        topics = self._services.topics
        name = naming.topic_of(request.topic)
        naming.check_subscription(request.subscription)
        naming.check_client_metadata(
            request.consumer_name,
            properties=(*request.subscription_properties, *request.metadata),
            ranges=len(request.keySharedMeta.hashRanges),
            bytes_max=self._services.settings.client_metadata_bytes_max,
        )
        wanted = SubscriptionResource(name, request.subscription)
        await self._login.check(Action.CONSUME, wanted)
        _check_subscribe(request)
        deadline_s = (
            self._services.clock.monotonic_s()
            + self._services.settings.topic_load_timeout_ms / 1000
        )
        is_counted = False
        while True:
            topic = await topics.get(name, may_create=request.force_topic_creation)
            await self._services.gate.enter()
            topic.check_open_to_clients()
            if not is_counted:
                is_counted = True
                self._check_rate(topic, request)
            await check_consumer(self._services.schemas, topic, request)
            consumer = self._consumer(request)
            try:
                subscription = await topic.subscriptions.join(
                    request.subscription,
                    consumer,
                    is_durable=request.durable,
                    open_cursor=self._cursor_opener(request, topic, consumer),
                )
            except ServiceNotReadyError:
                if self._services.clock.monotonic_s() >= deadline_s:
                    raise
                if not topic.is_closed:
                    await asyncio.sleep(self._services.settings.topic_load_retry_ms / 1000)
            else:
                break
        try:
            # The right may have been revoked while the topic was loaded, or while this is stored.
            await self._login.check(Action.CONSUME, wanted)
            if self._asks_for_replication(request, topic) and not subscription.is_replicated:
                await subscription.set_replicated(True)
                await self._login.check(Action.CONSUME, wanted)
        except BaseException:
            if not consumer.is_closed:
                topic.subscriptions.left(subscription, consumer)
            raise
        return Attached(consumer, subscription, topic)

    def _consumer(self, request: CommandSubscribe) -> Consumer:
        return Consumer(
            self._link,
            request.consumer_id,
            name=request.consumer_name,
            sub_type=request.subType,
            priority=request.priority_level,
            epoch=request.consumer_epoch if request.HasField("consumer_epoch") else -1,
            connected_at_ms=self._services.clock.wall_ms(),
            key_shared=_key_shared_mode(request),
            hash_ranges=_hash_ranges(request),
            reads_compacted=request.read_compacted,
            is_auto_consume=is_auto_consume(request),
            metadata={each.key: each.value for each in request.metadata},
            on_closed=self._on_closed,
        )

    def _asks_for_replication(self, request: CommandSubscribe, topic: Topic) -> bool:
        """Whether the consumer requests replication of its subscription to other clusters.

        A consumer without this request does not end the replication of a subscription.
        """
        return (
            request.replicate_subscription_state
            and request.durable
            and topic.name.is_persistent
            and self._services.settings.replicated_subscriptions_enabled
        )

    def _check_rate(self, topic: Topic, request: CommandSubscribe) -> None:
        """Count the SUBSCRIBE against the subscribe rate.

        Raises:
            NotAllowedError: this consumer subscribes too often.
        """
        host = self._link.address.rpartition(":")[0]
        consumer = (host, request.subscription, request.consumer_name, request.consumer_id)
        now_s = self._services.clock.monotonic_s()
        topic.subscriptions.rate.check(str(topic.name), topic.policies, consumer, now_s)

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
            sealing = topic.find(SegmentSealing)
            is_part = sealing is not None and sealing.is_part
            if is_part and request.subType == EXCLUSIVE and initial == LATEST:
                await topics.scalable.subscribe_behind(topic.name, request.subscription)
            properties = {each.key: each.value for each in request.subscription_properties}
            return await topics.open_cursor(
                topic, topics.log_of(topic), request.subscription, initial, properties
            )

        return open_cursor

    async def _initial_position(
        self, request: CommandSubscribe, topic: Topic
    ) -> tuple[Position, Sequence[int]]:
        """Return the first entry that a new subscription delivers, and the ack_set words of it."""
        rollback_s = request.start_message_rollback_duration_sec
        if rollback_s > 0:
            since_ms = max(0, self._services.clock.wall_ms() - rollback_s * 1000)
            return await position_at_time(topic.log, since_ms), ()
        if not request.durable and request.HasField("start_message_id"):
            start = position_of(request.start_message_id)
            # A start beyond the end names no message: the initial position applies, as if there
            # were none.
            if start <= topic.log.last_confirmed:
                return start, ()
        if request.initialPosition == CommandSubscribe.Earliest:
            return EARLIEST, ()
        return LATEST, ()


def _key_shared_mode(request: CommandSubscribe) -> KeySharedMode:
    meta = request.keySharedMeta
    if request.subType != KEY_SHARED or not request.HasField("keySharedMeta"):
        return KeySharedMode()
    return KeySharedMode(
        is_sticky=meta.keySharedMode == STICKY,
        is_unordered=meta.allowOutOfOrderDelivery,
        by_buckets=meta.keySharedMode == STICKY and meta.entryBucketDispatch,
    )


def _hash_ranges(request: CommandSubscribe) -> Sequence[HashRange]:
    """Return the hash ranges that the consumer requests; they have no meaning with AUTO_SPLIT."""
    if request.subType == EXCLUSIVE or _key_shared_mode(request).is_sticky:
        return tuple(HashRange(each.start, each.end) for each in request.keySharedMeta.hashRanges)
    return ()


def _check_subscribe(request: CommandSubscribe) -> None:
    """Refuse unsupported combinations.

    Raises:
        NotAllowedError
    """
    if request.read_compacted and request.subType in (SHARED, KEY_SHARED):
        raise NotAllowedError("read_compacted needs an Exclusive or Failover subscription")


def acknowledge(attached: Attached, ack: CommandAck) -> None:
    """Apply an acknowledgement to the subscription, as far as the entries exist."""
    subscription = attached.subscription
    last = attached.topic.log.last_confirmed
    if ack.ack_type == CommandAck.Cumulative:
        if len(ack.message_id) == 1:
            message_id = ack.message_id[0]
            position = position_of(message_id)
            if position <= last:
                subscription.acknowledge_through(
                    attached.consumer, position, message_id.ack_set, message_id.batch_size
                )
        return
    consumer = attached.consumer
    # Plain attribute reads: ids of entries that exist are never negative.
    singles: list[Position] = []
    ledger_id = first = final = -1

    def take_range() -> None:
        if first == final:  # nearly always, if several consumers share a topic
            singles.append(Position(ledger_id, first))
        elif final - first < _RANGE_ENTRIES_MIN:
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


class LongCommand:
    """An acknowledgement or a redelivery request of very many ids, which is handled in pieces.

    The answer, if one is requested, belongs to the last piece.
    """

    def __init__(self, command: BaseCommand) -> None:
        self._command = command
        self._ids = ids_of(command)
        self._taken = 0

    @property
    def is_done(self) -> bool:
        """Whether no ids are left."""
        return self._taken >= len(self._ids)

    def take(self, count: int) -> BaseCommand:
        """Return the next piece, of at most `count` ids."""
        ids = self._ids[self._taken : self._taken + count]
        self._taken += len(ids)
        piece = BaseCommand(type=self._command.type)
        if piece.type == BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES:
            self._fill_redelivery(piece.redeliverUnacknowledgedMessages)
        else:
            self._fill_ack(piece.ack)
        ids_of(piece).extend(ids)  # in place: protobuf copies a submessage that is assigned
        return piece

    def _fill_redelivery(self, piece: CommandRedeliverUnacknowledgedMessages) -> None:
        whole = self._command.redeliverUnacknowledgedMessages
        piece.consumer_id = whole.consumer_id
        if whole.HasField("consumer_epoch"):
            piece.consumer_epoch = whole.consumer_epoch

    def _fill_ack(self, piece: CommandAck) -> None:
        whole = self._command.ack
        piece.consumer_id, piece.ack_type = whole.consumer_id, whole.ack_type
        if self.is_done and whole.HasField("request_id"):
            piece.request_id = whole.request_id


def ids_of(command: BaseCommand) -> MutableSequence[MessageIdData]:
    """Return the message ids of an acknowledgement or of a redelivery request; of another command
    none."""
    if command.type == BaseCommand.ACK:
        return command.ack.message_id
    if command.type == BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES:
        return command.redeliverUnacknowledgedMessages.message_ids
    return []


def _sends_singly(attached: Attached) -> bool:
    """Whether single entries can be sent again; otherwise all of them are, whatever is named."""
    dispatcher = attached.subscription.dispatcher
    return dispatcher is not None and dispatcher.keeps_accounts


async def transactional_acks(attached: Attached, ack: CommandAck) -> tuple[list[Ack], Ack | None]:
    """Return what is acknowledged in a transaction: single entries, or everything up to one. Other
    work gets turns in between.

    Raises:
        BrokerMetadataError: an entry does not exist, or a cumulative one names several.
    """
    last = attached.topic.visibility.last
    acks: list[Ack] = []
    for at, message_id in enumerate(ack.message_id, 1):
        if at % _IDS_PER_TURN == 0:
            await asyncio.sleep(0)
        position = position_of(message_id)
        if position > last or position.ledger_id < 0:
            raise BrokerMetadataError(f"{attached.topic.name} has no message at {position}")
        words = tuple(message_id.ack_set[:WORDS_MAX])  # a client may send millions
        acks.append(Ack(position, words, max(message_id.batch_size, 0) if words else 0))
    if ack.ack_type != CommandAck.Cumulative:
        return acks, None
    if len(acks) != 1:
        raise BrokerMetadataError("a cumulative acknowledgement must name exactly one message")
    return [], acks[0]


async def last_message_id(request_id: int, attached: Attached) -> bytes:
    """Return the frame that answers GET_LAST_MESSAGE_ID.

    Raises:
        ServiceNotReadyError: the topic has moved.
        BrokerPersistenceError: the last entry could not be read.
    """
    topic = attached.topic
    partition = topic.name.partition_index
    last = None
    compaction = topic.find(Compaction) if attached.consumer.reads_compacted else None
    if compaction is not None:
        last = await compaction.last_message()
    position, batch_index = last if last is not None else await topic.last_message.find()
    first_chunk = await topic.last_message.first_chunk(position)
    if not topic.tenure.holds():
        raise ServiceNotReadyError(f"{topic.name} has moved")  # and may have grown
    mark_delete = attached.subscription.cursor.mark_delete
    return replies.last_message_id(
        request_id,
        last=replies.message_id(
            position, partition=partition, batch_index=batch_index, first_chunk=first_chunk
        ),
        mark_delete=(
            replies.message_id(mark_delete, partition=partition)
            if mark_delete.ledger_id >= 0
            else None
        ),
    )


def stats_of(request_id: int, attached: Attached, *, now_ms: int) -> CommandConsumerStatsResponse:
    """Return the answer to CONSUMER_STATS."""
    consumer = attached.consumer
    rate_out, throughput_out, rate_again, rate_acked, _ = consumer.rates(now_ms)
    rate_expired, _ = attached.subscription.rates(now_ms)
    since = datetime.fromtimestamp(consumer.connected_at_ms / 1000, UTC)
    return CommandConsumerStatsResponse(
        request_id=request_id,
        msgRateOut=rate_out,
        msgThroughputOut=throughput_out,
        msgRateRedeliver=rate_again,
        consumerName=consumer.name,
        availablePermits=max(0, consumer.permits),
        unackedMessages=consumer.unacked_messages,
        blockedConsumerOnUnackedMsgs=consumer.is_blocked,
        address=consumer.peer.address,
        connectedSince=since.isoformat(timespec="milliseconds"),
        type=TYPE_NAMES[consumer.sub_type],
        msgRateExpired=rate_expired,
        msgBacklog=attached.subscription.cursor.backlog_entries,
        messageAckRate=rate_acked,
    )
