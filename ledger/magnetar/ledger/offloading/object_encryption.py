"""Encryption of objects: data keys, their wrapping by the operator's keys, and runs. Pure.

Each attempt to write an object has a random data key, which encrypts its runs with AES-256-GCM. An
operator's key, which has an id, wraps the data key; the object contains the wrapped key. So an
operator's key encrypts 32 bytes per object, and another one can replace it for new objects.

Invariants: a data key encrypts each run number at most once, since the number is the nonce. No
`repr` and no error contains a key.

Layout: docs/formats/object.md. Source: tiered storage, section 22.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from magnetar.ledger.errors import InvariantError, ObjectKeyError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
TAG_BYTES = 16
_WRAP_NONCE_BYTES = 12
WRAPPED_BYTES = _WRAP_NONCE_BYTES + KEY_BYTES + TAG_BYTES

_IDENTITY = struct.Struct(">q16sH")
_KEY_ID = struct.Struct(">H")
_RUN_NONCE = struct.Struct(">4xQ")

RandomBytes = Callable[[int], bytes]
"""Function that returns that many unpredictable bytes: `os.urandom`, except in tests."""


class ObjectIdentity(NamedTuple):
    """Identity that an encrypted object is bound to: its runs do not pass for those of another
    object."""

    instance_id: str
    log: str
    ledger_id: int
    attempt: bytes

    def __str__(self) -> str:
        return f"object {self.attempt.hex()} of ledger {self.ledger_id}"

    def encode(self) -> bytes:
        """Return the bytes that encryption authenticates."""
        instance = self.instance_id.encode()
        return _IDENTITY.pack(self.ledger_id, self.attempt, len(instance)) + b"".join(
            (instance, self.log.encode())
        )


class WrappedKey(NamedTuple):
    """The data key of an object, as stored in the object."""

    key_id: str
    """Id of the operator's key that wraps it."""
    wrapped: bytes


@dataclass(frozen=True, slots=True)
class ObjectKeyRing:
    """The operator's keys of a process, by their ids."""

    keys: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    new_key_id: str = ""
    """The key for new objects; empty if they are not encrypted."""
    source: str = "object_key_file"
    """Name of the setting or option that names the key file, for errors."""
    random_bytes: RandomBytes | None = None
    """Makes data keys; None if the keys are for reading only."""

    def new_cipher(self, identity: ObjectIdentity) -> "tuple[WrappedKey, RunCipher] | None":
        """Return a new data key for an object that is to be written; None if it stays plain."""
        if not self.new_key_id:
            return None
        assert self.random_bytes is not None
        data_key, nonce = self.random_bytes(KEY_BYTES), self.random_bytes(_WRAP_NONCE_BYTES)
        key = _aes_gcm(self.keys[self.new_key_id])
        wrapped = nonce + key.encrypt(nonce, data_key, _bound(self.new_key_id, identity))
        return WrappedKey(self.new_key_id, wrapped), RunCipher(data_key, identity)

    def cipher(self, wrapped_key: WrappedKey, identity: ObjectIdentity) -> "RunCipher":
        """Return the cipher that decrypts the runs of an object.

        Raises:
            ObjectKeyError: this process does not have the key, or has another key with its id.
        """
        key_id, wrapped = wrapped_key
        secret = self.keys.get(key_id)
        if secret is None:
            raise ObjectKeyError(
                f"{identity} is encrypted with the key {key_id!r}, which this process does not "
                f"have: add it to the file that {self.source} names, and start the process again",
                key_id=key_id,
            )
        nonce, sealed = wrapped[:_WRAP_NONCE_BYTES], wrapped[_WRAP_NONCE_BYTES:]
        data_key = _decrypted(_aes_gcm(secret), nonce, sealed, _bound(key_id, identity))
        if data_key is None:
            raise ObjectKeyError(
                f"{identity} is encrypted with a key {key_id!r}, and the key of that id here does "
                f"not open it: put the right one into the file that {self.source} names (each key "
                "needs an id of its own), or its description was changed",
                key_id=key_id,
            )
        return RunCipher(data_key, identity)


NO_KEYS = ObjectKeyRing()
"""Key ring of a process without keys."""


class RunCipher:
    """Encrypts and decrypts the blocks of one object's runs."""

    def __init__(self, data_key: bytes, identity: ObjectIdentity) -> None:
        self._key = _aes_gcm(data_key)
        self._identity = identity.encode()
        self._next = 0

    def seal(self, number: int, head: bytes, block: bytes) -> bytes:
        """Encrypt the block of the next run; the result is longer by the tag.

        `head`: the bytes of the run before its block, which stay readable.
        """
        if number < self._next:  # Two blocks under one nonce would reveal both.
            raise InvariantError(f"run {number} was encrypted before")
        self._next = number + 1
        return self._key.encrypt(_RUN_NONCE.pack(number), block, head + self._identity)

    def open(self, number: int, head: bytes, sealed: bytes) -> bytes | None:
        """Decrypt the block of a run; return None if these bytes were not encrypted for this run of
        this object."""
        return _decrypted(self._key, _RUN_NONCE.pack(number), sealed, head + self._identity)


def _aes_gcm(key: bytes) -> "AESGCM":
    # Imported here, not above: most processes encrypt nothing, and the import loads a library.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


def _decrypted(key: "AESGCM", nonce: bytes, sealed: bytes, bound: bytes) -> bytes | None:
    from cryptography.exceptions import InvalidTag

    try:
        return key.decrypt(nonce, sealed, bound)
    except InvalidTag:
        return None


def _bound(key_id: str, identity: ObjectIdentity) -> bytes:
    name = key_id.encode()
    return _KEY_ID.pack(len(name)) + name + identity.encode()
