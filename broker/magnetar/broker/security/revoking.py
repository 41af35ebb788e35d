"""Rights that were taken away: whoever works by them is closed, and hears why when it comes back.

Rights are asked for when a producer, a consumer, a watcher or a WebSocket session is made, not for
each message. They are asked for once more when grants change (of those in that namespace or
tenant), and of everybody every `rights_recheck_interval_s`, so that a change nobody was told of
counts within a bounded time, too.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

import structlog

from magnetar.broker.errors import BrokerMetadataError
from magnetar.broker.security.actions import Action, Namespace, Subscription, Topic

if TYPE_CHECKING:
    from magnetar.broker.connection import Connection

_log = structlog.get_logger()

_RETRY_S = 1.0
_EVERYTHING = "/"

IsConcerned = Callable[[str], bool]
"""Whether a namespace, by its name, is to be looked at."""
CheckSessions = Callable[[IsConcerned], Awaitable[None]]
"""Closes sessions that have lost their rights. Raises: BrokerMetadataError."""


async def no_sessions(is_concerned: IsConcerned) -> None:
    """There are none."""


class Revoking:
    """Looks at connected clients when grants have changed, and now and then."""

    def __init__(
        self,
        connections: Callable[[], Iterable["Connection"]],
        check_sessions: CheckSessions = no_sessions,
        *,
        recheck_interval_s: float = 0.0,
    ) -> None:
        """`check_sessions`: of WebSockets, which are no connections of the binary protocol."""
        self._connections = connections
        self._check_sessions = check_sessions
        self._recheck_interval_s = recheck_interval_s
        self._changed: dict[str, None] = {}
        """Beginnings of namespace names: `tenant/`, or `tenant/namespace`; `/` for all."""
        self._looking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look at everybody from time to time."""
        if self._recheck_interval_s > 0:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._recheck_interval_s, self._recheck)

    def changed(self, prefix: str) -> None:
        """Grants in these namespaces have changed; `prefix` is tenant/namespace, or tenant/."""
        self._changed[prefix] = None
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

    async def _look(self) -> None:
        while self._changed:
            changed, self._changed = self._changed, {}
            is_concerned = _concerning(tuple(changed))
            try:
                for connection in list(self._connections()):
                    await self._look_at(connection, is_concerned)
                    await asyncio.sleep(0)
                await self._check_sessions(is_concerned)
            except BrokerMetadataError as error:
                _log.warning("rights_not_read", error=str(error))
                self._changed = {**changed, **self._changed}
                await asyncio.sleep(_RETRY_S)

    async def _look_at(self, connection: "Connection", is_concerned: IsConcerned) -> None:
        login = connection.login
        for producer in connection.publishing.producers():
            topic = producer.topic.name
            if not is_concerned(topic.namespace_name):
                continue
            if not await login.may(Action.PRODUCE, Topic(topic)):
                producer.close_by_broker()
        for topic, subscription, consumer in connection.consuming.consumers():
            if not is_concerned(topic.namespace_name):
                continue
            wanted = Subscription(topic, subscription.name)
            if not await login.may(Action.CONSUME, wanted) and not consumer.is_closed:
                subscription.disconnect(consumer)
        for namespace in filter(is_concerned, connection.watchers.namespaces()):
            if not await login.may(Action.LIST_TOPICS, Namespace(namespace)):
                connection.watchers.end(namespace)


def _concerning(changed: tuple[str, ...]) -> IsConcerned:
    def is_concerned(namespace: str) -> bool:
        return any(
            each == _EVERYTHING
            or (namespace.startswith(each) if each.endswith("/") else namespace == each)
            for each in changed
        )

    return is_concerned
