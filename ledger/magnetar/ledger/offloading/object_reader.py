"""Reads entries of offloaded ledgers from their objects.

A process has one `ObjectReads`. It bounds the cost of all readers together: the memory of runs, the
concurrent requests to a store, and the cache of indexes. It gives each consumer an `ObjectReader`,
which fetches ahead while the consumer processes earlier entries (`read_window.py`). Readers of one
object share its runs (`shared_runs.py`).

Invariants: a reader returns only entries whose checksums and digests hold, in order and without a
gap (O7). Runs that are kept or fetched ahead stay within `object_read_memory_bytes` (O8). In
addition, each waiting `read` has the one run that it waits for.

An object that cannot be reached is never mistaken for one that is gone (rule 18.1). If an object is
gone or damaged, the caller decides what to do: this module knows no other source of the ledger.

Source: tiered storage, sections 18 and 19.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from magnetar.ledger.digest import PacketCodec, packet_codec
from magnetar.ledger.errors import (
    BeyondLastConfirmedError,
    FutureObjectVersionError,
    LedgerClosedError,
    ObjectDamagedError,
)
from magnetar.ledger.ledger_metadata import DigestType
from magnetar.ledger.offloading.object_encryption import NO_KEYS, ObjectKeyRing
from magnetar.ledger.offloading.object_format import (
    HEADER_BYTES,
    TAIL_BYTES,
    MoreOfTail,
    ObjectFooter,
    ObjectName,
    decode_footer,
)
from magnetar.ledger.offloading.object_store import ObjectStore
from magnetar.ledger.offloading.read_window import ReadMemory, ReadWindow
from magnetar.ledger.offloading.shared_runs import (
    ObjectReadCounts,
    ObjectRequests,
    Run,
    SharedRuns,
)
from magnetar.ledger.ports import Clock
from magnetar.ledger.settings import ObjectReadSettings

_FOOTER_GROWTH = 8
"""Memory of a decoded footer, as a multiple of its bytes in the object: about 290 bytes per run, of
which the index has 36."""


class _Address(NamedTuple):
    """Where an object is, and which identity it must have."""

    requests: ObjectRequests
    key: str
    name: ObjectName


@dataclass(frozen=True, slots=True)
class _Opened:
    """An object that is read with a password. Readers share runs only if their passwords are equal:
    entries that one password opened are not for a reader with another."""

    address: _Address
    password: bytes = field(repr=False)


class ObjectReads:
    """The readers of objects of one process, and their shared resources. Not thread safe:
    everything happens on one event loop."""

    def __init__(
        self, settings: ObjectReadSettings, clock: Clock, *, keys: ObjectKeyRing = NO_KEYS
    ) -> None:
        """Make a process's reads; `keys` open encrypted objects."""
        self._keys = keys
        self.settings = settings
        self.counts = ObjectReadCounts()
        self._clock = clock
        self._memory = ReadMemory(settings.object_read_memory_bytes)
        self._checking = asyncio.Lock()
        self._requests: dict[ObjectStore, ObjectRequests] = {}
        """Requests of each used store. A process has few stores, so none is removed."""
        self._indexes = _IndexCache(settings.object_index_cache_bytes)
        self._openings: dict[_Address, asyncio.Future[ObjectFooter | Exception | None]] = {}
        """Indexes that are being read. The result is None if the request was given up."""
        self._objects: dict[_Opened, SharedRuns] = {}
        """Objects with readers."""
        self._readers: dict[ObjectReader, _Opened] = {}
        self._idle: dict[ObjectReader, float] = {}
        """Readers outside any `read`, and since when (monotonic s); the longest idle one first."""
        self._is_closed = False

    @property
    def window_bytes(self) -> int:
        """Bytes of the runs that all readers keep or fetch ahead."""
        return self._memory.in_use_bytes

    @property
    def index_bytes(self) -> int:
        """Estimated memory of the cached indexes."""
        return self._indexes.size_bytes

    @property
    def readers(self) -> int:
        """Number of open readers."""
        return len(self._readers)

    async def open(
        self, store: ObjectStore, key: str, name: ObjectName, *, password: bytes = b""
    ) -> "ObjectReader":
        """Open a reader of an object. The caller must close it.

        Args:
            name: the identity that the object must have.
            password: the ledger's. Objects do not contain it, and only HMAC digests need it.

        Raises:
            ObjectMissingError: the store said twice that there is no such object.
            ObjectDamagedError: the footer is not as it was written, or of another object.
            FutureObjectVersionError: a newer release wrote the object.
            ObjectKeyError: the object is encrypted, and this process does not have its key.
            ObjectStoreUnavailableError, ObjectStoreRefusedError
            LedgerClosedError: `close` was called.
        """
        self._check_open()
        requests = self._requests.get(store)
        if requests is None:
            requests = ObjectRequests(store, self.settings, self.counts)
            self._requests[store] = requests
        address = _Address(requests, key, name)
        footer = await self._footer(address)
        self._check_open()
        opened = _Opened(address, password)
        shared = self._objects.get(opened)
        if shared is None:
            shared = self._objects[opened] = SharedRuns(
                requests,
                key,
                footer,
                _codec_of(footer, password),
                footer.cipher(self._keys),
                memory=self._memory,
                checking=self._checking,
                counts=self.counts,
            )
        shared.readers += 1
        reader = ObjectReader(self, shared)
        self._readers[reader] = opened
        return reader

    async def close(self) -> None:
        """Close all readers and cancel all requests; waiting reads get `LedgerClosedError`. Closing
        twice is fine. The stores stay open."""
        self._is_closed = True
        objects = list(self._objects.values())
        for reader in list(self._readers):
            await reader.close()
        for shared in objects:
            await shared.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise LedgerClosedError("reads of objects are closed: the process is stopping")

    # Indexes

    async def _footer(self, address: _Address) -> ObjectFooter:
        footer = self._indexes.get(address)
        if footer is not None:
            self.counts.indexes_found += 1
            return footer
        while (opening := self._openings.get(address)) is not None:
            outcome = await asyncio.shield(opening)
            if isinstance(outcome, ObjectFooter):
                return outcome
            if outcome is not None:
                raise outcome
            # The requesting task was cancelled: request it here, or wait for the next task that
            # does.
        return await self._read_footer(address)

    async def _read_footer(self, address: _Address) -> ObjectFooter:
        """Read an index, and pass the result to all waiting callers."""
        opening = asyncio.get_running_loop().create_future()
        self._openings[address] = opening
        outcome: ObjectFooter | Exception | None = None
        try:
            try:
                outcome = await _footer_in(address)
            except (ObjectDamagedError, FutureObjectVersionError):
                # Bytes may have been changed in transit, including those of the version.
                outcome = await _footer_in(address)
            self.counts.indexes_read += 1
            self._indexes.put(address, outcome)
            return outcome
        except Exception as error:
            outcome = error
            raise
        finally:
            del self._openings[address]
            opening.set_result(outcome)

    # For `ObjectReader`

    def on_read(self, reader: "ObjectReader") -> None:
        """Note that a reader is in a `read`: its window is in use."""
        self._idle.pop(reader, None)

    def on_idle(self, reader: "ObjectReader") -> None:
        """Note that the last `read` of a reader has returned."""
        if reader in self._readers:
            self._idle[reader] = self._clock.monotonic_s()

    def on_closed(self, reader: "ObjectReader") -> None:
        """Remove a reader that was closed."""
        self._idle.pop(reader, None)
        opened = self._readers.pop(reader)
        shared = self._objects[opened]
        shared.readers -= 1
        if not shared.readers:
            del self._objects[opened]

    def take_memory(self, size_bytes: int, *, is_ahead: bool) -> bool:
        """Take memory for runs; return whether there was enough. Before returning False, take the
        memory of readers that were idle for `object_read_idle_s`."""
        while not self._memory.take(size_bytes, is_ahead=is_ahead):
            longest = next(iter(self._idle), None)
            if longest is None:
                return False
            idle_s = self._clock.monotonic_s() - self._idle[longest]
            if idle_s < self.settings.object_read_idle_s:
                return False
            del self._idle[longest]
            self.counts.windows_given_back += longest.window_bytes > 0
            longest.give_back()
        return True


