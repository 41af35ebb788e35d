"""Shared by tests of the bookie: frames, storage in memory, a journal by hand, a failing disk and a
small client.
"""

import asyncio
import errno
import os
from collections.abc import Callable, Sequence

from magnetar.bookie.errors import (
    JournalFullError,
    NoSuchEntryInStorageError,
    NoSuchLedgerInStorageError,
    StorageFullError,
)
from magnetar.bookie.metrics import BookieMetrics
from magnetar.bookie.requests.entry_list import IdSource, page_of
from magnetar.bookie.requests.fencing import LedgerTable
from magnetar.bookie.requests.replies import Batch
from magnetar.bookie.requests.request_handler import RequestHandler
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.storage import LedgerState, LedgerStorage
from magnetar.ledger.digest import packet_codec
from magnetar.ledger.ports import Buffer, Clock, File
from magnetar.ledger.system import SystemClock, SystemDisk, SystemFile, SystemNetwork
from magnetar.ledger.wire import (
    EntryBlock,
    Flag,
    Frame,
    FrameDecoder,
    Op,
    Status,
    decode_block,
    encode_block,
    encode_frame,
    encode_read_body,
)
from magnetar.ledger.wire_bodies import EntryList

KEY = b"k" * 20
OTHER_KEY = b"x" * 20


def packets_of(ledger_id: int, first: int, count: int, payload: bytes = b"payload") -> list[bytes]:
    """Return sealed packets of consecutive entries."""
    codec = packet_codec(ledger_id)
    return codec.seal(first, first - 1, first * len(payload), [payload] * count)


def add_request(
    request_id: int,
    ledger_id: int,
    first: int,
    count: int = 1,
    *,
    key: bytes = KEY,
    flags: int = 0,
    payload: bytes = b"payload",
) -> Frame:
    body = key + encode_block(packets_of(ledger_id, first, count, payload)).data
    return Frame(Op.ADD, False, flags, 0, request_id, ledger_id, first, body)


def read_request(
    request_id: int,
    ledger_id: int,
    first: int,
    last: int | None = None,
    *,
    key: bytes = KEY,
    fence_key: bytes | None = None,
    bytes_max: int = 1 << 20,
) -> Frame:
    body = encode_read_body(
        last_entry_id=first if last is None else last,
        bytes_max=bytes_max,
        master_key=key if fence_key is None else fence_key,
    )
    flags = 0 if fence_key is None else Flag.FENCE
    return Frame(Op.READ, False, flags, 0, request_id, ledger_id, first, body)


def read_lac_request(
    request_id: int, ledger_id: int, *, key: bytes = KEY, fence_key: bytes | None = None
) -> Frame:
    flags = 0 if fence_key is None else Flag.FENCE
    body = key if fence_key is None else fence_key
    return Frame(Op.READ_LAC, False, flags, 0, request_id, ledger_id, -1, body)


def encode_request(frame: Frame) -> bytes:
    return encode_frame(
        frame.op,
        request_id=frame.request_id,
        ledger_id=frame.ledger_id,
        entry_id=frame.entry_id,
        flags=frame.flags,
        body=frame.body,
    )


def packets_in(reply: Frame) -> list[bytes]:
    """Return the packets of an OK reply to READ."""
    assert reply.status == Status.OK, reply
    return decode_block(reply.body[8:]).packets()


def _raise(error: BaseException) -> None:
    raise error


def bookie_settings(**values: int) -> BookieSettings:
    """Return settings for a part of a bookie that opens no directory."""
    few = {"data_directory": "nowhere", "read_reply_bytes_max": 1 << 20}
    return BookieSettings.model_validate(few | values)


def make_handler(
    storage: LedgerStorage,
    ledgers: LedgerTable,
    *,
    clock: Clock | None = None,
    metrics: BookieMetrics | None = None,
    instance_id: str = "",
    on_bug: Callable[[BaseException], None] = _raise,
    settings: BookieSettings | None = None,
) -> RequestHandler:
    """Make the request handler of bookie b1. A bug is raised where it occurs."""
    return RequestHandler(
        storage,
        ledgers,
        settings or bookie_settings(),
        clock=clock or SystemClock(),
        metrics=metrics or BookieMetrics(),
        bookie_id="b1",
        instance_id=instance_id,
        version="1",
        free_bytes=lambda: 1000,
        on_bug=on_bug,
    )


