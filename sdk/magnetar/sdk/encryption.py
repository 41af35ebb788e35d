"""End-to-end encryption of messages, compatible with the official clients.

A producer makes a data key (AES, 256 bits) and encrypts payloads with it (GCM: 12 bytes of IV in
`encryption_param`, a tag of 16 bytes after the body). It puts the data key into each message's
metadata, encrypted with the public key of each name it writes for. The owner of any of the private
keys can read the messages.

RSA keys use OAEP with SHA-1. Elliptic curve keys use what the Java client has of BouncyCastle,
`ECIES` with `IESParameterSpec(null, null, 128)`: KDF2 and HMAC with SHA-1, the key stream XORed,
the length of the (missing) encoding vector in 8 bytes. Brokers see only that a message is
encrypted.

A batch is encrypted as a whole, after compression; of a chunked message each chunk by itself.
"""

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol

from magnetar.sdk.errors import CryptoKeyError, DecryptionError, MissingPackageError
from magnetar.sdk.ports import Clock, secure_random
from magnetar.sdk.wire.pulsar_pb2 import EncryptionKeys, KeyValue, MessageMetadata

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA1
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_private_key,
        load_pem_public_key,
    )
    from cryptography.x509 import load_pem_x509_certificate
except ModuleNotFoundError as error:
    raise MissingPackageError(
        "encryption of messages needs the package cryptography, which is not installed: "
        "pip install 'magnetar[encryption]'"
    ) from error

DATA_KEY_BYTES = 32
IV_BYTES = 12
TAG_BYTES = 16
DATA_KEYS_MAX = 1_000
"""Decrypted data keys that a consumer caches: a private key operation costs about 1 ms."""

RandomBytes = Callable[[int], bytes]
"""Returns as many unpredictable bytes as asked for."""


class CryptoFailureAction(Enum):
    """How a consumer handles a message that it cannot decrypt."""

    FAIL = "fail"
    """`receive` raises; the message stays unacknowledged."""
    DISCARD = "discard"
    """The consumer acknowledges the message and skips it."""
    CONSUME = "consume"
    """The consumer delivers the message still encrypted; see `Message.is_encrypted`."""


@dataclass(frozen=True, slots=True)
class EncryptionKey:
    """A key in PEM, and metadata that the key reader gets back with each message."""

    pem: bytes = field(repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict)


class KeyReader(Protocol):
    """Source of keys. Called on the event loop: it must not take long."""

    def public_key(self, name: str, metadata: Mapping[str, str]) -> EncryptionKey:
        """Return the public key of a name, for producers.

        Raises:
            CryptoKeyError: there is none.
        """
        ...

    def private_key(self, name: str, metadata: Mapping[str, str]) -> EncryptionKey:
        """Return the private key of a name, for consumers; `metadata` is that of the message.

        Raises:
            CryptoKeyError: there is none.
        """
        ...


@dataclass(frozen=True, slots=True)
class FileKeyReader:
    """Keys in PEM files. `{name}` in a path is replaced by the key's name; an empty path means no
    keys."""

    public_path: str = ""
    private_path: str = ""

    def public_key(self, name: str, metadata: Mapping[str, str]) -> EncryptionKey:
        return self._read(self.public_path, name, "public")

    def private_key(self, name: str, metadata: Mapping[str, str]) -> EncryptionKey:
        return self._read(self.private_path, name, "private")

    def _read(self, path: str, name: str, kind: str) -> EncryptionKey:
        if not path:
            raise CryptoKeyError(f"key {name}: no path for {kind} keys was given")
        # The name may come from a message: it must not lead to another folder.
        if "{name}" in path and (not name or "/" in name or "\\" in name or name in (".", "..")):
            raise CryptoKeyError(f"key {name!r}: the name cannot be part of a path")
        try:
            return EncryptionKey(Path(path.replace("{name}", name)).read_bytes())
        except OSError as error:
            raise CryptoKeyError(f"key {name}: the {kind} key cannot be read: {error}") from error


