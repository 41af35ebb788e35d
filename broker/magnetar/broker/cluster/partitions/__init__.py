"""Partitioned topics: one name for several topics, and how many they are.

The topics themselves are plain ones, named `<name>-partition-<i>`; clients spread messages over
them and read from all. The name of the whole carries no data.
"""

from magnetar.broker.cluster.partitions.record import PartitionedTopicRecord
from magnetar.broker.cluster.partitions.registry import PartitionedTopics

__all__ = ["PartitionedTopicRecord", "PartitionedTopics"]
