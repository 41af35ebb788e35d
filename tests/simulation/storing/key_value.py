"""A `KeyValueStore` on the simulated disk, with RocksDB's promises and its way of keeping them.

Batches are appended to a log; `sync` makes the log durable. When the log has grown, and at every
start that finds something in it, all records go to a new table, and a small file that is replaced
as a whole (`current`) says which table and log count. A record of the log that is torn or damaged
ends it: what comes behind is dropped without a word, as RocksDB does at a point-in-time recovery.
So damage in what had been synced shows only in the sequence number that was reached.

Layout, little of it: `current` is "number crc"; `N.table` and `N.log` are pickled records with a
length and a CRC32 ahead of each.
"""

import errno
import pickle
import zlib
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from struct import Struct

from magnetar.bookie.errors import StorageCorruptError, StorageIOError
from magnetar.bookie.indexes.key_value import Delete, DeleteRange, KeyValueStore, Operation, Put
from magnetar.ledger.ports import File
from tests.simulation.disk import SimDisk

LOG_BYTES_MAX = 3000
"""A log that is longer is followed by a new table. Small: it shall happen often."""

_HEAD = Struct(">II")


class SimKeyValue:
    """See the module."""

    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._number = -1
        self._log: File | None = None
        self._keys: list[bytes] = []
        self._values: dict[bytes, bytes] = {}
        self._sequence = 0
        self._is_broken = False
        self.is_writable = True

    @classmethod
    def open(cls, disk: SimDisk, path: str, may_create: bool) -> KeyValueStore:
        """Open a store; a `MakeKeyValue`."""
        store = cls(disk, path)
        try:
            store._open(may_create)
        except OSError as error:
            if may_create or error.errno != errno.ENOSPC:
                raise StorageIOError(f"{path}: {error}") from error
            return cls._open_to_read(disk, path)
        return store

    @classmethod
    def _open_to_read(cls, disk: SimDisk, path: str) -> KeyValueStore:
        store = cls(disk, path)
        store.is_writable = False
        try:
            store._find()
            store._load()
        except OSError as error:
            raise StorageIOError(f"{path}: {error}") from error
        return store

    # Reads

    def get(self, key: bytes) -> bytes | None:
        self._look()
        return self._values.get(key)

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        self._look()
        at = bisect_right(self._keys, key)
        return self._pair(at - 1) if at else None

    def scan(
        self, first: bytes, end: bytes, records_max: int, *, from_floor: bool = False
    ) -> list[tuple[bytes, bytes]]:
        self._look()
        start, stop = bisect_left(self._keys, first), bisect_left(self._keys, end)
        if from_floor:
            start = max(0, bisect_right(self._keys, first) - 1)
        return [self._pair(at) for at in range(start, max(start, stop))][:records_max]

    def sequence(self) -> int:
        return self._sequence

    def _pair(self, at: int) -> tuple[bytes, bytes]:
        key = self._keys[at]
        return key, self._values[key]

    def _look(self) -> None:
        """The records are in memory here; what fails is what would have been read."""
        try:
            self._disk.on_call("read", self._name("table"))
            if self._disk.read_error is not None:
                raise OSError(self._disk.read_error, "injected")
        except OSError as error:
            raise StorageIOError(f"{self._path}: {error}") from error

    # Writes

    def write(self, batch: Sequence[Operation]) -> None:
        if not batch:
            return
        assert self._log is not None, "closed"
        if self._is_broken or not self.is_writable:
            raise StorageIOError(f"{self._path}: a write has failed before, or for want of room")
        self._is_broken = True
        try:
            self._log.append([_record((self._sequence, [_plain(each) for each in batch]))])
            self._apply([_plain(each) for each in batch])
            if self._log.size > LOG_BYTES_MAX:
                self._begin_table()
        except OSError as error:
            raise StorageIOError(f"{self._path}: {error}") from error
        self._is_broken = False

    def sync(self) -> None:
        assert self._log is not None, "closed"
        if self._is_broken:
            raise StorageIOError(f"{self._path}: a write has failed before")
        try:
            self._log.datasync()
        except OSError as error:
            self._is_broken = True
            raise StorageIOError(f"{self._path}: {error}") from error

    def open_beside(self) -> KeyValueStore:
        return self._open_to_read(self._disk, self._path)

    def close(self) -> None:
        self._log = None

    def _apply(self, operations: Sequence[tuple[str, bytes, bytes]]) -> None:
        for kind, key, other in operations:
            if kind == "put":
                if key not in self._values:
                    insort(self._keys, key)
                self._values[key] = other
            elif kind == "delete":
                self._remove(bisect_left(self._keys, key), bisect_right(self._keys, key))
            else:
                self._remove(bisect_left(self._keys, key), bisect_left(self._keys, other))
            self._sequence += 1

    def _remove(self, start: int, stop: int) -> None:
        for key in self._keys[start:stop]:
            del self._values[key]
        del self._keys[start:stop]

    # Files

    def _open(self, may_create: bool) -> None:
        disk, current = self._disk, f"{self._path}/current"
        if not disk.exists(current):
            if not may_create:
                raise StorageCorruptError(f"{self._path}: there is no store")
            disk.make_directory(self._path)
            self._clear()
            self._begin(0)
            return
        self._find()
        # What a killed process has renamed last is not in the directory for sure, and the one that
        # counted before it needs the files that are removed here.
        disk.sync_directory(self._path)
        self._clear()
        if self._load():
            self._begin_table()
        else:
            self._log = disk.update(self._name("log"))

    def _find(self) -> None:
        text = self._disk.read_file(f"{self._path}/current")
        number, _, crc = text.partition(b" ")
        if crc != b"%08x" % zlib.crc32(number):
            raise StorageCorruptError(f"{self._path}: its first file is damaged")
        self._number = int(number)

    def _load(self) -> bool:
        """Whether there is anything in the log."""
        if self._number:
            self._load_table()
        return self._load_log()

    def _load_table(self) -> None:
        try:
            data = self._disk.read_file(self._name("table"))
        except FileNotFoundError as error:
            raise StorageCorruptError(f"{self._path}: its table is lost") from error
        records = _records(data)
        if len(records) != 1:
            raise StorageCorruptError(f"{self._path}: its table is damaged")
        self._sequence, pairs = records[0]
        self._keys = [key for key, _ in pairs]
        self._values = dict(pairs)

    def _load_log(self) -> bool:
        """Whether there is anything in the log."""
        try:
            data = self._disk.read_file(self._name("log"))
        except FileNotFoundError as error:
            raise StorageCorruptError(f"{self._path}: its log is lost") from error
        for sequence, operations in _records(data):
            if sequence != self._sequence:
                break
            self._apply(operations)
        return bool(data)

    def _begin_table(self) -> None:
        """Everything to a new table, and a new log behind it."""
        pairs = [(key, self._values[key]) for key in self._keys]
        file = self._disk.create(f"{self._path}/{self._number + 1}.table")
        file.append([_record((self._sequence, pairs))])
        file.datasync()
        self._begin(self._number + 1)
        self._clear()

    def _begin(self, number: int) -> None:
        self._number = number
        self._log = self._disk.create(self._name("log"))
        self._disk.sync_directory(self._path)
        text = b"%d" % number
        self._disk.replace_file(f"{self._path}/current", text + b" %08x" % zlib.crc32(text))

    def _clear(self) -> None:
        """Remove what does not count any more, or never did."""
        current = {"current", f"{self._number}.table", f"{self._number}.log"}
        for name in self._disk.list(self._path):
            if name not in current:
                self._disk.remove(f"{self._path}/{name}")

    def _name(self, kind: str) -> str:
        return f"{self._path}/{self._number}.{kind}"


def _plain(operation: Operation) -> tuple[str, bytes, bytes]:
    if isinstance(operation, Put):
        return "put", operation.key, operation.value
    if isinstance(operation, Delete):
        return "delete", operation.key, b""
    assert isinstance(operation, DeleteRange)
    return "range", operation.first, operation.end


def _record(value: object) -> bytes:
    data = pickle.dumps(value, protocol=4)
    return _HEAD.pack(len(data), zlib.crc32(data)) + data


def _records(data: bytes) -> list:  # type: ignore[type-arg]  # whatever was pickled
    """The records up to the first that is not whole."""
    found = []
    at = 0
    while len(data) - at >= _HEAD.size:
        size, crc = _HEAD.unpack_from(data, at)
        body = data[at + _HEAD.size : at + _HEAD.size + size]
        if not size or len(body) != size or zlib.crc32(body) != crc:
            break
        found.append(pickle.loads(body))
        at += _HEAD.size + size
    return found
