"""Deduplication: a message that a producer sends again is stored once."""

from magnetar.broker.features.deduplication.deduplication import (
    CURSOR,
    Deduplication,
    NoDeduplication,
)

__all__ = ["CURSOR", "Deduplication", "NoDeduplication"]
