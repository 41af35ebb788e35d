"""Rights that were taken away: whoever works by them is closed, and hears why when it comes back.

Rights are asked for when a producer or consumer is made, not for each message. When grants change,
those of the namespace or tenant that are connected here are asked for once more.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import structlog

from magnetar.broker.errors import BrokerMetadataError
from magnetar.broker.security.actions import Action, Subscription, Topic

if TYPE_CHECKING:
    from magnetar.broker.connection import Connection

_log = structlog.get_logger()

_RETRY_S = 1.0


class Revoking:
    """Looks at connected clients when grants have changed."""

    def __init__(self, connections: Callable[[], Iterable["Connection"]]) -> None:
        self._connections = connections
        self._changed: dict[str, None] = {}
        """Beginnings of namespace names: `tenant/`, or `tenant/namespace`."""
        self._looking: asyncio.Task[None] | None = None

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

    def _looked(self, looking: "asyncio.Task[None]") -> None:
        self._looking = None
        if not looking.cancelled() and (error := looking.exception()) is not None:
            _log.error("rights_not_revoked", exc_info=error)

    async def _look(self) -> None:
        while self._changed:
            changed, self._changed = self._changed, {}
            try:
                for connection in list(self._connections()):
                    await self._look_at(connection, tuple(changed))
            except BrokerMetadataError as error:
                _log.warning("rights_not_read", error=str(error))
                self._changed = {**changed, **self._changed}
                await asyncio.sleep(_RETRY_S)

    async def _look_at(self, connection: "Connection", changed: tuple[str, ...]) -> None:
        login = connection.login

        def is_concerned(namespace: str) -> bool:
            return any(
                namespace.startswith(each) if each.endswith("/") else namespace == each
                for each in changed
            )

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
