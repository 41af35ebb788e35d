"""The key-value store of the `db` engine: RocksDB, set up for a small index that must not lie."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import structlog
from rocksdict import (
    AccessType,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    WriteBatch,
)

from magnetar.bookie.disks.disk_errors import is_out_of_room
from magnetar.bookie.errors import StorageCorruptError, StorageError, StorageIOError
from magnetar.bookie.indexes.key_value import Delete, Operation, Put

_log = structlog.get_logger(__name__)

_WRITE_BUFFER_BYTES = 1 << 20
_WRITE_BUFFERS_MAX = 16
_OPEN_FILES_MAX = 256


class RocksStore:
    """A `KeyValueStore` on RocksDB; that interface documents the methods."""

    def __init__(self, path: str, database: Rdict, *, is_writable: bool = True) -> None:
        self._path = path
        self._database = database
        self.is_writable = is_writable

    @classmethod
    def open(cls, path: str, may_create: bool) -> "RocksStore":
        """Open the database; create an empty one if `may_create` and there is none.

        RocksDB writes when it opens: on a full disk, an existing database can only be read.

        Raises:
            StorageCorruptError, StorageIOError: it could not be opened.
        """
        try:
            with _translated(f"index {path}: cannot be opened"):
                if may_create:
                    os.makedirs(path, 0o700, exist_ok=True)
                _keep_no_configuration(path)
                return cls(path, Rdict(path, options=_options(may_create=may_create)))
        except StorageIOError as error:
            if may_create or not is_out_of_room(error):
                raise
            _log.warning("index_opened_to_read", path=path, error=str(error))
            return cls.open_to_read(path)

    @classmethod
    def open_to_read(cls, path: str, may_create: bool = False) -> "RocksStore":
        """Open a database and write nothing, even next to a process that has it open.

        It shows the state at this opening.

        Raises:
            StorageCorruptError, StorageIOError: it could not be opened.
        """
        with _translated(f"index {path}: cannot be opened"):
            _keep_no_configuration(path)
            options = _options(may_create=False)
            database = Rdict(path, options=options, access_type=AccessType.read_only())
            return cls(path, database, is_writable=False)

    def get(self, key: bytes) -> bytes | None:
        with _translated(f"index {self._path}: cannot be read"):
            value: bytes | None = self._database.get(key)
            return value

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        with _translated(f"index {self._path}: cannot be read"):
            # A seek costs some microseconds, the iterator included. A kept iterator would keep the
            # database locked after it was closed.
            iterator = self._database.iter()
            iterator.seek_for_prev(key)
            if iterator.valid():
                return iterator.key(), iterator.value()
            # An iterator is invalid at the end, and also after an error: then this raises.
            # Without it, damage would look like a certain "not stored".
            iterator.status()
            return None

    def scan(
        self, first: bytes, end: bytes, records_max: int, *, from_floor: bool = False
    ) -> list[tuple[bytes, bytes]]:
        records: list[tuple[bytes, bytes]] = []
        with _translated(f"index {self._path}: cannot be read"):
            # One iterator sees one moment, whatever is written meanwhile.
            iterator = self._database.iter()
            if from_floor:
                iterator.seek_for_prev(first)
                if not iterator.valid():
                    iterator.status()
                    iterator.seek_to_first()
            else:
                iterator.seek(first)
            while len(records) < records_max and iterator.valid():
                key = iterator.key()
                if key >= end:
                    break
                records.append((key, iterator.value()))
                iterator.next()
            iterator.status()
        return records

    def write(self, batch: Sequence[Operation]) -> None:
        native = WriteBatch(raw_mode=True)
        for operation in batch:
            if isinstance(operation, Put):
                native.put(operation.key, operation.value)
            elif isinstance(operation, Delete):
                native.delete(operation.key)
            else:
                native.delete_range(operation.first, operation.end)
        with _translated(f"index {self._path}: cannot be written"):
            self._database.write(native)

    def sync(self) -> None:
        with _translated(f"index {self._path}: cannot sync its log"):
            # Separate from the write, because this call lets other threads run.
            self._database.flush_wal(True)

    def sequence(self) -> int:
        with _translated(f"index {self._path}: cannot be read"):
            return int(self._database.latest_sequence_number())

    def open_beside(self) -> "RocksStore":
        with _translated(f"index {self._path}: cannot be held still"):
            # Flushes and compactions, in the background and at the end, remove files that the other
            # one has just found, or has still to open: that would look like damage.
            self._database.cancel_all_background(True)
        return RocksStore.open_to_read(self._path)

    def close(self) -> None:
        with _translated(f"index {self._path}: cannot be closed"):
            self._database.close()


_CONFIGURATION = "rocksdict-config.json"


def _keep_no_configuration(path: str) -> None:
    """Replace rocksdict's configuration file by a link to the null device.

    Rocksdict rewrites the file at every opening, even a read-only one. On a full disk, it would
    truncate the file, fail to write it, and not open the database. Nothing in it is used here: it
    holds options, and those come from `_options`.
    """
    configuration = os.path.join(path, _CONFIGURATION)
    if os.path.islink(configuration):
        return
    # If there is no room for the link itself, there may be room for the file.
    with suppress(OSError):
        link = f"{configuration}.link"
        with suppress(FileNotFoundError):
            os.unlink(link)
        os.symlink(os.devnull, link)
        os.replace(link, configuration)


_DAMAGE = re.compile(r"corruption|create_if_missing is false", re.IGNORECASE)


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Turn the exceptions of rocksdict into our errors."""
    try:
        yield
    except StorageError:
        raise
    except Exception as exc:  # rocksdict raises bare Exceptions; only their text differs
        # A database without its file CURRENT is as damaged as one with wrong bytes.
        kind = StorageCorruptError if _DAMAGE.search(str(exc)) else StorageIOError
        raise kind(f"{what}: {exc}") from exc


def _options(*, may_create: bool) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(may_create)
    # The index is small: a record covers up to a MiB of entries. Keep it small in memory, too: a
    # buffer that takes an hour to fill looks like a leak for an hour.
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    # A write that finds no free buffer waits for a background flush, and holds the GIL meanwhile.
    options.set_max_write_buffer_number(_WRITE_BUFFERS_MAX)
    options.set_max_open_files(_OPEN_FILES_MAX)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_compression_type(DBCompressionType.none())
    options.set_paranoid_checks(True)
    # A crash may leave anything in the tail that was not synced: torn records, but also zeros where
    # the file system knew the size and had not written the pages. None of it was promised, so the
    # log is read up to the first damage. The mark then tells whether anything promised was cut off.
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    return options
