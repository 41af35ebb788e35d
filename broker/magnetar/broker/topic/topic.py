"""A topic: the host of a log, its readers and writers, and its optional features.

A host has a log with its tail, a tenure, the effective policies, a publish line, subscriptions, and
an ordered tuple of features (`feature.py`), none of which it knows by name. A topic is loaded at
its first use (`topics/`). It closes when the broker stops, when the topic moves to another broker,
or when another owner takes the log over. Closing disconnects every producer and consumer; they
connect to the given broker or look the topic up again. A closed object is never revived.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from magnetar.broker.base.entry import MARKER
from magnetar.broker.base.errors import NotAllowedError
from magnetar.broker.base.meter import Sampled
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.ownership.protocol import Destination, Tenure
from magnetar.broker.cluster.ownership.sole_owner import ALWAYS
from magnetar.broker.policies.model import DEFAULTS, Policies
from magnetar.broker.topic.access import ProducerAccess
from magnetar.broker.topic.dispatch.throttle import DispatchRates
from magnetar.broker.topic.dispatch.visibility import Visibility
from magnetar.broker.topic.feature import Feature, FeatureBacklog, Work
from magnetar.broker.topic.last_message import LastMessage
from magnetar.broker.topic.producer import Producer
from magnetar.broker.topic.publish_line import PublishLine
from magnetar.broker.topic.run import Run
from magnetar.broker.topic.subscriptions import TopicSubscriptions
from magnetar.broker.topic.surroundings import InternalAppend, TopicLog
from magnetar.broker.topic.tail import Tail
from magnetar.broker.topic.tail_cache import TailCache
from magnetar.broker.topic.trim_gate import TrimGate
from magnetar.broker.topic.use import TopicUse
from magnetar.cursors import Cursor
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import Position
from magnetar.sdk.wire import TopicName

F = TypeVar("F", bound=Feature)

_SAMPLES_PER_TURN = 500
"""Producers, subscriptions and consumers that are sampled in one turn of the event loop."""


class Topic:
    """One topic that this broker owns. All methods run on the event loop."""

    _subscriptions_class: type[TopicSubscriptions] = TopicSubscriptions
    _line_class: type[PublishLine] = PublishLine

    def __init__(
        self,
        name: TopicName,
        log: TopicLog,
        cache: TailCache,
        settings: BrokerSettings,
        tenure: Tenure = ALWAYS,
        policies: Policies = DEFAULTS,
        *,
        clock: Clock,
    ) -> None:
        """`tenure`: the right to serve the topic. `policies`: the effective policies at loading."""
        now_s = asyncio.get_running_loop().time
        self.name = name
        self.clock = clock
        self.tenure = tenure
        self.policies = policies
        """Effective policies; `apply_policies` replaces them."""
        self.log = log
        self.tail = Tail(cache)
        self.visibility = Visibility(log)
        """Visible part of the log."""
        self.last_message = LastMessage(str(name), log, cache, self.visibility)
        self.gate = TrimGate()
        """Entered by code that creates a durable cursor, or moves one back (rule 5.2)."""
        self.use = TopicUse(clock.monotonic_s())
        self.features: tuple[Feature, ...] = ()
        """Features of the topic, in order; set once, before the topic is used."""
        self.subscriptions = self._subscriptions_class(self, settings)
        self.tail.follow(self.subscriptions)
        self.line = self._line_class(self, now_s)
        """Path of messages between producers and the log."""
        self.dispatch_rates = DispatchRates(lambda: self.policies, now_s, self._published)
        self.producers: dict[str, Producer] = {}
        self.access = ProducerAccess(self, waiting_max=settings.producers_waiting_per_topic_max)
        self.reload: Callable[[str], None] = self._close_for
        """Drops the topic at once; the next request loads it again. Takes the reason."""
        self.reopen: Callable[[str], None] = self._close_for
        """Closes the topic after its publishes are answered and everything is saved; the next
        request loads it again. Takes the reason."""
        self.is_closed = False

    def _published(self) -> tuple[int, int]:
        return self.line.messages_in, self.line.bytes_in

    # Features

    def host(self, *features: Feature) -> None:
        """Install the features of the topic, in this order."""
        self.features = features
        self.line.host(features)

    def find(self, kind: type[F]) -> F | None:
        """Return the feature of a kind; None if the topic has no such feature."""
        for feature in self.features:
            if isinstance(feature, kind):
                return feature
        return None

    def check_open_to_clients(self) -> None:
        """Refuse a client if the topic's log is a feature's own.

        Raises:
            NotAllowedError
        """
        for feature in self.features:
            if feature.reserved_as:
                raise NotAllowedError(f"{self.name} is {feature.reserved_as}")

    @property
    def is_reserved(self) -> bool:
        """Whether the log belongs to a feature; nothing may then be removed from it."""
        return any(feature.reserved_as for feature in self.features)

    def shown(self) -> Mapping[str, Any]:
        """Return what the features show in statistics."""
        found: dict[str, Any] = {}
        for feature in self.features:
            found.update(feature.shown())
        return found

    def apply_policies(self, policies: Policies) -> None:
        """Apply changed policies, and notify the parts and features that follow one of them."""
        before = self.policies
        if policies == before or self.is_closed:
            return
        self.policies = policies
        changed = policies.changed_from(before)
        features = [each for each in self.features if changed & each.follows]
        if changed & self.dispatch_rates.follows:
            self.dispatch_rates.update()
        if changed & self.subscriptions.follows:
            for subscription in self.subscriptions.values():
                subscription.limits_changed()
        if features or changed & self.line.follows:
            self.line.policies_changed()
        if changed & self.access.follows:
            self.access.policies_changed()
        for feature in features:
            feature.policies_changed(before)

    # The log

    def append(self, record: InternalAppend) -> None:
        """Append entries that the broker itself writes; they are never delivered."""
        self.line.append_internal(record)

    def internal_stored(self, position: Position, entry: bytes) -> None:
        """Handle a durable entry of the broker's own; it may make more messages visible."""
        self.line.entries_in += 1
        if self.subscriptions or self.tail.readers:
            self.tail.add(Run(*position, [entry], messages=[MARKER]))
        for feature in self.features:
            feature.log_grew()

    def log_ended(self) -> None:
        """Notify consumers that have seen every message: the log was terminated."""
        self.tail.wake_all()

    # Statistics

    def sample(self, now_ms: int) -> None:
        """Sample the counters for the rates; called once per interval."""
        self.line.sample(now_ms)
        subscriptions = list(self.subscriptions.values())
        consumers = (each for subscription in subscriptions for each in subscription.consumers)
        self._sample([*self.producers.values(), *subscriptions, *consumers], now_ms)

    def _sample(self, members: Sequence[Sampled], now_ms: int) -> None:
        for member in members[:_SAMPLES_PER_TURN]:
            member.sample(now_ms)
        rest = members[_SAMPLES_PER_TURN:]
        if rest:
            asyncio.get_running_loop().call_soon(self._sample, rest, now_ms)

    # Cursors

    @property
    def internal_cursors(self) -> Mapping[str, Cursor]:
        """Durable cursors of features, which are not subscriptions, by name."""
        return {each.name: each for feature in self.features for each in feature.cursors()}

    def feature_backlogs(self) -> Mapping[str, FeatureBacklog]:
        """Return the backlogs of features, by the names of their cursors."""
        return {each.name: each for feature in self.features for each in feature.backlogs()}

    def durable_cursors(self) -> list[Cursor]:
        """Return all durable cursors, including internal ones. They hold trimming back."""
        return [*self.subscriptions.durable_cursors(), *self.internal_cursors.values()]

    def abandon_cursors(self) -> None:
        """Stop writing cursors and everything else stored beside the log: another broker may own
        it."""
        for cursor in self.durable_cursors():
            cursor.abandon()
        for feature in self.features:
            feature.abandon()

    # Closing

    @property
    def is_leaving(self) -> bool:
        """Whether the topic is closed or moves, so nothing new may begin."""
        return self.is_closed or self.line.is_draining

    async def drain(self, timeout_s: float) -> None:
        """Take no more publishes, and wait until the pending ones are answered."""
        await self.line.drain(timeout_s)

    def _close_for(self, _reason: str) -> None:
        self.disconnect_all()

    def disconnect_all(self, destination: Destination | None = None) -> None:
        """Close the topic and disconnect its producers and consumers.

        Clients go to `destination`; without one, they look the topic up again.
        """
        self.is_closed = True
        self.access.close()
        self.line.close()
        for feature in self.features:
            feature.close()
        for producer in list(self.producers.values()):
            producer.close_by_broker(destination)
        self.subscriptions.close(destination)
        self.tail.cache.clear()


def looking_at(kind: type[Feature]) -> Callable[[Topic], Work | None]:
    """Return a function for the ticker that checks whether a topic's feature of a kind has work
    due."""

    def look(topic: Topic) -> Work | None:
        feature = topic.find(kind)
        return feature.look() if feature is not None else None

    return look
