"""Tokens: which are taken, and what is said of the others."""

from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from magnetar.broker.base.errors import AuthenticationError
from magnetar.broker.security.keys import (
    SecurityConfigError,
    TokenKey,
    public_key,
    read_key,
    secret_key,
)
from magnetar.broker.security.tokens import Claims, text_of, verify

SECRET = b"s" * 64
NOW_S = 1_800_000_000
HMAC = secret_key(SECRET, what="test")


def made(claims: dict[str, Any], key: Any = SECRET, algorithm: str = "HS256") -> str:
    return jwt.encode(claims, key, algorithm=algorithm)


def role_of(token: str, *keys: TokenKey, claims: Claims | None = None) -> str:
    return verify(token, keys or (HMAC,), claims or Claims(), now_ms=NOW_S * 1000).role


def public_pem(key: Any) -> bytes:
    pem: bytes = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return pem


RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEYS = {
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "ES384": ec.generate_private_key(ec.SECP384R1()),
    "ES512": ec.generate_private_key(ec.SECP521R1()),
}


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_token_with_the_secret_key_names_its_role(algorithm: str) -> None:
    assert role_of(made({"sub": "alice"}, algorithm=algorithm)) == "alice"


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512", "ES256", "ES384", "ES512"])
def test_a_token_with_a_private_key_is_checked_with_the_public_one(algorithm: str) -> None:
    private = EC_KEYS.get(algorithm, RSA_KEY)
    key = public_key(public_pem(private), what="test")
    assert role_of(made({"sub": "alice"}, private, algorithm), key) == "alice"


def test_a_public_key_never_passes_for_a_secret() -> None:
    """The classical confusion: a token signed by HMAC with the public key's text."""
    pem = public_pem(RSA_KEY)
    key = public_key(pem, what="test")
    header, claims = '{"alg":"HS256","typ":"JWT"}', '{"sub":"root"}'
    import hmac

    signed = b".".join(jwt.utils.base64url_encode(each.encode()) for each in (header, claims))
    signature = jwt.utils.base64url_encode(hmac.digest(pem, signed, "sha256"))
    with pytest.raises(AuthenticationError, match="'HS256'; accepted: RS256, RS384, RS512"):
        role_of((signed + b"." + signature).decode(), key)


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (made({"sub": "a"}, b"x" * 64), "signature"),
        (made({"sub": "a", "exp": NOW_S}), "expired"),
        (made({"sub": "a", "nbf": NOW_S + 1}), "not valid yet"),
        (made({"sub": "a", "exp": "soon"}), "'exp' is not a time"),
        (made({"sub": "a", "exp": 1e300}), "'exp' is not a time"),
        (made({"role": "a"}), "names no role"),
        (made({"sub": ""}), "names no role"),
        (made({"sub": 7}), "names no role"),
        (made({"sub": []}), "names no role"),
        (made({"sub": "a"})[:-4] + "AAAA", "signature"),
        (jwt.encode({"sub": "a"}, "", algorithm="none"), "'none'; accepted: HS256"),
        ("no.token.this", "not a JSON Web Token"),
        ("", "not a JSON Web Token"),
        ("a" * 1000, "not a JSON Web Token"),
    ],
)
def test_what_is_wrong_is_said_without_the_token(token: str, reason: str) -> None:
    with pytest.raises(AuthenticationError, match=reason) as caught:
        role_of(token)
    assert caught.value.__cause__ is None
    assert not token or token not in str(caught.value)


def test_a_token_is_good_until_the_second_it_ends() -> None:
    assert role_of(made({"sub": "a", "exp": NOW_S + 1, "nbf": NOW_S})) == "a"


def test_the_role_may_be_another_claim_and_a_list() -> None:
    token = made({"groups": ["first", "second"]})
    assert role_of(token, claims=Claims(role="groups")) == "first"


def test_an_audience_that_is_asked_for_must_be_there() -> None:
    claims = Claims(audience="us")
    assert role_of(made({"sub": "a", "aud": "us"}), claims=claims) == "a"
    assert role_of(made({"sub": "a", "aud": ["them", "us"]}), claims=claims) == "a"
    for other in ({}, {"aud": "them"}, {"aud": ["them"]}, {"aud": 3}):
        with pytest.raises(AuthenticationError, match="another audience"):
            role_of(made({"sub": "a", **other}), claims=claims)


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"x" * (64 * 1024 + 1)])
def test_what_cannot_be_a_token_is_refused_before_it_is_looked_at(data: bytes) -> None:
    with pytest.raises(AuthenticationError):
        text_of(data)


@pytest.mark.parametrize(
    ("length", "algorithms"),
    [
        (32, ("HS256",)),
        (47, ("HS256",)),
        (48, ("HS256", "HS384")),
        (64, ("HS256", "HS384", "HS512")),
    ],
)
def test_a_secret_vouches_for_what_it_is_long_enough_for(
    length: int, algorithms: tuple[str, ...]
) -> None:
    assert secret_key(b"k" * length, what="test").algorithms == algorithms


def test_keys_that_are_too_weak_are_refused() -> None:
    with pytest.raises(SecurityConfigError, match="31 bytes and needs at least 32"):
        secret_key(b"k" * 31, what="test")
    small = rsa.generate_private_key(65537, 1024)
    with pytest.raises(SecurityConfigError, match="1024 bits and needs at least"):
        public_key(public_pem(small), what="test")
    with pytest.raises(SecurityConfigError, match="not a public key in PEM or DER"):
        public_key(b"k" * 64, what="test")


def test_a_key_is_found_in_a_file_by_url_or_path_or_in_the_setting_itself() -> None:
    files = {"/etc/key": b"from the file"}
    assert read_key("file:///etc/key", files.__getitem__, what="x") == b"from the file"
    assert read_key("/etc/key", files.__getitem__, what="x") == b"from the file"
    assert read_key("data:;base64,a2V5", files.__getitem__, what="x") == b"key"
    with pytest.raises(SecurityConfigError, match="is not base64") as caught:
        read_key("data:;base64,hush!", files.__getitem__, what="x")
    assert "hush" not in str(caught.value)


def test_a_key_shows_nothing_of_itself() -> None:
    assert "ssss" not in repr(HMAC)
