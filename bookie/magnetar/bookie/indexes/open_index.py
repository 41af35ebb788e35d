"""Opening of a storage directory's index: the existing one, or a new one."""

import posixpath
from dataclasses import dataclass

from magnetar.bookie.entry_logs.entry_log import StoredRun
from magnetar.bookie.entry_logs.log_names import log_name
from magnetar.bookie.entry_logs.log_scan import scan_run
from magnetar.bookie.errors import (
    StorageCorruptError,
    StorageIOError,
    StorageLogMissingError,
    WrongEngineError,
)
from magnetar.bookie.indexes.index_mark import EngineKind, IndexMark
from magnetar.bookie.indexes.key_value import MakeKeyValue
from magnetar.bookie.indexes.location_index import LocationIndex
from magnetar.bookie.indexes.page_index import PageIndex
from magnetar.bookie.indexes.rocks_index import RocksIndex
from magnetar.bookie.indexes.rocks_store import RocksStore
from magnetar.bookie.storage_options import StorageOptions
from magnetar.ledger.ports import Disk


def mark_of(directory: str, disk: Disk) -> IndexMark:
    """Return the index mark of a storage directory."""
    return IndexMark(f"{directory}/index-mark", disk)


def index_path(directory: str, engine: EngineKind) -> str:
    """Return the path of an index of this kind in a storage directory."""
    return f"{directory}/index" if engine == "db" else f"{directory}/page-index"


@dataclass(frozen=True, slots=True)
class IndexOpener:
    """Opens writable indexes of either kind in one storage directory."""

    directory: str
    disk: Disk
    make_key_value: MakeKeyValue = RocksStore.open
    options: StorageOptions | None = None

    def open(
        self, engine: EngineKind, mark: IndexMark, *, has_logs: bool, path: str | None = None
    ) -> LocationIndex:
        """Open the index with this mark; create it if there is no trace of one yet.

        Raises:
            StorageIOError, OSError: it cannot be opened, or has lost records.
        """
        path = path or index_path(self.directory, engine)
        if engine == "db":
            return RocksIndex.open(path, mark, has_logs=has_logs, make_store=self.make_key_value)
        return PageIndex.open(
            path,
            mark,
            disk=self.disk,
            locate=RunLocator(f"{self.directory}/entry-logs", self.disk),
            has_logs=has_logs,
            options=self.options,
        )


def open_index(
    directory: str,
    *,
    engine: EngineKind,
    disk: Disk,
    has_logs: bool,
    make_key_value: MakeKeyValue = RocksStore.open,
    options: StorageOptions | None = None,
) -> LocationIndex:
    """Open the index of the storage in `directory`; create it if there is no trace of one yet.

    Raises:
        WrongEngineError: the directory has an index of another kind.
        StorageIOError, OSError: it cannot be opened, or has lost records.
    """
    mark = mark_of(directory, disk)
    promise = mark.read()
    if promise is not None and promise.engine != engine:
        raise WrongEngineError(
            f"{directory} is stored by engine {promise.engine}, but {engine} is set: set "
            f"storage_engine={promise.engine}, or convert it first with 'magnetar bookie-tool "
            f"convert --to {engine}'"
        )
    opener = IndexOpener(directory, disk, make_key_value=make_key_value, options=options)
    return opener.open(engine, mark, has_logs=has_logs)


def open_index_to_read(
    directory: str, *, disk: Disk, open_key_value: MakeKeyValue = RocksStore.open_to_read
) -> LocationIndex:
    """Open the index of the storage in `directory`, of whichever kind, and write nothing.

    It shows the state at its opening. Next to a running bookie, a page file may be read while it is
    written: check damage that is found then once more.

    Raises:
        StorageIOError, OSError: there is none, it cannot be opened, or has lost records.
    """
    mark = mark_of(directory, disk)
    promise = mark.read()
    if promise is None:
        raise StorageCorruptError(
            f"{directory} has no index mark: there is no index, or it is lost"
        )
    path = index_path(directory, promise.engine)
    if promise.engine == "db":
        return RocksIndex.open(path, mark, make_store=open_key_value, may_make=False)
    locate = RunLocator(f"{directory}/entry-logs", disk)
    return PageIndex.open(path, mark, disk=disk, locate=locate, may_write=False)


class RunLocator:
    """Finds the run at a place of an entry log, for the index that stores only places.

    It opens the log each time: the index caches the results, and an open file would keep the space
    of a removed log.
    """

    def __init__(self, directory: str, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk

    def __call__(self, log_id: int, offset: int) -> StoredRun:
        """Return the run that begins at the offset.

        Raises:
            StorageLogMissingError: there is no such log.
            StorageCorruptError: no whole run begins there.
            StorageIOError: the log could not be read.
        """
        path = posixpath.join(self._directory, log_name(log_id))
        try:
            file = self._disk.open(path)
            try:
                run = scan_run(file, log_id, offset)
            finally:
                file.close()
        except FileNotFoundError as exc:
            raise StorageLogMissingError(f"{path} does not exist") from exc
        except OSError as exc:
            raise StorageIOError(f"{path}: cannot be read at {offset}: {exc}") from exc
        if run is None:
            raise StorageCorruptError(f"{path} at {offset}: no whole run begins here")
        return run
