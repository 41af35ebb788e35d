"""Objects that backups name, which the sweep therefore keeps; and the stores that have backups.

A backup writes the file of a log first, and reads the log's node after that: the node must still
name every object of the file. The sweep reads the node first, and the files after that. An object
that the sweep found unnamed was unnamed before the files were read; so either the file was there in
time, or the backup finds out that the node has moved on, and begins with that log anew. Files of a
backup that is unfinished count like those of a finished one.

A file that cannot be read, or not be understood, keeps everything: the error ends the pass.

The metadata store knows the object stores that have, or had, backups of the cluster:

    /backup-stores/<name of the store>   a random text

The sweep reads the backups of these stores, and of no others: a store that has none, and cannot be
reached, holds up nothing. The node is there before the first file of a backup is, and the backup
finds it unchanged before its last file is written. It goes with the last backup in the store.

Source: tiered storage, sections 17 and 21 (invariant O3).
"""

import json
from collections.abc import Sequence

from magnetar.ledger.errors import NoNodeError, ObjectDamagedError
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.metadata.cell import GONE, Deletion, bytes_cell
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.offloading.backup_keys import end_of, files_that_may_name
from magnetar.ledger.offloading.log_manifest import LogManifest, decode_checked
from magnetar.ledger.offloading.object_store import ObjectStore, ObjectStores

LOG_FILE_BYTES_MAX = 128 << 20
"""A larger file of a log is not read: 10,000 ledgers and 1,000 large cursors take 50 MB."""
ROOT = "/backup-stores"


class BackupPins:
    """The backups of one cluster, in all stores that hold some: one may name objects of another."""

    def __init__(
        self, metadata: MetadataStore, stores: ObjectStores, prefixes: Sequence[str]
    ) -> None:
        """`prefixes`: what keys of the cluster's backups begin with (`backups_prefix`), one for
        each prefix that the cluster ever used. A backup below one names objects below others."""
        self._metadata = metadata
        self._stores = stores
        self._prefixes = tuple(prefixes)

    async def pinned(self, keys: Sequence[str]) -> frozenset[str]:
        """Return the keys, among these of objects, that a backup names.

        Raises:
            ObjectError, MetadataError: that cannot be told: delete nothing.
        """
        wanted = files_that_may_name(keys)
        named: set[str] = set()
        await self._metadata.catch_up()
        for name in await stores_with_backups(self._metadata):
            store = self._stores.store(name)
            files = [
                each.key
                for prefix in self._prefixes
                async for page in store.list(prefix)
                for each in page
                if end_of(each.key) in wanted
            ]
            for key in files:
                named |= objects_named(await read_whole(store, key, LOG_FILE_BYTES_MAX), key)
        return frozenset(named).intersection(keys)


async def read_whole(store: ObjectStore, key: str, bytes_max: int) -> bytes:
    """The bytes of a small object.

    Raises:
        ObjectDamagedError: it is larger.
        ObjectMissingError, ObjectStoreUnavailableError, ObjectStoreRefusedError
    """
    tail = await store.tail(key, bytes_max)
    if tail.size_bytes > bytes_max:
        raise ObjectDamagedError(
            f"{key} has {tail.size_bytes} bytes; what may be there has {bytes_max} at most"
        )
    return tail.data


def objects_named(value: bytes, key: str) -> frozenset[str]:
    """The keys of the objects that the file of a log names.

    Args:
        value: of the file.
        key: of the file, for errors.

    Raises:
        ObjectDamagedError, FutureObjectVersionError: nobody knows what it names.
    """
    return keys_in(manifest_in(decode_checked(value, key=key), key).node)


def manifest_in(content: dict[str, object], key: str) -> LogManifest:
    """The manifest in the content of a log's file.

    Raises:
        ObjectDamagedError, FutureObjectVersionError
    """
    manifest = content.get("manifest")
    if not isinstance(manifest, dict):
        raise ObjectDamagedError(f"{key}: it has no manifest of its log")
    return LogManifest.from_json(json.dumps(manifest).encode(), key=key)


def keys_in(node: LogMetadata) -> frozenset[str]:
    """The keys of the complete objects that a log's node names."""
    return frozenset(
        node.object_bases[found.base].key(ledger.ledger_id, found.attempt)
        for ledger in node.ledgers
        if (found := ledger.object) is not None and found.is_copied
    )


async def stores_with_backups(store: MetadataStore) -> Sequence[str]:
    """The names of the object stores that backups may be in, sorted.

    Raises:
        MetadataError
    """
    try:
        return sorted(await store.children(ROOT))
    except NoNodeError:
        return ()


async def note_store(store: MetadataStore, name: str, token: bytes) -> bytes:
    """Note that an object store has backups; returns what is noted, by this call or before it.

    Args:
        token: random: tells a note from a later one.

    Raises:
        MetadataError
    """
    found, _ = await bytes_cell(store, f"{ROOT}/{name}").have(token)
    assert found.value is not None, "bytes are never None"
    return found.value


async def is_noted(store: MetadataStore, name: str, noted: bytes) -> bool:
    """Whether a note has been there all the time.

    Raises:
        MetadataError
    """
    await store.catch_up()
    found = await bytes_cell(store, f"{ROOT}/{name}").read(is_sure=True)
    return found is not None and found.value == noted


async def forget_store(store: MetadataStore, name: str) -> None:
    """Note that an object store has no backup any more.

    Raises:
        MetadataError
    """

    def gone(before: bytes | None) -> Deletion | None:
        return None if before is None else GONE

    await bytes_cell(store, f"{ROOT}/{name}").change(gone)
