"""Where each topic is in its life here: being loaded, served, or being closed.

A name is in one of these at a time, but for a moment: a topic that is closed is out of `served`
before it is in `closing`, in one turn of the loop.
"""

import asyncio
from collections.abc import Callable, Sequence

from magnetar.broker.topic import Topic
from magnetar.broker.topics.non_persistent import VolatileLog
from magnetar.cursors import Cursor
from magnetar.ledger.log import ManagedLog
from magnetar.sdk.wire import TopicName

ServedLog = ManagedLog | VolatileLog


class Closing:
    """A topic that is being closed."""

    def __init__(self, topic: Topic, log: ServedLog, cursors: Sequence[Cursor]) -> None:
        self.topic = topic
        self.log = log
        self.cursors = cursors
        self.task: asyncio.Task[None]

    def abandon(self, reason: str) -> None:
        """Write nothing more."""
        for cursor in self.cursors:
            cursor.abandon()
        for feature in self.topic.features:
            feature.abandon()
        self.log.abandon(reason)


class TopicTable:
    """The topics of one broker."""

    def __init__(self) -> None:
        self.served: dict[TopicName, Topic] = {}
        self.logs: dict[Topic, ServedLog] = {}
        """Of the topics that are served."""
        self.loading: dict[TopicName, asyncio.Task[Topic]] = {}
        self.unwanted: set[TopicName] = set()
        """Topics that were dropped while they were being loaded."""
        self.closing: dict[TopicName, Closing] = {}
        self.is_stopping = False
        """The broker stops: nothing is loaded any more."""

    def names_of(self, belongs: Callable[[TopicName], bool]) -> Sequence[TopicName]:
        """Topics that are served, being loaded or being closed here."""
        names = dict.fromkeys([*self.served, *self.loading, *self.closing])
        return [name for name in names if belongs(name)]

    def serve(self, topic: Topic, log: ServedLog) -> None:
        """A topic is loaded."""
        self.logs[topic] = log
        self.served[topic.name] = topic

    def take_out(self, topic: Topic) -> ServedLog:
        """A topic is served no more; returns its log."""
        del self.served[topic.name]
        return self.logs.pop(topic)

    def is_served(self, topic: Topic) -> bool:
        """Whether it is this very object that is served, and not one that was loaded later."""
        return topic in self.logs
