"""Where a consumer of several topics learns which they are. `following.py` looks again.

Given topics are asked for their partitions from time to time. For a pattern the namespace is
listed: when the broker says that topics have come or gone (WATCH_TOPIC_LIST), and from time to time
anyway, because not every broker says it.

A pattern is a regular expression for whole topic names, partitions under the name of their topic:
`persistent://tenant/namespace/orders-.*`, or shorter as topic names are. The namespace is literal;
without `non-persistent://` only persistent topics fit.
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
"""Brokers watch no longer ones."""


_NAMESPACE_PART = re.compile(r"[-=:.\w]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """A parsed pattern."""

    domain: str
    namespace: str
    """`tenant/namespace`"""
    local: re.Pattern[str]

    @classmethod
    def parse(cls, pattern: "re.Pattern[str]") -> "TopicPattern":
        """Raises: TopicNameError: of another shape, or no literal tenant and namespace."""
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
        """What a broker is asked to watch: `tenant/namespace/expression`."""
        return f"{self.namespace}/{self.local.pattern}"

    def matching(self, names: Iterable[str]) -> list[TopicName]:
        """Topics of a namespace that match the pattern, in the order of their names."""
        found = []
        for name in names:
            try:
                topic = TopicName.parse(name)
            except TopicNameError:
                continue  # a broker may know names that nobody can use
            if topic.domain == self.domain and self.local.fullmatch(topic.partitioned.local_name):
                found.append(topic)
        return sorted(found, key=str)


class TopicSource(Protocol):
    """Says which topics there are, partitions one by one."""

    async def topics(self) -> list[TopicName]:
        """Raises: SdkError: nobody can tell now."""
        ...

    async def watch(self) -> None:
        """See to it that news are heard, if that can be. Does not raise SdkError."""
        ...

    def close(self) -> None: ...


async def wait_topics(source: TopicSource, context: ClientContext) -> list[TopicName]:
    """The topics there are; asks again while brokers cannot tell, as long as an operation may take.

    Raises:
        SdkError: nobody could tell.
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
    """Topics by name. Partitions that are added appear; topics stay, whatever happens to them: to
    consume the plain topic of the name, where there are no partitions any more, would make it."""

    def __init__(self, lookup: Lookup, names: Sequence[TopicName]) -> None:
        self._lookup = lookup
        self._names = tuple(dict.fromkeys(names))
        self._partitions: dict[TopicName, int] = {}

    async def topics(self) -> list[TopicName]:
        found: list[TopicName] = []
        for name in self._names:
            # A partition is no partitioned topic: nobody need be asked.
            count = 0 if name.partition_index >= 0 else await self._lookup.partitions(str(name))
            count = self._partitions[name] = max(count, self._partitions.get(name, 0))
            found += [name.partition(index) for index in range(count)] if count else [name]
        return list(dict.fromkeys(found))

    async def watch(self) -> None:
        """Brokers tell nothing of partitions: they are asked."""

    def close(self) -> None:
        """Nothing to end."""


class MatchingTopics:
    """The topics that fit a pattern. Those that are deleted go."""

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
        """From the connection."""
        self._on_news()

    def on_session_lost(self, connection: Connection) -> None:
        """From the connection: what happens from now on is not heard of."""
        self._watched = None
        self._on_news()

    def close(self) -> None:
        """Tell the broker that nobody listens any more."""
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
