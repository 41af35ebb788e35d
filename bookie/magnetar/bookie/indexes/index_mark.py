"""The index mark: the kind of a directory's index, and the state that was durable at its last
commit.

An index may lose committed data without a trace: RocksDB takes damage at the end of its write-ahead
log for the torn write of a crash and drops it; a page index may miss a file. So every commit ends
with a mark beside the index, and an index that comes back with less is refused. The mark also tells
a lost index from one that was never made, and an index of one kind from the other: a conversion
builds the other index beside it and replaces the mark. Layout: docs/formats/index.md.
"""

import re
from typing import Literal, NamedTuple

import google_crc32c

from magnetar.bookie.errors import StorageCorruptError
from magnetar.ledger.ports import Disk

EngineKind = Literal["db", "interleaved"]

_FORMAT = re.compile(
    rb"magnetar (?:db storage 1\nsequence (\d{1,20})\n"
    rb"|interleaved storage 1\nsequence (\d{1,20})\nlast-log (\d{1,10})\n"
    rb"ledgers (\d{1,20})\ndigest ([0-9a-f]{16})\n)"
    rb"crc32c ([0-9a-f]{8})\n"
)


class Promise(NamedTuple):
    """The content that an index has promised to hold."""

    engine: EngineKind
    sequence: int
    last_log_id: int = 0
    """Highest log id that a page index has ever pointed to."""
    ledgers: int = 0
    """Number of ledgers in a page index."""
    digest: int = 0
    """Digest of the ledger ids of a page index, u64."""


def encode_mark(promise: Promise) -> bytes:
    text = b"magnetar %b storage 1\nsequence %d\n" % (promise.engine.encode(), promise.sequence)
    if promise.engine == "interleaved":
        text += b"last-log %d\nledgers %d\ndigest %016x\n" % promise[2:]
    return text + b"crc32c %08x\n" % google_crc32c.value(text)


def decode_mark(data: bytes) -> Promise:
    """Decode a mark.

    Raises:
        StorageCorruptError: the data is not what `encode_mark` returns.
    """
    match = _FORMAT.fullmatch(data)
    promise = None
    if match is not None and match[1] is not None:
        promise = Promise("db", int(match[1]))
    elif match is not None:
        numbers = (int(match[2]), int(match[3]), int(match[4]), int(match[5], 16))
        promise = Promise("interleaved", *numbers)
    if promise is None or encode_mark(promise) != data:
        raise StorageCorruptError(f"index mark is damaged: {data[:160]!r}")
    return promise


class IndexMark:
    """The index mark as a file."""

    def __init__(self, path: str, disk: Disk) -> None:
        self.path = path
        self._disk = disk

    def read(self) -> Promise | None:
        """Read the promise; None if there is no mark.

        Raises:
            StorageCorruptError: damaged.
            OSError: unreadable.
        """
        try:
            return decode_mark(self._disk.read_file(self.path))
        except FileNotFoundError:
            return None
        except StorageCorruptError as error:
            raise StorageCorruptError(f"{self.path}: {error}") from error

    def write(self, promise: Promise) -> None:
        """Replace the mark durably.

        Raises:
            OSError: the file has the old mark or the new one.
        """
        self._disk.replace_file(self.path, encode_mark(promise))
