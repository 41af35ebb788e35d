"""Taking a consumer in: from a SUBSCRIBE to a consumer in its place.

The topic is loaded, the subscription is created if need be, and a new one begins where the request
says.
"""

import asyncio
from collections.abc import Sequence

from magnetar.broker.base import naming
from magnetar.broker.base.errors import NotAllowedError, ServiceNotReadyError
from magnetar.broker.protocol.link import Link
from magnetar.broker.protocol.login import Login
from magnetar.broker.security import Action
from magnetar.broker.security import Subscription as SubscriptionResource
from magnetar.broker.topic import OpenCursor, Topic
from magnetar.broker.topic.consumer import (
    EXCLUSIVE,
    KEY_SHARED,
    SHARED,
    Consumer,
    HashRange,
    KeySharedMode,
    OnClosed,
)
from magnetar.broker.topic.positions import position_at_time, position_of
from magnetar.broker.topic.subscription import Subscription
from magnetar.broker.topics.schema_admission import check_consumer, is_auto_consume
from magnetar.broker.topics.services import Services
from magnetar.cursors import NonDurableCursor, SubscriptionCursor
from magnetar.ledger.position import EARLIEST, LATEST, Position
from magnetar.sdk.wire.pulsar_pb2 import STICKY, CommandSubscribe


class Attached:
    """A consumer and the place it has."""

    __slots__ = ("consumer", "subscription", "topic")

    def __init__(self, consumer: Consumer, subscription: Subscription, topic: Topic) -> None:
        self.consumer = consumer
        self.subscription = subscription
        self.topic = topic


class Attacher:
    """Takes consumers of one connection in."""

    def __init__(
        self, link: Link, services: Services, login: Login, *, on_closed: OnClosed
    ) -> None:
        self._link = link
        self._services = services
        self._login = login
        self._on_closed = on_closed

    async def attach(self, request: CommandSubscribe) -> Attached:
        """Load the topic and join the subscription; a topic that closes meanwhile is loaded again,
        and a cursor that cannot be opened now is tried again: an error would hang the official
        client (trap 10).

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
            consumer = Consumer(
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
            # It may have been taken away while the topic was loaded.
            await self._login.check(Action.CONSUME, wanted)
        except BaseException:
            if not consumer.is_closed:
                topic.subscriptions.left(subscription, consumer)
            raise
        return Attached(consumer, subscription, topic)

    def _check_rate(self, topic: Topic, request: CommandSubscribe) -> None:
        """
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
            start = position_of(request.start_message_id)
            # A start beyond the end names no message: the initial position decides, as without it.
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
