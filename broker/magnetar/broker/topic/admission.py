"""Admit producers, consumers and subscriptions by the policies of a topic. Pure.

Only newcomers are checked: a policy that is set later does not affect those already connected. The
error codes are those of the protocol sheet, sections 7, 9 and 15.
"""

from collections import OrderedDict
from collections.abc import Mapping

from magnetar.broker.base.errors import (
    ConsumerBusyError,
    NotAllowedError,
    ProducerBusyError,
    SubscriptionNotFoundError,
)
from magnetar.broker.policies.model import Policies, SubscriptionType

COUNTED_CONSUMERS_MAX = 10_000
"""Most consumers of a topic whose SUBSCRIBEs are counted. Beyond it, the count that began first is
dropped, so that consumer may subscribe more often in its period than the rate allows."""


def check_producers(topic: str, policies: Policies, producers: int) -> None:
    """Refuse another producer beside the present `producers`, if that exceeds the limit.

    Raises:
        ProducerBusyError
    """
    if 0 < policies.max_producers <= producers:
        raise ProducerBusyError(
            f"{topic} has {producers} producers, and the limit is {policies.max_producers}"
        )


def check_initial_subscription(topic: str, policies: Policies, subscription: str) -> None:
    """Refuse to create a subscription for a producer, if automatic creation is off.

    Raises:
        NotAllowedError
    """
    if not policies.auto_subscription_creation:
        raise NotAllowedError(
            f"{topic} has no subscription {subscription}, and automatic creation is off: create it "
            "first"
        )


def check_subscription(
    topic: str,
    policies: Policies,
    subscriptions: Mapping[str, object],
    name: str,
    *,
    is_durable: bool,
    is_asked_for: bool = False,
) -> None:
    """Refuse to create a subscription. `is_asked_for`: an explicit request, not a SUBSCRIBE.

    Raises:
        SubscriptionNotFoundError: durable subscriptions are not created automatically here.
        NotAllowedError: the topic has reached its limit.
    """
    if is_durable and not is_asked_for and not policies.auto_subscription_creation:
        raise SubscriptionNotFoundError(
            f"{topic} has no subscription {name}, and automatic creation is off: create it first"
        )
    if 0 < policies.max_subscriptions <= len(subscriptions):
        raise NotAllowedError(
            f"{topic} has {len(subscriptions)} subscriptions, "
            f"and the limit is {policies.max_subscriptions}"
        )


def check_type(topic: str, policies: Policies, type_name: str) -> None:
    """Refuse a subscription type that is not enabled.

    Raises:
        NotAllowedError
    """
    if SubscriptionType(type_name) not in policies.subscription_types:
        enabled = ", ".join(sorted(policies.subscription_types))
        raise NotAllowedError(
            f"{topic} has no {type_name} subscriptions; enabled by its policies: {enabled}"
        )


def check_consumer(
    topic: str, policies: Policies, subscription: str, of_topic: int, of_subscription: int
) -> None:
    """Refuse another consumer beside those of the topic and of the subscription.

    Raises:
        ConsumerBusyError
    """
    if 0 < policies.max_consumers <= of_topic:
        raise ConsumerBusyError(
            f"{topic} has {of_topic} consumers, and the limit is {policies.max_consumers}"
        )
    limit = policies.max_consumers_per_subscription
    if 0 < limit <= of_subscription:
        raise ConsumerBusyError(
            f"subscription {subscription} of {topic} has {of_subscription} consumers, "
            f"and the limit is {limit}"
        )


class SubscribeRate:
    """Number of SUBSCRIBEs of each consumer of a topic in its current period."""

    def __init__(self) -> None:
        self._counts: OrderedDict[object, tuple[float, int]] = OrderedDict()
        """Start of the period, and the SUBSCRIBEs in it, per consumer; in order of these starts."""

    def check(self, topic: str, policies: Policies, consumer: object, now_s: float) -> None:
        """Count a SUBSCRIBE; `consumer` identifies the consumer.

        Raises:
            NotAllowedError: too many in this period.
        """
        limit = policies.subscribe_rate.per_consumer
        if limit <= 0:
            self._counts.clear()
            return
        period_s = policies.subscribe_rate.period_s
        self._drop_expired(now_s - period_s)
        since_s, count = self._counts.get(consumer, (now_s, 0))
        if count >= limit:
            raise NotAllowedError(
                f"{topic} lets each consumer subscribe {limit} times per {period_s} s: wait"
            )
        if not count and len(self._counts) >= COUNTED_CONSUMERS_MAX:
            self._counts.popitem(last=False)
        self._counts[consumer] = (since_s, count + 1)

    def _drop_expired(self, until_s: float) -> None:
        """Drop the counts of periods that began at `until_s` or before.

        Each count is dropped once, so the cost per SUBSCRIBE does not grow with the consumers.
        """
        while self._counts:
            consumer, (since_s, _) = next(iter(self._counts.items()))
            if since_s > until_s:
                break
            del self._counts[consumer]
