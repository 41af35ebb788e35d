"""Derive an identity from credentials, by the methods that the settings enable.

    token   a JSON Web Token, of the broker's own keys or of an OpenID Connect issuer
    basic   user:password
    tls     the common name of the client's certificate
    none    no credentials: the anonymous role, if there is one; it also serves clients that
            use a method which is not accepted

A *proxy role* never acts for itself: it names the principal that it speaks for. Other roles may
name only themselves. Source: protocol sheet, section 5.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from magnetar.broker.base.errors import AuthenticationError
from magnetar.broker.security.audit import Audit
from magnetar.broker.security.identity import NOBODY, Identity
from magnetar.broker.security.issuers import Issuers
from magnetar.broker.security.keys import TokenKey
from magnetar.broker.security.passwords import METHOD as BASIC
from magnetar.broker.security.passwords import Passwords
from magnetar.broker.security.tokens import METHOD as TOKEN
from magnetar.broker.security.tokens import Claims, text_of, unverified, verify
from magnetar.ledger.ports import Clock

TLS = "tls"
ANONYMOUS = "anonymous"

ROLE_CHARACTERS_MAX = 512


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials of a client or a request. Never logged."""

    method: str = ""
    data: bytes = field(default=b"", repr=False)
    certificate_role: str = ""
    """Common name of the certificate that the TLS handshake has verified; empty if there is none.
    """
    original_principal: str = ""
    """Principal that a proxy speaks for; empty if the proxy names none."""


class Method(Protocol):
    """One way to authenticate."""

    async def authenticate(self, credentials: Credentials) -> Identity:
        """Return the identity that the credentials prove.

        Raises:
            AuthenticationError: the credentials prove nothing.
        """
        ...


class TokenMethod:
    """Tokens that the broker's own keys or an issuer have signed."""

    def __init__(self, claims: Claims, issuers: Issuers | None, clock: Clock) -> None:
        self._claims = claims
        self._issuers = issuers
        self._clock = clock
        self.keys: tuple[TokenKey, ...] = ()

    async def authenticate(self, credentials: Credentials) -> Identity:
        token = text_of(credentials.data)
        if self._issuers is not None:
            _, claims = unverified(token)
            if not self.keys or self._issuers.knows(claims.get("iss")):
                return await self._issuers.authenticate(token)
        return verify(token, self.keys, self._claims, now_ms=self._clock.wall_ms())


class BasicMethod:
    """Users and passwords."""

    def __init__(self, passwords: Passwords) -> None:
        self._passwords = passwords

    async def authenticate(self, credentials: Credentials) -> Identity:
        return await self._passwords.authenticate(credentials.data)


class TlsMethod:
    """Common name of a certificate that the handshake has verified."""

    async def authenticate(self, credentials: Credentials) -> Identity:
        if not credentials.certificate_role:
            raise AuthenticationError(
                "the method tls needs a client certificate with a common name"
            )
        return Identity(credentials.certificate_role, TLS)


