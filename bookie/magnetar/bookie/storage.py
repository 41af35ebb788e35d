"""The ledger storage of a bookie, as the rest of the bookie sees it.

A storage keeps entry packets and one small state per ledger. It is *not* the thing that makes an
add durable: that is the journal. What is added here is readable at once, and durable after the next
`flush`; the journal may forget a record only after a flush that began after the record was added.

All methods are called on the event loop, and those that are not coroutines never block, so that a
fence check, an `add` and the hand-over to the journal can form one critical section without a lock.

The storage does not check passwords, fences or digests; it returns packets as they were stored.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from magnetar.ledger.wire import EntryBlock
from magnetar.ledger.wire_bodies import EntryList


@dataclass(frozen=True, slots=True)
class LedgerState:
    """What a bookie knows of a ledger beside its entries."""

    master_key: bytes
    """As sent with the first add or fence; empty if an integrity pass made the ledger."""
    fenced: bool
    last_add_confirmed: int
    """The highest LAC that was seen, on an entry or by itself; -1 if none."""
    explicit_lac: bytes = b""
    """The LAC packet with the highest LAC, as it came; empty if there is none."""
    limbo: bool = False
    """Entries of it may have been lost here: what is not found is not known to be absent."""


class LedgerStorage(Protocol):
    """Entries and ledger states. See the module for the division of work with the journal."""

    async def open(self) -> None:
        """Open or create the files and load the ledger states.

        Raises:
            StorageCorruptError: the index is damaged. It is never taken for an empty one.
            StorageIOError: the files could not be opened.
        """
        ...

    async def close(self) -> None:
        """End the worker threads and close the files.

        Does not flush: what was not flushed is in the journal. Calls that are under way, and all
        later ones, end with `StorageClosedError`. May be called again.
        """
        ...

    def add(self, ledger_id: int, block: EntryBlock, entry_ids: Sequence[int]) -> None:
        """Store the packets of a block; they are readable on return.

        `entry_ids` are the ids of its packets, strictly ascending, validated by the caller; a
        `range` when they are contiguous is cheapest. The ledger must have a state (`put_state`
        first). Adding an entry again is fine, the latest copy is the one that is read. The block's
        bytes are kept, not copied.

        Raises:
            StorageFullError: no room, nothing was stored; `on_wants_flush` has been called.
            StorageClosedError: closed.
        """
        ...

    def read_now(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[bytes] | None:
        """Packets from memory alone; None means that only `read` can tell.

        A result may be shorter than what `read` would give; it has at least one packet.

        Raises:
            NoSuchLedgerInStorageError: certain.
        """
        ...

    async def read(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[bytes]:
        """The packets of the entries `first`, `first + 1`, ... that are stored without a gap.

        Stops at `last` and before the packet that would exceed `bytes_max` in total; at least one
        packet is returned.

        Raises:
            NoSuchEntryInStorageError: `first` is certainly not stored.
            NoSuchLedgerInStorageError: the ledger is certainly not known.
            StorageIOError: anything else; says nothing about what is stored.
        """
        ...

    async def last_packet(self, ledger_id: int) -> bytes | None:
        """The packet of the highest entry stored; None if the ledger certainly has no entry here.

        Raises:
            StorageIOError: it could not be found out.
        """
        ...

    def last_packet_now(self, ledger_id: int) -> bytes | None:
        """The packet of the highest entry, from memory alone: empty if there is certainly none,
        None if only `last_packet` can tell.
        """
        ...

    async def list_entries(self, ledger_id: int, first: int, bitmap_bytes_max: int) -> EntryList:
        """The entries from `first` on that are stored: one page, as large as allowed or needed.

        Raises:
            NoSuchLedgerInStorageError: certain.
            StorageIOError: it could not be found out.
        """
        ...

    def state(self, ledger_id: int) -> LedgerState | None:
        """The state last put; None if the ledger is not known."""
        ...

    def put_state(self, ledger_id: int, state: LedgerState) -> None:
        """Set the state of a ledger, known or new; durable after the next flush."""
        ...

    def ledger_ids(self) -> list[int]:
        """The known ledgers, ascending."""
        ...

    def delete_ledger(self, ledger_id: int) -> None:
        """Forget a ledger and its entries; durable after the next flush.

        The bytes in the entry logs are freed by garbage collection. The ledger may be made again
        with `put_state`; old entries do not come back.
        """
        ...

    async def flush(self, *, is_gentle: bool = False) -> None:
        """Make everything that was added, put or deleted before the call durable.

        Entry log first, then index and ledger states; also when only states changed. One flush runs
        at a time, calls that come meanwhile share the next one. Cancelling the call does not cancel
        the flush. `is_gentle`: nobody needs it at once; it may take its time, to spare the disk.

        Raises:
            StorageIOError: it failed. Nothing is lost: the data stays readable in memory and is
                part of the next flush.
            StorageClosedError: closed before it was done.
        """
        ...

    def hurry(self) -> None:
        """A flush under way that takes its time does so no more."""
        ...

    @property
    def wants_flush(self) -> bool:
        """The active buffer of the write cache has reached its size: flush soon."""
        ...

    on_wants_flush: Callable[[], None]
    """Called when `wants_flush` turns true, and for every add that is refused. Set by the owner; a
    no-op until then."""

    on_flush_failure: Callable[[BaseException], None]
    """Called with the error of every flush that failed, whoever asked for it, before they hear of
    it. Set by the owner; a no-op until then."""
