"""Record of a partitioned topic: its number of partitions, in the metadata store. Pure.

/admin/partitioned-topics/<tenant>/<namespace>/<domain>/<quoted name>   PartitionedTopicRecord
"""

from pydantic import Field

from magnetar.broker.policies.model import Record
from magnetar.sdk.wire import TopicName

PARTITIONED_TOPICS_ROOT = "/admin/partitioned-topics"


class PartitionedTopicRecord(Record):
    """A partitioned topic."""

    partitions: int = Field(ge=1)
    properties: dict[str, str] = Field(default_factory=dict)
    is_deleted: bool = False
    """Whether the topic is being deleted: no partition of it appears any more."""
    is_final: bool = False
    """Whether it gets no more partitions, because it becomes, or is, a part of a scalable topic."""
    growing_from: int | None = Field(default=None, ge=1)
    """The first of the partitions that may still lack subscriptions: they were added, and the
    growth has not copied the last subscriptions yet. None: no growth is unfinished."""


def partitioned_topics_root(namespace: str, domain: str) -> str:
    """Return the path whose children are the partitioned topics of a namespace, given as
    tenant/namespace."""
    return f"{PARTITIONED_TOPICS_ROOT}/{namespace}/{domain}"


def partitioned_topic_path(topic: TopicName) -> str:
    return f"{PARTITIONED_TOPICS_ROOT}/{topic.storage_name}"
