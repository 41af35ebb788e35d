"""Topics of a consumer of several topics, by name or by pattern; `following.py` refreshes them.

The partitions of given topics are requested periodically. For a pattern the namespace is listed:
when the broker reports created or deleted topics (WATCH_TOPIC_LIST), and periodically, because not
every broker reports them.

A pattern is a regular expression for whole topic names; a partition matches by the name of its
topic. The form is `persistent://tenant/namespace/orders-.*`, or shorter, like topic names. The
namespace is literal. Without `non-persistent://` only persistent topics match.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from magnetar.sdk.backoff import Backoff
from magnetar.sdk.connection import Connection
from magnetar.sdk.context import ClientContext
from magnetar.sdk.errors import SdkError
from magnetar.sdk.lookup import Lookup
from magnetar.sdk.wire.errors import TopicNameError
from magnetar.sdk.wire.pulsar_pb2 import (
    BaseCommand,
    CommandWatchTopicList,
    CommandWatchTopicListClose,
)
from magnetar.sdk.wire.topic_name import NON_PERSISTENT, PERSISTENT, TopicName

_log = logging.getLogger("magnetar.sdk")

_WATCHED_PATTERN_CHARACTERS_MAX = 50
"""Longest pattern that brokers watch, in characters."""


_NAMESPACE_PART = re.compile(r"[-=:.\w]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """A parsed topic pattern."""

    domain: str
    namespace: str
    """Namespace as `tenant/namespace`."""
    local: re.Pattern[str]

    @classmethod
    def parse(cls, pattern: "re.Pattern[str]") -> "TopicPattern":
        """Parse a pattern.

        Raises:
            TopicNameError: the pattern has another form, or its tenant or namespace is not literal.
        """
        text = pattern.pattern
        domain, separator, rest = text.partition("://")
        if not separator:
            domain, rest = PERSISTENT, text if text.count("/") >= 2 else f"public/default/{text}"
        parts = rest.split("/", 2)
        if domain not in (PERSISTENT, NON_PERSISTENT) or len(parts) != 3 or not parts[2]:
            raise TopicNameError(
                f"pattern {text!r} is not of the form domain://tenant/namespace/expression"
            )
        if not all(_NAMESPACE_PART.fullmatch(part) for part in parts[:2]):
            raise TopicNameError(
                f"pattern {text!r}: tenant and namespace must be plain names, not expressions"
            )
        return cls(domain, f"{parts[0]}/{parts[1]}", re.compile(parts[2], pattern.flags))

    @property
    def watched(self) -> str:
        """Pattern for the broker to watch, as `tenant/namespace/expression`."""
        return f"{self.namespace}/{self.local.pattern}"

    def matching(self, names: Iterable[str]) -> list[TopicName]:
        """Return the topics that match the pattern, in the order of their names."""
        found = []
        for name in names:
            try:
                topic = TopicName.parse(name)
            except TopicNameError:
                continue  # a broker may list names that no client can use
            if topic.domain == self.domain and self.local.fullmatch(topic.partitioned.local_name):
                found.append(topic)
        return sorted(found, key=str)


class TopicSource(Protocol):
    """Provides the topics to consume, with each partition."""

    async def topics(self) -> list[TopicName]:
        """Return the current topics.

        Raises:
            SdkError: no broker can answer now.
        """
        ...

    async def watch(self) -> None:
        """Ask the broker to report changes, if it can. Does not raise SdkError."""
        ...

    def close(self) -> None: ...


async def wait_topics(source: TopicSource, context: ClientContext) -> list[TopicName]:
    """Return the current topics; retry while brokers cannot answer, up to the operation timeout.

    Raises:
        SdkError: no broker could answer.
    """
    settings, clock = context.settings, context.clock
    deadline_s = clock.monotonic_s() + settings.operation_timeout_ms / 1000
    backoff = Backoff(
        min_s=settings.reconnect_delay_min_ms / 1000,
        max_s=settings.reconnect_delay_max_ms / 1000,
        random=context.random,
    )
    while True:
        try:
            return await source.topics()
        except SdkError as error:
            pause_s = backoff.next_s()
            if not error.retryable or clock.monotonic_s() + pause_s >= deadline_s:
                raise
        await asyncio.sleep(pause_s)


class GivenTopics:
    """Topics by name. Added partitions appear. Topics are never removed: after the last partition
    is deleted, consuming the plain topic of that name would create it."""

    def __init__(self, lookup: Lookup, names: Sequence[TopicName]) -> None:
        self._lookup = lookup
        self._names = tuple(dict.fromkeys(names))
        self._partitions: dict[TopicName, int] = {}

    async def topics(self) -> list[TopicName]:
        found: list[TopicName] = []
        for name in self._names:
            # A partition is never partitioned: no broker need be asked.
            count = 0 if name.partition_index >= 0 else await self._lookup.partitions(str(name))
            count = self._partitions[name] = max(count, self._partitions.get(name, 0))
            found += [name.partition(index) for index in range(count)] if count else [name]
        return list(dict.fromkeys(found))

    async def watch(self) -> None:
        """Do nothing: brokers do not report new partitions, so they are requested periodically."""

    def close(self) -> None:
        """Do nothing: there is no watch to end."""


class MatchingTopics:
    """Topics that match a pattern. Deleted topics disappear."""

    def __init__(
        self, lookup: Lookup, pattern: TopicPattern, watcher_id: int, on_news: Callable[[], None]
    ) -> None:
        self._lookup = lookup
        self._pattern = pattern
        self._id = watcher_id
        self._on_news = on_news
        self._watched: Connection | None = None
        self._is_refused = len(pattern.local.pattern) > _WATCHED_PATTERN_CHARACTERS_MAX

    async def topics(self) -> list[TopicName]:
        return self._pattern.matching(await self._lookup.topics(self._pattern.namespace))

    async def watch(self) -> None:
        if self._is_refused or self._watched is not None:
            return
        try:
            connection = await self._lookup.service_connection()
            if not connection.watches_topics:
                return
            connection.topic_watchers[self._id] = self
            request_id = connection.next_request_id()
            await connection.request(
                request_id,
                BaseCommand(
                    type=BaseCommand.WATCH_TOPIC_LIST,
                    watchTopicList=CommandWatchTopicList(
                        request_id=request_id,
                        watcher_id=self._id,
                        namespace=self._pattern.namespace,
                        topics_pattern=self._pattern.watched,
                    ),
                ),
            )
        except SdkError as error:
            _log.info("topic_watch_failed pattern=%s: %s", self._pattern.watched, error)
            self._is_refused = not error.retryable
        else:
            self._watched = connection

    def on_topics_changed(self) -> None:
        """Report changed topics; called by the connection."""
        self._on_news()

    def on_session_lost(self, connection: Connection) -> None:
        """Handle a lost connection, which ends the watch; called by the connection."""
        self._watched = None
        self._on_news()

    def close(self) -> None:
        """End the watch at the broker."""
        connection, self._watched = self._watched, None
        if connection is not None and connection.is_open:
            connection.topic_watchers.pop(self._id, None)
            connection.send(
                BaseCommand(
                    type=BaseCommand.WATCH_TOPIC_LIST_CLOSE,
                    watchTopicListClose=CommandWatchTopicListClose(
                        request_id=connection.next_request_id(), watcher_id=self._id
                    ),
                )
            )
