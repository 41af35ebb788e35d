"""Objects that backups name, which the sweep therefore keeps; and the stores that have backups.

A backup writes the file of a log first, and reads the log's node after that: the node must still
name every object of the file. The sweep reads the node first, and the files after that. An object
that the sweep found unnamed was unnamed before the files were read. So either the file existed in
time, or the backup notices that the node has changed, and starts that log anew. Files of an
unfinished backup count like those of a finished one.

A file that cannot be read or understood keeps everything: the error ends the pass. So does a store
that has backups and lists no file of one: it is perhaps not mounted.

The metadata store records the object stores that have, or had, backups of the cluster:

    /backup-stores/<name of the store>   a random text; a second one after the first backup; and
                                         for each backup that is being deleted "-" and its directory

The sweep reads the backups of these stores, and of no others: a store without backups that cannot
be reached delays nothing. The node exists before the first file of a backup does. Before its last
file, the backup checks that the node was there all the time, and replaces what follows the first
text. The node is deleted before the last file of the last backup in the store, if it still is as it
was before the store was searched for others. A backup that the node calls one that is being deleted
does not count. While the node exists and the store has no file yet, or no longer, the passes of the
sweep end with an error: they cannot tell this store from one that is not in place.

Source: tiered storage, sections 17 and 21 (invariant O3).
"""

import json
from collections.abc import Iterable, Sequence
from urllib.parse import quote, unquote

from magnetar.ledger.errors import (
    NoNodeError,
    ObjectDamagedError,
    ObjectStoreUnavailableError,
)
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.metadata.cell import GONE, Deletion, bytes_cell
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.offloading.backup_keys import end_of, files_that_may_name
from magnetar.ledger.offloading.log_manifest import LogManifest, decode_checked
from magnetar.ledger.offloading.object_store import ObjectStore, ObjectStores

LOG_FILE_BYTES_MAX = 128 << 20
"""Largest file of a log that is read: 10,000 ledgers and 1,000 large cursors take 50 MB."""
ROOT = "/backup-stores"
_LEFT = b"-"
"""Before the directory of a backup that is being deleted; random texts are hexadecimal."""


class BackupPins:
    """The backups of one cluster, in all stores that hold some: a backup in one store may name
    objects in another."""

    def __init__(
        self, metadata: MetadataStore, stores: ObjectStores, prefixes: Sequence[str]
    ) -> None:
        """Make the pins of a cluster. `prefixes`: the beginnings of the keys of the cluster's
        backups (`backups_prefix`), one for each prefix that the cluster ever used. A backup below
        one names objects below others."""
        self._metadata = metadata
        self._stores = stores
        self._prefixes = tuple(prefixes)

    async def pinned(self, keys: Sequence[str]) -> frozenset[str]:
        """Return those of the given object keys that a backup names.

        Raises:
            ObjectError, MetadataError: the answer is unknown: delete nothing.
        """
        wanted = files_that_may_name(keys)
        named: set[str] = set()
        await self._metadata.catch_up()
        for name in await stores_with_backups(self._metadata):
            store = self._stores.store(name)
            for key in await self._files(name, store, wanted):
                named |= objects_named(await read_whole(store, key, LOG_FILE_BYTES_MAX), key)
        return frozenset(named).intersection(keys)

    async def _files(self, name: str, store: ObjectStore, wanted: frozenset[str]) -> Sequence[str]:
        """Return the keys of the files of backups in a store that has some, by their ends.

        Raises:
            ObjectStoreUnavailableError: the store lists no file of any backup.
        """
        found: list[str] = []
        has_any = False
        for prefix in self._prefixes:
            async for page in store.list(prefix):
                ends = [(each.key, end_of(each.key)) for each in page]
                has_any = has_any or any(end for _, end in ends)
                found += (key for key, end in ends if end in wanted)
        if not has_any:
            raise ObjectStoreUnavailableError(
                f"store {name} lists no file of a backup, but {ROOT}/{name} in the metadata store "
                "says that it has backups: the sweep deletes nothing. See that the store is in "
                "place, for example that its directory is mounted. If backups were removed by "
                "hand, one was broken off before its first file, or a former release was "
                "interrupted when it deleted the last one, make a new one (magnetar backup "
                "create) and delete it (magnetar backup delete)"
            )
        return found


