"""Keys of backups in an object store. Pure.

    <prefix>/<instance id>/backups/<name>/logs/<2 hex digits>/<log>.json   one for each log
    <prefix>/<instance id>/backups/<name>/cluster.json                     written last

The two hex digits and `<log>` are those of the keys of the log's objects (`object_keys.py`), so the
key of an object says where a backup would name it. A backup without `cluster.json` is unfinished.

Layout: docs/formats/backup.md. Source: tiered storage, section 21.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from magnetar.ledger.offloading.object_keys import object_base, parse_key

BACKUP_NAME_CHARS_MAX = 64
"""Most characters in the name of a backup."""

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{BACKUP_NAME_CHARS_MAX - 1}}}")
_KEY = re.compile(r"(?P<prefix>.*/backups/)(?P<name>[^/]+)/(?P<rest>cluster\.json|logs/.+\.json)")
_CLUSTER = "cluster.json"


class BackupKey(NamedTuple):
    """The parts of the key of a file of a backup."""

    name: str
    """Name of the backup."""
    is_cluster: bool
    """Whether it is the file that is written last."""


@dataclass(frozen=True, slots=True)
class BackupFolder:
    """The keys of one backup."""

    prefix: str
    """Beginning of the keys of all backups of the cluster: `backups_prefix`."""
    name: str

    @property
    def directory(self) -> str:
        """Common beginning of all keys of the backup."""
        return f"{self.prefix}{self.name}/"

    @property
    def cluster_key(self) -> str:
        """Key of the file that is written last."""
        return f"{self.directory}{_CLUSTER}"

    def log_key(self, log: str) -> str:
        """Return the key of the file of one log; `log`: path of its node."""
        return f"{self.directory}{_file_of(object_base('', '', '', log).prefix)}"


def is_backup_name(name: str) -> bool:
    """Return whether a backup can have this name."""
    return _NAME.fullmatch(name) is not None


def backups_prefix(prefix: str, instance_id: str) -> str:
    """Return the common beginning of the keys of all backups of a cluster.

    Args:
        prefix: of all keys of Magnetar in the store; empty, or with a slash at its end.
    """
    return f"{prefix}{instance_id}/backups/"


def parse_backup_key(key: str) -> BackupKey | None:
    """Return the parts of a key; None if it is no key of a backup."""
    found = _KEY.fullmatch(key)
    return None if found is None else BackupKey(found["name"], found["rest"] == _CLUSTER)


def files_that_may_name(object_keys: Iterable[str]) -> frozenset[str]:
    """Return the ends, after a backup's directory, of the keys of files that could name these
    objects."""
    parsed = map(parse_key, object_keys)
    return frozenset(_file_of(each.directory) for each in parsed if each is not None)


def end_of(key: str) -> str:
    """Return the part of a key after the directory of the backup; empty if it is no key of a
    backup."""
    found = _KEY.fullmatch(key)
    return "" if found is None else found["rest"]


def _file_of(directory: str) -> str:
    """Return `logs/<2 hex digits>/<log>.json`, for the directory of the log's objects."""
    spread, log = directory.split("/")[-3:-1]
    return f"logs/{spread}/{log}.json"
