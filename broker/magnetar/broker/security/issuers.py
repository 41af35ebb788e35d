"""Tokens of OpenID Connect and OAuth2 issuers, checked with the keys that they publish (JWKS).

The broker asks only issuers of the settings, never one that only a token names. It caches their
keys. A token with an unknown key causes one more request, at most one per `refresh_min_s`, so
made-up keys cannot flood the issuer.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from magnetar.broker.base.errors import AuthenticationError
from magnetar.broker.security.identity import Identity
from magnetar.broker.security.keys import SecurityConfigError, TokenKey, token_key
from magnetar.broker.security.tokens import Claims, unverified, verify
from magnetar.ledger.ports import Clock

_log = structlog.get_logger()

DOCUMENT_BYTES_MAX = 256 * 1024
KEYS_MAX = 100
"""Keys of one issuer that are read; further ones are ignored."""

Fetch = Callable[[str], Awaitable[bytes]]
"""Fetches the content of a URL; raises OSError if there is nothing usable."""


@dataclass(slots=True)
class _Keys:
    by_id: dict[str, TokenKey]
    without_id: list[TokenKey]
    fetched_s: float


@dataclass(frozen=True, slots=True)
class Freshness:
    """Lifetimes of cached keys, in seconds."""

    fresh_s: float
    kept_s: float
    refresh_min_s: float


class Issuers:
    """Checks tokens of the issuers in the settings."""

    def __init__(
        self,
        issuers: Sequence[str],
        claims: Claims,
        *,
        jwks_url: str,
        freshness: Freshness,
        fetch: Fetch,
        clock: Clock,
    ) -> None:
        """`claims` must name an audience. `jwks_url`: URL of the keys of all issuers; empty for
        discovery."""
        assert claims.audience
        self._issuers = frozenset(issuers)
        self._claims = claims
        self._jwks_url = jwks_url
        self._freshness = freshness
        self._fetch = fetch
        self._clock = clock
        self._keys: dict[str, _Keys] = {}
        self._tried_s: dict[str, float] = {}
        self._locks = {issuer: asyncio.Lock() for issuer in self._issuers}

    def knows(self, issuer: object) -> bool:
        """Whether tokens of this issuer are accepted."""
        return isinstance(issuer, str) and issuer in self._issuers

    async def authenticate(self, token: str) -> Identity:
        """Return the identity that a token proves.

        Raises:
            AuthenticationError: the token proves none, or the keys of its issuer cannot be read.
        """
        header, claims = unverified(token)
        issuer, key_id = claims.get("iss"), header.get("kid")
        if not self.knows(issuer):
            raise AuthenticationError("the token is from an issuer that is not accepted")
        keys = await self._keys_for(str(issuer), key_id if isinstance(key_id, str) else None)
        return verify(token, keys, self._claims, now_ms=self._clock.wall_ms())

    async def _keys_for(self, issuer: str, key_id: str | None) -> list[TokenKey]:
        """Return the keys that may have signed a token with this key id."""
        keys = self._keys.get(issuer)
        if not self._will_do(keys, key_id):
            async with self._locks[issuer]:
                if not self._will_do(self._keys.get(issuer), key_id):
                    await self._refresh(issuer)
            keys = self._keys.get(issuer)
        if keys is None:
            raise AuthenticationError("the issuer of the token does not answer: try again")
        if self._clock.monotonic_s() - keys.fetched_s > self._freshness.kept_s:
            raise AuthenticationError("the issuer's keys are too old, and it does not answer")
        if key_id is None:
            return [*keys.without_id, *keys.by_id.values()]
        known = keys.by_id.get(key_id)
        if known is None:
            raise AuthenticationError(
                "the token is signed with a key that its issuer does not publish"
            )
        return [known]

    def _will_do(self, keys: _Keys | None, key_id: str | None) -> bool:
        if keys is None or self._clock.monotonic_s() - keys.fetched_s > self._freshness.fresh_s:
            return False
        return key_id is None or key_id in keys.by_id

    async def _refresh(self, issuer: str) -> None:
        """Fetch the issuer's keys, unless the last attempt was less than `refresh_min_s` ago."""
        now_s = self._clock.monotonic_s()
        tried_s = self._tried_s.get(issuer)
        if tried_s is not None and now_s - tried_s < self._freshness.refresh_min_s:
            return
        self._tried_s[issuer] = now_s
        try:
            url = self._jwks_url or await self._discover(issuer)
            self._keys[issuer] = _parse(await self._fetch(url), self._clock.monotonic_s())
        except (OSError, ValueError) as error:
            _log.warning("issuer_keys_not_read", issuer=issuer, error=str(error))

    async def _discover(self, issuer: str) -> str:
        """Return the URL of the issuer's keys."""
        where = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        found = _json_object(await self._fetch(where))
        url = found.get("jwks_uri")
        if not isinstance(url, str) or found.get("issuer") != issuer:
            raise ValueError("the discovery document names another issuer, or no keys")
        return url


def _json_object(data: bytes) -> dict[str, Any]:
    if len(data) > DOCUMENT_BYTES_MAX:
        raise ValueError(f"an answer of {len(data)} bytes")
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError("the answer is not a JSON object")
    return found


def _parse(data: bytes, now_s: float) -> _Keys:
    """Return the keys of a JWKS document; keys of unknown kinds are left out."""
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from jwt import PyJWK, PyJWTError

    listed = _json_object(data).get("keys")
    if not isinstance(listed, list):
        raise ValueError("the document has no keys")
    keys = _Keys({}, [], now_s)
    for each in listed[:KEYS_MAX]:
        # Only public keys that sign. A published symmetric key would let anybody sign.
        if not isinstance(each, dict) or each.get("kty") not in ("RSA", "EC"):
            continue
        if each.get("use", "sig") != "sig":
            continue
        try:
            key = PyJWK.from_dict(each).key
        except (PyJWTError, ValueError, TypeError, KeyError):
            continue
        if not isinstance(key, (rsa.RSAPublicKey, ec.EllipticCurvePublicKey)):
            continue
        try:
            usable = token_key(key, what="an issuer's key")
        except SecurityConfigError:
            continue
        key_id = each.get("kid")
        if isinstance(key_id, str):
            keys.by_id[key_id] = usable
        else:
            keys.without_id.append(usable)
    return keys
