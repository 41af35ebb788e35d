"""Topic compaction: the newest message of each key, in a ledger beside the topic."""

from magnetar.broker.features.compaction.compaction import (
    Compaction,
    CompactionCursor,
    CompactionSurroundings,
    compaction_of,
)
from magnetar.broker.features.compaction.record import CURSOR

__all__ = [
    "CURSOR",
    "Compaction",
    "CompactionCursor",
    "CompactionSurroundings",
    "compaction_of",
]