class ObjectReader:
    """A handle for reading one object, from `ObjectReads.open`. Each consumer needs its own: two
    that read at different places through one handle would make its window jump all the time."""

    def __init__(self, reads: ObjectReads, shared: SharedRuns) -> None:
        self._reads = reads
        self._shared = shared
        self._window = ReadWindow(
            shared.footer.runs,
            bytes_max=reads.settings.object_read_window_bytes,
            range_bytes=reads.settings.object_read_range_bytes,
        )
        self._held: dict[int, Run] = {}
        """Runs of the window that are in memory or under way; memory is reserved for all of
        them."""
        self._reading = 0
        self._is_closed = False

    @property
    def footer(self) -> ObjectFooter:
        """All that is known of the object without reading its runs."""
        return self._shared.footer

    @property
    def last_entry_id(self) -> int:
        """The last entry of the ledger; -1 if it has none."""
        return self.footer.entries - 1

    @property
    def window_bytes(self) -> int:
        """Bytes of the runs that this reader keeps or fetches ahead, including shared ones."""
        return sum(run.size_bytes for run in self._held.values())

    def entries_after(self, publish_ms: int) -> range:
        """Return the entries of the first run that may hold a message published at or after a time
        (ms since 1970). If the run's times are unknown, the range extends to the last entry. If no
        run can hold such a message, the range is empty and begins after the last entry. Makes no
        request."""
        footer = self.footer
        number = footer.run_after(publish_ms)
        if number == len(footer.runs):
            return range(footer.entries, footer.entries)
        run = footer.runs[number]
        is_known = run.publish_ms_max >= 0
        return range(run.first_entry_id, run.last_entry_id + 1 if is_known else footer.entries)

    async def read(self, first: int, last: int, *, bytes_max: int) -> list[bytes]:
        """Return payloads of entries from `first` on, in order: at least one, at most up to `last`,
        about `bytes_max` bytes, never beyond the end of a run. Call again for the rest.

        Raises:
            BeyondLastConfirmedError: the ledger ends before `last`; nothing was requested.
            ObjectDamagedError: entry `first` is in a run that failed its checks twice. Other runs
                can be read.
            ObjectMissingError: the store said twice that there is no such object.
            ObjectStoreUnavailableError: no answer within `object_read_timeout_s`, or one that
                proves nothing; try again.
            ObjectStoreRefusedError
            LedgerClosedError: this reader is closed.
        """
        if not 0 <= first <= last:
            raise ValueError(f"entries {first} to {last} are no range")
        if last > self.last_entry_id:
            raise BeyondLastConfirmedError(
                f"{self.footer.name} ends with entry {self.last_entry_id}; it has no entry {last}"
            )
        self._check_open()
        number = self.footer.run_of(first)
        self._reading += 1
        self._reads.on_read(self)
        try:
            if self._window.move_to(number):
                self._fill()
            payloads = await self._payloads(number)
            place = self.footer.runs[number]
            begin, end = first - place.first_entry_id, last - place.first_entry_id + 1
            taken = _taken(payloads, begin, end, bytes_max)
            if begin + len(taken) == place.entries:
                self._window.finish(number)
                self._tidy()
            return taken
        finally:
            self._reading -= 1
            if not self._reading:
                self._reads.on_idle(self)

    def give_back(self) -> None:
        """Release the memory of the window. The next read requests its run again."""
        self._window.restart()
        for number in list(self._held):
            self._release(number)

    async def close(self) -> None:
        """Stop fetching ahead, and release the window. A waiting `read` is not disturbed. Closing
        twice is fine."""
        if self._is_closed:
            return
        self._is_closed = True
        self.give_back()
        self._reads.on_closed(self)
        await self._shared.wait_given_up()

    def _check_open(self) -> None:
        if self._is_closed or self._shared.is_closed:
            raise LedgerClosedError(f"the reader of {self.footer.name} is closed: open another one")

    # Runs

    async def _payloads(self, number: int) -> list[bytes]:
        """Return the payloads of a run; request it if necessary."""
        while True:
            run = self._shared.find(number)
            if run is not None:
                self._reads.counts.shared_runs += number not in self._held
            else:
                (run,) = self._shared.request(
                    range(number, number + 1), is_reserved=False, is_urgent=True
                )
            self._shared.hold(run)
            try:
                if not run.settled.done():
                    await asyncio.shield(run.settled)
                if run.payloads is not None:
                    if self._lacks(number):
                        self._keep(run, is_ahead=False)
                    return run.payloads
            finally:
                self._shared.let_go(run)
            self._tidy()
            if run.error is not None:
                raise run.error
            self._check_open()  # a request that was given up, by `ObjectReads.close`

    def _fill(self) -> None:
        """Release the runs that left the window, and request new ones that fit."""
        self._tidy()
        present: set[int] = set()
        for number in self._window.numbers:
            run = self._shared.find(number)
            if run is not None:
                present.add(number)
                is_ahead = number != self._window.current
                if self._lacks(number) and self._keep(run, is_ahead=is_ahead):
                    self._reads.counts.shared_runs += 1
        for numbers in self._window.wanted(present):
            under_way = self._shared.requests_of(list(self._held.values()))
            if under_way >= self._reads.settings.object_read_ranges_max:
                break
            size_bytes = sum(self.footer.runs[number].size_bytes for number in numbers)
            if not self._reads.take_memory(size_bytes, is_ahead=True):
                break
            is_urgent = numbers.start == self._window.current
            for run in self._shared.request(numbers, is_reserved=True, is_urgent=is_urgent):
                self._shared.hold(run)
                self._held[run.number] = run

    def _tidy(self) -> None:
        """Release the runs that failed or left the window."""
        for number, run in self._held.items():
            if run.is_lost:
                self._window.fail(number)
        for number, run in list(self._held.items()):
            if run.is_lost or number not in self._window.numbers:
                self._release(number)

    def _keep(self, run: Run, *, is_ahead: bool) -> bool:
        """Hold a run of the window until it leaves the window; return False if there is no memory
        for it."""
        if not run.is_reserved:
            run.is_reserved = self._reads.take_memory(run.size_bytes, is_ahead=is_ahead)
        if run.is_reserved:
            self._shared.hold(run)
            self._held[run.number] = run
        return run.is_reserved

    def _lacks(self, number: int) -> bool:
        """Return whether a run should be kept, and is not."""
        return number in self._window.numbers and number not in self._held and not self._is_closed

    def _release(self, number: int) -> None:
        self._shared.let_go(self._held.pop(number))


