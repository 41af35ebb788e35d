"""WATCH_TOPIC_LIST of one connection: the topics of a namespace that match a pattern, and changes.

A watcher is notified of persistent topics, each partition separately. A command with the id of an
existing watcher replaces that watcher; this is how a client catches up. Changes that happen while
the client does not read are merged and sent together when it reads again, so such a client costs no
more than the names themselves.

A pattern is matched against the whole of `tenant/namespace/name`. A scheme in the pattern is
ignored, and the partitions of a topic are matched by the topic's name. The engine is RE2, as in
Pulsar: its time is linear in the text whatever the pattern is, so a client cannot stop the broker
with one. Source: protocol sheet, section 13.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import re2

from magnetar.broker.base import naming, replies
from magnetar.broker.base.errors import NotAllowedError, RequestError
from magnetar.broker.protocol.link import Link
from magnetar.broker.protocol.login import Login
from magnetar.broker.security import Action, Namespace
from magnetar.broker.topics import topic_lists
from magnetar.broker.topics.followed_lists import FollowedList, difference
from magnetar.broker.topics.services import Services
from magnetar.broker.topics.topic_lists import NAME_BYTES, topics_hash
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire.pulsar_pb2 import CommandWatchTopicList

_PARTITION = re.compile(r"-partition-(?:0|[1-9][0-9]*)$")
_MEMORY_BYTES_MAX = 1 << 20
"""Memory limit of one compiled pattern, in bytes. A pattern that needs more is refused, or matched
more slowly, but in linear time."""


_NAMES_PER_TURN = 2000
"""Names that are matched before other work gets a turn."""


class TopicPattern:
    """A compiled topic pattern."""

    def __init__(self, pattern: str, *, length_max: int) -> None:
        """Compile a pattern.

        Raises:
            NotAllowedError: it is too long, or not a valid pattern.
        """
        if len(pattern) > length_max:
            raise NotAllowedError(
                f"the pattern has {len(pattern)} characters; the limit is {length_max}"
            )
        options = re2.Options()
        options.max_mem = _MEMORY_BYTES_MAX
        options.log_errors = False
        try:
            self._matches = re2.compile(pattern.rpartition("://")[2], options).fullmatch
        except re2.error as error:
            raise NotAllowedError(f"{pattern!r} is not a valid RE2 pattern: {error}") from error

    def matching(self, names: Iterable[str]) -> list[str]:
        """Return the full names that match, in their order."""
        matches = self._matches
        return [each for each in names if matches(_PARTITION.sub("", each.partition("://")[2]))]


@dataclass(frozen=True, slots=True)
class Update:
    """One WATCH_TOPIC_UPDATE: sorted names, and the hash of the resulting list."""

    new: Sequence[str]
    deleted: Sequence[str]
    topics_hash: str


class WatchedList:
    """The topics that match the pattern of one watcher, and the changes not sent yet."""

    def __init__(self, pattern: TopicPattern, matching: Iterable[str]) -> None:
        """`matching`: the names in the first answer to the watcher."""
        self._pattern = pattern
        self._names = set(matching)
        self._new: set[str] = set()
        self._deleted: set[str] = set()

    @property
    def names(self) -> list[str]:
        """Names that match now, sorted."""
        return sorted(self._names)

    def change(self, new: Sequence[str], deleted: Sequence[str]) -> None:
        """Apply a change of the namespace: new topics and deleted ones."""
        for name in self._pattern.matching(new):
            if name not in self._names:
                self._names.add(name)
                _move(name, self._new, self._deleted)
        for name in self._names.intersection(deleted):
            self._names.discard(name)
            _move(name, self._deleted, self._new)

    @property
    def has_news(self) -> bool:
        """Whether there are changes to send."""
        return bool(self._new or self._deleted)

    def take_updates(self, bytes_max: int) -> Iterator[Update]:
        """Yield the pending changes, in pieces whose names have at most about `bytes_max` bytes.

        The hash of each piece is that of the client's list after the piece. A client that returns
        with that hash is sent the rest.
        """
        told = (self._names - self._new) | self._deleted
        for new, deleted in _cut(sorted(self._new), sorted(self._deleted), bytes_max):
            told.update(new)
            told.difference_update(deleted)
            yield Update(new, deleted, topics_hash(sorted(told)))
        self._new.clear()
        self._deleted.clear()


def _move(name: str, to: set[str], other: set[str]) -> None:
    """Note a change to be sent; one that reverts a pending change cancels it instead."""
    if name in other:
        other.discard(name)
    else:
        to.add(name)


def _cut(
    new: Sequence[str], deleted: Sequence[str], bytes_max: int
) -> Iterator[tuple[list[str], list[str]]]:
    piece: tuple[list[str], list[str]] = ([], [])
    room = bytes_max
    for at, names in enumerate((new, deleted)):
        for name in names:
            size = len(name.encode()) + NAME_BYTES
            if size > room and room < bytes_max:
                yield piece
                piece, room = ([], []), bytes_max
            piece[at].append(name)
            room -= size
    if room < bytes_max:
        yield piece


class _Watcher:
    """One watcher; `list` is set once it was answered."""

    def __init__(self, watcher_id: int, namespace: str, on_news: Callable[["_Watcher"], None]):
        self.watcher_id = watcher_id
        self.namespace = namespace
        self.list: WatchedList | None = None
        self._on_news = on_news

    def on_change(self, new: Sequence[str], deleted: Sequence[str]) -> None:
        if self.list is not None:
            self.list.change(new, deleted)
            if self.list.has_news:
                self._on_news(self)


class TopicWatchers:
    """Topic watchers of one connection."""

    def __init__(self, link: Link, services: Services, login: Login) -> None:
        self._link = link
        self._login = login
        self._settings = services.settings
        self._lists = services.topic_lists
        self._watchers: dict[int, _Watcher] = {}

    def handlers(self) -> dict[int, Callable[[BaseCommand], None]]:
        return {
            BaseCommand.WATCH_TOPIC_LIST: self._on_watch,
            BaseCommand.WATCH_TOPIC_LIST_CLOSE: self._on_close,
        }

    def _on_watch(self, command: BaseCommand) -> None:
        request = command.watchTopicList
        refuse = partial(_refuse, request.request_id)
        self._forget(request.watcher_id)
        if len(self._watchers) >= self._settings.topic_watchers_per_connection_max:
            error = NotAllowedError(f"this connection has {len(self._watchers)} topic watchers")
            self._link.write(refuse(error))
            return
        watcher = _Watcher(request.watcher_id, request.namespace, self._tell)
        self._watchers[request.watcher_id] = watcher
        if not self._link.start(self._watch(request, watcher), refuse):
            del self._watchers[request.watcher_id]

    async def _watch(self, request: CommandWatchTopicList, watcher: _Watcher) -> None:
        try:
            await self._begin(request, watcher)
        finally:
            if watcher.list is None and self._is_current(watcher):
                del self._watchers[watcher.watcher_id]

    async def _begin(self, request: CommandWatchTopicList, watcher: _Watcher) -> None:
        namespace = request.namespace
        naming.check_text(namespace, request.topics_pattern, request.topics_hash)
        await self._login.check(Action.LIST_TOPICS, Namespace(namespace))
        length_max = self._settings.topics_pattern_length_max
        pattern = TopicPattern(request.topics_pattern, length_max=length_max)
        topic_lists.check_name(namespace)
        followed = self._lists.join(namespace, watcher.on_change)
        try:
            # What matches is not looked for before there is room: each watcher has its own list.
            size_bytes = await followed.size_bytes()
            async with self._link.room(min(size_bytes, self._settings.message_bytes_max)):
                await self._answer(request, watcher, pattern, followed)
        finally:
            if watcher.list is None:
                self._lists.leave(namespace, watcher.on_change)

    async def _answer(
        self,
        request: CommandWatchTopicList,
        watcher: _Watcher,
        pattern: TopicPattern,
        followed: FollowedList,
    ) -> None:
        self._check_current(watcher)
        watched = await _watched_list(pattern, followed)
        names = watched.names
        topic_lists.check_size(names, request.namespace, self._settings.message_bytes_max)
        self._check_current(watcher)
        watcher.list = watched
        current = topic_lists.topics_hash(names)
        self._link.write(
            replies.watch_topic_list_success(
                request.request_id,
                watcher.watcher_id,
                [] if request.topics_hash == current else names,
                topics_hash=current,
            )
        )

    def _check_current(self, watcher: _Watcher) -> None:
        """Refuse to answer a watcher that was closed or replaced, as its client knows.

        Raises:
            NotAllowedError
        """
        if self._link.is_closed or not self._is_current(watcher):
            raise NotAllowedError(f"topic watcher {watcher.watcher_id} was closed meanwhile")

    def _is_current(self, watcher: _Watcher) -> bool:
        return self._watchers.get(watcher.watcher_id) is watcher

    def _tell(self, watcher: _Watcher) -> None:
        if not self._link.is_writable or watcher.list is None:
            return
        for update in watcher.list.take_updates(self._settings.message_bytes_max):
            self._link.write(
                replies.watch_topic_update(
                    watcher.watcher_id,
                    update.new,
                    update.deleted,
                    topics_hash=update.topics_hash,
                )
            )

    def namespaces(self) -> set[str]:
        """Return the namespaces that have a watcher."""
        return {watcher.namespace for watcher in self._watchers.values()}

    def end(self, namespace: str) -> None:
        """Stop watching a namespace. The protocol has no message for that: the client gets no more
        changes."""
        for watcher_id, watcher in list(self._watchers.items()):
            if watcher.namespace == namespace:
                self._forget(watcher_id)

    def wake(self) -> None:
        """Send pending changes: the connection can take more."""
        for watcher in self._watchers.values():
            if watcher.list is not None and watcher.list.has_news:
                self._tell(watcher)

    def _on_close(self, command: BaseCommand) -> None:
        request = command.watchTopicListClose
        self._forget(request.watcher_id)
        self._link.write(replies.success(request.request_id))

    def _forget(self, watcher_id: int) -> None:
        watcher = self._watchers.pop(watcher_id, None)
        if watcher is not None and watcher.list is not None:
            self._lists.leave(watcher.namespace, watcher.on_change)

    def lost(self) -> None:
        """Handle the loss of the connection: its watchers end."""
        for watcher_id in list(self._watchers):
            self._forget(watcher_id)


async def _watched_list(pattern: TopicPattern, followed: FollowedList) -> WatchedList:
    """Return what matches of the list as last read; nothing is awaited between the last look at it
    and the return."""
    names = followed.known
    matching: list[str] = []
    for start in range(0, len(names), _NAMES_PER_TURN):
        if start:
            await asyncio.sleep(0)
        matching += pattern.matching(names[start : start + _NAMES_PER_TURN])
    now = followed.known
    if now is not names:
        new, deleted = difference(names, now)
        gone = set(deleted)
        matching = [each for each in matching if each not in gone] + pattern.matching(new)
    return WatchedList(pattern, matching)


def _refuse(request_id: int, error: RequestError) -> bytes:
    return replies.error(request_id, error.code, str(error))
