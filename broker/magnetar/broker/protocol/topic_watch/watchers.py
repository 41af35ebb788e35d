"""WATCH_TOPIC_LIST of one connection: the topics of a namespace that match a pattern, and changes.

A watcher hears of persistent topics, each partition by itself. A command with the id of a watcher
that exists puts a new one in its place, which is how a client catches up. What happens while the
client does not read is told in one piece when it does.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from magnetar.broker.base import naming, replies
from magnetar.broker.base.errors import NotAllowedError, RequestError
from magnetar.broker.protocol.link import Link
from magnetar.broker.protocol.login import Login
from magnetar.broker.protocol.topic_watch.pattern import TopicPattern
from magnetar.broker.protocol.topic_watch.watched_list import WatchedList
from magnetar.broker.security import Action, Namespace
from magnetar.broker.topics import topic_lists
from magnetar.broker.topics.followed_lists import FollowedList, difference
from magnetar.broker.topics.services import Services
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire.pulsar_pb2 import CommandWatchTopicList

_NAMES_PER_TURN = 2000
"""Names that are matched before others have their turn."""


class _Watcher:
    """One watcher; `list` is there once it was answered."""

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
    """Watchers of one connection."""

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
            watched = await _watched_list(pattern, followed)
            names = watched.names
            topic_lists.check_size(names, namespace, self._settings.message_bytes_max)
            if self._link.is_closed or not self._is_current(watcher):
                raise NotAllowedError(f"topic watcher {watcher.watcher_id} was closed meanwhile")
        except BaseException:
            self._lists.leave(namespace, watcher.on_change)
            raise
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
        """Those that are watched."""
        return {watcher.namespace for watcher in self._watchers.values()}

    def end(self, namespace: str) -> None:
        """Watch a namespace no more: the protocol has no word for that, so the client hears
        nothing further of it."""
        for watcher_id, watcher in list(self._watchers.items()):
            if watcher.namespace == namespace:
                self._forget(watcher_id)

    def wake(self) -> None:
        """The connection can take more."""
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
        """The connection is gone."""
        for watcher_id in list(self._watchers):
            self._forget(watcher_id)


async def _watched_list(pattern: TopicPattern, followed: FollowedList) -> WatchedList:
    """What matches now; nothing is awaited between the last look at the list and the return."""
    names = await followed.names()
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
