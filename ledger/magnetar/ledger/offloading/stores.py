"""Opens object stores by their settings, and checks that they can be used."""

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

from magnetar.ledger.errors import (
    ObjectDamagedError,
    ObjectError,
    ObjectStoreConfigError,
    ObjectStoreRefusedError,
    ObjectStoreUnavailableError,
)
from magnetar.ledger.offloading.directory_store import DirectoryStore
from magnetar.ledger.offloading.object_store import FolderStore, ObjectStore, ObjectTail
from magnetar.ledger.offloading.settings import ObjectStoreSettings
from magnetar.ledger.offloading.store_url import parse_store_url

PROBES = "probe/"
"""Prefix of the keys of probe objects. No other key has it; a probe may remain after a failure."""


def open_object_store(settings: ObjectStoreSettings) -> FolderStore:
    """Open the store that the settings name. Makes no request: `check_store` does.

    Raises:
        ObjectStoreConfigError: obstore is not installed, or a setting cannot be used.
    """
    url = parse_store_url(settings.url)
    if url.scheme == "file":
        return DirectoryStore(Path(url.path))
    try:
        from magnetar.ledger.offloading.bucket_store import BucketStore
    except ImportError as error:
        raise ObjectStoreConfigError(
            f"store {settings.name}: {url.scheme}:// needs the package obstore ({error}): "
            "pip install 'magnetar[objects]'"
        ) from error
    return BucketStore.open(settings)


async def check_store(store: ObjectStore, *, name: str, random: Random) -> None:
    """Check a store by writing, reading, listing, creating and deleting a probe object (tiered
    storage, rule 14.22).

    `name`: of the store, for the error.

    Raises:
        ObjectError: names the step that failed; one of its subclasses.
    """
    steps = _Steps(store, f"{PROBES}{random.getrandbits(128):032x}")
    try:
        await steps.run()
    except ObjectError as error:
        raise type(error)(f"store {name}: {steps.now} of the check failed. {error}") from error


class _Steps:
    """The check of one store; `now` is the step that is under way."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store = store
        self._key = key
        self._body = key.encode()
        self.now = ""

    async def run(self) -> None:
        """Run the steps in order.

        Raises:
            ObjectError
        """
        self.now = "put"
        await self._store.put(self._key, _only(self._body))
        self.now = "get"
        data = await self._store.get(self._key, 1, len(self._body) - 1)
        tail = await self._store.tail(self._key, len(self._body) + 1)
        if data != self._body[1:-1] or tail != ObjectTail(self._body, len(self._body)):
            raise ObjectDamagedError(f"{self._key} is not what was written just now")
        self.now = "list"
        listed = [each.key async for some in self._store.list(PROBES) for each in some]
        if self._key not in listed:
            raise ObjectStoreUnavailableError(
                f"{self._key} was written and is not listed. If it stays so, the store's lists are "
                "not consistent: use another one"
            )
        self.now = "create"
        if await self._store.create(self._key, b"another"):
            raise ObjectStoreRefusedError(
                "The store overwrote an object that was to be created only if there is none. Use "
                "one that supports If-None-Match"
            )
        self.now = "delete"
        await self._store.delete([self._key])


async def _only(piece: bytes) -> AsyncIterator[bytes]:
    yield piece
