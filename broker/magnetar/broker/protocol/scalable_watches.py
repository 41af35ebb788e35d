"""Watches of Pulsar 5 on one connection: scalable topics of a namespace, transaction coordinators.

WATCH_SCALABLE_TOPICS: the client is sent the scalable topics of a namespace, then the new and the
deleted ones; changes that happen while it does not read are merged. WATCH_TC_ASSIGNMENTS: the
client is sent the broker of each transaction coordinator, again after every change, and chooses
among them. Source: sheet of Pulsar 5, sections 1.2 and 1.9.
"""

from collections.abc import Callable, Sequence
from functools import partial

from magnetar.broker.base import naming, replies
from magnetar.broker.base.errors import AuthorizationError, NotAllowedError, RequestError
from magnetar.broker.features.transactions.coordinator_places import Places
from magnetar.broker.protocol.layout_sessions import DISABLED
from magnetar.broker.protocol.link import Link
from magnetar.broker.protocol.login import Login
from magnetar.broker.protocol.topic_watchers import TopicPattern, WatchedList
from magnetar.broker.security import Action, Namespace
from magnetar.broker.topics import topic_lists
from magnetar.broker.topics.followed_lists import FollowedList
from magnetar.broker.topics.services import Services
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb

_EVERYTHING = TopicPattern(".*", length_max=2)


class _TopicsWatch:
    """One watch of the scalable topics of a namespace; `list` is set once it was answered."""

    def __init__(self, watch_id: int, namespace: str, link: Link, bytes_max: int) -> None:
        self.watch_id = watch_id
        self.namespace = namespace
        self.list: WatchedList | None = None
        self._link = link
        self._bytes_max = bytes_max

    def on_change(self, new: Sequence[str], deleted: Sequence[str]) -> None:
        """Apply a change of the namespace: new topics and deleted ones."""
        if self.list is not None:
            self.list.change(new, deleted)
            self.wake()

    def wake(self) -> None:
        """Send pending changes: the connection can take more."""
        if self.list is None or not self.list.has_news or not self._link.is_writable:
            return
        for update in self.list.take_updates(self._bytes_max):
            self._link.write(
                replies.scalable_topics_changed(self.watch_id, update.new, update.deleted)
            )


class _CoordinatorWatch:
    """One watch of transaction coordinators."""

    def __init__(self, watch_id: int, link: Link) -> None:
        self.watch_id = watch_id
        self.listener = link.listener or ""
        self.places: Places | None = None
        """Newest places for the client; None until the watch is answered."""
        self._told: Places | None = None
        self._link = link

    def tell(self, places: Places) -> None:
        """Send the places if they are new; while the client does not read, keep the newest."""
        self.places = places
        self.wake()

    def wake(self) -> None:
        """Send pending places: the connection can take more."""
        if self.places is not None and self.places != self._told and self._link.is_writable:
            self._told = self.places
            self._link.write(replies.coordinator_assignments(self.watch_id, _snapshot(self.places)))


