"""Clients of Pulsar 5: layouts of topics, and the division of their segments among consumers."""

from magnetar.broker.features.scalable.assignment import Assignment
from magnetar.broker.features.scalable.coordinators import (
    CoordinatedTopics,
    GroupId,
    SegmentCoordinators,
)
from magnetar.broker.features.scalable.layout import Change, Layout, change
from magnetar.broker.features.scalable.layouts import FollowedLayout, Layouts, LayoutSource
from magnetar.broker.features.scalable.partition_layouts import PartitionLayouts

__all__ = [
    "Assignment",
    "Change",
    "CoordinatedTopics",
    "FollowedLayout",
    "GroupId",
    "Layout",
    "LayoutSource",
    "Layouts",
    "PartitionLayouts",
    "SegmentCoordinators",
    "change",
]
