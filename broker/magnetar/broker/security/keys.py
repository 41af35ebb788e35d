"""Read keys from settings, and say which tokens each key can verify.

A key is given as `file:///path`, as a path, or as `data:;base64,…`. A secret key is the raw bytes
of its file; a public key is PEM or DER. A key verifies only the algorithms of its kind and size, so
a public key can never pass for the secret of an HMAC.
"""

import base64
import binascii
import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from magnetar.broker.base.errors import BrokerError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

ReadFile = Callable[[str], bytes]
"""Reads a small file; raises OSError."""

_PATH_SHOWN_MAX: Final = 255
_HMAC_BYTES: Final = {"HS256": 32, "HS384": 48, "HS512": 64}
_RSA_BITS_MIN: Final = 2048
_RSA: Final = ("RS256", "RS384", "RS512")
_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


class SecurityConfigError(BrokerError):
    """A certificate, key or password file cannot be used; the text says which one, and why."""


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A key, and the algorithms of the tokens that it can verify."""

    key: "bytes | RSAPublicKey | EllipticCurvePublicKey"
    algorithms: tuple[str, ...]

    def __repr__(self) -> str:
        return f"TokenKey({', '.join(self.algorithms)})"


def read_key(where: str, read: ReadFile, *, what: str) -> bytes:
    """Return the bytes of a key; `what` names the setting in errors.

    Raises:
        SecurityConfigError: there is no file, or no valid base64. The text never holds a key.
    """
    if where.startswith("data:"):
        _, _, text = where.partition(",")
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error:
            raise SecurityConfigError(
                f"{what}: the text after data:;base64, is not base64"
            ) from None
    path = where.removeprefix("file://")
    try:
        return read(path)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise SecurityConfigError(
            f"{what}: cannot read {path_for_people(path)}: {reason}"
        ) from None


def path_for_people(path: str) -> str:
    """Return what an error may say about a path that cannot be read.

    An operator may have put the token or the key itself where its path is expected. So an absolute
    path is shown in full only if its folder exists, else only up to a folder that does. A relative
    path is not shown.
    """
    if not path.startswith("/"):
        return f"the {len(path)} characters given, taken for a relative path"
    folder = posixpath.dirname(path)
    if folder != "/" and posixpath.isdir(folder) and len(path) <= _PATH_SHOWN_MAX:
        return path
    while not posixpath.isdir(folder):
        folder = posixpath.dirname(folder)
    return f"the {len(path)} characters given, taken for a path in {folder}"


def secret_key(data: bytes, *, what: str) -> TokenKey:
    """Return a key for HMAC. Its length determines the hashes it can serve.

    Raises:
        SecurityConfigError: the key is shorter than 32 bytes.
    """
    algorithms = tuple(name for name, least in _HMAC_BYTES.items() if len(data) >= least)
    if not algorithms:
        raise SecurityConfigError(
            f"{what}: the secret key has {len(data)} bytes and needs at least 32; `magnetar admin "
            "tokens create-secret-key` creates one"
        )
    return TokenKey(data, algorithms)


def public_key(data: bytes, *, what: str) -> TokenKey:
    """Return a public RSA or elliptic curve key, read from PEM or DER.

    Raises:
        SecurityConfigError: the key is of another kind, or too small.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    try:
        if data.lstrip().startswith(b"-----BEGIN"):
            key = serialization.load_pem_public_key(data)
        else:
            key = serialization.load_der_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise SecurityConfigError(f"{what}: not a public key in PEM or DER") from error
    return token_key(key, what=what)


def token_key(key: "PublicKeyTypes", *, what: str) -> TokenKey:
    """Return a public key with the algorithms that it can verify.

    Raises:
        SecurityConfigError: it can verify none.
    """
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < _RSA_BITS_MIN:
            raise SecurityConfigError(
                f"{what}: the RSA key has {key.key_size} bits and needs at least {_RSA_BITS_MIN}"
            )
        return TokenKey(key, _RSA)
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in _CURVES:
        return TokenKey(key, (_CURVES[key.curve.name],))
    raise SecurityConfigError(
        f"{what}: expected a public key for RSA or the curves P-256, P-384, P-521"
    )