class ScalableWatches:
    """Watches of one connection on scalable topics and transaction coordinators."""

    def __init__(self, link: Link, services: Services, login: Login) -> None:
        self._link = link
        self._login = login
        self._places = services.coordinator_places
        self._lists = services.scalable_lists
        self._settings = services.settings
        self._watches: dict[int, _CoordinatorWatch] = {}
        self._topic_watches: dict[int, _TopicsWatch] = {}

    def handlers(self) -> dict[int, Callable[[BaseCommand], None]]:
        return {
            BaseCommand.WATCH_SCALABLE_TOPICS: self._on_topics,
            BaseCommand.WATCH_SCALABLE_TOPICS_CLOSE: self._on_topics_close,
            BaseCommand.WATCH_TC_ASSIGNMENTS: self._on_coordinators,
            BaseCommand.WATCH_TC_ASSIGNMENTS_CLOSE: self._on_coordinators_close,
        }

    # Scalable topics of a namespace

    def _on_topics(self, command: BaseCommand) -> None:
        request = command.watchScalableTopics
        watch_id = request.watch_id
        refuse = partial(_refuse_topics, watch_id)
        self._forget_topics(watch_id)
        try:
            self._check_topics(request)
        except NotAllowedError as error:
            self._link.write(refuse(error))
            return
        watch = _TopicsWatch(
            watch_id, request.namespace, self._link, self._settings.message_bytes_max
        )
        self._topic_watches[watch_id] = watch
        if not self._link.start(self._topics(request, watch), refuse):
            del self._topic_watches[watch_id]

    def _check_topics(self, request: pb.CommandWatchScalableTopics) -> None:
        """Refuse a watch if there are too many, or if it is not supported.

        Raises:
            NotAllowedError
        """
        if not self._settings.scalable_topics:
            raise NotAllowedError(DISABLED)
        limit = self._settings.topic_watchers_per_connection_max
        if len(self._topic_watches) >= limit:
            raise NotAllowedError(
                f"this connection has {len(self._topic_watches)} watches of scalable topics, and "
                f"the limit is {limit} (topic_watchers_per_connection_max of the broker)"
            )
        if request.property_filters:
            raise NotAllowedError(
                "this broker does not filter scalable topics by their properties: watch all of a "
                "namespace"
            )

    async def _topics(self, request: pb.CommandWatchScalableTopics, watch: _TopicsWatch) -> None:
        try:
            await self._begin_topics(request, watch)
        except RequestError:
            if self._is_current_topics(watch):
                raise
            # It was closed, revoked, or replaced by another watch, which the error would end.
        finally:
            if watch.list is None and self._is_current_topics(watch):
                del self._topic_watches[watch.watch_id]

    async def _begin_topics(
        self, request: pb.CommandWatchScalableTopics, watch: _TopicsWatch
    ) -> None:
        namespace = watch.namespace
        naming.check_text(namespace, request.current_hash)
        await self._login.check(Action.LIST_TOPICS, Namespace(namespace))
        topic_lists.check_name(namespace)
        followed = self._lists.join(namespace, watch.on_change)
        try:
            size_bytes = await followed.size_bytes()
            async with self._link.room(min(size_bytes, self._settings.message_bytes_max)):
                self._answer_topics(request, watch, followed)
        finally:
            if watch.list is None:
                self._lists.leave(namespace, watch.on_change)

    def _answer_topics(
        self, request: pb.CommandWatchScalableTopics, watch: _TopicsWatch, followed: FollowedList
    ) -> None:
        if self._link.is_closed or not self._is_current_topics(watch):
            return
        names = followed.known  # perhaps newer, after a long wait
        topic_lists.check_size(names, watch.namespace, self._settings.message_bytes_max)
        watch.list = WatchedList(_EVERYTHING, names)
        if request.current_hash != topic_lists.topics_hash(names):
            self._link.write(replies.scalable_topics(watch.watch_id, names))

    def _is_current_topics(self, watch: _TopicsWatch) -> bool:
        return self._topic_watches.get(watch.watch_id) is watch

    def _on_topics_close(self, command: BaseCommand) -> None:
        self._forget_topics(command.watchScalableTopicsClose.watch_id)

    def _forget_topics(self, watch_id: int) -> None:
        watch = self._topic_watches.pop(watch_id, None)
        if watch is not None and watch.list is not None:
            self._lists.leave(watch.namespace, watch.on_change)

    def namespaces(self) -> set[str]:
        """Return the namespaces whose scalable topics are watched, including watches that were not
        answered yet."""
        return {each.namespace for each in self._topic_watches.values()}

    def end(self, namespace: str) -> None:
        """End watches of a namespace: the client may no longer list its topics."""
        for watch in list(self._topic_watches.values()):
            if watch.namespace == namespace:
                self._forget_topics(watch.watch_id)
                error = AuthorizationError(f"the right to list the topics of {namespace} is gone")
                self._link.write(_refuse_topics(watch.watch_id, error))

    # Transaction coordinators

    def _on_coordinators(self, command: BaseCommand) -> None:
        watch_id = command.watchTcAssignments.watch_id
        refuse = partial(_refuse_coordinators, watch_id)
        self._forget(watch_id)
        if not self._settings.scalable_topics:
            self._link.write(refuse(NotAllowedError(DISABLED)))
            return
        limit = self._settings.scalable_sessions_per_connection_max
        if len(self._watches) >= limit:
            error = NotAllowedError(
                f"this connection has {len(self._watches)} watches of coordinators, and the limit "
                f"is {limit} (scalable_sessions_per_connection_max of the broker)"
            )
            self._link.write(refuse(error))
            return
        watch = _CoordinatorWatch(watch_id, self._link)
        self._watches[watch_id] = watch
        if not self._link.start(self._coordinators(watch), refuse):
            del self._watches[watch_id]

    async def _coordinators(self, watch: _CoordinatorWatch) -> None:
        # Any connected client may use transactions: what they contain is checked.
        try:
            places = await self._places.places(watch.listener)
        except BaseException:
            if self._is_current(watch):
                del self._watches[watch.watch_id]
            raise
        if self._is_current(watch):
            self._places.join(watch)
            watch.tell(places)

    def _is_current(self, watch: _CoordinatorWatch) -> bool:
        return self._watches.get(watch.watch_id) is watch

    def _on_coordinators_close(self, command: BaseCommand) -> None:
        self._forget(command.watchTcAssignmentsClose.watch_id)

    def _forget(self, watch_id: int) -> None:
        watch = self._watches.pop(watch_id, None)
        if watch is not None:
            self._places.leave(watch)

    def wake(self) -> None:
        """Send pending changes: the connection can take more."""
        for topics in self._topic_watches.values():
            topics.wake()
        for watch in self._watches.values():
            watch.wake()

    def lost(self) -> None:
        """Handle the loss of the connection: its watches end."""
        for watch_id in list(self._topic_watches):
            self._forget_topics(watch_id)
        for watch_id in list(self._watches):
            self._forget(watch_id)


def _snapshot(places: Places) -> pb.TcAssignmentsSnapshot:
    return pb.TcAssignmentsSnapshot(
        parallelism=places.count,
        assignments=[
            pb.TcAssignment(
                tc_id=each.number,
                broker_service_url=each.service_url,
                broker_service_url_tls=each.service_url_tls or None,
            )
            for each in places.places
        ],
    )


def _refuse_topics(watch_id: int, error: RequestError) -> bytes:
    return replies.scalable_topics_failed(watch_id, error.code, str(error))


def _refuse_coordinators(watch_id: int, error: RequestError) -> bytes:
    return replies.coordinator_assignments_failed(watch_id, error.code, str(error))
