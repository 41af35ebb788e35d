"""Flushes of the storage: when they come, their order, and what a failed one leaves."""

import asyncio
import errno
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.bookie.disks.disk_errors import is_out_of_room
from magnetar.bookie.errors import (
    NoSuchEntryInStorageError,
    NoSuchLedgerInStorageError,
    StorageFullError,
    StorageIOError,
)
from magnetar.bookie.indexes.index_mark import EngineKind
from magnetar.bookie.indexes.location_index import IndexChanges
from magnetar.bookie.indexes.page_index import PageIndex
from magnetar.bookie.indexes.rocks_index import RocksIndex
from magnetar.bookie.storage import LedgerState
from magnetar.ledger.system import SystemDisk
from tests.ledger_storage import (
    ENGINES,
    SMALL,
    STATE,
    FailingDisk,
    Workers,
    add,
    copy_as_after_a_crash,
    default_engine,
    entry_logs,
    make_packet,
    open_storage,
    storage_with,
    turn_loop,
)

ALL = 1 << 40
BYTES = 1 << 20


def packets(ledger_id: int, ids: range, payload: bytes = b"") -> list[bytes]:
    return [make_packet(ledger_id, entry_id, payload) for entry_id in ids]


@pytest.fixture(params=ENGINES, autouse=True)
def engine(request: pytest.FixtureRequest) -> Iterator[EngineKind]:
    """Every promise here is one of both engines."""
    with default_engine(request.param) as kind:
        yield kind


async def test_8_4_a_flush_with_an_empty_cache_stores_changed_states(tmp_path: Path) -> None:
    async with open_storage(tmp_path / "a") as storage:
        add(storage, 1, range(3))
        await storage.flush()
        fenced = LedgerState(b"k" * 20, True, 7)
        storage.put_state(1, fenced)
        await storage.flush()
        copy = copy_as_after_a_crash(tmp_path / "a", tmp_path / "b")
    async with open_storage(copy) as storage:
        assert storage.state(1) == fenced
        assert storage.ledger_ids() == [1]


async def test_wants_flush_at_the_limit_and_refuses_at_twice_the_limit(tmp_path: Path) -> None:
    workers = Workers()
    storage = storage_with(tmp_path, workers, replace(SMALL, write_buffer_bytes=10_000))
    calls: list[bool] = []
    storage.on_wants_flush = lambda: calls.append(storage.wants_flush)
    await storage.open()
    entry_id = 0

    def fill(until_bytes: int) -> None:
        nonlocal entry_id
        while storage._memory.active.size_bytes < until_bytes:
            add(storage, 1, range(entry_id, entry_id + 1), b"x" * 500)
            entry_id += 1

    fill(10_000)
    assert calls == [True]
    workers.made["bookie-flush"].hold()
    flush = asyncio.create_task(storage.flush())
    await turn_loop()
    assert storage.wants_flush is False
    while True:
        try:
            add(storage, 1, range(entry_id, entry_id + 1), b"x" * 500)
        except StorageFullError:
            break
        entry_id += 1
    assert len(calls) == 2
    with pytest.raises(NoSuchEntryInStorageError):
        await storage.read(1, entry_id, ALL, BYTES)  # refused means not stored
    workers.made["bookie-flush"].let_go()
    await flush
    add(storage, 1, range(entry_id, entry_id + 1), b"x" * 500)
    assert len(await storage.read(1, 0, ALL, BYTES)) == entry_id + 1
    await storage.close()


async def test_7_1_entries_stay_readable_while_they_are_flushed(tmp_path: Path) -> None:
    workers = Workers()
    storage = storage_with(tmp_path, workers)
    await storage.open()
    add(storage, 1, range(10))
    workers.made["bookie-flush"].hold()
    flush = asyncio.create_task(storage.flush())
    await turn_loop()
    add(storage, 1, range(10, 12))
    assert storage.read_now(1, 8, ALL, BYTES) == packets(1, range(8, 12))
    assert await storage.last_packet(1) == make_packet(1, 11)
    workers.made["bookie-flush"].let_go()
    await flush
    assert storage.read_now(1, 8, ALL, BYTES) is None
    assert await storage.read(1, 8, ALL, BYTES) == packets(1, range(8, 12))
    await storage.close()