class _IndexCache:
    """Footers of the most recently opened objects, within a bound of memory."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._footers: OrderedDict[_Address, ObjectFooter] = OrderedDict()
        self.size_bytes = 0

    def get(self, address: _Address) -> ObjectFooter | None:
        footer = self._footers.get(address)
        if footer is not None:
            self._footers.move_to_end(address)
        return footer

    def put(self, address: _Address, footer: ObjectFooter) -> None:
        """Add a footer that is not cached; evict the least recently used ones for it."""
        assert address not in self._footers, address
        size_bytes = _memory_of(footer)
        if size_bytes > self._bytes_max:
            return
        self._footers[address] = footer
        self.size_bytes += size_bytes
        while self.size_bytes > self._bytes_max:
            _, oldest = self._footers.popitem(last=False)
            self.size_bytes -= _memory_of(oldest)


def _memory_of(footer: ObjectFooter) -> int:
    last = footer.runs[-1] if footer.runs else None
    begin = HEADER_BYTES if last is None else last.offset + last.size_bytes
    return _FOOTER_GROWTH * (footer.size_bytes - begin)


async def _footer_in(address: _Address) -> ObjectFooter:
    """Read the footer of an object: one request, or two if the footer is longer than usual."""
    requests, key, name = address
    tail = await requests.tail(key, TAIL_BYTES)
    found = decode_footer(tail.data, name, tail.size_bytes)
    if isinstance(found, MoreOfTail):
        tail = await requests.tail(key, found.size_bytes)
        found = decode_footer(tail.data, name, tail.size_bytes)
    if isinstance(found, MoreOfTail):
        raise ObjectDamagedError(
            f"{name}: {len(tail.data)} bytes of its end where {found.size_bytes} were wanted"
        )
    return found


def _codec_of(footer: ObjectFooter, password: bytes) -> PacketCodec:
    """Return the codec of the packets in an object, whose description has all but the password.

    Raises:
        ObjectDamagedError: the description is of another ledger.
        FutureObjectVersionError: this release does not know the digest of the packets.
    """
    name, described = footer.name, footer.description.ledger
    if described.get("ledger_id") != name.ledger_id:
        raise ObjectDamagedError(f"{name} describes ledger {described.get('ledger_id')}")
    digest = described.get("digest_type")
    try:
        return packet_codec(name.ledger_id, DigestType(digest), password)
    except ValueError:
        raise FutureObjectVersionError(
            f"{name}: its packets have the digest {digest!r}, which this release does not know; "
            f"release {footer.description.made_by} wrote it"
        ) from None


def _taken(payloads: list[bytes], begin: int, end: int, bytes_max: int) -> list[bytes]:
    """Return the payloads from `begin` up to `end`, as many as the bytes allow, and at least
    one."""
    size = 0
    for index in range(begin, min(end, len(payloads))):
        size += len(payloads[index])
        if size > bytes_max and index > begin:
            return payloads[begin:index]
    return payloads[begin:end]
