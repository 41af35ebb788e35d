"""Encryption of ledgers' objects: data keys, how keys of the operator wrap them, and runs. Pure.

Each attempt to write an object has a random data key, which encrypts its runs with AES-256-GCM. A
key of the operator's, which has an id, wraps the data key; the object has the wrapped one. So an
operator's key encrypts 32 bytes per object, and can be replaced by another one for new objects.

Invariants: a data key encrypts each run number at most once, since the number is the nonce. No
`repr` and no error has a key in it.

Layout: docs/formats/object.md. Source: tiered storage, section 22.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from magnetar.ledger.errors import ObjectKeyError

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
"""Returns so many bytes that nobody can guess: `os.urandom`, but for tests."""


class ObjectIdentity(NamedTuple):
    """What an encrypted object is bound to: its runs pass for those of no other object."""

    instance_id: str
    log: str
    ledger_id: int
    attempt: bytes

    def __str__(self) -> str:
        return f"object {self.attempt.hex()} of ledger {self.ledger_id}"

    def encode(self) -> bytes:
        """The bytes that encryption authenticates."""
        instance = self.instance_id.encode()
        return _IDENTITY.pack(self.ledger_id, self.attempt, len(instance)) + b"".join(
            (instance, self.log.encode())
        )


class WrappedKey(NamedTuple):
    """The data key of an object, as the object has it."""

    key_id: str
    """Of the operator's key that wraps it."""
    wrapped: bytes


@dataclass(frozen=True, slots=True)
class ObjectKeyRing:
    """The operator's keys of a process, by their ids."""

    keys: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    new_key_id: str = ""
    """The key for new objects; empty: they are not encrypted."""
    source: str = "object_key_file"
    """What names the file of the keys: a setting or an option, for errors."""
    random_bytes: RandomBytes | None = None
    """Makes data keys; None: the keys are for reading only."""

    def new_cipher(self, identity: ObjectIdentity) -> "tuple[WrappedKey, RunCipher] | None":
        """Return a new data key for an object that is to be written; None: it stays plain."""
        if not self.new_key_id:
            return None
        assert self.random_bytes is not None
        data_key, nonce = self.random_bytes(KEY_BYTES), self.random_bytes(_WRAP_NONCE_BYTES)
        key = _aes_gcm(self.keys[self.new_key_id])
        wrapped = nonce + key.encrypt(nonce, data_key, _bound(self.new_key_id, identity))
        return WrappedKey(self.new_key_id, wrapped), RunCipher(data_key, identity)

    def cipher(self, wrapped_key: WrappedKey, identity: ObjectIdentity) -> "RunCipher":
        """Return what decrypts the runs of an object.

        Raises:
            ObjectKeyError: the key is not here, or is another one.
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
"""Of a process that knows no key."""


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
        assert number >= self._next, f"run {number} was encrypted before"
        self._next = number + 1
        return self._key.encrypt(_RUN_NONCE.pack(number), block, head + self._identity)

    def open(self, number: int, head: bytes, sealed: bytes) -> bytes | None:
        """Decrypt the block of a run; None: these are not the bytes that were encrypted for this
        run of this object."""
        return _decrypted(self._key, _RUN_NONCE.pack(number), sealed, head + self._identity)


def _aes_gcm(key: bytes) -> "AESGCM":
    # Here, not above: most processes encrypt nothing, and it has to load a library.
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