async def test_flushes_that_come_during_a_flush_share_the_next_one(tmp_path: Path) -> None:
    workers = Workers()
    storage = storage_with(tmp_path / "a", workers)
    await storage.open()
    add(storage, 1, range(3))
    workers.made["bookie-flush"].hold()
    first = asyncio.create_task(storage.flush())
    await turn_loop()
    add(storage, 1, range(3, 6))
    later = [asyncio.create_task(storage.flush()) for _ in range(3)]
    await turn_loop()
    assert not first.done()
    workers.made["bookie-flush"].let_go()
    await first
    await asyncio.gather(*later)
    copy = copy_as_after_a_crash(tmp_path / "a", tmp_path / "copy")
    await storage.close()
    async with open_storage(copy) as again:
        assert await again.read(1, 0, ALL, BYTES) == packets(1, range(6))


async def test_a_cancelled_flush_goes_on(tmp_path: Path) -> None:
    workers = Workers()
    storage = storage_with(tmp_path, workers)
    await storage.open()
    add(storage, 1, range(3))
    workers.made["bookie-flush"].hold()
    flush = asyncio.create_task(storage.flush())
    await turn_loop()
    flush.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flush
    workers.made["bookie-flush"].let_go()
    await storage.flush()
    assert storage._memory.flushing is None
    assert await storage.read(1, 0, ALL, BYTES) == packets(1, range(3))
    await storage.close()


class SmallDisk(SystemDisk):
    """Says how much room it has."""

    free = ALL

    def free_bytes(self, path: str) -> int:
        return self.free


async def test_a_flush_that_has_no_room_takes_none(tmp_path: Path) -> None:
    disk = SmallDisk()
    options = replace(SMALL, entry_log_bytes_max=BYTES)
    async with open_storage(tmp_path, options, disk) as storage:
        add(storage, 1, range(5), b"a" * 100)
        await storage.flush()
        (log,) = entry_logs(tmp_path)
        size = log.stat().st_size
        add(storage, 1, range(5, 15), b"b" * 100)
        disk.free = 1000
        with pytest.raises(StorageIOError) as raised:
            await storage.flush()
        assert is_out_of_room(raised.value)
        assert [path.stat().st_size for path in entry_logs(tmp_path)] == [size]
        expected = packets(1, range(5), b"a" * 100) + packets(1, range(5, 15), b"b" * 100)
        assert await storage.read(1, 0, 14, ALL) == expected
        disk.free = 2000
        await storage.flush()
        assert await storage.read(1, 0, 14, ALL) == expected


async def test_deletions_are_flushed_without_room_for_blocks(tmp_path: Path) -> None:
    disk = SmallDisk()
    async with open_storage(tmp_path, disk=disk) as storage:
        add(storage, 1, range(5))
        await storage.flush()
        storage.delete_ledger(1)
        disk.free = 0
        await storage.flush()
    async with open_storage(tmp_path) as storage:
        assert storage.ledger_ids() == []


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("calls", range(6))
async def test_8_6_after_a_failed_flush_nothing_is_lost(
    tmp_path: Path, error: int, calls: int
) -> None:
    disk = FailingDisk()
    disk.error = error
    async with open_storage(tmp_path / "a", disk=disk) as storage:
        add(storage, 1, range(3))
        await storage.flush()
        add(storage, 1, range(3, 60), b"x" * 50)
        storage.put_state(2, STATE)
        disk.calls_until_failure = calls
        with pytest.raises(StorageIOError):
            await storage.flush()
        assert disk.calls_until_failure is None
        add(storage, 1, range(60, 63))
        ids = range(3, 60)
        assert storage.read_now(1, 3, 59, BYTES) == packets(1, ids, b"x" * 50)
        await storage.flush()
        copy = copy_as_after_a_crash(tmp_path / "a", tmp_path / "b")
    async with open_storage(copy) as storage:
        assert await storage.read(1, 3, 59, BYTES) == packets(1, ids, b"x" * 50)
        assert await storage.read(1, 60, ALL, BYTES) == packets(1, range(60, 63))
        assert await storage.read(1, 0, 2, BYTES) == packets(1, range(3))
        assert storage.ledger_ids() == [1, 2]


