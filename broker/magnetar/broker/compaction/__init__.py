"""Topic compaction: the newest message of each key, in a ledger beside the topic."""

from magnetar.broker.compaction.compaction import Compaction, CompactionSurroundings
from magnetar.broker.compaction.record import CURSOR

__all__ = ["CURSOR", "Compaction", "CompactionSurroundings"]
