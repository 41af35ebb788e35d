"""Reads without a worker: the same answers, or none; and nothing that is not true any more."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.bookie.engine.entry_storage import EntryStorage
from magnetar.bookie.engine.hot_reads import HotReads
from magnetar.bookie.entry_logs.log_names import log_name
from magnetar.bookie.errors import (
    NoSuchEntryInStorageError,
    NoSuchLedgerInStorageError,
    StorageCorruptError,
)
from magnetar.ledger.ports import File
from magnetar.ledger.system import SystemClock, SystemDisk
from tests.ledger_storage import (
    SMALL,
    HeldWorker,
    add,
    entry_logs,
    make_packet,
    open_storage,
    turn_loop,
)
from tests.unit.bookie.test_maintenance import copy_log

# A memory file system cannot say what the page cache has (RWF_NOWAIT).
pytestmark = pytest.mark.disk

ALL = 1 << 40
BYTES = 1 << 20
PAYLOAD = b"x" * 1000
OPTIONS = replace(
    SMALL,
    run_bytes_max=1 << 20,
    run_entries_max=1000,
    read_cache_bytes=1 << 20,
    entry_log_bytes_max=1 << 20,
)


@asynccontextmanager
async def open_with(directory: Path, ids: range, ledger_id: int = 1) -> AsyncIterator[EntryStorage]:
    """A storage that has these entries in one run, and has read one of them before."""
    async with open_storage(directory, OPTIONS) as storage:
        add(storage, ledger_id, ids, PAYLOAD)
        await storage.flush()
        wanted = ids[len(ids) // 2]
        assert storage.read_now(ledger_id, wanted, wanted, BYTES) is None
        assert await storage.read(ledger_id, wanted, wanted, BYTES) == [packet(wanted)]
        warm(directory)
        yield storage


def warm(directory: Path) -> None:
    """Get everything into the page cache: a flush throws it out."""
    for path in entry_logs(directory):
        path.read_bytes()


def packet(entry_id: int, payload: bytes = PAYLOAD) -> bytes:
    return make_packet(1, entry_id, payload)


async def test_after_one_read_the_others_of_its_run_need_no_worker(tmp_path: Path) -> None:
    async with open_with(tmp_path, range(100)) as storage:
        for entry_id in (99, 0, 7, 63, 40):
            assert storage.read_now(1, entry_id, entry_id, BYTES) == [packet(entry_id)]
        assert storage.read_now(1, 20, 29, BYTES) == [packet(at) for at in range(20, 30)]
        assert storage.read_now(1, 50, ALL, 3000) == [packet(50), packet(51)]
        assert storage.read_now(1, 100, ALL, BYTES) is None
        with pytest.raises(NoSuchEntryInStorageError):
            await storage.read(1, 100, ALL, BYTES)


async def test_runs_with_gaps_are_read_too(tmp_path: Path) -> None:
    async with open_with(tmp_path, range(0, 100, 2)) as storage:
        assert storage.read_now(1, 10, ALL, BYTES) == [packet(10)]
        assert storage.read_now(1, 11, ALL, BYTES) is None
        with pytest.raises(NoSuchEntryInStorageError):
            await storage.read(1, 11, ALL, BYTES)


async def test_what_is_too_much_goes_to_the_worker(tmp_path: Path) -> None:
    async with open_with(tmp_path, range(100)) as storage:
        assert storage.read_now(1, 0, ALL, BYTES) is None
        assert await storage.read(1, 0, ALL, BYTES) == [packet(at) for at in range(100)]


async def test_reading_in_order_goes_to_the_worker_for_the_whole_run(tmp_path: Path) -> None:
    async with open_with(tmp_path, range(100)) as storage:
        assert storage.read_now(1, 10, 10, BYTES) == [packet(10)]
        assert storage.read_now(1, 11, 11, BYTES) is None
        assert await storage.read(1, 11, 11, BYTES) == [packet(11)]
        assert storage._memory.read_cache.find(1, 90) is not None


async def test_newer_copies_win(tmp_path: Path) -> None:
    async with open_with(tmp_path, range(100)) as storage:
        add(storage, 1, range(30, 32), b"newer")
        for _ in range(3):  # active, flushing or flushed
            for entry_id in (29, 30, 31, 32):
                expected = packet(entry_id, b"newer" if entry_id in (30, 31) else PAYLOAD)
                found = await storage.read(1, entry_id, entry_id, BYTES)
                assert found == [expected]
            assert (await storage.read(1, 28, ALL, 4000))[2] == packet(30, b"newer")
            await storage.flush()


async def test_b26_a_deleted_ledger_is_not_served_from_its_old_place(tmp_path: Path) -> None:
    async with open_with(tmp_path, range(100)) as storage:
        storage.delete_ledger(1)
        with pytest.raises(NoSuchLedgerInStorageError):
            storage.read_now(1, 3, 3, BYTES)
        add(storage, 1, range(1), b"again")
        await storage.flush()
        with pytest.raises(NoSuchEntryInStorageError):
            await storage.read(1, 3, 3, BYTES)
        assert await storage.read(1, 0, 3, BYTES) == [packet(0, b"again")]


async def test_b26_after_a_compaction_packets_come_from_their_new_place(tmp_path: Path) -> None:
    """The old file is written over with another ledger's bytes before it goes: whoever still reads
    there would see them."""
    async with open_with(tmp_path / "a", range(100)):
        pass
    async with open_storage(tmp_path / "a", OPTIONS) as storage:
        assert await storage.read(1, 50, 50, BYTES) == [packet(50)]
        warm(tmp_path / "a")
        assert storage.read_now(1, 9, 9, BYTES) == [packet(9)]
        moves = copy_log(storage.maintenance, 1)
        await storage.maintenance.move_runs(moves)
        log = tmp_path / "a" / "entry-logs" / log_name(1)
        with log.open("r+b") as file:
            file.write(make_packet(2, 9, PAYLOAD) * 100)
        for _ in range(2):
            assert await storage.read(1, 60, 60, BYTES) == [packet(60)]
        assert storage.read_now(1, 9, 9, BYTES) == [packet(9)]
        await storage.maintenance.remove_log(1)
        assert storage.read_now(1, 9, 9, BYTES) == [packet(9)]
        assert storage._stored._hot.lacks_file(1)


async def test_a_read_that_was_under_way_while_runs_moved_is_not_remembered(
    tmp_path: Path,
) -> None:
    async with open_with(tmp_path, range(100)) as storage:
        storage._stored.forget_read(1)
        read = asyncio.create_task(storage.read(1, 50, 50, BYTES))
        await asyncio.sleep(0)
        storage._stored.forget_places([1])
        assert await read == [packet(50)]
        assert storage.read_now(1, 9, 9, BYTES) is None


async def test_b14_damage_is_never_served_and_is_told_by_the_long_way(tmp_path: Path) -> None:
    async with open_with(tmp_path, range(100)) as storage:
        (log,) = (tmp_path / "entry-logs").iterdir()
        data = bytearray(log.read_bytes())
        data[-50_000] ^= 4
        log.write_bytes(data)
        told: list[tuple[int, ...]] = []
        storage.on_damage = lambda damage: told.append(damage[2:5])
        bad = 0
        for entry_id in reversed(range(100)):
            found = storage.read_now(1, entry_id, entry_id, BYTES)
            if found is not None:
                assert found == [packet(entry_id)]
                continue
            bad += 1
            with pytest.raises(StorageCorruptError):
                await storage.read(1, entry_id, entry_id, BYTES)
            assert told[-1][0] == 1
            assert told[-1][1] <= entry_id <= told[-1][2]
        assert 4 <= bad <= 6


async def test_files_and_heads_are_bounded(tmp_path: Path) -> None:
    options = replace(OPTIONS, entry_log_bytes_max=30_000, read_cache_bytes=1 << 17)
    async with open_storage(tmp_path, options) as storage:
        for ledger_id in range(50):
            add(storage, ledger_id, range(8), 3 * PAYLOAD)
        await storage.flush()
        for ledger_id in range(50):
            await storage.read(ledger_id, 1, 1, 1)
        hot = storage._stored._hot
        assert len(hot._files) == 32
        assert 0 < hot.size_bytes <= 1 << 14


def test_a_page_cache_that_cannot_be_asked_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    file: File = SystemDisk().open(str(path))
    assert file.pread_now(4, 3) in (b"3456", None)
    assert file.pread_now(4, 8) is None
    file.close()
    HotReads(1000).close()


async def test_small_runs_are_read_with_one_read_and_kept_whole(tmp_path: Path) -> None:
    async with open_storage(tmp_path, OPTIONS) as storage:
        add(storage, 1, range(10))
        await storage.flush()
        reads: list[tuple[int, int]] = []
        logs = storage._open_parts().lanes._lanes[0].logs
        pread_at = logs._pread_at

        def counting(log_id: int, size: int, offset: int, *, once: bool = False) -> bytes:
            reads.append((size, offset))
            return pread_at(log_id, size, offset, once=once)

        logs._pread_at = counting  # type: ignore[method-assign]
        assert await storage.read(1, 7, 7, BYTES) == [packet(7, b"")]
        assert len(reads) == 1
        assert storage.read_now(1, 2, 3, BYTES) == [packet(2, b""), packet(3, b"")]


async def test_reads_that_wait_for_the_disk_run_side_by_side(tmp_path: Path) -> None:
    workers: dict[str, HeldWorker] = {}

    def make(name: str) -> HeldWorker:
        return workers.setdefault(name, HeldWorker(name))

    storage = EntryStorage(
        str(tmp_path),
        disk=SystemDisk(),
        clock=SystemClock(),
        make_worker=make,
        options=replace(OPTIONS, read_workers=3),
    )
    await storage.open()
    for ledger_id in range(4):
        add(storage, ledger_id, range(3))
    await storage.flush()
    workers["bookie-read-0"].hold()
    held = asyncio.create_task(storage.read(0, 1, 1, BYTES))
    await turn_loop()
    for ledger_id in (1, 2, 3):
        assert len(await storage.read(ledger_id, 1, 1, BYTES)) == 1
    assert not held.done()
    workers["bookie-read-0"].let_go()
    assert len(await held) == 1
    await storage.close()
