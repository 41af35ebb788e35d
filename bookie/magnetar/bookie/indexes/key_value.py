"""An ordered key-value store: what the run index needs of RocksDB, and no more.

One thread writes; any thread reads, but the owner keeps reads and `close` apart. A write is seen by
reads at once and is durable after the next `sync`. A crash leaves all that was synced, and of the
rest a prefix: whole batches, in order.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol


class Put(NamedTuple):
    """Set the value of a key."""

    key: bytes
    value: bytes


class Delete(NamedTuple):
    """Remove a key, if it is there."""

    key: bytes


class DeleteRange(NamedTuple):
    """Remove all keys from `first` up to, and without, `end`."""

    first: bytes
    end: bytes


Operation = Put | Delete | DeleteRange


class KeyValueStore(Protocol):
    """An open store. Every method may raise `StorageIOError`, which says nothing about what is
    stored, and `StorageCorruptError` where the store knows that its bytes are damaged."""

    @property
    def is_writable(self) -> bool:
        """False: it was opened to be read only, perhaps since there was no room for more. It can be
        written when it was opened again, with room."""
        ...

    def get(self, key: bytes) -> bytes | None: ...

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        """Key and value of the last record at or before `key`; None if there is certainly none."""
        ...

    def scan(
        self, first: bytes, end: bytes, records_max: int, *, from_floor: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Keys and values from `first` up to, and without, `end`: ascending, of one moment.

        `from_floor`: the record at or before `first`, if there is one, comes before those behind.
        """
        ...

    def write(self, batch: Sequence[Operation]) -> None:
        """Carry the operations out in order, all or none of them.

        After an error the store takes no more writes until it is opened again.
        """
        ...

    def sync(self) -> None:
        """Make everything that was written durable."""
        ...

    def sequence(self) -> int:
        """Grows with every operation; 0 for a store that never had one. After opening: that of
        the last batch that was found."""
        ...

    def open_beside(self) -> "KeyValueStore":
        """Open the store once more, to be read: everything that was written is in it. From now on
        this one can only be read, too, and takes no file away that the other one has found."""
        ...

    def close(self) -> None: ...


MakeKeyValue = Callable[[str, bool], KeyValueStore]
"""Opens the store in a directory; makes an empty one if the second argument allows it and there is
none. A store that is there and finds no room to be opened for writing is opened to be read.

Raises:
    StorageCorruptError: damaged, or lost.
    StorageIOError: it could not be opened.
"""
