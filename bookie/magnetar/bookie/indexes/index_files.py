"""Removal of the files of an index that is no longer in use. Its empty directories stay."""

from magnetar.bookie.indexes.index_mark import EngineKind
from magnetar.ledger.ports import Disk


def remove_index(path: str, engine: EngineKind, disk: Disk) -> None:
    """Remove all files of an index of this kind; do nothing if there is none.

    Raises:
        OSError: some files may be left; the call may be repeated.
    """
    if not disk.exists(path):
        return
    if engine == "db":
        _remove_files(path, disk.list(path), disk)
        return
    names = disk.list(path)
    for upper in _directories(names):
        for lower in _directories(disk.list(f"{path}/{upper}")):
            directory = f"{path}/{upper}/{lower}"
            _remove_files(directory, disk.list(directory), disk)
    _remove_files(path, [name for name in names if name not in _directories(names)], disk)


def remove_file(path: str, disk: Disk) -> None:
    """Remove a file; do nothing if there is none."""
    if disk.exists(path):
        disk.remove(path)


def _directories(names: list[str]) -> list[str]:
    return [name for name in names if len(name) == 2]


def _remove_files(directory: str, names: list[str], disk: Disk) -> None:
    for name in names:
        disk.remove(f"{directory}/{name}")
    disk.sync_directory(directory)
