"""The interface of a bookie's ledger storage.

A storage keeps entry packets and one small state per ledger. It does *not* make an add durable: the
journal does. An added entry is readable at once, and durable after the next `flush`. The journal
may drop a record only after a flush that began after the record was added.

All methods are called on the event loop. Methods that are not coroutines never block, so that a
fence check, an `add` and the hand-over to the journal form one critical section without a lock.

The storage does not check passwords, fences or digests; it returns packets as they were stored.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from magnetar.ledger.wire import EntryBlock
from magnetar.ledger.wire_bodies import EntryList


@dataclass(frozen=True, slots=True)
class LedgerState:
    """The stored state of a ledger, apart from its entries."""

    master_key: bytes
    """The key of the first add or fence; empty if an integrity pass created the ledger."""
    fenced: bool
    last_add_confirmed: int
    """The highest LAC seen, on an entry or alone; -1 if none."""
    explicit_lac: bytes = b""
    """The LAC packet with the highest LAC, byte for byte as received; empty if there is none."""
    limbo: bool = False
    """Whether entries of the ledger may have been lost here: a missing entry is then not known to
    be absent."""


class LedgerStorage(Protocol):
    """A store of entries and ledger states. The journal makes its adds durable first."""

    async def open(self) -> None:
        """Open or create the files and load the ledger states.

        Raises:
            StorageCorruptError: the index is damaged. It is never taken for an empty one.
            StorageIOError: the files could not be opened.
        """
        ...

    async def close(self) -> None:
        """End the worker threads and close the files.

        Does not flush: unflushed data is in the journal. Calls under way and all later ones raise
        `StorageClosedError`. May be called again.
        """
        ...

    def add(self, ledger_id: int, block: EntryBlock, entry_ids: Sequence[int]) -> None:
        """Store the packets of a block; they are readable on return.

        `entry_ids` are the ids of the packets, strictly ascending and validated by the caller; for
        contiguous ids, a `range` is cheapest. The ledger must have a state (`put_state` first). An
        entry may be added again: reads return the latest copy. The block's bytes are kept, not
        copied.

        Raises:
            StorageFullError: no room, nothing was stored; `on_wants_flush` has been called.
            StorageClosedError: the storage is closed.
        """
        ...

    def read_now(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[bytes] | None:
        """Return packets from memory alone; None if only `read` can tell.

        The result may be shorter than that of `read`; it has at least one packet.

        Raises:
            NoSuchLedgerInStorageError: the ledger is certainly not known.
        """
        ...

    async def read(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[bytes]:
        """Return the packets of the entries `first`, `first + 1`, ... up to the first gap.

        Stops at `last` and before the packet that would exceed `bytes_max` in total; returns at
        least one packet.

        Raises:
            NoSuchEntryInStorageError: `first` is certainly not stored.
            NoSuchLedgerInStorageError: the ledger is certainly not known.
            StorageIOError: anything else; says nothing about what is stored.
        """
        ...

    async def last_packet(self, ledger_id: int) -> bytes | None:
        """Return the packet of the highest entry stored; None if the ledger certainly has no entry
        here.

        Raises:
            StorageIOError: the storage could not find out.
        """
        ...

    def last_packet_now(self, ledger_id: int) -> bytes | None:
        """Return the packet of the highest entry, from memory alone.

        Empty if the ledger certainly has no entry here, None if only `last_packet` can tell.
        """
        ...

    async def list_entries(self, ledger_id: int, first: int, bitmap_bytes_max: int) -> EntryList:
        """List the stored entries from `first` on: one page, as large as allowed or needed.

        Raises:
            NoSuchLedgerInStorageError: the ledger is certainly not known.
            StorageIOError: the storage could not find out.
        """
        ...

    def state(self, ledger_id: int) -> LedgerState | None:
        """Return the state of a ledger; None if the ledger is not known."""
        ...

    def put_state(self, ledger_id: int, state: LedgerState) -> None:
        """Set the state of a ledger, known or new; durable after the next flush."""
        ...

    def ledger_ids(self) -> list[int]:
        """Return the known ledgers, ascending."""
        ...

    def delete_ledger(self, ledger_id: int) -> None:
        """Forget a ledger and its entries; durable after the next flush.

        Garbage collection frees the bytes in the entry logs. The ledger may be created again with
        `put_state`; old entries do not come back.
        """
        ...

    async def flush(self, *, is_gentle: bool = False) -> None:
        """Make everything that was added, put or deleted before the call durable.

        Writes the entry log first, then index and ledger states, even when only states changed. One
        flush runs at a time; calls during it share the next one. Cancelling the call does not
        cancel the flush. `is_gentle`: the flush is not urgent and may go slowly, to spare the disk.

        Raises:
            StorageIOError: the flush failed. Nothing is lost: the data stays readable in memory and
                is part of the next flush.
            StorageClosedError: the storage was closed before the flush was done.
        """
        ...

    def hurry(self) -> None:
        """Let a running gentle flush finish at full speed."""
        ...

    @property
    def wants_flush(self) -> bool:
        """Whether the active buffer of the write cache has reached its size: flush soon."""
        ...

    on_wants_flush: Callable[[], None]
    """Called when `wants_flush` turns true, and for every refused add. The owner sets it; a no-op
    until then."""

    on_flush_failure: Callable[[BaseException], None]
    """Called with the error of every failed flush, before the callers of `flush` get the error. The
    owner sets it; a no-op until then."""
