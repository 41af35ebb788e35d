"""Deletes a backup; the store's note goes with the last one.

The note says that the store has backups (`backup_pins.py` of the ledger component). A note without
any file of a backup stops the sweep, so the note goes before the last file does. That file also
shows that the store is in place: a look at other backups counts only if it finds the file. An
interrupted deletion leaves a file, and its repetition does the rest.

Of several deletions at the same time, each sees the last file of the others. A deletion that leaves
the note to other backups therefore adds to the note that its own backup is being deleted: then it
no longer counts. Each change of the note requires that the note is as it was before the look;
otherwise the deletion looks again.

Source: tiered storage, section 21.
"""

from collections.abc import Sequence

from magnetar.broker.features.backup.backups import Backups
from magnetar.ledger.errors import ContendedError
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.offloading.backup_keys import BackupFolder, parse_backup_key
from magnetar.ledger.offloading.backup_pins import forget_store, leave_store, left_in, note_of
from magnetar.ledger.offloading.object_store import ObjectStore

_DELETED_AT_ONCE = 1_000
_TRIES = 10
"""Looks at other backups: each one but the last was outdated by another process."""


class BackupDeletion:
    """Deletes backups of one cluster in one object store."""

    def __init__(
        self,
        objects: ObjectStore,
        backups: Backups,
        former: Sequence[Backups],
        store: MetadataStore,
        *,
        store_name: str,
    ) -> None:
        """Create the deletion.

        Args:
            former: the cluster's backups below former prefixes, which keep the note.
            store_name: the object store in the brokers' settings.
        """
        self._objects = objects
        self._backups = backups
        self._former = tuple(former)
        self._store = store
        self._store_name = store_name

    async def delete(self, name: str) -> int:
        """Delete a backup, finished or not; return the number of its files.

        The cluster file, which makes it a backup, is deleted first, unless it is the only file.

        Raises:
            InvalidNameError: the name is not valid for a backup.
            ObjectError, MetadataError: not everything is deleted; call again.
        """
        folder = self._backups.folder(name)
        files = 0
        for _ in range(_TRIES):
            keys = await self._backups.keys(name)
            # Only a file of a backup shows in a look; others may be there by hand.
            own = sorted(each for each in keys if parse_backup_key(each) is not None)
            kept = own[-1:]  # one of a log if there is any: "cluster.json" is before "logs/"
            await self._delete([each for each in (*own, *keys) if each not in kept])
            files += len(keys) - len(kept)
            if not kept:
                return files
            if await self._is_note_settled(folder):
                await self._delete(kept)
                return files + 1
        raise ContendedError(
            f"backup {name} has a file left: other processes made or deleted backups in the "
            f"store {self._store_name} at each of {_TRIES} tries; delete it again"
        )

    async def _is_note_settled(self, folder: BackupFolder) -> bool:
        """Remove the note, or leave it to other backups; return False if the look is outdated."""
        note = await note_of(self._store, self._store_name)
        if note is None:
            return True
        found: dict[str, int] = {}
        # The present prefix last: if the store is in place then, it probably was before.
        for backups in (*self._former, self._backups):
            found |= {each.folder.directory: each.files for each in await backups.found()}
        if found.pop(folder.directory, 0) != 1:
            return False  # the store is not in place, or another process uses this name
        left = left_in(note) & found.keys()
        if left == found.keys():
            return await forget_store(self._store, self._store_name, note)
        left |= {folder.directory}
        return await leave_store(self._store, self._store_name, note, left)

    async def _delete(self, keys: Sequence[str]) -> None:
        some = list(dict.fromkeys(keys))
        for at in range(0, len(some), _DELETED_AT_ONCE):
            await self._objects.delete(some[at : at + _DELETED_AT_ONCE])
