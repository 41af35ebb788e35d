"""The subscriptions of a topic: admission of consumers, creation and deletion, dispatch
contexts."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, ValuesView
from functools import partial
from typing import Final, Protocol

from magnetar.broker.base.errors import (
    BrokerPersistenceError,
    ConsumerBusyError,
    NotAllowedError,
    RequestError,
    ServiceNotReadyError,
)
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.ownership.protocol import Destination, Tenure
from magnetar.broker.policies.model import Policies
from magnetar.broker.topic import admission
from magnetar.broker.topic.consumer import TYPE_NAMES, Consumer
from magnetar.broker.topic.dispatch.base import DispatchContext
from magnetar.broker.topic.dispatch.range_reads import RangeReads
from magnetar.broker.topic.dispatch.throttle import DispatchRates
from magnetar.broker.topic.dispatch.visibility import Visibility
from magnetar.broker.topic.feature import Feature
from magnetar.broker.topic.peer import probe
from magnetar.broker.topic.subscription import Subscription, is_replicated
from magnetar.broker.topic.surroundings import TopicLog
from magnetar.broker.topic.tail import Tail
from magnetar.broker.topic.trim_gate import TrimGate
from magnetar.broker.topic.use import TopicUse
from magnetar.cursors import Cursor, CursorError, CursorFencedError, SubscriptionCursor
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire import TopicName

OpenCursor = Callable[[], Awaitable[SubscriptionCursor]]


class SubscribedTopic(Protocol):
    """Interface of a topic for its subscriptions."""

    @property
    def name(self) -> TopicName: ...

    @property
    def log(self) -> TopicLog: ...

    @property
    def tail(self) -> Tail: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def tenure(self) -> Tenure: ...

    @property
    def policies(self) -> Policies: ...

    @property
    def visibility(self) -> Visibility: ...

    @property
    def gate(self) -> TrimGate: ...

    @property
    def dispatch_rates(self) -> DispatchRates: ...

    @property
    def use(self) -> TopicUse: ...

    @property
    def features(self) -> Sequence[Feature]: ...

    @property
    def is_closed(self) -> bool: ...


class TopicSubscriptions(Mapping[str, Subscription]):
    """The subscriptions of one topic, by name."""

    follows: Final = DispatchRates.follows | {
        "max_unacked_per_consumer",
        "max_unacked_per_subscription",
    }
    """Policies that limit what dispatchers send."""

    _subscription_class: type[Subscription] = Subscription

    def __init__(self, topic: SubscribedTopic, settings: BrokerSettings) -> None:
        self._topic = topic
        self._settings = settings
        self._label = str(topic.name)
        self._reads = RangeReads(topic.log, topic.tail.cache, settings)
        self._by_name: dict[str, Subscription] = {}
        self.by_name: Mapping[str, Subscription] = self._by_name
        """Read-only view of the subscriptions by name. An attribute, so that a lookup for each
        batch makes no call into Python."""
        self.rate = admission.SubscribeRate()
        """SUBSCRIBEs per consumer, for the subscribe rate."""
        self._sent_before = (0, 0)
        """Messages and bytes of subscriptions that no longer exist."""

    def __getitem__(self, name: str) -> Subscription:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def values(self) -> ValuesView[Subscription]:
        return self._by_name.values()  # no lookup of each name: this is hot

    # Joining

    async def join(
        self, name: str, consumer: Consumer, *, is_durable: bool, open_cursor: OpenCursor
    ) -> Subscription:
        """Admit a consumer, creating the subscription if need be.

        `open_cursor` opens the cursor; it runs while no other consumer can join or seek.

        Raises:
            ConsumerBusyError, NotAllowedError: see `Subscription.join`, and the policies.
            SubscriptionNotFoundError: the policies do not create the subscription automatically.
            ServiceNotReadyError: the topic was closed meanwhile, or its cursor cannot be opened
                now.
            BrokerPersistenceError: the cursor cannot be opened at all.
        """
        topic = self._topic
        admission.check_type(self._label, topic.policies, TYPE_NAMES[consumer.sub_type])
        while True:
            subscription = self._get(name, is_durable=is_durable)
            async with subscription.lock:
                if subscription.is_closed and not topic.is_closed:
                    continue  # deleted during the wait for the lock: make a new one
                if topic.is_closed:
                    raise ServiceNotReadyError(f"{self._label} is closing")
                try:
                    await self._admit(subscription, consumer)
                    is_new = not subscription.is_open
                    try:
                        await self._open(subscription, open_cursor, is_stored=False)
                    except CursorError as error:
                        raise self._not_joined(subscription, error) from error
                    if is_new and not is_durable and consumer.start is not None:
                        # A durable cursor is created with its place.
                        subscription.placed(consumer.start)
                    # Others have joined other subscriptions while the cursor was opened.
                    await subscription.join(consumer, partial(self._check_consumers, subscription))
                    topic.use.joined += 1
                except BaseException:
                    self._drop_if_unused(subscription)
                    raise
                return subscription

    def _not_joined(self, subscription: Subscription, error: CursorError) -> RequestError:
        """Return the error for a consumer whose cursor cannot be opened."""
        text = f"subscription {subscription.name} of {self._label}: {error}"
        # A broker that has lost the log learns of it soon, and the topic is loaded again.
        if error.retryable or isinstance(error, CursorFencedError):
            return ServiceNotReadyError(text)
        return BrokerPersistenceError(text)

    async def ensure(self, name: str, open_cursor: OpenCursor, *, is_stored: bool = False) -> None:
        """Create or open a durable subscription, without a consumer.

        `is_stored`: a subscription of the name exists and is only opened again; policies that were
        set later do not refuse it.

        Raises:
            NotAllowedError: the name belongs to a reader, or there are too many subscriptions.
            ServiceNotReadyError: the topic was closed meanwhile; its next owner may not know of the
                subscription.
            BrokerPersistenceError: the cursor cannot be opened now.
        """
        subscription = self._get(name, is_durable=True, is_asked_for=True, is_stored=is_stored)
        async with subscription.lock:
            try:
                await self._open(subscription, open_cursor, is_stored=is_stored)
            except CursorError as error:
                self._drop_if_unused(subscription)
                raise BrokerPersistenceError(
                    f"subscription {subscription.name} of {self._label}: {error}"
                ) from error
            except BaseException:
                self._drop_if_unused(subscription)
                raise
            if subscription.is_closed:
                raise ServiceNotReadyError(f"{self._label} is closing")

    async def _admit(self, subscription: Subscription, consumer: Consumer) -> None:
        """Refuse a consumer by the policies; dead connections do not count."""
        try:
            self._check_consumers(subscription)
        except ConsumerBusyError:
            every = [each.peer for known in self.values() for each in known.consumers]
            dead = await probe(every, but=consumer.peer)
            for known in list(self.values()):
                # They may not have left yet.
                self.left_all(known, [each for each in known.consumers if each.peer in dead])
            self._check_consumers(subscription)

    def _check_consumers(self, subscription: Subscription) -> None:
        admission.check_consumer(
            self._label,
            self._topic.policies,
            subscription.name,
            sum(len(each.consumers) for each in self.values()),
            len(subscription.consumers),
        )

    def _get(
        self,
        name: str,
        *,
        is_durable: bool,
        is_asked_for: bool = False,
        is_stored: bool = False,
    ) -> Subscription:
        """Return the subscription of that name, or a new one without a cursor yet."""
        subscription = self._by_name.get(name)
        if subscription is None:
            if not is_stored:
                admission.check_subscription(
                    self._label,
                    self._topic.policies,
                    self._by_name,
                    name,
                    # A non-persistent topic keeps nothing, so its subscriptions may always appear:
                    # they cannot be created beforehand.
                    is_durable=is_durable and self._topic.name.is_persistent,
                    is_asked_for=is_asked_for,
                )
            subscription = self._by_name[name] = self._subscription_class(
                self._label,
                name,
                is_durable=is_durable,
                seek_return_timeout_ms=self._settings.seek_return_timeout_ms,
                gate=self._topic.gate,
                on_abandoned=self._forget,
                opened_ms=self._topic.clock.wall_ms(),
            )
        elif subscription.is_durable != is_durable:
            kind = "durable" if subscription.is_durable else "not durable"
            raise NotAllowedError(f"subscription {name} of {self._label} is {kind}")
        return subscription

    # Dispatch contexts

    async def _open(
        self, subscription: Subscription, open_cursor: OpenCursor, *, is_stored: bool
    ) -> None:
        """Open the cursor of a subscription, unless it is open.

        Raises:
            ServiceNotReadyError: the topic was closed meanwhile, and the cursor is perhaps new. If
                the topic was deleted, the cursor would be a later topic's.
            Every error of `open_cursor`.
        """
        if subscription.is_open:
            return
        async with self._topic.gate.placing():
            if self._topic.is_closed and not is_stored:
                raise ServiceNotReadyError(f"{self._label} is closing")
            # The cursor of a client that disconnects meanwhile may still be stored. The topic keeps
            # the entries that a cursor needs, so it must know of it.
            opening = asyncio.ensure_future(open_cursor())
            try:
                await asyncio.shield(opening)
            finally:
                await asyncio.wait([opening])
                if not opening.cancelled() and opening.exception() is None:
                    self._attach(subscription, opening.result())

    def _attach(self, subscription: Subscription, cursor: SubscriptionCursor) -> None:
        subscription.is_replicated = subscription.is_durable and is_replicated(cursor)
        context = self._context_of(subscription, cursor, self._topic.tail.trim_soon)
        for feature in self._topic.features:
            context = feature.attach(subscription, context)
        subscription.context = context

    def _context_of(
        self,
        subscription: Subscription,
        cursor: SubscriptionCursor,
        on_progress: Callable[[], None],
    ) -> DispatchContext:
        topic = self._topic
        return DispatchContext(
            topic=self._label,
            subscription=subscription.name,
            partition=topic.name.partition_index,
            log=topic.log,
            reads=self._reads,
            cursor=cursor,
            tenure=topic.tenure,
            wall_ms=topic.clock.wall_ms,
            settings=self._settings,
            policies=lambda: topic.policies,
            on_progress=on_progress,
            limiters=topic.dispatch_rates.limiters_of(subscription.name),
            visibility=topic.visibility,
        )

    # Leaving

    def left(self, subscription: Subscription, consumer: Consumer) -> None:
        """Remove a consumer from its subscription."""
        self.left_all(subscription, (consumer,))

    def left_all(self, subscription: Subscription, consumers: Sequence[Consumer]) -> None:
        """Remove consumers from their subscription."""
        subscription.leave_all(consumers)
        self._topic.tail.trim_soon()

    async def unsubscribe(
        self, subscription: Subscription, consumer: Consumer, *, is_forced: bool
    ) -> None:
        """Delete a subscription at the request of one of its consumers, which gets no
        CLOSE_CONSUMER.

        Raises:
            BrokerMetadataError: not allowed, see `Subscription.check_unsubscribe`.
            BrokerPersistenceError: the cursor could not be deleted.
        """
        async with subscription.lock:
            subscription.check_unsubscribe(consumer, is_forced=is_forced)
            try:
                await _delete_cursor(subscription)
                await self._tell_deleted(subscription)
            except BaseException:
                self._drop_if_unused(subscription)  # The consumer may have left meanwhile.
                raise
            subscription.leave(consumer)
            self._forget(subscription)

    async def delete(self, subscription: Subscription, *, is_forced: bool) -> None:
        """Delete a subscription at an operator's request; its consumers are notified.

        Raises:
            ConsumerBusyError: it has consumers, and the deletion is not forced.
            ServiceNotReadyError: the topic was closed meanwhile; the subscription still exists.
            BrokerPersistenceError: the cursor could not be deleted.
        """
        async with subscription.lock:
            if self._topic.is_closed:
                raise ServiceNotReadyError(f"{self._label} is closing")
            if subscription.is_closed:
                return
            if subscription.consumers and not is_forced:
                raise ConsumerBusyError(
                    f"Subscription has active connected consumers: {subscription.name} of "
                    f"{self._label} has {len(subscription.consumers)}"
                )
            await _delete_cursor(subscription)
            await self._tell_deleted(subscription)
            self._forget(subscription)

    async def _tell_deleted(self, subscription: Subscription) -> None:
        """Have features drop what they keep of a subscription, after its cursor is deleted.

        A later subscription of that name must not find it. Not earlier: it is needed if the cursor
        cannot be deleted. After a crash, the next load drops it, before another subscription of the
        name can be created.
        """
        for feature in self._topic.features:
            await feature.deleted(subscription.name)

    def _drop_if_unused(self, subscription: Subscription) -> None:
        """Remove a subscription without a cursor, or a reader's without a reader, after a request
        that held its lock has failed."""
        if not subscription.is_open or (not subscription.is_durable and not subscription.consumers):
            self._forget(subscription)

    def _forget(self, subscription: Subscription) -> None:
        """Remove a subscription that exists only in memory, or was deleted."""
        if subscription.is_closed:
            return
        subscription.close()
        if self._by_name.get(subscription.name) is subscription:
            del self._by_name[subscription.name]
            messages, size = self._sent_before
            more, more_size, _ = subscription.sent()
            self._sent_before = messages + more, size + more_size
            for feature in self._topic.features:
                feature.forgotten(subscription.name)
        self._topic.tail.trim()

    def close(self, destination: Destination | None) -> None:
        """Close all subscriptions; consumers learn where the topic is, or look it up."""
        for subscription in list(self._by_name.values()):
            subscription.close(destination)

    # Queries

    def durable_cursors(self) -> list[Cursor]:
        """Return the durable cursors of the subscriptions."""
        cursors = [each.cursor for each in self._by_name.values() if each.is_open]
        return [each for each in cursors if isinstance(each, Cursor)]

    @property
    def has_all_cursors(self) -> bool:
        """Whether every durable subscription has an open cursor (rule 6.2)."""
        return all(each.is_open or not each.is_durable for each in self._by_name.values())

    def sent(self) -> tuple[int, int]:
        """Return messages and bytes sent to consumers, including those that have left."""
        messages, size = self._sent_before
        for subscription in self._by_name.values():
            more, more_size, _ = subscription.sent()
            messages += more
            size += more_size
        return messages, size


async def _delete_cursor(subscription: Subscription) -> None:
    try:
        await subscription.cursor.delete()
    except CursorError as error:
        raise BrokerPersistenceError(
            f"subscription {subscription.name} is not deleted: {error}"
        ) from error
