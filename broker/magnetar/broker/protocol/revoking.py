"""Revoked rights: disconnects their users, which learn the reason when they reconnect.

Rights are checked when a producer, a consumer, a watcher or a WebSocket session is created, not for
each message. They are checked again when grants change (for the clients in that namespace or
tenant), and for all clients every `rights_recheck_interval_s`. So a change of which the broker was
not notified takes effect within a bounded time, too.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

import structlog

from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.security.actions import Action, Namespace, Resource, Subscription, Topic

if TYPE_CHECKING:
    from magnetar.broker.protocol.connection import Connection
    from magnetar.broker.protocol.login import Login

_log = structlog.get_logger()

_RETRY_S = 1.0
_EVERYTHING = "/"

IsConcerned = Callable[[str], bool]
"""Returns whether to check clients in a namespace, given its name."""
CheckSessions = Callable[[IsConcerned], Awaitable[None]]
"""Closes sessions that have lost their rights. Raises: BrokerMetadataError."""


async def no_sessions(is_concerned: IsConcerned) -> None:
    """Check no sessions."""


class Revoking:
    """Checks connected clients when grants have changed, and periodically."""

    def __init__(
        self,
        connections: Callable[[], Iterable["Connection"]],
        check_sessions: CheckSessions = no_sessions,
        *,
        recheck_interval_s: float = 0.0,
    ) -> None:
        """`check_sessions`: checks WebSocket sessions, which are no connections of the binary
        protocol."""
        self._connections = connections
        self._check_sessions = check_sessions
        self._recheck_interval_s = recheck_interval_s
        self._changed: dict[str, None] = {}
        """Prefixes of namespace names to check: `tenant/`, or `tenant/namespace`; `/` for all."""
        self._unread = ""
        """Why some rights could not be determined in this check; empty if all were."""
        self._looking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the periodic check of all clients."""
        if self._recheck_interval_s > 0:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._recheck_interval_s, self._recheck)

    def changed(self, prefix: str) -> None:
        """Check clients after grants have changed; `prefix` is tenant/namespace, or tenant/."""
        self._changed[prefix] = None
        self._begin()

    def _begin(self) -> None:
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(
                self._look(), name="revoke-rights"
            )
            self._looking.add_done_callback(self._looked)

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        if self._timer is not None:
            self._timer.cancel()

    def _recheck(self) -> None:
        self.changed(_EVERYTHING)
        self.start()

    def _looked(self, looking: "asyncio.Task[None]") -> None:
        self._looking = None
        if not looking.cancelled() and (error := looking.exception()) is not None:
            _log.error("rights_not_revoked", exc_info=error)
        if not looking.cancelled() and self._changed:
            self._begin()  # notified after the check ended, but before its task did

    async def _look(self) -> None:
        while self._changed:
            changed, self._changed = self._changed, {}
            is_concerned = _concerning(tuple(changed))
            self._unread = ""
            for connection in list(self._connections()):
                try:
                    await self._look_at(connection, is_concerned)
                except Exception as error:  # noqa: BLE001 - the others must be checked too
                    _log.exception("rights_not_checked")
                    self._unread = repr(error)
                await asyncio.sleep(0)
            try:
                await self._check_sessions(is_concerned)
            except BrokerMetadataError as error:
                self._unread = str(error)
            except Exception as error:  # noqa: BLE001 - checked again below
                _log.exception("rights_not_checked")
                self._unread = repr(error)
            if self._unread:
                _log.warning("rights_not_read", error=self._unread)
                self._changed = {**changed, **self._changed}
                await asyncio.sleep(_RETRY_S)

    async def _look_at(self, connection: "Connection", is_concerned: IsConcerned) -> None:
        login = connection.login
        for producer in connection.publishing.producers():
            topic = producer.line.name
            if not is_concerned(topic.namespace_name):
                continue
            if not await self._may(login, Action.PRODUCE, Topic(topic)):
                producer.close_by_broker()
        for topic, subscription, consumer in connection.consuming.consumers():
            if not is_concerned(topic.namespace_name):
                continue
            wanted = Subscription(topic, subscription.name)
            if not await self._may(login, Action.CONSUME, wanted) and not consumer.is_closed:
                subscription.disconnect(consumer)
        await self._look_at_layouts(connection, is_concerned)
        for watched in (connection.watchers, connection.scalable_watches):
            for namespace in filter(is_concerned, watched.namespaces()):
                if not await self._may(login, Action.LIST_TOPICS, Namespace(namespace)):
                    watched.end(namespace)

    async def _look_at_layouts(self, connection: "Connection", is_concerned: IsConcerned) -> None:
        """End layouts and registrations of Pulsar 5 clients for topics that they may no longer
        use."""
        login = connection.login
        for session_id, topic in connection.layouts.topics():
            if is_concerned(topic.namespace_name) and not await self._may(
                login, Action.LOOKUP, Topic(topic)
            ):
                connection.layouts.revoke(session_id)
        for registration in connection.segment_consumers.registrations():
            group = registration.group
            wanted = Subscription(group.topic, group.subscription)
            if is_concerned(group.topic.namespace_name) and not await self._may(
                login, Action.CONSUME, wanted
            ):
                connection.segment_consumers.revoke(registration)

    async def _may(self, login: "Login", action: Action, resource: Resource) -> bool:
        """Whether a client may continue.

        If this cannot be determined now, it may, and is checked again. Checks of other clients go
        on.
        """
        try:
            return await login.may(action, resource)
        except BrokerMetadataError as error:
            self._unread = str(error)
            return True


def _concerning(changed: tuple[str, ...]) -> IsConcerned:
    def is_concerned(namespace: str) -> bool:
        return any(
            each == _EVERYTHING
            or (namespace.startswith(each) if each.endswith("/") else namespace == each)
            for each in changed
        )

    return is_concerned
