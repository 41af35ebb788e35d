"""Opens the index of a storage directory: the one of the kind that it has, or a new one."""

from magnetar.bookie.errors import StorageIOError, WrongEngineError
from magnetar.bookie.indexes.index_mark import EngineKind, IndexMark
from magnetar.bookie.indexes.key_value import MakeKeyValue
from magnetar.bookie.indexes.location_index import LocationIndex
from magnetar.bookie.indexes.rocks_index import RocksIndex
from magnetar.bookie.indexes.rocks_store import RocksStore
from magnetar.ledger.ports import Disk


def mark_of(directory: str, disk: Disk) -> IndexMark:
    """The index mark of a storage directory."""
    return IndexMark(f"{directory}/index-mark", disk)


def open_index(
    directory: str,
    *,
    engine: EngineKind,
    disk: Disk,
    has_logs: bool,
    make_key_value: MakeKeyValue = RocksStore.open,
) -> LocationIndex:
    """Open the index of the storage in `directory`, or make it if there is nothing at all yet.

    Raises:
        WrongEngineError: the directory has an index of another kind.
        StorageIOError, OSError: it cannot be opened, or has lost records.
    """
    mark = mark_of(directory, disk)
    promise = mark.read()
    if promise is not None and promise.engine != engine:
        raise WrongEngineError(
            f"{directory} is a storage of kind {promise.engine}, but {engine} is set: set "
            f"storage_engine={promise.engine}, or convert it first with "
            f"'magnetar bookie-tool convert --to {engine} {directory}'"
        )
    if engine == "interleaved":
        raise StorageIOError(f"{directory}: the interleaved engine cannot be opened yet")
    return RocksIndex.open(f"{directory}/index", mark, has_logs=has_logs, make_store=make_key_value)
