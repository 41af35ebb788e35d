"""The interface to object stores.

An object appears whole or not at all, and is never changed. Keys are unique to one attempt to write
(tiered storage, rule 3.1), so nothing is overwritten on purpose. Objects that two processes may
want to create at the same time are written by `create`.

A store that cannot be reached proves nothing: only `ObjectMissingError` says that an object does
not exist. Even that is asked twice before any action relies on it (rule 18.1).
"""

import re
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

KEY_BYTES_MAX = 900
"""Most bytes of a key. The stores allow 1,024, of which the prefix of a store takes some."""

_PART_OF_KEY = re.compile(r"[A-Za-z0-9!$%&'()+,\-.:;=@_ ]+")
"""Characters allowed between slashes: all stores, and their clients, take and list them
unchanged."""


class StoredObject(NamedTuple):
    """One object of a listing."""

    key: str
    size_bytes: int
    written_ms: int
    """Time of the write by the clock of the store, ms since 1970."""


class ObjectTail(NamedTuple):
    """The last bytes of an object."""

    data: bytes
    size_bytes: int
    """Size of the whole object."""


def is_key(text: str) -> bool:
    """Return whether a text can be the key of an object, in every kind of store."""
    return len(text) <= KEY_BYTES_MAX and all(
        _PART_OF_KEY.fullmatch(part) and part not in (".", "..") for part in text.split("/")
    )


class ObjectStore(Protocol):
    """A prefix in a bucket, or a directory. Belongs to one event loop.

    Every call may raise `ObjectStoreUnavailableError`, after which the outcome is unknown, and
    `ObjectStoreRefusedError`, which no retry mends.
    """

    async def put(self, key: str, pieces: AsyncIterator[bytes], *, expected_bytes: int = 0) -> int:
        """Write an object from its pieces; return its size in bytes. The object is durable on
        return. If the iterator raises, no object appears.

        `expected_bytes`: about the size of the object, so that a store with a limit on the number
        of parts can choose their size. 0 if unknown; then 80 GB may be the limit.
        """
        ...

    async def create(self, key: str, body: bytes) -> bool:
        """Write a small object if its key is free; return False if an object with that key exists.
        This call itself may have written it, if the answer to a first try was lost."""
        ...

    async def get(self, key: str, start: int, end: int) -> bytes:
        """Return all bytes from `start` up to `end`.

        Raises:
            ObjectMissingError
            ObjectDamagedError: the object ends before `end`.
        """
        ...

    async def tail(self, key: str, size_bytes: int) -> ObjectTail:
        """Return the last `size_bytes` bytes, or the whole object if it is smaller.

        Raises:
            ObjectMissingError
        """
        ...

    def list(self, prefix: str) -> AsyncIterator[Sequence[StoredObject]]:
        """Yield the objects whose keys begin with `prefix`, in the order of their keys, in pages.

        A prefix should end in a slash: stores list by folder, so any other prefix lists its whole
        folder from the start.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; missing ones count as deleted."""
        ...

    async def close(self) -> None: ...


class FolderStore(ObjectStore, Protocol):
    """A store that can also list folder by folder, for people."""

    async def folders(self, prefix: str) -> Sequence[str]:
        """Return the names of the folders directly below one, sorted: the next part of all keys
        that begin with `prefix`, up to a slash. Returned all at once: for thousands of folders, not
        millions.

        Args:
            prefix: of the keys; empty, or with a slash at its end.
        """
        ...


async def create_or_match(store: ObjectStore, key: str, body: bytes) -> bool:
    """Create a small object; return True if the object of that key has this body now.

    A retried create may meet its own object (tiered storage, rule 10.2). Since this compares only
    bytes, it cannot tell that object from an equal one of another process: put something unique
    into the body where that matters.

    Raises:
        ObjectMissingError: the object that existed is gone again.
    """
    if await store.create(key, body):
        return True
    return await store.tail(key, len(body)) == ObjectTail(body, len(body))


class ObjectStores(Protocol):
    """The stores of this process, by the names in its settings."""

    def store(self, name: str) -> ObjectStore:
        """Return the store of that name.

        Raises:
            ObjectStoreRefusedError: there is none of that name here.
            ObjectStoreConfigError: it cannot be opened.
        """
        ...
