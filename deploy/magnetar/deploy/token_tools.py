"""Implementation of `magnetar admin tokens`: keys and tokens, by the rules of the broker's own
check."""

import base64
import json
import os
import re
import secrets
import time
from pathlib import Path
from typing import Any

import jwt
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
from magnetar.broker.security.tokens import Claims, unverified, verify
from magnetar.deploy.errors import SettingsError
from magnetar.ledger.system import SystemDisk

_SECRET_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}
_CURVES: dict[str, ec.EllipticCurve] = {
    "ES256": ec.SECP256R1(),
    "ES384": ec.SECP384R1(),
    "ES512": ec.SECP521R1(),
}
_RSA = ("RS256", "RS384", "RS512")
_RSA_BITS = 2048
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}


def new_secret_key(algorithm: str, *, as_base64: bool) -> bytes:
    """Generate a secret key.

    Raises:
        SettingsError: no such algorithm.
    """
    size = _SECRET_BYTES.get(algorithm)
    if size is None:
        raise SettingsError(f"bad --signature-algorithm {algorithm!r}: give HS256, HS384 or HS512")
    key = secrets.token_bytes(size)
    return base64.b64encode(key) if as_base64 else key


def new_key_pair(algorithm: str) -> tuple[bytes, bytes]:
    """Generate a key pair. Return the private and the public key, PEM.

    Raises:
        SettingsError: no such algorithm.
    """
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
    if algorithm in _RSA:
        key = rsa.generate_private_key(65_537, _RSA_BITS)
    elif algorithm in _CURVES:
        key = ec.generate_private_key(_CURVES[algorithm])
    else:
        known = ", ".join((*_RSA, *_CURVES))
        raise SettingsError(f"bad --signature-algorithm {algorithm!r}: give one of {known}")
    pem = serialization.Encoding.PEM
    return (
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo),
    )


def write_secret(path: Path, data: bytes) -> None:
    """Create a file that only its owner can read; never overwrite one.

    Raises:
        SettingsError: the file cannot be created.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SettingsError(f"cannot create {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def new_token(
    subject: str,
    *,
    secret_key: str,
    private_key: str,
    expiry: str,
    algorithm: str,
    audience: str,
) -> str:
    """Make a signed token.

    Raises:
        SettingsError: not exactly one key, a key that does not fit, or a bad time.
    """
    if bool(secret_key) == bool(private_key):
        raise SettingsError("give either --secret-key or --private-key")
    claims: dict[str, Any] = {"sub": subject}
    if audience:
        claims["aud"] = audience
    if expiry:
        claims["exp"] = int(time.time()) + _seconds(expiry)
    if secret_key:
        key = _secret(secret_key)
        algorithm = algorithm or "HS256"
        if algorithm not in key.algorithms:
            raise SettingsError(f"--secret-key is not a key for {algorithm}")
        return jwt.encode(claims, _bytes(key), algorithm=algorithm)
    return _signed(claims, private_key, algorithm)


def _signed(claims: dict[str, Any], where: str, algorithm: str) -> str:
    try:
        data = read_key(where, SystemDisk().read_file, what="--private-key")
        key = (
            serialization.load_pem_private_key(data, None)
            if data.lstrip().startswith(b"-----BEGIN")
            else serialization.load_der_private_key(data, None)
        )
    except (SecurityConfigError, ValueError, TypeError) as error:
        raise SettingsError(f"--private-key: not a usable private key: {error}") from error
    fitting: tuple[str, ...] = ()
    if isinstance(key, rsa.RSAPrivateKey):
        fitting = _RSA
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        fitting = tuple(n for n, curve in _CURVES.items() if curve.name == key.curve.name)
    if not fitting or (algorithm and algorithm not in fitting):
        raise SettingsError(f"--private-key is not a key for {algorithm or 'tokens'}")
    assert isinstance(key, (rsa.RSAPrivateKey, ec.EllipticCurvePrivateKey))
    return jwt.encode(claims, key, algorithm=algorithm or fitting[0])


def validate(token: str, *, secret_key: str, public_key: str) -> str:
    """Return the role of a valid token.

    Raises:
        SettingsError: not exactly one key, or the token is not valid; the text says why.
    """
    if bool(secret_key) == bool(public_key):
        raise SettingsError("give either --secret-key or --public-key")
    key = _secret(secret_key) if secret_key else _public(public_key)
    try:
        return verify(token, [key], Claims(), now_ms=int(time.time() * 1000)).role
    except AuthenticationError as error:
        raise SettingsError(str(error)) from error


def parts_of(token: str) -> tuple[str, str]:
    """Return header and claims as JSON.

    Raises:
        SettingsError: the text is not a token.
    """
    try:
        header, claims = unverified(token)
    except AuthenticationError as error:
        raise SettingsError(str(error)) from error
    return json.dumps(header), json.dumps(claims)


def _secret(where: str) -> TokenKey:
    try:
        return secret_key(
            read_key(where, SystemDisk().read_file, what="--secret-key"), what="--secret-key"
        )
    except SecurityConfigError as error:
        raise SettingsError(str(error)) from error


def _public(where: str) -> TokenKey:
    try:
        return public_key(
            read_key(where, SystemDisk().read_file, what="--public-key"), what="--public-key"
        )
    except SecurityConfigError as error:
        raise SettingsError(str(error)) from error


def _bytes(key: TokenKey) -> bytes:
    assert isinstance(key.key, bytes)
    return key.key


def _seconds(text: str) -> int:
    match = re.fullmatch(r"([1-9][0-9]{0,8})([smhdwy])", text)
    if match is None:
        raise SettingsError(f"bad --expiry-time {text!r}: give a number with s, m, h, d, w or y")
    return int(match[1]) * _UNITS_S[match[2]]
