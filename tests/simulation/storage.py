"""A ledger storage in memory: what the bookie of a simulation keeps behind its journal.

`flush` is what survives a crash: the state as it was when the flush began is kept by the machine
(`Flushed`) when the flush ends, some virtual time later. Everything since is in the journal, and
comes back by the real replay. A replica can be told to rot: it is then read with a byte changed.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from magnetar.bookie.errors import (
    NoSuchEntryInStorageError,
    NoSuchLedgerInStorageError,
    StorageClosedError,
    StorageFullError,
    StorageIOError,
)
from magnetar.bookie.requests.entry_list import IdSource, page_of
from magnetar.bookie.storage import LedgerState
from magnetar.ledger.wire import EntryBlock
from magnetar.ledger.wire_bodies import EntryList

_PACKET_BYTES_MIN = 32


@dataclass(slots=True)
class Flushed:
    """What a machine's entry logs and index hold: survives crashes of the process."""

    states: dict[int, LedgerState] = field(default_factory=dict)
    packets: dict[int, dict[int, bytes]] = field(default_factory=dict)


class SimStorage:
    """`LedgerStorage` in memory."""

    def __init__(self, flushed: Flushed, *, flush_latency_s: float) -> None:
        self._flushed = flushed
        self._flush_latency_s = flush_latency_s
        self.states = dict(flushed.states)
        self.packets = {each: dict(packets) for each, packets in flushed.packets.items()}
        self.rotten: dict[tuple[int, int], int] = {}
        """Ledger and entry of replicas that are read with the byte at this place changed."""
        self.read_error = False
        """Reads fail: says nothing about what is stored."""
        self.is_full = False
        self.flush_error = False
        self.on_wants_flush: Callable[[], None] = lambda: None
        self.on_flush_failure: Callable[[BaseException], None] = lambda error: None
        self._is_closed = False

    @property
    def wants_flush(self) -> bool:
        return self.is_full

    async def open(self) -> None:
        """The state was loaded when this was made."""

    async def close(self) -> None:
        self._is_closed = True

    def add(self, ledger_id: int, block: EntryBlock, entry_ids: Sequence[int]) -> None:
        if self._is_closed:
            raise StorageClosedError("the storage is closed")
        if self.is_full:
            self.on_wants_flush()
            raise StorageFullError("the write cache is full")
        assert ledger_id in self.states, "put_state comes first"
        stored = self.packets.setdefault(ledger_id, {})
        for entry_id, packet in zip(entry_ids, block.packets(), strict=True):
            stored[entry_id] = packet
            self.rotten.pop((ledger_id, entry_id), None)

    def read_now(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[bytes] | None:
        if self.read_error:
            return None
        return self._read(ledger_id, first, last, bytes_max)

    async def read(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[bytes]:
        await asyncio.sleep(0)
        if self.read_error:
            raise StorageIOError("the disk does not answer")
        return self._read(ledger_id, first, last, bytes_max)

    def _read(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[bytes]:
        if ledger_id not in self.states:
            raise NoSuchLedgerInStorageError(f"ledger {ledger_id} is not known here")
        stored = self.packets.get(ledger_id, {})
        if first not in stored:
            raise NoSuchEntryInStorageError(f"ledger {ledger_id} has no entry {first} here")
        found: list[bytes] = []
        size = 0
        for entry_id in range(first, last + 1):
            if entry_id not in stored:
                break
            packet = self._as_read(ledger_id, entry_id)
            if found and size + len(packet) > bytes_max:
                break
            found.append(packet)
            size += len(packet)
        return found

    def _as_read(self, ledger_id: int, entry_id: int) -> bytes:
        packet = self.packets[ledger_id][entry_id]
        at = self.rotten.get((ledger_id, entry_id))
        if at is None:
            return packet
        changed = bytearray(packet)
        changed[at % len(packet)] ^= 0x55
        return bytes(changed)

    async def last_packet(self, ledger_id: int) -> bytes | None:
        if self.read_error:
            raise StorageIOError("the disk does not answer")
        stored = self.packets.get(ledger_id)
        return self._as_read(ledger_id, max(stored)) if stored else None

    def last_packet_now(self, ledger_id: int) -> bytes | None:
        if self.read_error:
            return None
        stored = self.packets.get(ledger_id)
        return self._as_read(ledger_id, max(stored)) if stored else b""

    async def list_entries(self, ledger_id: int, first: int, bitmap_bytes_max: int) -> EntryList:
        await asyncio.sleep(0)
        if self.read_error:
            raise StorageIOError("the disk does not answer")
        if ledger_id not in self.states:
            raise NoSuchLedgerInStorageError(f"ledger {ledger_id} is not known here")
        held = sorted(each for each in self.packets.get(ledger_id, {}) if each >= first)
        sources = [IdSource(each, each, None) for each in held]
        start = held[0] if held else None
        return page_of(sources, start, bitmap_bytes_max=bitmap_bytes_max, unread=None)

    def state(self, ledger_id: int) -> LedgerState | None:
        return self.states.get(ledger_id)

    def put_state(self, ledger_id: int, state: LedgerState) -> None:
        self.states[ledger_id] = state

    def ledger_ids(self) -> list[int]:
        return sorted(self.states)

    def delete_ledger(self, ledger_id: int) -> None:
        self.states.pop(ledger_id, None)
        self.packets.pop(ledger_id, None)

    def hurry(self) -> None:
        pass

    async def flush(self, *, is_gentle: bool = False) -> None:
        states = dict(self.states)
        packets = {each: dict(entries) for each, entries in self.packets.items()}
        await asyncio.sleep(self._flush_latency_s)
        if self._is_closed:
            raise StorageClosedError("the storage is closed")
        if self.flush_error:
            raise StorageIOError("the flush failed")
        self._flushed.states = states
        self._flushed.packets = packets
