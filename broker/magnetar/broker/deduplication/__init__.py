"""Deduplication: a message that a producer sends again is stored once."""

from magnetar.broker.deduplication.deduplication import (
    CURSOR,
    Deduplication,
    DeduplicationLimits,
    restore,
)

__all__ = ["CURSOR", "Deduplication", "DeduplicationLimits", "restore"]
