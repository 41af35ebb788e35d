"""Replicated subscriptions: other clusters keep subscriptions of the same name in step."""

from magnetar.broker.features.replication.subscriptions.counts import SubscriptionCounts
from magnetar.broker.features.replication.subscriptions.replicated_subscriptions import (
    ReplicatedSubscriptions,
    ReplicatedSubscriptionsSurroundings,
)

__all__ = [
    "ReplicatedSubscriptions",
    "ReplicatedSubscriptionsSurroundings",
    "SubscriptionCounts",
]