class MessageEncryptor:
    """The data key of one producer, replaced every `rotation_s` seconds."""

    def __init__(
        self,
        names: Sequence[str],
        reader: KeyReader,
        *,
        clock: Clock,
        rotation_s: float,
        random: RandomBytes = secure_random,
    ) -> None:
        """Make the first data key.

        Raises:
            CryptoKeyError: a public key is missing or cannot be used.
        """
        assert names
        self._names, self._reader = tuple(names), reader
        self._clock, self._random, self._rotation_s = clock, random, rotation_s
        self._rotate()

    def encrypt(self, body: bytes) -> tuple[bytes, MessageMetadata]:
        """Return the encrypted body, and the fields that its metadata needs.

        Raises:
            CryptoKeyError: the data key is due for replacement, and a public key is not available.
        """
        if self._clock.monotonic_s() - self._made_at_s >= self._rotation_s:
            self._rotate()
        iv = self._random(IV_BYTES)
        metadata = MessageMetadata(encryption_keys=self._keys, encryption_param=iv)
        return self._cipher.encrypt(iv, body, None), metadata

    def _rotate(self) -> None:
        data_key = self._random(DATA_KEY_BYTES)
        keys: list[EncryptionKeys] = []
        for name in self._names:
            key = self._reader.public_key(name, {})
            keys.append(
                EncryptionKeys(
                    key=name,
                    value=_encrypt_data_key(name, key.pem, data_key),
                    metadata=[KeyValue(key=k, value=v) for k, v in key.metadata.items()],
                )
            )
        self._keys, self._cipher = keys, AESGCM(data_key)
        fields = MessageMetadata(encryption_keys=keys, encryption_param=bytes(IV_BYTES))
        self.fields_bytes_max = len(fields.SerializePartialToString()) + TAG_BYTES
        """Most bytes that encryption adds to a message."""
        self._made_at_s = self._clock.monotonic_s()


class MessageDecryptor:
    """Decrypts messages with the private keys of a key reader."""

    def __init__(self, reader: KeyReader) -> None:
        self._reader = reader
        self._ciphers: OrderedDict[tuple[str, bytes], AESGCM] = OrderedDict()

    def decrypt(self, body: bytes, metadata: MessageMetadata) -> bytes:
        """Return the decrypted body, which is still compressed, and may be a batch.

        Raises:
            DecryptionError: no private key fits, or the body was changed after its encryption.
        """
        iv = metadata.encryption_param
        if len(iv) != IV_BYTES or len(body) < TAG_BYTES:
            raise DecryptionError(
                f"an IV of {len(iv)} bytes and a body of {len(body)}; "
                f"expected {IV_BYTES}, and {TAG_BYTES} or more"
            )
        reasons: list[str] = []
        for key in metadata.encryption_keys:
            try:
                return self._cipher(key).decrypt(iv, body, None)
            except InvalidTag:
                self._ciphers.pop((key.key, key.value), None)
                reasons.append(f"key {key.key}: the body does not fit its tag")
            except CryptoKeyError as error:
                reasons.append(str(error))
        raise DecryptionError("; ".join(reasons) or "the message names no key")

    def _cipher(self, key: EncryptionKeys) -> AESGCM:
        place = (key.key, key.value)
        known = self._ciphers.get(place)
        if known is None:
            metadata = {pair.key: pair.value for pair in key.metadata}
            pem = self._reader.private_key(key.key, metadata).pem
            data_key = _decrypt_data_key(key.key, pem, key.value)
            if len(data_key) not in (16, 24, 32):
                raise CryptoKeyError(f"key {key.key}: a data key of {len(data_key)} bytes")
            known = self._ciphers[place] = AESGCM(data_key)
            if len(self._ciphers) > DATA_KEYS_MAX:
                self._ciphers.popitem(last=False)
        return known


# -- the data key, encrypted for a key pair

_OAEP = padding.OAEP(mgf=padding.MGF1(SHA1()), algorithm=SHA1(), label=None)
"""SHA-1, because the official clients use it. Its collisions do no harm in a mask."""
_MAC_BYTES = 20
_MAC_KEY_BYTES = 16
_NO_ENCODING = bytes(8)
"""Length of the absent encoding vector, in bits. (With 4 bytes it would be `OldECIES`.)"""


