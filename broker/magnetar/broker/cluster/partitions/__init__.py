"""Partitioned topics: one name for several topics, and the number of these.

The topics themselves are plain ones, named `<name>-partition-<i>`; clients spread messages over
them and read from all. The partitioned name itself carries no data.
"""

from magnetar.broker.cluster.partitions.record import PartitionedTopicRecord
from magnetar.broker.cluster.partitions.registry import PartitionedTopics

__all__ = ["PartitionedTopicRecord", "PartitionedTopics"]