class MemoryStorage:
    """A `LedgerStorage` on two dictionaries."""

    def __init__(self) -> None:
        self.states: dict[int, LedgerState] = {}
        self.packets: dict[int, dict[int, bytes]] = {}
        self.is_full = False
        self.is_slow = False
        """Whether reads are not answered from memory at once."""
        self.on_wants_flush: Callable[[], None] = lambda: None
        self.on_flush_failure: Callable[[BaseException], None] = lambda error: None
        self.wants_flush = False
        self.flushes = 0

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def add(self, ledger_id: int, block: EntryBlock, entry_ids: Sequence[int]) -> None:
        if self.is_full:
            raise StorageFullError("the write cache is full")
        assert ledger_id in self.states
        self.packets.setdefault(ledger_id, {}).update(zip(entry_ids, block.packets(), strict=True))

    def read_now(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[bytes] | None:
        return None if self.is_slow else self._read(ledger_id, first, last, bytes_max)

    async def read(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[bytes]:
        return self._read(ledger_id, first, last, bytes_max)

    def _read(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[bytes]:
        if ledger_id not in self.states:
            raise NoSuchLedgerInStorageError(f"ledger {ledger_id} is not known here")
        stored = self.packets.get(ledger_id, {})
        if first not in stored:
            raise NoSuchEntryInStorageError(f"ledger {ledger_id} has no entry {first} here")
        found = [stored[first]]
        entry_id = first + 1
        while entry_id <= last and entry_id in stored:
            if sum(map(len, found)) + len(stored[entry_id]) > bytes_max:
                break
            found.append(stored[entry_id])
            entry_id += 1
        return found

    async def last_packet(self, ledger_id: int) -> bytes | None:
        stored = self.packets.get(ledger_id)
        return stored[max(stored)] if stored else None

    def last_packet_now(self, ledger_id: int) -> bytes | None:
        if self.is_slow:
            return None
        stored = self.packets.get(ledger_id)
        return stored[max(stored)] if stored else b""

    async def list_entries(self, ledger_id: int, first: int, bitmap_bytes_max: int) -> EntryList:
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
        self.flushes += 1


class ManualJournal:
    """Keeps batches until the test commits or fails them."""

    def __init__(self, handler: RequestHandler) -> None:
        self._handler = handler
        self.batches: list[Batch] = []
        self.written: list[tuple[int, int]] = []
        """Type and ledger id of all committed records, in order."""

    def append(self, batch: Batch) -> None:
        assert batch.records
        self.batches.append(batch)

    @property
    def waiting(self) -> list[tuple[int, int]]:
        return [(record.type, record.ledger_id) for b in self.batches for record in b.records]

    def commit(self) -> None:
        self.written += self.waiting
        batches, self.batches = self.batches, []
        self._handler.on_committed(batches, None)

    def fail(self) -> None:
        batches, self.batches = self.batches, []
        self._handler.on_committed(batches, JournalFullError("no space left on the journal disk"))


class ManualConnection:
    """Collects the replies, and counts the calls of `try_again`."""

    def __init__(self) -> None:
        self.reads_bytes = 0
        self.is_congested = False
        self.tries = 0
        self.writes = 0
        self.replies: dict[int, Frame] = {}
        self.replied = asyncio.Event()
        self._decoder = FrameDecoder()

    def send(self, data: bytes) -> None:
        self.writes += 1
        for frame in self._decoder.feed(data):
            assert frame.is_response
            assert frame.request_id not in self.replies, "answered twice"
            self.replies[frame.request_id] = frame
        self.replied.set()

    def try_again(self) -> None:
        self.tries += 1

    async def wait_reply(self, request_id: int) -> Frame:
        while request_id not in self.replies:
            self.replied.clear()
            await self.replied.wait()
        return self.replies[request_id]


class FailingFile(SystemFile):
    """Writes what fits into the disk's budget, then fails, as a file on a full disk does."""

    def __init__(self, descriptor: int, disk: "FailingDisk") -> None:
        super().__init__(descriptor)
        self._disk = disk

    def preallocate(self, size: int) -> None:
        if size - self.size > self._disk.bytes_left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().preallocate(size)

    def append(self, buffers: Sequence[Buffer]) -> int:
        disk = self._disk
        disk.before_append()
        if disk.write_error is not None:
            raise OSError(disk.write_error, os.strerror(disk.write_error))
        data = b"".join(buffers)
        fits = data[: disk.bytes_left]
        disk.bytes_left -= len(fits)
        at = super().append([fits])
        if len(fits) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return at

    def datasync(self) -> None:
        disk = self._disk
        disk.syncs += 1
        error = disk.sync_error
        if error is not None:
            if disk.fails_one_sync:
                disk.sync_error = None
            raise OSError(error, os.strerror(error))
        super().datasync()


class FailingDisk(SystemDisk):
    """A journal disk of limited size that fails on request; other files have no limit."""

    def __init__(self) -> None:
        self.bytes_left = 1 << 40
        self.write_error: int | None = None
        self.sync_error: int | None = None
        self.fails_one_sync = False
        """Whether only the next sync fails. The one after works, as in a kernel that drops the
        dirty pages of a failed sync and marks the file clean."""
        self.syncs = 0
        self.before_append: Callable[[], None] = lambda: None

    def create(self, path: str) -> File:
        if not path.endswith(".journal"):
            return super().create(path)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return FailingFile(os.open(path, flags, 0o644), self)


class BookieClient(asyncio.Protocol):
    """One connection to a bookie; replies are awaited by request id."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self.replies: dict[int, Frame] = {}
        self._changed = asyncio.Event()
        self.is_closed = False
        self._next_request_id = 1

    @classmethod
    async def connect(cls, port: int, *, host: str = "127.0.0.1") -> "BookieClient":
        client = cls()
        client._transport = await SystemNetwork().connect(host, port, lambda: client, timeout_s=5)
        return client

    def data_received(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            assert frame.request_id not in self.replies, "answered twice"
            self.replies[frame.request_id] = frame
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._changed.set()

    def write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def send(self, frame: Frame) -> None:
        self.write(encode_request(frame))

    async def reply(self, request_id: int) -> Frame:
        """Wait for the reply to a request.

        Raises:
            ConnectionError: the bookie closes first.
        """
        while request_id not in self.replies:
            if self.is_closed:
                raise ConnectionError("closed by the bookie")
            self._changed.clear()
            await self._changed.wait()
        return self.replies[request_id]

    async def ask(self, make: Callable[[int], Frame]) -> Frame:
        """Send the frame that `make` returns for a fresh request id, and wait for its reply."""
        request_id = self._next_request_id
        self._next_request_id += 1
        self.send(make(request_id))
        return await self.reply(request_id)

    async def wait_closed(self) -> None:
        while not self.is_closed:
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
