"""Shared by tests of the ledger storage: packets, small storages, a disk that fails."""

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from magnetar.bookie.engine.entry_storage import EntryStorage, StorageOptions
from magnetar.bookie.indexes.index_mark import EngineKind
from magnetar.bookie.storage import LedgerState
from magnetar.ledger.ports import Buffer, File, Worker
from magnetar.ledger.system import SystemClock, SystemDisk, ThreadWorker
from magnetar.ledger.wire import PACKET_HEADER, EntryBlock, encode_block

T = TypeVar("T")

STATE = LedgerState(b"k" * 20, False, -1)

SMALL = StorageOptions(
    write_buffer_bytes=1 << 20,
    read_cache_bytes=4000,
    entry_log_bytes_max=3000,
    run_bytes_max=400,
    run_entries_max=5,
    open_files_max=2,
    read_workers=1,
    index_page_bytes=64,
    index_cache_bytes=4000,
    index_open_files_max=2,
)
"""Options that cut, roll and evict everything after a few entries."""


ENGINES: tuple[EngineKind, ...] = ("db", "interleaved")


class _Default:
    """Engine of storages that a test makes without naming one."""

    engine: EngineKind = "db"


@contextmanager
def default_engine(engine: EngineKind) -> Iterator[EngineKind]:
    """Make storages of this engine by default while the block runs."""
    before, _Default.engine = _Default.engine, engine
    try:
        yield engine
    finally:
        _Default.engine = before


def make_packet(ledger_id: int, entry_id: int, payload: bytes = b"") -> bytes:
    """Make a packet with room for a digest but none in it, which the storage does not check."""
    return PACKET_HEADER.pack(ledger_id, entry_id, entry_id - 1, 0) + bytes(4) + payload


def make_block(ledger_id: int, entry_ids: Sequence[int], payload: bytes = b"") -> EntryBlock:
    return encode_block([make_packet(ledger_id, entry_id, payload) for entry_id in entry_ids])


def add(
    storage: EntryStorage, ledger_id: int, entry_ids: Sequence[int], payload: bytes = b""
) -> None:
    """Add entries to a ledger, and create the ledger if it is unknown."""
    if storage.state(ledger_id) is None:
        storage.put_state(ledger_id, STATE)
    storage.add(ledger_id, make_block(ledger_id, entry_ids, payload), entry_ids)


def make_storage(
    directory: Path,
    options: StorageOptions = SMALL,
    disk: SystemDisk | None = None,
    make_worker: Callable[[str], Worker] = ThreadWorker,
) -> EntryStorage:
    return EntryStorage(
        str(directory),
        disk=disk or SystemDisk(),
        clock=SystemClock(),
        make_worker=make_worker,
        options=replace(options, engine=_Default.engine),
    )


@asynccontextmanager
async def open_storage(
    directory: Path, options: StorageOptions = SMALL, disk: SystemDisk | None = None
) -> AsyncIterator[EntryStorage]:
    storage = make_storage(directory, options, disk)
    await storage.open()
    try:
        yield storage
    finally:
        await storage.close()


def copy_as_after_a_crash(directory: Path, target: Path) -> Path:
    """Copy the files as a start would find them after kill -9 now."""
    while True:
        before = _files(directory)
        try:
            shutil.copytree(directory, target)
        except shutil.Error:
            pass  # a compaction of the index removed a file meanwhile
        else:
            if _files(directory) == before:
                return target
        shutil.rmtree(target)


def _files(directory: Path) -> list[tuple[Path, int]]:
    found: list[tuple[Path, int]] = []
    for path in sorted(directory.rglob("*")):
        try:
            found.append((path, path.stat().st_size))
        except FileNotFoundError:
            continue  # removed since the listing: the next comparison will differ
    return found


def entry_logs(directory: Path) -> list[Path]:
    return sorted((directory / "entry-logs").iterdir())


class FailingDisk(SystemDisk):
    """A disk on which one writing call fails: the nth after `calls_until_failure` is set."""

    def __init__(self) -> None:
        self.calls_until_failure: int | None = None
        self.error = errno.EIO
        self.writes: list[str] = []

    def on_write(self, what: str, undo: Callable[[], None] | None = None) -> None:
        self.writes.append(what)
        if self.calls_until_failure is None:
            return
        self.calls_until_failure -= 1
        if self.calls_until_failure < 0:
            self.calls_until_failure = None
            if undo is not None:
                undo()
            raise OSError(self.error, os.strerror(self.error))

    def create(self, path: str) -> File:
        self.on_write("create")
        return _FailingFile(super().create(path), self)

    def update(self, path: str) -> File:
        self.on_write("update")
        return _FailingFile(super().update(path), self)

    def remove(self, path: str) -> None:
        self.on_write("remove")
        super().remove(path)

    def sync_directory(self, path: str) -> None:
        self.on_write("sync_directory")
        super().sync_directory(path)

    def replace_file(self, path: str, data: bytes) -> None:
        self.on_write("replace_file")
        super().replace_file(path, data)


class _FailingFile:
    def __init__(self, file: File, disk: FailingDisk) -> None:
        self._file = file
        self._disk = disk

    def append(self, buffers: Sequence[Buffer]) -> int:
        def write_half() -> None:
            data = b"".join(buffers)
            self._file.append([data[: len(data) // 2]])

        self._disk.on_write("append", write_half)
        return self._file.append(buffers)

    def pread(self, size: int, offset: int) -> bytes:
        return self._file.pread(size, offset)

    def read_once(self, size: int, offset: int) -> bytes:
        return self._file.read_once(size, offset)

    def pread_now(self, size: int, offset: int) -> bytes | None:
        return self._file.pread_now(size, offset)

    def preallocate(self, size: int) -> None:
        self._file.preallocate(size)

    def write_at(self, data: Buffer, offset: int) -> None:
        def write_half() -> None:
            self._file.write_at(bytes(data)[: len(data) // 2], offset)

        self._disk.on_write("write_at", write_half)
        self._file.write_at(data, offset)

    def datasync(self) -> None:
        self._disk.on_write("datasync")
        self._file.datasync()

    def drop_cache(self) -> None:
        self._file.drop_cache()

    @property
    def size(self) -> int:
        return self._file.size

    def close(self) -> None:
        self._file.close()


class HeldWorker(ThreadWorker):
    """A worker whose calls can be held back until the test releases them."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._held: list[Callable[[], None]] | None = None

    def hold(self) -> None:
        self._held = []

    def let_go(self) -> None:
        held, self._held = self._held or [], None
        for call in held:
            call()

    def submit(
        self, call: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        if self._held is None:
            super().submit(call, done)
        else:
            self._held.append(lambda: super(HeldWorker, self).submit(call, done))


class Workers:
    """Makes `HeldWorker`s, of which reads or flushes can be held back."""

    def __init__(self) -> None:
        self.made: dict[str, HeldWorker] = {}

    def __call__(self, name: str) -> HeldWorker:
        self.made[name] = HeldWorker(name)
        return self.made[name]


def storage_with(
    directory: Path, workers: Workers, options: StorageOptions = SMALL
) -> EntryStorage:
    return make_storage(directory, options, make_worker=workers)


async def turn_loop(turns: int = 3) -> None:
    """Let ready callbacks run."""
    for _ in range(turns):
        await asyncio.sleep(0)
