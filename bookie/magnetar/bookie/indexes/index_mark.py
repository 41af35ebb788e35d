"""The index mark: how far the index has once been durable.

RocksDB takes damage at the end of its write-ahead log for the torn write of a crash, and drops it
silently. So the sequence number that the index had reached is kept beside it after every flush: an
index that comes back with less has lost records that were promised, and is refused. The mark also
tells a lost index from one that was never made. Layout: docs/formats/index.md.
"""

import re

import google_crc32c

from magnetar.bookie.errors import StorageCorruptError
from magnetar.bookie.indexes.rocks_index import RocksIndex
from magnetar.ledger.ports import Disk

_FORMAT = re.compile(rb"magnetar db storage 1\nsequence (\d{1,20})\ncrc32c ([0-9a-f]{8})\n")


def encode_mark(sequence: int) -> bytes:
    text = b"magnetar db storage 1\nsequence %d\n" % sequence
    return text + b"crc32c %08x\n" % google_crc32c.value(text)


def decode_mark(data: bytes) -> int:
    """The sequence number.

    Raises:
        StorageCorruptError: anything else than what `encode_mark` gives.
    """
    match = _FORMAT.fullmatch(data)
    if match is None or encode_mark(int(match[1])) != data:
        raise StorageCorruptError(f"index mark is damaged: {data[:80]!r}")
    return int(match[1])


class IndexMark:
    """The mark as a file."""

    def __init__(self, path: str, disk: Disk) -> None:
        self._path = path
        self._disk = disk

    def read(self) -> int | None:
        """The sequence number; None if there is no mark.

        Raises:
            StorageCorruptError: damaged.
            OSError: unreadable.
        """
        try:
            return decode_mark(self._disk.read_file(self._path))
        except FileNotFoundError:
            return None

    def write(self, sequence: int) -> None:
        """Replace the mark durably.

        Raises:
            OSError: it is the old one or the new one.
        """
        self._disk.replace_file(self._path, encode_mark(sequence))


def open_index(path: str, mark: IndexMark, *, has_logs: bool) -> RocksIndex:
    """Open the index, or make it if there is nothing at all yet.

    Raises:
        StorageIOError, OSError: it cannot be opened, or has lost records.
    """
    promised = mark.read()
    if promised is None and has_logs:
        raise StorageCorruptError(f"index {path}: its mark is lost, but there are entry logs")
    index = RocksIndex.open(path, may_create=promised is None)
    try:
        if promised is None:
            # From now on an index that is not there is lost, and not new.
            mark.write(index.sequence())
        elif index.sequence() < promised:
            raise StorageCorruptError(
                f"index {path} has lost records: it ends at {index.sequence()} of {promised}"
            )
    except BaseException:
        index.close()
        raise
    return index
