"""A topic that this broker owns: its log, producers, subscriptions and features."""

from magnetar.broker.topic.feature import (
    NO_ROWS,
    Backlog,
    Feature,
    FeatureBacklog,
    PublishRows,
    TopicPort,
    Work,
)
from magnetar.broker.topic.publish_batch import EntryNotes, PublishBatch
from magnetar.broker.topic.publish_line import PublishLine
from magnetar.broker.topic.subscriptions import OpenCursor, TopicSubscriptions
from magnetar.broker.topic.surroundings import InternalAppend, OldestEntry, TopicLog
from magnetar.broker.topic.topic import Topic, looking_at

__all__ = [
    "NO_ROWS",
    "Backlog",
    "EntryNotes",
    "Feature",
    "FeatureBacklog",
    "InternalAppend",
    "OldestEntry",
    "OpenCursor",
    "PublishBatch",
    "PublishLine",
    "PublishRows",
    "Topic",
    "TopicLog",
    "TopicPort",
    "TopicSubscriptions",
    "Work",
    "looking_at",
]
