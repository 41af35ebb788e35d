"""The interface of an ordered key-value store: the part of RocksDB that the run index needs.

One thread writes; any thread reads, but the owner keeps reads and `close` apart. Reads see a write
at once; it is durable after the next `sync`. After a crash, the store has everything that was
synced, and of the rest a prefix: whole batches, in order.
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
    """Remove all keys from `first` up to but not including `end`."""

    first: bytes
    end: bytes


Operation = Put | Delete | DeleteRange


class KeyValueStore(Protocol):
    """An open store.

    Every method may raise `StorageIOError`, which says nothing about what is stored, and
    `StorageCorruptError` if the store knows that its bytes are damaged.
    """

    @property
    def is_writable(self) -> bool:
        """False if the store was opened read-only, perhaps because the disk was full.

        A store that is opened again with room on the disk is writable.
        """
        ...

    def get(self, key: bytes) -> bytes | None: ...

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        """Return key and value of the last record at or before `key`; None if there is certainly
        none."""
        ...

    def scan(
        self, first: bytes, end: bytes, records_max: int, *, from_floor: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Return keys and values from `first` up to but not including `end`: ascending, of one
        moment.

        `from_floor`: if there is a record at or before `first`, begin with the last such record.
        """
        ...

    def write(self, batch: Sequence[Operation]) -> None:
        """Carry out the operations in order, all or none of them.

        After an error, the store takes no more writes until it is opened again.
        """
        ...

    def sync(self) -> None:
        """Make everything that was written durable."""
        ...

    def sequence(self) -> int:
        """Return a number that grows with every operation; 0 if there never was one.

        After opening, it is the number of the last batch that was found.
        """
        ...

    def open_beside(self) -> "KeyValueStore":
        """Open the store once more, read-only; it has everything that was written.

        From now on, this one is read-only, too, and removes no file that the other one has found.
        """
        ...

    def close(self) -> None: ...


MakeKeyValue = Callable[[str, bool], KeyValueStore]
"""Opens the store in a directory.

The second argument allows an empty store to be made if there is none. An existing store whose disk
is full is opened read-only.

Raises:
    StorageCorruptError: damaged, or lost.
    StorageIOError: it could not be opened.
"""
