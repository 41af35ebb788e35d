"""A storage over several directories: where a ledger lies, what a flush is, who makes room."""

import asyncio
import errno
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.bookie.engine.entry_storage import EntryStorage
from magnetar.bookie.engine.sharded_storage import ShardedStorage
from magnetar.bookie.errors import (
    NoSuchLedgerInStorageError,
    StorageFullError,
    StorageIOError,
)
from magnetar.bookie.storage import LedgerState, LedgerStorage
from magnetar.ledger.ports import File
from magnetar.ledger.system import SystemClock, SystemDisk
from tests.bookie_parts import MemoryStorage
from tests.ledger_storage import (
    SMALL,
    STATE,
    FailingDisk,
    HeldWorker,
    copy_as_after_a_crash,
    make_block,
    make_packet,
    turn_loop,
)

BUFFER = replace(SMALL, write_buffer_bytes=10_000)
PAYLOAD = b"x" * 1000


class Shards:
    """Storages of their own under one directory, whose flush workers can be held."""

    def __init__(self, directory: Path, count: int, disk: SystemDisk | None = None) -> None:
        self.workers: list[dict[str, HeldWorker]] = [{} for _ in range(count)]
        self.each = [
            self._make(directory / str(number), self.workers[number], disk or SystemDisk())
            for number in range(count)
        ]

    def flush_worker(self, number: int) -> HeldWorker:
        return self.workers[number]["bookie-flush"]

    @staticmethod
    def _make(directory: Path, workers: dict[str, HeldWorker], disk: SystemDisk) -> EntryStorage:
        def make_worker(name: str) -> HeldWorker:
            workers[name] = HeldWorker(name)
            return workers[name]

        return EntryStorage(
            str(directory),
            disk=disk,
            clock=SystemClock(),
            make_worker=make_worker,
            options=BUFFER,
        )


@asynccontextmanager
async def opened(
    directory: Path, counts: Sequence[int] = (2,), disk: SystemDisk | None = None
) -> AsyncIterator[tuple[ShardedStorage, Shards]]:
    shards = Shards(directory, counts[-1], disk)
    storage = ShardedStorage(shards.each, counts=counts)
    await storage.open()
    try:
        yield storage, shards
    finally:
        for workers in shards.workers:
            for worker in workers.values():
                worker.let_go()
        await storage.close()


def add(storage: LedgerStorage, ledger_id: int, first: int, count: int = 1) -> None:
    if storage.state(ledger_id) is None:
        storage.put_state(ledger_id, STATE)
    ids = range(first, first + count)
    storage.add(ledger_id, make_block(ledger_id, ids, PAYLOAD), ids)


async def read(storage: LedgerStorage, ledger_id: int, entry_id: int) -> bytes:
    (packet,) = await storage.read(ledger_id, entry_id, entry_id, 1)
    return packet


def fill(storage: LedgerStorage, ledger_id: int, first: int = 0) -> int:
    """Add until there is no room; returns the id of the entry that found none."""
    while True:
        try:
            add(storage, ledger_id, first)
        except StorageFullError:
            return first
        first += 1


def test_it_is_a_ledger_storage(tmp_path: Path) -> None:
    storage: LedgerStorage = ShardedStorage(Shards(tmp_path, 2).each)
    assert storage.wants_flush is False


async def test_ledgers_are_spread_by_their_ids_and_listed_together(tmp_path: Path) -> None:
    async with opened(tmp_path, (3,)) as (storage, shards):
        for ledger_id in range(7):
            add(storage, ledger_id, 0, 3)
        assert [shard.ledger_ids() for shard in shards.each] == [[0, 3, 6], [1, 4], [2, 5]]
        assert storage.ledger_ids() == list(range(7))
        storage.delete_ledger(4)
        assert storage.ledger_ids() == [0, 1, 2, 3, 5, 6]
        with pytest.raises(NoSuchLedgerInStorageError):
            await storage.read(4, 0, 0, 1)


async def test_everything_is_there_after_a_crash_behind_a_flush(tmp_path: Path) -> None:
    fenced = LedgerState(b"k" * 20, True, 7)
    async with opened(tmp_path / "a") as (storage, _):
        for ledger_id in range(4):
            add(storage, ledger_id, 0, 3)
        storage.put_state(3, fenced)
        await storage.flush()
        copy = copy_as_after_a_crash(tmp_path / "a", tmp_path / "b")
    async with opened(copy) as (storage, _):
        for ledger_id in range(4):
            assert await read(storage, ledger_id, 2) == make_packet(ledger_id, 2, PAYLOAD)
        assert storage.state(3) == fenced


