"""The ledger storage of both engines: write cache, entry logs, index, read cache.

The engines differ in the index, and in how a flush lays out entries; both come in as parts.

All state belongs to the event loop. Workers touch the files: one flushes frozen buffers, some read.
They get their input with each call and return values.

A read looks for an entry in the active buffer, the buffer being flushed, the read cache and the
index. It looks at the first three without an await, and a buffer leaves memory only after the index
has its runs. So an entry that was missing from memory and is then missing from the index is not
stored. Every "no such entry" relies on that.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from magnetar.bookie.engine.flush_pace import FlushPace
from magnetar.bookie.engine.flusher import Flushed
from magnetar.bookie.engine.last_entries import LastEntries
from magnetar.bookie.engine.maintenance import LogMaintenance
from magnetar.bookie.engine.memory_view import MemoryView
from magnetar.bookie.engine.parts import (
    FinishCompactions,
    PartsMaker,
    StorageParts,
)
from magnetar.bookie.engine.stored_reads import StoredReads
from magnetar.bookie.engine.write_cache import WriteBuffer
from magnetar.bookie.entry_logs.damage import Damage
from magnetar.bookie.entry_logs.packet_run import PACKET_KEY
from magnetar.bookie.errors import (
    NoSuchEntryInStorageError,
    NoSuchLedgerInStorageError,
    StorageClosedError,
    StorageError,
    StorageFullError,
    StorageIOError,
)
from magnetar.bookie.gc.finish_compactions import finish_compactions
from magnetar.bookie.indexes.key_value import MakeKeyValue
from magnetar.bookie.indexes.ledger_state import decode_state, encode_state
from magnetar.bookie.indexes.rocks_store import RocksStore
from magnetar.bookie.metrics import StorageMetrics, StorageSizes
from magnetar.bookie.storage import LedgerState
from magnetar.bookie.storage_options import StorageOptions
from magnetar.ledger.ports import Clock, Disk, Worker
from magnetar.ledger.wire import EntryBlock
from magnetar.ledger.wire_bodies import EntryList

__all__ = ["EntryStorage", "StorageOptions"]

_STEP_LEDGERS = 1_000
"""Ledgers per step when read caches drop overwritten entries after a flush."""


class EntryStorage:
    """A `LedgerStorage` in one directory; that interface documents the methods."""

    def __init__(
        self,
        directory: str,
        *,
        disk: Disk,
        clock: Clock,
        make_worker: Callable[[str], Worker],
        options: StorageOptions | None = None,
        make_key_value: MakeKeyValue = RocksStore.open,
        finish_compactions: FinishCompactions = finish_compactions,
        metrics: StorageMetrics | None = None,
    ) -> None:
        """`metrics` may be shared by several storages."""
        self._metrics = metrics or StorageMetrics()
        self._clock = clock
        self.on_wants_flush: Callable[[], None] = _nothing
        self.on_flush_failure: Callable[[BaseException], None] = _ignore
        self.options = options or StorageOptions()
        self._make_worker = make_worker
        self._pace = FlushPace(self.options.flush_spread_s, clock)
        self._maker = PartsMaker(
            directory, disk, clock, self.options, self._pace, make_key_value, finish_compactions
        )
        self._is_flush_running = False
        self._flush_waiters: list[asyncio.Future[None]] = []
        self._are_waiters_gentle = True
        self._stored = StoredReads(
            cache_bytes=self.options.read_cache_bytes,
            pending_max=self.options.pending_reads_max,
        )
        self._memory = MemoryView(self._stored.cache)
        self._states: dict[int, bytes] = {}
        """Encoded states: there may be a million of them, and few are in use at a time."""
        self._last_entries = LastEntries()
        self._parts: StorageParts | None = None

    # Opening and closing

    async def open(self) -> None:
        assert self._parts is None
        flush_worker = self._make_worker("bookie-flush")
        read_workers = [
            self._make_worker(f"bookie-read-{number}")
            for number in range(self.options.read_workers)
        ]
        try:
            parts = await flush_worker.run(
                partial(self._maker.open, flush_worker, read_workers, self._stored)
            )
            try:
                self._states = dict(await flush_worker.run(parts.index.states))
            except BaseException:
                parts.index.close()
                raise
        except BaseException:
            for worker in (flush_worker, *read_workers):
                worker.close()
            raise
        self._parts = parts

    async def close(self) -> None:
        parts, self._parts = self._parts, None
        if parts is None:
            return
        parts.maintenance.close()
        waiters, self._flush_waiters = self._flush_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(StorageClosedError("the storage was closed before the flush"))
        self._stored.close()
        self.hurry()
        # After everything that was submitted: a running flush ends first.
        await parts.lanes.close()
        try:
            await parts.flush_worker.run(parts.flusher.close)
        except OSError:
            pass  # the log has no footer and will be scanned
        try:
            await parts.flush_worker.run(parts.index.close)
        except StorageIOError:
            pass  # repeats an error of a flush; flushed data is safe
        parts.flush_worker.close()

    @property
    def on_damage(self) -> Callable[[Damage], None]:
        """Called for all damage that a read finds. Set by the owner."""
        return self._stored.on_damage

    @on_damage.setter
    def on_damage(self, listener: Callable[[Damage], None]) -> None:
        self._stored.on_damage = listener

    @property
    def maintenance(self) -> LogMaintenance:
        """Access for garbage collection, scrubbing and tools.

        Raises:
            StorageClosedError: the storage is not open.
        """
        return self._open_parts().maintenance

    @property
    def sizes(self) -> StorageSizes:
        """Present sizes of the storage in memory."""
        return StorageSizes(
            ledgers=len(self._states),
            write_cache_bytes=sum(buffer.size_bytes for buffer in self._memory.buffers),
            read_cache_bytes=self._stored.size_bytes,
            read_cache_hits=self._memory.read_cache_hits,
        )

    # Changes

    @property
    def wants_flush(self) -> bool:
        return self._memory.active.size_bytes >= self.options.write_buffer_bytes

    def add(self, ledger_id: int, block: EntryBlock, entry_ids: Sequence[int]) -> None:
        self._open_parts()
        assert ledger_id in self._states, f"ledger {ledger_id} has entries but no state"
        memory, limit = self._memory, self.options.write_buffer_bytes
        active, flushing = memory.active, memory.flushing
        before = active.size_bytes
        held = before if flushing is None else before + flushing.size_bytes
        if held >= 2 * limit:
            self.on_wants_flush()
            self.hurry()
            raise StorageFullError(f"the write cache is full: {held} bytes are not flushed yet")
        active.add(ledger_id, block, entry_ids)
        if before < limit // 2 <= active.size_bytes:
            self.hurry()  # the room that the running flush frees is needed soon
        if before < limit <= active.size_bytes:
            self.on_wants_flush()

    def state(self, ledger_id: int) -> LedgerState | None:
        encoded = self._states.get(ledger_id)
        return None if encoded is None else decode_state(encoded)

    def put_state(self, ledger_id: int, state: LedgerState) -> None:
        self._open_parts()
        assert ledger_id >= 0
        if ledger_id not in self._states:
            self._last_entries.begin(ledger_id)
        self._states[ledger_id] = encode_state(state)
        self._memory.active.put_state(ledger_id, state)

    def ledger_ids(self) -> list[int]:
        return sorted(self._states)

    def known_ledgers(self) -> list[int]:
        """Return the ids of the ledgers, unsorted: for a million, that takes a fraction of the
        time."""
        return list(self._states)

    def deletions_in_memory(self) -> list[int]:
        """Return the ledgers that were deleted, but are still on disk until a flush."""
        return [
            ledger_id
            for buffer in self._memory.buffers
            if not buffer.are_deletions_durable
            for ledger_id in buffer.deleted
        ]

    def delete_ledger(self, ledger_id: int) -> None:
        self._open_parts()
        self._states.pop(ledger_id, None)
        self._last_entries.forget(ledger_id)
        self._memory.active.delete_ledger(ledger_id)
        self._stored.forget_ledger(ledger_id)

    # Flush

    async def flush(self, *, is_gentle: bool = False) -> None:
        self._open_parts()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flush_waiters.append(waiter)
        self._are_waiters_gentle &= is_gentle
        if not self._is_flush_running:
            self._start_flush()
        elif not is_gentle:
            self.hurry()  # the caller's own flush begins after it
        await waiter

    def hurry(self) -> None:
        self._pace.hurry()

    def _start_flush(self) -> None:
        """Freeze the active buffer and hand it to the flush worker."""
        parts = self._open_parts()
        waiters, self._flush_waiters = self._flush_waiters, []
        is_gentle, self._are_waiters_gentle = self._are_waiters_gentle, True
        buffer = self._memory.flushing
        if buffer is None:
            buffer = self._memory.active
        else:
            buffer.absorb(self._memory.active)  # the last flush failed: this one takes all
        self._memory.active = WriteBuffer()
        if buffer.is_empty:
            self._memory.flushing = None
            _finish(waiters, None)
            return
        self._memory.flushing = buffer
        self._is_flush_running = True
        has_room = buffer.size_bytes < 3 * self.options.write_buffer_bytes // 2
        self._pace.begin(is_gentle=is_gentle and has_room)
        parts.flush_worker.submit(
            partial(parts.flusher.flush, buffer),
            partial(self._on_written, waiters, self._clock.monotonic_s()),
        )

    def _on_written(
        self,
        waiters: list[asyncio.Future[None]],
        started_s: float,
        flushed: Flushed | None,
        error: BaseException | None,
    ) -> None:
        if flushed is None:
            # The buffer stays in place: readable, and part of the next flush.
            self._metrics.flush_failures += 1
            assert error is not None
            self.on_flush_failure(error)
            self._end_flush(waiters, error)
            return
        buffer = self._memory.flushing
        assert buffer is not None
        took_s = self._clock.monotonic_s() - started_s
        self._metrics.on_flushed(took_s, buffer.size_bytes, flushed.times)
        self._settle(self._note_flushed(buffer, flushed), buffer, waiters)

    def _note_flushed(self, buffer: WriteBuffer, flushed: Flushed) -> Iterator[None]:
        """Update the caches in steps, before reads lose the buffer; it may hold 100 000 ledgers."""
        yield from self._last_entries.note(buffer, self._memory.active.deleted)
        for number, ledger_id in enumerate(flushed.overlaid, 1):
            self._stored.forget_read(ledger_id)
            if number % _STEP_LEDGERS == 0:
                yield

    def _settle(
        self, steps: Iterator[None], buffer: WriteBuffer, waiters: list[asyncio.Future[None]]
    ) -> None:
        """Run one step; after the last one, end the flush."""
        for _ in steps:
            asyncio.get_running_loop().call_soon(self._settle, steps, buffer, waiters)
            return
        self._memory.flushing = None
        if self._parts is not None:
            self._parts.flush_worker.submit(
                partial(buffer.free, self._pace.rest_from_work), _on_freed
            )
        self._end_flush(waiters, None)

    def _end_flush(self, waiters: list[asyncio.Future[None]], error: BaseException | None) -> None:
        self._is_flush_running = False
        _finish(waiters, error)
        if self._flush_waiters:
            self._start_flush()

    # Reads

    def read_now(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[bytes] | None:
        self._open_parts()
        looked = self._memory.look(ledger_id, first)
        if looked.run is not None:
            self._metrics.memory_reads += 1
            return self._memory.read_from(looked, ledger_id, first, last, bytes_max)
        if ledger_id not in self._states:
            raise NoSuchLedgerInStorageError(f"ledger {ledger_id} is not known here")
        if looked.is_deleted:
            return None
        last = max(first, min(last, looked.ceiling - 1))
        packets = self._stored.read_now(ledger_id, first, last, bytes_max)
        if packets is not None:
            self._metrics.ready_reads += 1
        return packets

    async def read(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[bytes]:
        packets = await self._read_some(ledger_id, first, last, bytes_max)
        entry_id = first + len(packets)
        left = bytes_max - sum(map(len, packets))
        while entry_id <= last and left > 0:
            try:
                more = await self._read_some(ledger_id, entry_id, last, left)
            except StorageError:
                break  # the end; an error is for the reader of that entry
            if len(more[0]) > left:
                break
            packets += more
            entry_id += len(more)
            left -= sum(map(len, more))
        return packets

    async def _read_some(
        self, ledger_id: int, first: int, last: int, bytes_max: int
    ) -> list[bytes]:
        """Return packets from memory or from one run."""
        packets = self.read_now(ledger_id, first, last, bytes_max)
        if packets is None:
            packets = await self._read_stored(ledger_id, first, last, bytes_max)
        return packets

    async def last_packet(self, ledger_id: int) -> bytes | None:
        parts = self._open_parts()
        entry_id, is_deleted = self._memory.last_entry_id(ledger_id)
        packet = self._memory.packet(ledger_id, entry_id) if entry_id >= 0 else None
        if is_deleted:
            return packet
        flushes = self._last_entries.flushes
        higher = await self._stored.run(
            parts.lanes, lambda reader: reader.last_packet(ledger_id, entry_id)
        )
        if higher is not None:
            packet = higher
            entry_id = PACKET_KEY.unpack_from(higher)[1]
        if ledger_id in self._states:
            self._last_entries.learn(ledger_id, entry_id, flushes=flushes)
        return packet

    def last_packet_now(self, ledger_id: int) -> bytes | None:
        self._open_parts()
        stored = self._last_entries.find(ledger_id)
        if stored is None:
            return None
        entry_id = max(stored, self._memory.last_entry_id(ledger_id)[0])
        return self._memory.packet(ledger_id, entry_id) if entry_id >= 0 else b""

    async def list_entries(self, ledger_id: int, first: int, bitmap_bytes_max: int) -> EntryList:
        parts = self._open_parts()
        if ledger_id not in self._states:
            raise NoSuchLedgerInStorageError(f"ledger {ledger_id} is not known here")
        # First memory, then the index: entries flushed in between are in both.
        in_memory, is_deleted = self._memory.id_sources(ledger_id, first)
        return await self._stored.run(
            parts.lanes,
            lambda reader: reader.list_entries(
                ledger_id, first, bitmap_bytes_max, in_memory=in_memory, is_deleted=is_deleted
            ),
        )

    async def _read_stored(
        self, ledger_id: int, first: int, last: int, bytes_max: int
    ) -> list[bytes]:
        """Return packets from the entry logs; the caller did not find `first` in memory."""
        parts = self._open_parts()
        _, ceiling, is_deleted = self._memory.look(ledger_id, first)
        packets = None
        if not is_deleted:
            last = max(first, min(last, ceiling - 1))
            started_s = self._clock.monotonic_s()
            packets = await self._stored.read(parts.lanes, ledger_id, first, last, bytes_max)
            self._metrics.worker_reads += 1
            self._metrics.worker_read_s.observe(self._clock.monotonic_s() - started_s)
        if packets is None:
            if ledger_id not in self._states:
                raise NoSuchLedgerInStorageError(f"ledger {ledger_id} is not known here")
            raise NoSuchEntryInStorageError(f"ledger {ledger_id} has no entry {first} here")
        return packets

    def _open_parts(self) -> StorageParts:
        if self._parts is None:
            raise StorageClosedError("the storage is not open")
        return self._parts


def _finish(waiters: list[asyncio.Future[None]], error: BaseException | None) -> None:
    for waiter in waiters:
        if waiter.done():
            continue  # the waiter was cancelled
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)


def _ignore(error: BaseException) -> None:
    """Do nothing, while no listener is set."""


def _nothing() -> None:
    """Do nothing, while no listener is set."""


def _on_freed(_: None, error: BaseException | None) -> None:
    assert error is None