async def read_whole(store: ObjectStore, key: str, bytes_max: int) -> bytes:
    """Return the bytes of a small object.

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
    """Return the keys of the objects that the file of a log names.

    Args:
        value: of the file.
        key: of the file, for errors.

    Raises:
        ObjectDamagedError, FutureObjectVersionError: the names are unknown.
    """
    return keys_in(manifest_in(decode_checked(value, key=key), key).node)


def manifest_in(content: dict[str, object], key: str) -> LogManifest:
    """Return the manifest in the content of a log's file.

    Raises:
        ObjectDamagedError, FutureObjectVersionError
    """
    manifest = content.get("manifest")
    if not isinstance(manifest, dict):
        raise ObjectDamagedError(f"{key}: it has no manifest of its log")
    return LogManifest.from_json(json.dumps(manifest).encode(), key=key)


def keys_in(node: LogMetadata) -> frozenset[str]:
    """Return the keys of the complete objects that a log's node names."""
    return frozenset(
        node.object_bases[found.base].key(ledger.ledger_id, found.attempt)
        for ledger in node.ledgers
        if (found := ledger.object) is not None and found.is_copied
    )


async def stores_with_backups(store: MetadataStore) -> Sequence[str]:
    """Return the names of the object stores that may hold backups, sorted.

    Raises:
        MetadataError
    """
    try:
        return sorted(await store.children(ROOT))
    except NoNodeError:
        return ()


async def note_store(store: MetadataStore, name: str, token: bytes) -> bytes:
    """Record that an object store has backups; return the recorded token, of this call or an
    earlier one.

    Args:
        token: random, so that a record differs from a later one.

    Raises:
        MetadataError
    """
    found, _ = await bytes_cell(store, f"{ROOT}/{name}").have(token)
    assert found.value is not None, "bytes are never None"
    return _token_in(found.value)


async def renew_note(store: MetadataStore, name: str, noted: bytes, renewal: bytes) -> bool:
    """Change a record before a backup ends; return whether it was there all the time.

    A deletion of another backup that looks for backups from now on finds the files of this one. A
    deletion that looked before has read the record before, and leaves it now that it has changed.

    Args:
        noted: the token that `note_store` returned when the backup began.
        renewal: random.

    Raises:
        MetadataError
    """

    def renewed(before: bytes | None) -> bytes | None:
        is_same = before is not None and _token_in(before) == noted
        return noted + b" " + renewal if is_same else None

    await store.catch_up()
    return (await bytes_cell(store, f"{ROOT}/{name}").change(renewed)).is_written


async def note_of(store: MetadataStore, name: str) -> bytes | None:
    """Return the record of an object store as it is now; None if it has no backups.

    Raises:
        MetadataError
    """
    await store.catch_up()
    found = await bytes_cell(store, f"{ROOT}/{name}").read(is_sure=True)
    return None if found is None else found.value


async def forget_store(store: MetadataStore, name: str, note: bytes) -> bool:
    """Record that an object store no longer has any backup, unless the record has changed; return
    whether it had not.

    Args:
        note: the record (`note_of`), read before the store was found to have no other backup.

    Raises:
        MetadataError
    """

    def gone(before: bytes | None) -> Deletion | None:
        return GONE if before == note else None

    return (await bytes_cell(store, f"{ROOT}/{name}").change(gone)).is_written


async def leave_store(
    store: MetadataStore, name: str, note: bytes, directories: Iterable[str]
) -> bool:
    """Record which backups in an object store are being deleted, unless the record has changed;
    return whether it had not.

    Args:
        note: the record (`note_of`), read before the store was found to have other backups.
        directories: beginnings of the keys of the backups that are being deleted.

    Raises:
        MetadataError
    """
    texts = [each for each in note.split(b" ") if not each.startswith(_LEFT)]
    marks = (_LEFT + quote(each).encode() for each in sorted(directories))
    new = b" ".join((*texts, *marks))

    def left(before: bytes | None) -> bytes | None:
        return new if before == note else None

    return (await bytes_cell(store, f"{ROOT}/{name}").change(left)).is_written


def left_in(note: bytes) -> frozenset[str]:
    """Return the beginnings of the keys of the backups that are being deleted, by a record."""
    return frozenset(
        unquote(each.removeprefix(_LEFT).decode())
        for each in note.split(b" ")
        if each.startswith(_LEFT)
    )


def _token_in(note: bytes) -> bytes:
    """Return the part of a record that stays as long as the record exists."""
    return note.partition(b" ")[0]
