"""The entries of ledgers in object stores, read by executors directly.

Every run and every packet is verified, as brokers do it. The next runs are fetched while Spark
processes the current one. Executors have credentials of their own, from their environment. What
they cannot read, their broker reads for them (`slice_reader.py`).
"""

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from magnetar.arrow.stored.errors import CorruptDataError, DataLossError, UnreachableError
from magnetar.arrow.stored.slices import LedgerPart
from magnetar.ledger.errors import (
    LedgerError,
    ObjectDamagedError,
    ObjectMissingError,
)
from magnetar.ledger.offloading.object_encryption import NO_KEYS, ObjectKeyRing
from magnetar.ledger.offloading.object_format import ObjectName
from magnetar.ledger.offloading.object_key_file import read_object_keys
from magnetar.ledger.offloading.object_keys import parse_key
from magnetar.ledger.offloading.object_reader import ObjectReader, ObjectReads
from magnetar.ledger.offloading.object_store import ObjectStore
from magnetar.ledger.offloading.settings import ObjectStoreSettings
from magnetar.ledger.offloading.stores import open_object_store
from magnetar.ledger.settings import ObjectReadSettings
from magnetar.ledger.system import SystemClock

T = TypeVar("T")

_SETTINGS = ObjectReadSettings(
    object_index_cache_bytes=8 << 20,
    object_read_memory_bytes=64 << 20,
    object_read_window_bytes=48 << 20,
)
"""Settings of one task, which reads one ledger at a time."""


class ObjectLedgerReads:
    """Reads of a task's ledgers in object stores. For one thread."""

    def __init__(self, *, request_bytes: int, key_file: str = "") -> None:
        """`key_file` is the local path of the keys of encrypted objects; empty if there are
        none."""
        self._key_file = key_file
        self._request_bytes = request_bytes
        self._loop = asyncio.new_event_loop()
        self._stores: dict[str, ObjectStore] = {}
        self._reads: ObjectReads | None = None

    def close(self) -> None:
        """Close what was opened. Closing twice is fine."""
        if not self._loop.is_closed():
            self._loop.run_until_complete(self._close())
            self._loop.close()

    async def _close(self) -> None:
        if self._reads is not None:
            await self._reads.close()
        for store in self._stores.values():
            await store.close()

    def entries(self, part: LedgerPart) -> Iterator[tuple[int, list[bytes]]]:
        """Yield runs of payloads in order, each with the id of its first entry.

        Raises:
            DataLossError: the store is certain that the object is gone.
            CorruptDataError: the object is not what was written.
            UnreachableError: the store does not answer, or refuses this executor; or the object is
                encrypted with a key that this executor does not have.
        """
        reader = self._run(part, self._open(part))
        try:
            at = part.first
            while at <= part.last:
                payloads = self._run(
                    part, reader.read(at, part.last, bytes_max=self._request_bytes)
                )
                yield at, payloads
                at += len(payloads)
        finally:
            self._loop.run_until_complete(reader.close())

    async def _open(self, part: LedgerPart) -> ObjectReader:
        assert part.object is not None
        key = parse_key(part.object.key)
        if key is None or key.ledger_id != part.ledger_id:
            raise UnreachableError(f"{part.object.key} is no object of ledger {part.ledger_id}")
        if not part.object.store:
            raise UnreachableError(f"the brokers do not say where the store of {key} is")
        store = self._stores.get(part.object.store)
        if store is None:
            try:
                settings = ObjectStoreSettings.model_validate_json(part.object.store)
            except ValueError as error:  # from brokers of another release
                raise UnreachableError(f"the store of {key} has unknown settings") from error
            store = self._stores[part.object.store] = open_object_store(settings)
        name = ObjectName(key.ledger_id, bytes.fromhex(key.attempt))
        if self._reads is None:
            # Opened here, so that a bad file is an error of the read: the broker then reads
            # instead.
            self._reads = ObjectReads(_SETTINGS, SystemClock(), keys=self._keys())
        return await self._reads.open(store, part.object.key, name, password=part.password)

    def _keys(self) -> ObjectKeyRing:
        """Return the keys of encrypted objects.

        Raises:
            ObjectKeyConfigError: the file cannot be used.
        """
        if not self._key_file:
            return replace(NO_KEYS, source="objectKeyFile")
        return read_object_keys(Path(self._key_file), source="objectKeyFile")

    def _run(self, part: LedgerPart, work: Coroutine[object, object, T]) -> T:
        try:
            return self._loop.run_until_complete(work)
        except ObjectMissingError as error:
            raise DataLossError(f"ledger {part.ledger_id}: {error}") from error
        except ObjectDamagedError as error:
            raise CorruptDataError(f"ledger {part.ledger_id}: {error}") from error
        except LedgerError as error:
            raise UnreachableError(f"ledger {part.ledger_id}: {error}") from error