async def test_b16_the_log_is_synced_before_the_index_points_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: EngineKind
) -> None:
    disk = FailingDisk()
    kind = RocksIndex if engine == "db" else PageIndex
    commit = kind.commit

    def noting(
        index: RocksIndex | PageIndex, changes: IndexChanges, *, pause: Callable[[], None]
    ) -> set[int]:
        disk.writes.append("index")
        return commit(index, changes, pause=pause)  # type: ignore[arg-type]  # of the same kind

    async with open_storage(tmp_path, disk=disk) as storage:
        monkeypatch.setattr(kind, "commit", noting)
        disk.writes.clear()
        add(storage, 1, range(3))
        await storage.flush()
        log = ["create", "append", "append", "datasync", "sync_directory"]
        mark = ["replace_file", "sync_directory"]
        at = disk.writes.index("index")
        assert disk.writes[:at] == log
        assert disk.writes[-2:] == mark
        if engine == "db":
            assert disk.writes[at + 1 : -2] == []
        else:
            beside = ["update", "write_at", "datasync", "sync_directory"]
            directories = ["sync_directory"] * 2
            in_place = ["update", "write_at", "write_at", "datasync", "sync_directory"]
            assert disk.writes[at + 1 : -2] == beside + directories + in_place


async def test_a_new_process_begins_a_new_log_at_its_first_flush(tmp_path: Path) -> None:
    for expected in (["00000001.log"], ["00000001.log", "00000002.log"]):
        async with open_storage(tmp_path) as storage:
            before = [path.name for path in entry_logs(tmp_path)]
            assert before == expected[:-1]
            add(storage, 1, range(3))
            await storage.flush()
        assert [path.name for path in entry_logs(tmp_path)] == expected


async def test_a_log_id_is_not_used_twice_even_if_its_file_is_gone(tmp_path: Path) -> None:
    async with open_storage(tmp_path) as storage:
        add(storage, 1, range(3))
        await storage.flush()
    entry_logs(tmp_path)[0].unlink()
    async with open_storage(tmp_path) as storage:
        add(storage, 2, range(3))
        await storage.flush()
        assert [path.name for path in entry_logs(tmp_path)] == ["00000002.log"]
        with pytest.raises(StorageIOError):
            await storage.read(1, 0, ALL, BYTES)


async def test_a_deleted_ledger_stays_away_while_older_data_is_flushed(tmp_path: Path) -> None:
    workers = Workers()
    storage = storage_with(tmp_path, workers)
    await storage.open()
    add(storage, 1, range(10))
    await storage.flush()
    await storage.read(1, 0, ALL, BYTES)  # fills the read cache
    add(storage, 1, range(10, 20))
    workers.made["bookie-flush"].hold()
    flush = asyncio.create_task(storage.flush())
    await turn_loop()
    storage.delete_ledger(1)
    with pytest.raises(NoSuchLedgerInStorageError):
        await storage.read(1, 0, ALL, BYTES)
    add(storage, 1, range(15, 16), b"new")
    for entry_id in (0, 14, 16):
        with pytest.raises(NoSuchEntryInStorageError):
            await storage.read(1, entry_id, ALL, BYTES)
    assert await storage.last_packet(1) == make_packet(1, 15, b"new")
    workers.made["bookie-flush"].let_go()
    await flush
    await storage.flush()
    assert await storage.last_packet(1) == make_packet(1, 15, b"new")
    with pytest.raises(NoSuchEntryInStorageError):
        await storage.read(1, 14, ALL, BYTES)
    await storage.close()


async def test_b18_after_a_failed_sync_the_next_flush_begins_a_new_log(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with open_storage(tmp_path, replace(SMALL, entry_log_bytes_max=1 << 20), disk) as storage:
        add(storage, 1, range(3))
        await storage.flush()
        add(storage, 1, range(3, 6))
        disk.calls_until_failure = 1  # the sync: what reached the disk is unknown
        with pytest.raises(StorageIOError):
            await storage.flush()
        await storage.flush()
        names = [path.name for path in entry_logs(tmp_path)]
        assert names == ["00000001.log", "00000002.log"]
        assert await storage.read(1, 0, ALL, BYTES) == packets(1, range(6))