def _encrypt_data_key(name: str, pem: bytes, data_key: bytes) -> bytes:
    try:
        is_certificate = b"BEGIN CERTIFICATE" in pem
        public: object = (
            load_pem_x509_certificate(pem).public_key()
            if is_certificate
            else load_pem_public_key(_without_parameters(pem))
        )
        if isinstance(public, rsa.RSAPublicKey):
            return public.encrypt(data_key, _OAEP)
        if isinstance(public, ec.EllipticCurvePublicKey):
            return _ecies_encrypt(public, data_key)
    except (ValueError, TypeError) as error:
        raise CryptoKeyError(f"key {name}: not a usable public key: {error}") from error
    raise CryptoKeyError(
        f"key {name}: only RSA and elliptic curve keys are supported, not {type(public).__name__}"
    )


def _decrypt_data_key(name: str, pem: bytes, value: bytes) -> bytes:
    try:
        private = load_pem_private_key(_without_parameters(pem), password=None)
        if isinstance(private, rsa.RSAPrivateKey):
            return private.decrypt(value, _OAEP)
        if isinstance(private, ec.EllipticCurvePrivateKey):
            return _ecies_decrypt(private, value)
    except (ValueError, TypeError) as error:
        raise CryptoKeyError(f"key {name}: cannot decrypt the data key: {error}") from error
    raise CryptoKeyError(
        f"key {name}: only RSA and elliptic curve keys are supported, not {type(private).__name__}"
    )


def _without_parameters(pem: bytes) -> bytes:
    """Drop the curve parameters that OpenSSL writes before a key: the key itself names them."""
    end = b"-----END EC PARAMETERS-----"
    return pem.partition(end)[2] if end in pem else pem


def _ecies_encrypt(public: ec.EllipticCurvePublicKey, data: bytes) -> bytes:
    """Return the uncompressed point of a one-time key, the data XORed with a key stream, and a
    MAC."""
    once = ec.generate_private_key(public.curve)
    point = once.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    secret = once.exchange(ec.ECDH(), public)
    mac_key, stream = _ecies_keys(point, secret, len(data))
    hidden = _xor(data, stream)
    return point + hidden + _mac(mac_key, hidden)


def _ecies_decrypt(private: ec.EllipticCurvePrivateKey, value: bytes) -> bytes:
    point_bytes = 1 + 2 * ((private.curve.key_size + 7) // 8)
    if len(value) <= point_bytes + _MAC_BYTES:
        raise ValueError(f"{len(value)} bytes are too few")
    point, hidden, tag = (
        value[:point_bytes],
        value[point_bytes:-_MAC_BYTES],
        value[-_MAC_BYTES:],
    )
    other = ec.EllipticCurvePublicKey.from_encoded_point(private.curve, point)
    mac_key, stream = _ecies_keys(point, private.exchange(ec.ECDH(), other), len(hidden))
    if not hmac.compare_digest(_mac(mac_key, hidden), tag):
        raise ValueError("it was encrypted for another key")
    return _xor(hidden, stream)


def _ecies_keys(point: bytes, secret: bytes, data_bytes: int) -> tuple[bytes, bytes]:
    """Derive the MAC key and the key stream, by KDF2 (ISO 18033-2) with SHA-1."""
    wanted = _MAC_KEY_BYTES + data_bytes
    out = b""
    for counter in range(1, wanted // 20 + 2):
        out += hashlib.sha1(point + secret + counter.to_bytes(4, "big")).digest()
    return out[:_MAC_KEY_BYTES], out[_MAC_KEY_BYTES:wanted]


def _mac(key: bytes, hidden: bytes) -> bytes:
    return hmac.digest(key, hidden + _NO_ENCODING, "sha1")


def _xor(left: bytes, right: bytes) -> bytes:
    size = len(left)
    return (int.from_bytes(left, "big") ^ int.from_bytes(right, "big")).to_bytes(size, "big")
