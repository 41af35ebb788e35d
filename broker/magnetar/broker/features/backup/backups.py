"""The backups in one object store: list and read them."""

from collections.abc import Sequence
from dataclasses import dataclass

import google_crc32c

from magnetar.broker.base.errors import InvalidNameError, NotThereError
from magnetar.broker.features.backup.documents import (
    CLUSTER_FILE_BYTES_MAX,
    ClusterBackup,
    LogBackup,
    LogFile,
)
from magnetar.ledger.errors import ObjectDamagedError, ObjectMissingError
from magnetar.ledger.offloading.backup_keys import (
    BACKUP_NAME_CHARS_MAX,
    BackupFolder,
    is_backup_name,
    parse_backup_key,
)
from magnetar.ledger.offloading.backup_pins import LOG_FILE_BYTES_MAX, read_whole
from magnetar.ledger.offloading.object_store import ObjectStore


@dataclass(slots=True)
class FoundBackup:
    """A backup, as a listing of keys shows it."""

    folder: BackupFolder
    files: int = 0
    size_bytes: int = 0
    written_ms: int = 0
    """When the last file was written, ms since 1970 by the clock of the store."""
    is_finished: bool = False

    @property
    def name(self) -> str:
        """Name of the backup."""
        return self.folder.name


class Backups:
    """The backups of one cluster in one store."""

    def __init__(self, objects: ObjectStore, prefix: str) -> None:
        """Open a cluster's backups. `prefix`: start of their keys (`backups_prefix`)."""
        self._objects = objects
        self._prefix = prefix

    def folder(self, name: str) -> BackupFolder:
        """Return the folder with the keys of a backup.

        Raises:
            InvalidNameError: the name is not valid for a backup.
        """
        if not is_backup_name(name):
            raise InvalidNameError(
                f"{name!r} cannot be the name of a backup: 1 to {BACKUP_NAME_CHARS_MAX} letters, "
                "digits, dots, dashes and underscores, the first one a letter or digit"
            )
        return BackupFolder(self._prefix, name)

    async def found(self) -> Sequence[FoundBackup]:
        """Return all backups, unfinished ones included, by name.

        Raises:
            ObjectError: the store cannot be read.
        """
        found: dict[str, FoundBackup] = {}
        async for page in self._objects.list(self._prefix):
            for each in page:
                key = parse_backup_key(each.key)
                if key is None:
                    continue
                backup = found.setdefault(
                    key.name, FoundBackup(BackupFolder(self._prefix, key.name))
                )
                backup.files += 1
                backup.size_bytes += each.size_bytes
                backup.written_ms = max(backup.written_ms, each.written_ms)
                backup.is_finished = backup.is_finished or key.is_cluster
        return sorted(found.values(), key=lambda each: each.name)

    async def keys(self, name: str) -> Sequence[str]:
        """Return the keys of all files of a backup.

        Raises:
            InvalidNameError: the name is not valid for a backup.
            ObjectError: the store cannot be read.
        """
        directory = self.folder(name).directory
        return [each.key async for page in self._objects.list(directory) for each in page]

    async def cluster(self, name: str) -> ClusterBackup:
        """Read the cluster file of a finished backup.

        Raises:
            NotThereError: there is no such backup, or it is unfinished.
            InvalidNameError: the name is not valid for a backup.
            ObjectDamagedError, FutureObjectVersionError, ObjectError: the file cannot be read.
        """
        key = self.folder(name).cluster_key
        try:
            value = await read_whole(self._objects, key, CLUSTER_FILE_BYTES_MAX)
        except ObjectMissingError as error:
            raise NotThereError(
                f"there is no backup {name} ({key}), or it was broken off: `magnetar backup list` "
                "shows those that there are; of another cluster with --from"
            ) from error
        return ClusterBackup.from_bytes(value, key=key)

    async def log(self, file: LogFile) -> LogBackup:
        """Read the file of a log.

        Raises:
            ObjectDamagedError: it is not the file that the cluster file names.
            ObjectMissingError, FutureObjectVersionError, ObjectError: the file cannot be read.
        """
        value = await read_whole(self._objects, file.key, LOG_FILE_BYTES_MAX)
        found = google_crc32c.value(value)
        if (len(value), found) != (file.bytes, file.crc32c):
            raise ObjectDamagedError(
                f"{file.key} has {len(value)} bytes with the checksum {found}; the cluster file "
                f"says {file.bytes} bytes and {file.crc32c}"
            )
        backup = LogBackup.from_bytes(value, key=file.key)
        if backup.manifest.log != file.log:
            raise ObjectDamagedError(
                f"{file.key} is of the log {backup.manifest.log}; the cluster file says {file.log}"
            )
        return backup
