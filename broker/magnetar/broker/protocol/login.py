"""Authenticates the client of one connection: at CONNECT, and again when credentials expire.

    CONNECT ──> proving ──> proven ──(credentials expire)──> challenged ──> proven
                   │                                             │
                   └── ERROR AuthenticationError, closed         └── no answer in time, another
                                                                     role, or wrong: closed

While a client is challenged, its requests are served as before. The connection of a client that
cannot be challenged (it lacks the feature flag) is closed when its credentials expire. Source:
protocol sheet, section 5.
"""

import asyncio
from collections.abc import Callable, Coroutine

from magnetar.broker.base import replies
from magnetar.broker.base.errors import AuthenticationError, ProtocolViolationError
from magnetar.broker.cluster.ownership.reachability import PROBE
from magnetar.broker.protocol.link import Link
from magnetar.broker.security.actions import Action, Resource
from magnetar.broker.security.authenticator import Credentials
from magnetar.broker.security.identity import NOBODY, Identity
from magnetar.broker.topics.services import Services
from magnetar.sdk.wire.pulsar_pb2 import CommandAuthResponse, CommandConnect

_TIMER_S_MAX = 86_400.0
"""Longest timer, in seconds. A timer may be late by as much as clocks drift, so check once a
day."""


class Login:
    """Authentication of one connection."""

    def __init__(self, link: Link, services: Services, certificate_role: str) -> None:
        self.identity: Identity = NOBODY
        self._link = link
        self._services = services
        self._certificate_role = certificate_role
        self._is_proving = False
        self._is_challenged = False
        self._can_be_challenged = False
        self._method = ""
        self._original_principal = ""
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, connect: CommandConnect, welcome: Callable[[], None]) -> None:
        """Authenticate the sender of CONNECT; then call `welcome`, or refuse and close.

        Raises:
            ProtocolViolationError: authentication is running already.
        """
        if self._is_proving:
            raise ProtocolViolationError("a second connect")
        authenticator = self._services.authenticator
        if not authenticator.is_on:
            welcome()
            return
        if connect.client_version == PROBE and not connect.auth_data:
            # Another broker, which only checks whether this one serves.
            serving = "" if self._services.is_serving() else replies.WITHOUT_LEASE
            self._refuse(f"credentials are required{serving}")
            return
        self._is_proving = True
        self._method = connect.auth_method_name
        self._original_principal = connect.original_principal
        self._can_be_challenged = connect.feature_flags.supports_auth_refresh
        self._start(self._prove(bytes(connect.auth_data), welcome))

    def answered(self, answer: CommandAuthResponse) -> None:
        """Handle the answer to a challenge; an answer without a challenge is ignored."""
        if self._is_challenged and not self._is_proving:
            self._is_proving = True
            self._start(self._prove_again(bytes(answer.response.auth_data)))

    async def check(self, action: Action, resource: Resource, *, principal: str = "") -> None:
        """Refuse an action that the client may not do. `principal`: the role for which it claims to
        act.

        Raises:
            AuthenticationError: it may not act for that role.
            AuthorizationError: it lacks the permission.
            BrokerMetadataError: this cannot be determined now.
        """
        services = self._services
        if not services.authorizer.is_on:
            return
        identity = self.identity
        if principal:
            identity = services.authenticator.acting_for(identity, principal)
        await services.authorizer.check(identity, action, resource, address=self._link.address)

    async def may(self, action: Action, resource: Resource) -> bool:
        """Whether the client may do something.

        Raises:
            BrokerMetadataError: this cannot be determined now.
        """
        return await self._services.authorizer.may(self.identity, action, resource)

    def close(self) -> None:
        """Cancel the timer: the connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Internals

    def _start(self, work: Coroutine[None, None, None]) -> None:
        # One at a time. A refusal would leave the client "proving" for good, and the connection
        # open.
        self._link.start(work, _never, is_bounded=True)

    async def _identify(self, data: bytes) -> Identity | None:
        """Return the identity of the credentials; None: refused, and the connection closed."""
        credentials = Credentials(
            self._method, data, self._certificate_role, self._original_principal
        )
        try:
            return await self._services.authenticator.authenticate(
                credentials, address=self._link.address
            )
        except AuthenticationError as error:
            self._refuse(str(error))
            return None
        except Exception:
            # Nothing else would end it: the time for an answer may be over.
            self._refuse("internal error of the broker")
            raise

    async def _prove(self, data: bytes, welcome: Callable[[], None]) -> None:
        identity = await self._identify(data)
        if identity is None:
            return
        self._proven(identity)
        self._is_proving = False
        welcome()
        self._wait_for_expiry()

    async def _prove_again(self, data: bytes) -> None:
        try:
            identity = await self._identify(data)
        finally:
            self._is_proving = False
        if identity is None:
            return
        if identity.roles != self.identity.roles:
            self._refuse("the new credentials belong to another role")
            return
        self._is_challenged = False
        self._proven(identity)
        self._wait_for_expiry()

    def _proven(self, identity: Identity) -> None:
        self.identity = identity
        self._link.role = identity.role

    def _wait_for_expiry(self) -> None:
        expires_at_ms = self.identity.expires_at_ms
        if expires_at_ms is None or self._link.is_closed:
            return
        left_s = max(0.0, (expires_at_ms - self._services.clock.wall_ms()) / 1000)
        self._call_in(min(left_s, _TIMER_S_MAX), self._on_expiry)

    def _on_expiry(self) -> None:
        if not self.identity.is_expired(self._services.clock.wall_ms()):
            self._wait_for_expiry()
            return
        if not self._can_be_challenged:
            self._refuse("the credentials have expired")
            return
        self._is_challenged = True
        self._link.write(
            replies.auth_challenge(
                self._method,
                server_version=self._services.server_version,
                protocol_version=self._link.protocol_version,
            )
        )
        self._call_in(self._services.settings.credentials_refresh_ms / 1000, self._on_no_answer)

    def _on_no_answer(self) -> None:
        if not self._is_proving:
            self._refuse("the credentials have expired, and the client sent no new ones")

    def _call_in(self, delay_s: float, call: Callable[[], None]) -> None:
        self.close()
        self._timer = asyncio.get_running_loop().call_later(delay_s, call)

    def _refuse(self, reason: str) -> None:
        self._services.counters.authentications_failed += 1
        error = AuthenticationError(reason)
        self._link.write(replies.error(replies.NO_REQUEST, error.code, reason))
        self._link.close()


def _never(error: Exception) -> bytes:
    """Return the answer for a failure that is not the client's, to CONNECT."""
    return replies.error(replies.NO_REQUEST, AuthenticationError.code, str(error))
