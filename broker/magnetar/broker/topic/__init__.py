"""A topic that this broker owns: its log, its producers, its subscriptions."""

from magnetar.broker.topic.subscriptions import OpenCursor, TopicSubscriptions
from magnetar.broker.topic.surroundings import TopicLimits, TopicLog
from magnetar.broker.topic.topic import Topic

__all__ = ["OpenCursor", "Topic", "TopicLimits", "TopicLog", "TopicSubscriptions"]
