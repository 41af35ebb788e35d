"""The interface to object stores.

An object appears whole or not at all, and is never changed. Keys are unique to one try to write
(tiered storage, rule 3.1), so nothing is overwritten on purpose; what two processes may want to
create at the same time goes by `create`.

A store that cannot be reached proves nothing: only `ObjectMissingError` says that an object is not
there, and even that is asked twice before anything is done on the strength of it (rule 18.1).
"""

import re
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

KEY_BYTES_MAX = 900
"""Bytes of a key. The stores allow 1,024, of which the prefix of a store takes some."""

_PART_OF_KEY = re.compile(r"[A-Za-z0-9!$%&'()+,\-.:;=@_ ]+")
"""What may stand between slashes: what all stores, and their clients, take and list as it is."""


class StoredObject(NamedTuple):
    """What a listing says of an object."""

    key: str
    size_bytes: int
    written_ms: int
    """By the clock of the store, ms since 1970."""


class ObjectTail(NamedTuple):
    """The end of an object."""

    data: bytes
    size_bytes: int
    """Of the whole object."""


def is_key(text: str) -> bool:
    """Whether a text can be the key of an object, in every kind of store."""
    return len(text) <= KEY_BYTES_MAX and all(
        _PART_OF_KEY.fullmatch(part) and part not in (".", "..") for part in text.split("/")
    )


class ObjectStore(Protocol):
    """A prefix in a bucket, or a directory. On one event loop.

    Every call may raise `ObjectStoreUnavailableError`, after which nothing is known of what was
    asked for, and `ObjectStoreRefusedError`, which no retry mends.
    """

    async def put(self, key: str, pieces: AsyncIterator[bytes], *, expected_bytes: int = 0) -> int:
        """Write an object out of its pieces; returns its bytes. It is there, and durable, when this
        returns. If the iterator raises, nothing appears.

        `expected_bytes`: about the size of the object, so that a store with a limit of parts can
        choose the size of these. 0: not known; then 80 GB may be the end.
        """
        ...

    async def create(self, key: str, body: bytes) -> bool:
        """Write a small object if there is none of that key; False: there is one, whoever wrote
        it. It may be this very call that did, if the answer to a first try was lost."""
        ...

    async def get(self, key: str, start: int, end: int) -> bytes:
        """The bytes from `start` up to `end`, all of them.

        Raises:
            ObjectMissingError
            ObjectDamagedError: the object ends before.
        """
        ...

    async def tail(self, key: str, size_bytes: int) -> ObjectTail:
        """The last bytes, or all if there are no more.

        Raises:
            ObjectMissingError
        """
        ...

    def list(self, prefix: str) -> AsyncIterator[Sequence[StoredObject]]:
        """The objects whose keys begin so, in the order of their keys, some at a time.

        Let a prefix end in a slash: stores list folders, and of a folder all that comes before.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that are not there count as deleted."""
        ...

    async def close(self) -> None: ...


class FolderStore(ObjectStore, Protocol):
    """A store that can also be looked at folder by folder, as a person does."""

    async def folders(self, prefix: str) -> Sequence[str]:
        """The names of the folders right below one, sorted: what keys that begin so have up to the
        next slash. All at once: for folders of thousands, not of millions.

        Args:
            prefix: of the keys; empty, or with a slash at its end.
        """
        ...


async def create_or_match(store: ObjectStore, key: str, body: bytes) -> bool:
    """Create a small object; True: the object of that key has this body now.

    A retried create may meet its own object (tiered storage, rule 10.2). This compares, and so
    cannot tell it from one that another process wrote with the same bytes: put something unique
    into the body where that matters.

    Raises:
        ObjectMissingError: the object that was in the way is gone again.
    """
    if await store.create(key, body):
        return True
    return await store.tail(key, len(body)) == ObjectTail(body, len(body))


class ObjectStores(Protocol):
    """The stores of this process, by the names that its settings give them."""

    def store(self, name: str) -> ObjectStore:
        """
        Raises:
            ObjectStoreRefusedError: there is none of that name here.
            ObjectStoreConfigError: it cannot be opened.
        """
        ...