async def test_ledgers_stay_where_they_are_when_directories_are_added(tmp_path: Path) -> None:
    async with opened(tmp_path, (2,)) as (storage, _):
        for ledger_id in range(6):
            add(storage, ledger_id, 0)
        await storage.flush()
    async with opened(tmp_path, (2, 3)) as (storage, shards):
        for ledger_id in range(6):
            assert await read(storage, ledger_id, 0) == make_packet(ledger_id, 0, PAYLOAD)
            add(storage, ledger_id, 1)
        add(storage, 8, 0)
        add(storage, 9, 0)
        assert [shard.ledger_ids() for shard in shards.each] == [[0, 2, 4, 9], [1, 3, 5], [8]]
        storage.delete_ledger(2)
        add(storage, 2, 5)  # made again: it is a new ledger
        assert shards.each[2].ledger_ids() == [2, 8]
        assert storage.ledger_ids() == [0, 1, 2, 3, 4, 5, 8, 9]


async def test_a_ledger_that_two_shards_know_is_deleted_in_both(tmp_path: Path) -> None:
    """Deleted, made again elsewhere, and a crash before the shard it was in had been flushed."""
    async with opened(tmp_path, (2, 3)) as (storage, shards):
        for number in (0, 2):
            shards.each[number].put_state(2, STATE)
        storage.delete_ledger(2)
        assert storage.state(2) is None


async def test_b05_a_flush_ends_only_when_all_shards_have_ended_theirs(tmp_path: Path) -> None:
    """Rule 8.2."""
    async with opened(tmp_path) as (storage, shards):
        add(storage, 0, 0)
        add(storage, 1, 0)
        shards.flush_worker(1).hold()
        flush = asyncio.create_task(storage.flush())
        await shards.each[0].flush()  # behind the flush of the shard
        assert not flush.done()
        shards.flush_worker(1).let_go()
        await flush


async def test_b05_a_shard_that_flushes_by_itself_ends_no_flush_of_all(tmp_path: Path) -> None:
    """The shard makes room, so that a slow disk does not hold up the ledgers of another one."""
    room = asyncio.Event()
    async with opened(tmp_path) as (storage, shards):
        storage.on_room = room.set
        add(storage, 0, 0)
        add(storage, 1, 0)
        shards.flush_worker(1).hold()
        flush = asyncio.create_task(storage.flush())
        await room.wait()
        first = 1
        for _ in range(3):
            room.clear()
            first = fill(storage, 0, first)
            await room.wait()
        assert not flush.done()
        shards.flush_worker(1).let_go()
        await flush
        assert await read(storage, 0, first - 1) == make_packet(0, first - 1, PAYLOAD)


async def test_a_full_shard_asks_for_a_flush_of_all(tmp_path: Path) -> None:
    """Nothing flushes by itself when nobody flushes: the journals could never forget."""
    asked = 0

    def on_wants_flush() -> None:
        nonlocal asked
        asked += 1

    async with opened(tmp_path) as (storage, _):
        storage.on_wants_flush = on_wants_flush
        add(storage, 1, 0)
        full = fill(storage, 0)
        await turn_loop()
        assert asked >= 2
        assert storage.wants_flush
        add(storage, 1, 1)  # the other shard has room
        with pytest.raises(StorageFullError):
            add(storage, 0, full)
        await storage.flush()
        add(storage, 0, full)
        assert not storage.wants_flush