class Authenticator:
    """Checks credentials and returns identities."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        *,
        anonymous_role: str,
        proxy_roles: frozenset[str],
        audit: Audit,
    ) -> None:
        """Without methods, authentication is off and each client is `NOBODY`."""
        self._methods = methods
        self._anonymous_role = anonymous_role
        self._proxy_roles = proxy_roles
        self._audit = audit

    @property
    def is_on(self) -> bool:
        return bool(self._methods)

    async def authenticate(self, credentials: Credentials, *, address: str) -> Identity:
        """Return the identity that the credentials prove; `NOBODY` while authentication is off.

        Raises:
            AuthenticationError: the text says what is wrong, and is safe to show to any client.
        """
        if not self._methods:
            return NOBODY
        try:
            identity = self._acting(await self._prove(credentials), credentials)
        except AuthenticationError as error:
            self._audit.refused(credentials.method, str(error), address=address)
            raise
        self._audit.connected(identity, address=address)
        return identity

    async def of_request(
        self,
        headers: Mapping[str, str],
        *,
        address: str,
        certificate_role: str = "",
        query_token: str = "",
    ) -> Identity:
        """Return the identity of the sender of an HTTP request.

        Args:
            headers: by names in lower case.
            query_token: from the URL of a WebSocket; browsers cannot set headers there.

        Raises:
            AuthenticationError: the credentials are malformed or prove nothing.
        """
        if not self._methods:
            return NOBODY
        try:
            credentials = credentials_of(headers, certificate_role, query_token)
        except AuthenticationError as error:
            self._audit.refused("", str(error), address=address)
            raise
        return await self.authenticate(credentials, address=address)

    async def _prove(self, credentials: Credentials) -> Identity:
        name = credentials.method
        if not credentials.data and name in ("", "none", TLS):
            if credentials.certificate_role and TLS in self._methods:
                name = TLS
            elif self._anonymous_role and (name != TLS or TLS not in self._methods):
                return Identity(self._anonymous_role, ANONYMOUS)
            else:
                raise AuthenticationError(f"credentials are required: {self._accepted()}")
        method = self._methods.get(name)
        if method is None:
            # As in Pulsar. It reveals nothing: a client without credentials gets that role, too.
            if self._anonymous_role:
                return Identity(self._anonymous_role, ANONYMOUS)
            raise AuthenticationError(
                f"the method {name[:32]!r} is not accepted here: {self._accepted()}"
            )
        identity = await method.authenticate(credentials)
        if len(identity.role) > ROLE_CHARACTERS_MAX:
            raise AuthenticationError(f"the role has more than {ROLE_CHARACTERS_MAX} characters")
        return identity

    def _acting(self, identity: Identity, credentials: Credentials) -> Identity:
        return self.acting_for(identity, credentials.original_principal)

    def acting_for(self, identity: Identity, principal: str) -> Identity:
        """Return the identity with another original principal, for a single request.

        Raises:
            AuthenticationError: the role may not speak for others, or not for this principal.
        """
        if not self._methods:
            return identity
        if not isinstance(principal, str):  # protobuf returns bytes for text that is not UTF-8
            raise AuthenticationError("the original principal is not valid UTF-8")
        role = identity.connected_role
        if role in self._proxy_roles:
            principal = principal or (identity.role if identity.proxy_role else "")
            if not principal:
                raise AuthenticationError(
                    f"{role!r} is a proxy role: it must give the original principal"
                )
            if principal in self._proxy_roles:
                raise AuthenticationError(f"{role!r} cannot act for another proxy role")
            if len(principal) > ROLE_CHARACTERS_MAX:
                raise AuthenticationError(
                    f"the role has more than {ROLE_CHARACTERS_MAX} characters"
                )
            return Identity(principal, identity.method, role, identity.expires_at_ms)
        if principal and principal != role:
            raise AuthenticationError(f"{role!r} is not a proxy role: it can only act for itself")
        return identity

    def _accepted(self) -> str:
        return f"accepted: {', '.join(sorted(self._methods))}"


def credentials_of(
    headers: Mapping[str, str], certificate_role: str = "", query_token: str = ""
) -> Credentials:
    """Return the credentials of an HTTP request.

    The name of an unknown scheme becomes the method; no method accepts it.

    Raises:
        AuthenticationError: the header is malformed.
    """
    principal = headers.get("x-original-principal", "")
    header = headers.get("authorization", "")
    if not header and query_token:
        header = f"Bearer {query_token.removeprefix('Bearer ')}"
    if not header:
        return Credentials("", b"", certificate_role, principal)
    scheme, _, value = header.partition(" ")
    value = value.strip()
    if scheme.lower() == "bearer":
        return Credentials(TOKEN, value.encode("utf-8", "replace"), certificate_role, principal)
    if scheme.lower() == "basic":
        try:
            data = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise AuthenticationError("the header Authorization: Basic is not base64") from None
        return Credentials(BASIC, data, certificate_role, principal)
    return Credentials(scheme, value.encode("utf-8", "replace"), certificate_role, principal)
