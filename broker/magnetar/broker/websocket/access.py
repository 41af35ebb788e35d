"""Access of WebSocket clients: origins, rights, and the end of a session with its credentials.

A browser lets any page connect, and names its origin. Rights are checked when a session begins and
when it gains topics, because sessions reach topics as the broker, which may do everything. When a
client's credentials expire, its session ends: the protocol has no frame to renew them, so clients
reconnect. Source: WebSocket sheet, section 2.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from magnetar.broker.base.errors import AuthenticationError, AuthorizationError
from magnetar.broker.security import (
    Action,
    Authenticator,
    Authorizer,
    Identity,
    Namespace,
    Subscription,
    Topic,
)
from magnetar.broker.websocket.errors import UpgradeRefusedError
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire.topic_name import TopicName


def is_allowed(origin: str | None, host: str | None, allowed: str) -> bool:
    """Whether a client from `origin` (None if it is not a browser) may connect.

    `host` is the request's Host header, `allowed` the setting: origins separated by commas, or `*`.
    """
    if origin is None:
        return True
    entries = {entry.strip().rstrip("/").lower() for entry in allowed.split(",")}
    if "*" in entries or origin.rstrip("/").lower() in entries - {""}:
        return True
    try:
        return host is not None and urlsplit(origin).netloc.lower() == host.strip().lower() != ""
    except ValueError:
        return False  # An unreadable origin is never this broker's.


@dataclass(frozen=True, slots=True)
class Rights:
    """Rights of one client.

    The checks raise BrokerMetadataError if the grants cannot be read now.
    """

    identity: Identity
    authorizer: Authorizer
    address: str

    async def check_produce(self, topic: TopicName) -> None:
        """Check the right to produce. Raises: UpgradeRefusedError: 403."""
        await self._check(Action.PRODUCE, Topic(topic))

    async def check_read(self, topic: TopicName) -> None:
        """Check the right to read a topic. Raises: UpgradeRefusedError: 403."""
        await self._check(Action.CONSUME, Topic(topic))

    async def check_consume(self, topic: TopicName, subscription: str) -> None:
        """Check the right to consume by a subscription. Raises: UpgradeRefusedError: 403."""
        await self._check(Action.CONSUME, Subscription(topic, subscription))

    async def check_list(self, namespace: str) -> None:
        """Check the right to list a namespace's topics. Raises: UpgradeRefusedError: 403."""
        await self._check(Action.LIST_TOPICS, Namespace(namespace))

    async def _check(self, action: Action, resource: Topic | Subscription | Namespace) -> None:
        try:
            await self.authorizer.check(self.identity, action, resource, address=self.address)
        except AuthorizationError as error:
            raise UpgradeRefusedError(403, str(error)) from error


async def rights_of(
    authenticator: Authenticator,
    authorizer: Authorizer,
    headers: Mapping[str, str],
    *,
    address: str,
    certificate_role: str,
    query_token: str,
) -> Rights:
    """Authenticate a request; `headers` by names in lower case.

    Raises:
        UpgradeRefusedError: 401 if the credentials prove nothing.
    """
    try:
        identity = await authenticator.of_request(
            headers,
            address=address,
            certificate_role=certificate_role,
            query_token=query_token,
        )
    except AuthenticationError as error:
        raise UpgradeRefusedError(401, str(error)) from error
    return Rights(identity, authorizer, address)


_TIMER_S_MAX = 3_600.0
"""Longest sleep of a timer, in seconds. Its clock may drift from the wall clock, so check
hourly."""


class Expiry:
    """Calls `on_end` once when the wall clock reaches the time, unless cancelled before."""

    def __init__(self, clock: Clock, expires_at_ms: int, on_end: Callable[[], None]) -> None:
        self._clock = clock
        self._expires_at_ms = expires_at_ms
        self._on_end = on_end
        self._timer: asyncio.TimerHandle | None = None
        self._wait()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        left_s = (self._expires_at_ms - self._clock.wall_ms()) / 1000
        self._timer = asyncio.get_running_loop().call_later(
            max(0.0, min(left_s, _TIMER_S_MAX)), self._look
        )

    def _look(self) -> None:
        if self._clock.wall_ms() < self._expires_at_ms:
            self._wait()
            return
        self._timer = None
        self._on_end()