async def test_8_6_a_flush_that_fails_in_one_shard_fails_when_all_have_ended(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    async with opened(tmp_path / "a", disk=disk) as (storage, shards):
        add(storage, 0, 0)
        add(storage, 1, 0)
        shards.flush_worker(1).hold()
        disk.calls_until_failure = 0
        flush = asyncio.create_task(storage.flush())
        await turn_loop()
        assert not flush.done()
        shards.flush_worker(1).let_go()
        with pytest.raises(StorageIOError):
            await flush
        for ledger_id in (0, 1):
            assert await read(storage, ledger_id, 0) == make_packet(ledger_id, 0, PAYLOAD)
        await storage.flush()
        copy = copy_as_after_a_crash(tmp_path / "a", tmp_path / "b")
    async with opened(copy) as (storage, _):
        for ledger_id in (0, 1):
            assert await read(storage, ledger_id, 0) == make_packet(ledger_id, 0, PAYLOAD)


class DownDisk(SystemDisk):
    """While it is down no file can be made."""

    def __init__(self) -> None:
        self.is_down = False
        self.tries = 0

    def create(self, path: str) -> File:
        self.tries += 1
        if self.is_down:
            raise OSError(errno.ENOSPC, "no space left")
        return super().create(path)


async def test_a_shard_whose_own_flush_failed_waits_for_the_flush_of_all(tmp_path: Path) -> None:
    disk = DownDisk()
    async with opened(tmp_path, disk=disk) as (storage, shards):
        add(storage, 1, 0)
        shards.flush_worker(1).hold()
        flush = asyncio.create_task(storage.flush())
        await turn_loop()
        disk.is_down = True
        first = 0
        while not storage.wants_flush:
            add(storage, 0, first)
            first += 1
        await turn_loop()  # its own flush has begun
        with pytest.raises(StorageIOError):
            await shards.each[0].flush()  # behind that one
        tries = disk.tries
        first = fill(storage, 0, first)
        for _ in range(3):
            with pytest.raises(StorageFullError):
                add(storage, 0, first)
            await turn_loop()
        with pytest.raises(StorageIOError):
            await shards.each[0].flush()
        assert disk.tries == tries + 1, "tried again for every add that was refused"
        disk.is_down = False
        shards.flush_worker(1).let_go()
        await flush
        await storage.flush()
        add(storage, 0, first)


async def test_b18_the_owner_hears_of_every_flush_that_failed(tmp_path: Path) -> None:
    """The caller may have asked for a flush of all shards, or of one."""
    disk = DownDisk()
    heard: list[BaseException] = []
    async with opened(tmp_path, disk=disk) as (storage, shards):
        storage.on_flush_failure = heard.append
        add(storage, 0, 0)
        disk.is_down = True
        with pytest.raises(StorageIOError) as of_all:
            await storage.flush()
        with pytest.raises(StorageIOError) as of_one:
            await shards.each[0].flush()
        assert heard == [of_all.value, of_one.value]
        disk.is_down = False
        await storage.flush()
        assert len(heard) == 2


async def test_it_tells_in_which_shards_the_last_flush_found_no_room(tmp_path: Path) -> None:
    disk = DownDisk()
    async with opened(tmp_path, disk=disk) as (storage, _):
        add(storage, 1, 0)
        disk.is_down = True
        with pytest.raises(StorageIOError):
            await storage.flush()
        assert storage.without_room == {1}
        assert storage.wants_flush
        disk.is_down = False
        await storage.flush()
        assert storage.without_room == frozenset()
        assert not storage.wants_flush


class ManualShard(MemoryStorage):
    """A shard whose flushes end when, and as, they are told to."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[asyncio.Future[None]] = []

    async def flush(self, *, is_gentle: bool = False) -> None:
        self.ends.append(asyncio.get_running_loop().create_future())
        await self.ends[-1]


async def test_8_6_after_a_failed_flush_of_a_shard_a_flush_is_wanted() -> None:
    """Nothing else asks for one, if what is in memory is not in the journal, which is full too."""
    full, slow = ManualShard(), ManualShard()
    storage = ShardedStorage([full, slow])
    flush = asyncio.create_task(storage.flush())
    await turn_loop()
    full.ends[0].set_result(None)
    full.wants_flush = True
    full.on_wants_flush()
    await turn_loop()
    full.wants_flush = False
    full.ends[1].set_exception(StorageIOError("no space left"))
    await turn_loop()
    assert storage.wants_flush
    slow.ends[0].set_result(None)
    await flush
    assert storage.wants_flush, "the flush that ended began before the failed one"
    again = asyncio.create_task(storage.flush())
    await turn_loop()
    full.ends[2].set_result(None)
    slow.ends[1].set_result(None)
    await again
    assert not storage.wants_flush


async def test_if_one_shard_cannot_be_opened_none_stays_open(tmp_path: Path) -> None:
    async with opened(tmp_path):
        pass
    (tmp_path / "1" / "index-mark").write_bytes(b"damaged")
    storage = ShardedStorage(Shards(tmp_path, 2).each)
    with pytest.raises(StorageIOError):
        await storage.open()
    alone = Shards(tmp_path, 2).each[0]
    await alone.open()  # the index has a lock
    await alone.close()
