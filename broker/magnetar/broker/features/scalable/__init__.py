"""Topics for clients of Pulsar 5: scalable topics, layouts, and segments divided among
consumers."""

from magnetar.broker.features.scalable.assignment import Assignment
from magnetar.broker.features.scalable.auto_scaling import AutoScaling
from magnetar.broker.features.scalable.coordinators import (
    CoordinatedTopics,
    GroupId,
    SegmentCoordinators,
)
from magnetar.broker.features.scalable.layout import Change, Layout, change
from magnetar.broker.features.scalable.layouts import FollowedLayout, Layouts, LayoutSource
from magnetar.broker.features.scalable.record import ScalableTopicRecord, SegmentRecord
from magnetar.broker.features.scalable.record_layouts import PartitionLayouts, RecordLayouts
from magnetar.broker.features.scalable.scalable_topics import ScalableTopics, SegmentOwners
from magnetar.broker.features.scalable.sealing import SegmentSealing
from magnetar.broker.features.scalable.whole_subscriptions import WholeSubscriptions

__all__ = [
    "Assignment",
    "AutoScaling",
    "Change",
    "CoordinatedTopics",
    "FollowedLayout",
    "GroupId",
    "Layout",
    "LayoutSource",
    "Layouts",
    "PartitionLayouts",
    "RecordLayouts",
    "ScalableTopicRecord",
    "ScalableTopics",
    "SegmentCoordinators",
    "SegmentOwners",
    "SegmentRecord",
    "SegmentSealing",
    "WholeSubscriptions",
    "change",
]
