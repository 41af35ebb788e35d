"""Topic compaction: the newest message of each key, in a ledger beside the topic."""

from magnetar.broker.features.compaction.compacted_ledger import CURSOR
from magnetar.broker.features.compaction.compaction import (
    Compaction,
    CompactionCursor,
    CompactionSurroundings,
    compaction_of,
)

__all__ = [
    "CURSOR",
    "Compaction",
    "CompactionCursor",
    "CompactionSurroundings",
    "compaction_of",
]
