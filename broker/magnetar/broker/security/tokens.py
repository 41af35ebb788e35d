"""JSON Web Tokens: check that a token is valid, and return its identity.

PyJWT checks the signature. Times and claims are checked here, by the broker's own clock. Error
texts say what is wrong without quoting the token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jwt
from jwt.types import Options

from magnetar.broker.base.errors import AuthenticationError
from magnetar.broker.security.identity import Identity
from magnetar.broker.security.keys import TokenKey

TOKEN_BYTES_MAX = 64 * 1024

METHOD = "token"

_SIGNATURE_ONLY: Options = {
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
    "verify_sub": False,
    "verify_jti": False,
}
_NOTHING: Options = {**_SIGNATURE_ONLY, "verify_signature": False}


@dataclass(frozen=True, slots=True)
class Claims:
    """Names of the claims that hold role and audience, and the audience that is required."""

    role: str = "sub"
    audience_claim: str = "aud"
    audience: str = ""
    """Audience that tokens must have; empty if any audience, or none, will do."""


def text_of(data: bytes) -> str:
    """Return the text of a token.

    Raises:
        AuthenticationError: it is empty, too large, or not ASCII.
    """
    if not data:
        raise AuthenticationError("the token is empty")
    if len(data) > TOKEN_BYTES_MAX:
        raise AuthenticationError(f"the token has {len(data)} bytes, more than {TOKEN_BYTES_MAX}")
    try:
        return data.decode("ascii").strip()
    except UnicodeDecodeError:
        raise AuthenticationError(
            "the token is not a JSON Web Token: it has invalid characters"
        ) from None


def unverified(token: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return header and claims without a check of the signature: only to find the issuer to ask.

    Raises:
        AuthenticationError: the text is not a token.
    """
    try:
        whole = jwt.decode_complete(token, options=_NOTHING)
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise AuthenticationError("the token is not a JSON Web Token") from None
    return whole["header"], whole["payload"]


def verify(token: str, keys: Sequence[TokenKey], claims: Claims, *, now_ms: int) -> Identity:
    """Return the identity that a token proves.

    Raises:
        AuthenticationError: the token proves none; the text says why.
    """
    header, _ = unverified(token)
    algorithm = header.get("alg")
    fitting = [each for each in keys if algorithm in each.algorithms]
    if not fitting:
        accepted = sorted({name for each in keys for name in each.algorithms})
        raise AuthenticationError(
            f"the token is signed with {str(algorithm)[:16]!r}; accepted: "
            f"{', '.join(accepted) or 'none'}"
        )
    for each in fitting:
        try:
            payload = jwt.decode(
                token, each.key, algorithms=[str(algorithm)], options=_SIGNATURE_ONLY
            )
        except (jwt.PyJWTError, ValueError):
            continue
        return _identity(payload, claims, now_ms=now_ms)
    raise AuthenticationError("the signature of the token does not match the broker's key")


def _identity(payload: Mapping[str, Any], claims: Claims, *, now_ms: int) -> Identity:
    expires_at_ms = _time_of(payload, "exp")
    if expires_at_ms is not None and now_ms >= expires_at_ms:
        raise AuthenticationError("the token has expired")
    begins_at_ms = _time_of(payload, "nbf")
    if begins_at_ms is not None and now_ms < begins_at_ms:
        raise AuthenticationError("the token is not valid yet")
    if claims.audience:
        audiences = payload.get(claims.audience_claim)
        if claims.audience not in (audiences if isinstance(audiences, list) else [audiences]):
            raise AuthenticationError(
                f"the token is for another audience: its claim {claims.audience_claim!r} lacks "
                f"{claims.audience!r}"
            )
    role = payload.get(claims.role)
    if isinstance(role, list):
        role = role[0] if role else None
    if not isinstance(role, str) or not role:
        raise AuthenticationError(f"the token names no role: its claim {claims.role!r} is not text")
    return Identity(role, METHOD, expires_at_ms=expires_at_ms)


def _time_of(payload: Mapping[str, Any], claim: str) -> int | None:
    """Return a time claim of a token in milliseconds; None if the token lacks the claim."""
    value = payload.get(claim)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e12:
        raise AuthenticationError(f"the token's claim {claim!r} is not a time")
    return int(value * 1000)
