"""Ownership of topics: leases in the metadata store, and a broker that fences itself."""

from magnetar.broker.cluster.ownership.protocol import (
    Destination,
    Owner,
    Ownership,
    Tenure,
    TopicHolder,
)
from magnetar.broker.cluster.ownership.sole_owner import SoleOwner

__all__ = ["Destination", "Owner", "Ownership", "SoleOwner", "Tenure", "TopicHolder"]
