"""Objects that backups name, which the sweep therefore keeps.

A backup writes the file of a log first, and reads the log's node after that: the node must still
name every object of the file. The sweep reads the node first, and the files after that. An object
that the sweep found unnamed was unnamed before the files were read; so either the file was there in
time, or the backup finds out that the node has moved on, and begins with that log anew. Files of a
backup that is unfinished count like those of a finished one.

A file that cannot be read, or not be understood, keeps everything: the error ends the pass.

Source: tiered storage, sections 17 and 21 (invariant O3).
"""

import json
from collections.abc import Sequence

from magnetar.ledger.errors import ObjectDamagedError
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.offloading.backup_keys import end_of, files_that_may_name
from magnetar.ledger.offloading.backup_stores import stores_with_backups
from magnetar.ledger.offloading.log_manifest import LogManifest, decode_checked
from magnetar.ledger.offloading.object_store import ObjectStore, ObjectStores

LOG_FILE_BYTES_MAX = 128 << 20
"""A larger file of a log is not read: 10,000 ledgers and 1,000 large cursors take 50 MB."""


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
