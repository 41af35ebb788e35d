"""The life cycle state of each topic on this broker: being loaded, served, or being closed.

A name has one of these states at a time, except for a moment: a topic that closes leaves `served`
before it enters `closing`, in one turn of the loop. A topic that was opened ahead of its use is
served as far as its end is concerned, but not `usable` until it is brought forward.
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
        """Stop writing anything of the topic."""
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
        """Logs of the topics that are served."""
        self.ahead: set[Topic] = set()
        """Served topics that clients may not use yet."""
        self.loading: dict[TopicName, asyncio.Task[Topic]] = {}
        self.unwanted: set[TopicName] = set()
        """Topics that were dropped while they were being loaded."""
        self.closing: dict[TopicName, Closing] = {}
        self.is_stopping = False
        """Whether the broker stops, so that no topic is loaded any more."""

    def names_of(self, belongs: Callable[[TopicName], bool]) -> Sequence[TopicName]:
        """Return matching topics that are served, being loaded or being closed here."""
        names = dict.fromkeys([*self.served, *self.loading, *self.closing])
        return [name for name in names if belongs(name)]

    def usable(self, name: TopicName) -> Topic | None:
        """Return the topic of a name if clients may use it.

        None: it must be loaded, or brought forward.
        """
        topic = self.served.get(name)
        return None if topic is None or topic.is_closed or topic in self.ahead else topic

    def serve(self, topic: Topic, log: ServedLog, *, is_ahead: bool = False) -> None:
        """Add a loaded topic. `is_ahead`: clients may not use it yet."""
        self.logs[topic] = log
        self.served[topic.name] = topic
        if is_ahead:
            self.ahead.add(topic)

    def take_out(self, topic: Topic) -> ServedLog:
        """Remove a topic from those that are served; return its log."""
        del self.served[topic.name]
        self.ahead.discard(topic)
        return self.logs.pop(topic)

    def is_served(self, topic: Topic) -> bool:
        """Whether this very object is served, and not one that was loaded later."""
        return topic in self.logs
