"""A topic that this broker owns: its log, its producers, its subscriptions."""

from magnetar.broker.topic.subscriptions import OpenCursor, TopicSubscriptions
from magnetar.broker.topic.surroundings import OldestEntry, TopicLimits, TopicLog
from magnetar.broker.topic.topic import Topic

__all__ = [
    "OldestEntry",
    "OpenCursor",
    "Topic",
    "TopicLimits",
    "TopicLog",
    "TopicSubscriptions",
]
