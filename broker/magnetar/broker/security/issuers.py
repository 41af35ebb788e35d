"""Tokens of OpenID Connect and OAuth2 issuers, checked with the keys that they publish (JWKS).

The broker asks only issuers of the settings, never one that only a token names. It caches their
keys. A token with an unknown key causes one more request, at most one per `refresh_min_s`, so
made-up keys cannot flood the issuer.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
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
        self._refreshing: dict[str, asyncio.Task[None]] = {}
        """Requests under way, by issuer."""

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

    def close(self) -> None:
        """Cancel the requests under way."""
        for refreshing in self._refreshing.values():
            refreshing.cancel()

    async def _keys_for(self, issuer: str, key_id: str | None) -> list[TokenKey]:
        """Return the keys that may have signed a token with this key id."""
        keys = self._keys.get(issuer)
        if not self._will_do(keys, key_id):
            await self._refreshed(issuer)
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

    async def _refreshed(self, issuer: str) -> None:
        """Wait for the request under way, or send one unless the last was less than
        `refresh_min_s` ago.

        All logins share the request, in a task of its own. A client that disconnects during its
        login must not end the request: the next one would be refused for `refresh_min_s`.
        """
        refreshing = self._refreshing.get(issuer)
        if refreshing is None:
            now_s = self._clock.monotonic_s()
            tried_s = self._tried_s.get(issuer)
            if tried_s is not None and now_s - tried_s < self._freshness.refresh_min_s:
                return
            self._tried_s[issuer] = now_s
            refreshing = asyncio.create_task(self._refresh(issuer), name=f"read-keys-{issuer}")
            self._refreshing[issuer] = refreshing
            refreshing.add_done_callback(partial(self._refresh_done, issuer))
        await asyncio.shield(refreshing)

    def _refresh_done(self, issuer: str, refreshing: "asyncio.Task[None]") -> None:
        del self._refreshing[issuer]
        if not refreshing.cancelled():
            refreshing.exception()  # retrieved, even if there is no waiter left

    async def _refresh(self, issuer: str) -> None:
        try:
            url = self._jwks_url or await self._discover(issuer)
            keys, left_out = _parse(await self._fetch(url), self._clock.monotonic_s())
        except (OSError, ValueError) as error:
            _log.warning("issuer_keys_not_read", issuer=issuer, error=str(error))
            return
        self._keys[issuer] = keys
        if not keys.by_id and not keys.without_id:
            # As an issuer does that revokes all of its tokens.
            _log.warning("issuer_lists_no_keys", issuer=issuer)
        if left_out:
            _log.info("issuer_keys_left_out", issuer=issuer, keys=left_out)

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


def _parse(data: bytes, now_s: float) -> tuple[_Keys, int]:
    """Return the usable keys of a JWKS document, and how many keys that sign were left out because
    of their kind or form.

    An empty list is one: the issuer revokes all of its keys.

    Raises:
        ValueError: keys are listed, and none is usable. The keys that were read before stay in
            force.
    """
    listed = _json_object(data).get("keys")
    if not isinstance(listed, list):
        raise ValueError("the document has no keys")
    keys = _Keys({}, [], now_s)
    left_out = max(0, len(listed) - KEYS_MAX)
    for each in listed[:KEYS_MAX]:
        if isinstance(each, dict) and each.get("use", "sig") != "sig":
            continue
        usable = _usable(each)
        if usable is None:
            left_out += 1
            continue
        key_id = each.get("kid")
        if isinstance(key_id, str):
            keys.by_id[key_id] = usable
        else:
            keys.without_id.append(usable)
    if listed and not keys.by_id and not keys.without_id:
        raise ValueError(
            f"of the {len(listed)} keys of the document, none of the first {KEYS_MAX} is a usable "
            "RSA or EC key that signs: the keys that are known stay in force"
        )
    return keys, left_out


def _usable(key: object) -> TokenKey | None:
    """Return the public key in one entry of a JWKS document; None if it is of another kind."""
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from jwt import PyJWK, PyJWTError

    # Only public keys. A published symmetric key would let anybody sign.
    if not isinstance(key, dict) or key.get("kty") not in ("RSA", "EC"):
        return None
    try:
        public = PyJWK.from_dict(key).key
        if not isinstance(public, (rsa.RSAPublicKey, ec.EllipticCurvePublicKey)):
            return None
        return token_key(public, what="an issuer's key")
    except (PyJWTError, ValueError, TypeError, KeyError, SecurityConfigError):
        return None
