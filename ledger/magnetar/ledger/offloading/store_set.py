"""The object stores of one process by name, and the ledgers in them.

A store is opened once, at its first use.
"""

from collections.abc import Mapping, Sequence

from magnetar.ledger.errors import ObjectStoreRefusedError
from magnetar.ledger.offloading.object_format import ObjectName
from magnetar.ledger.offloading.object_reader import ObjectReader, ObjectReads
from magnetar.ledger.offloading.object_store import ObjectStore, ObjectStores
from magnetar.ledger.offloading.settings import ObjectStoreSettings
from magnetar.ledger.offloading.stores import open_object_store
from magnetar.ledger.ports import ObjectPlace


class StoreSet:
    """`ObjectStores` made from settings."""

    def __init__(self, settings: Sequence[ObjectStoreSettings]) -> None:
        self._settings = {each.name: each for each in settings}
        self._open: dict[str, ObjectStore] = {}

    @property
    def urls(self) -> Mapping[str, str]:
        """URL of each store, by name."""
        return {name: each.url for name, each in self._settings.items()}

    def store(self, name: str) -> ObjectStore:
        """Return the store of that name.

        Raises:
            ObjectStoreRefusedError: there is none of that name here.
            ObjectStoreConfigError: it cannot be opened.
        """
        found = self._open.get(name)
        if found is not None:
            return found
        settings = self._settings.get(name)
        if settings is None:
            known = ", ".join(sorted(self._settings)) or "none"
            raise ObjectStoreRefusedError(
                f"there is no object store {name!r} in the settings of this process (it has "
                f"{known}): add it to object_stores, with the url that it had"
            )
        return self._open.setdefault(name, open_object_store(settings))

    async def close(self) -> None:
        """Close the stores that were opened."""
        stores, self._open = self._open, {}
        for store in stores.values():
            await store.close()


class StoredLedgers:
    """`ObjectLedgers`: the ledgers in the stores of a set."""

    def __init__(self, stores: ObjectStores, reads: ObjectReads) -> None:
        self._stores = stores
        self.reads = reads

    async def open(self, place: ObjectPlace, *, password: bytes) -> ObjectReader:
        """Open a reader of a ledger's object. The caller must close it.

        Raises:
            ObjectError: there is no such store, or object, or no answer at present.
        """
        name = ObjectName(place.ledger_id, bytes.fromhex(place.attempt))
        store = self._stores.store(place.store)
        return await self.reads.open(store, place.key, name, password=password)

    async def close(self) -> None:
        """Close all readers."""
        await self.reads.close()
