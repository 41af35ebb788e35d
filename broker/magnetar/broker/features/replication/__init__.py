"""Geo-replication: copies topics between clusters."""

from magnetar.broker.features.replication.receiving import (
    MARKS_CURSOR,
    Receiving,
    ReceivingSurroundings,
)
from magnetar.broker.features.replication.replication import Replication, ReplicationSurroundings
from magnetar.broker.features.replication.subscriptions import (
    ReplicatedSubscriptions,
    SubscriptionCounts,
)

__all__ = [
    "MARKS_CURSOR",
    "Receiving",
    "ReceivingSurroundings",
    "ReplicatedSubscriptions",
    "Replication",
    "ReplicationSurroundings",
    "SubscriptionCounts",
]
