"""What compaction and garbage collection may do to the logs of an open storage."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from magnetar.bookie.engine.entry_storage import EntryStorage
from magnetar.bookie.engine.maintenance import LogMaintenance
from magnetar.bookie.entry_logs.entry_log import (
    RunLocation,
    StoredRun,
    encode_log_header,
    rebind_run_head,
)
from magnetar.bookie.entry_logs.log_names import LogIds, log_name, used_ids
from magnetar.bookie.entry_logs.log_scan import scan_log
from magnetar.bookie.errors import (
    NoSuchLedgerInStorageError,
    StorageClosedError,
    StorageIOError,
)
from magnetar.bookie.indexes.location_index import IndexChanges, IndexRecord, RunMove
from magnetar.ledger.ports import Disk
from magnetar.ledger.system import SystemClock, SystemDisk
from tests.ledger_storage import (
    SMALL,
    FailingDisk,
    HeldWorker,
    add,
    copy_as_after_a_crash,
    entry_logs,
    make_packet,
    open_storage,
    turn_loop,
)

ALL = 1 << 40
BYTES = 1 << 20
ONE_LOG = replace(SMALL, entry_log_bytes_max=1 << 20)


class Workers:
    def __init__(self) -> None:
        self.made: dict[str, HeldWorker] = {}

    def __call__(self, name: str) -> HeldWorker:
        self.made[name] = HeldWorker(name)
        return self.made[name]


@asynccontextmanager
async def open_held(
    directory: Path, workers: Workers, disk: Disk | None = None
) -> AsyncIterator[EntryStorage]:
    storage = EntryStorage(
        str(directory),
        disk=disk or SystemDisk(),
        clock=SystemClock(),
        make_worker=workers,
        options=ONE_LOG,
    )
    await storage.open()
    yield storage
    await storage.close()


def packets(ids: range, payload: bytes = b"") -> list[bytes]:
    return [make_packet(1, entry_id, payload) for entry_id in ids]


def runs_of(maintenance: LogMaintenance, log_id: int) -> list[StoredRun]:
    file = SystemDisk().open(f"{maintenance.directory}/{log_name(log_id)}")
    runs = scan_log(file, log_id).runs
    file.close()
    return runs


def copy_log(maintenance: LogMaintenance, source_id: int) -> list[RunMove]:
    """Copy all runs of a log into a new one, backwards, so that no place stays the same."""
    source = Path(maintenance.directory, log_name(source_id)).read_bytes()
    target_id = maintenance.new_log_id()
    copied = encode_log_header(target_id, 0, source_id)
    moves: list[RunMove] = []
    for run in reversed(runs_of(maintenance, source_id)):
        at = run.location
        data = source[at.offset : at.offset + at.size_bytes]
        head, body = data[: at.tables_bytes], data[at.tables_bytes :]
        target = RunLocation(target_id, len(copied), *at[2:])
        copied += rebind_run_head(head, log_id=target_id, offset=len(copied)) + body
        moves.append(RunMove(*run, target))
    Path(maintenance.directory, log_name(target_id)).write_bytes(copied)
    return moves


def remove_file(maintenance: LogMaintenance, log_id: int) -> None:
    Path(maintenance.directory, log_name(log_id)).unlink()


def test_log_ids_are_unique_among_threads() -> None:
    ids = LogIds(7)
    given: list[int] = []
    threads = [
        Thread(target=lambda: given.extend([ids.new() for _ in range(2000)])) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(given) == list(range(8, 8008))
    assert ids.last == 8007


def test_log_ids_do_not_begin_again() -> None:
    ids = LogIds((1 << 32) - 2)
    assert ids.new() == (1 << 32) - 1
    with pytest.raises(StorageIOError):
        ids.new()


def test_an_id_counts_as_used_whatever_the_state_of_its_file() -> None:
    names = [
        "00000003.log",
        "00000007.log.compacting",
        "00000009.log.compacted",
        "x",
        "+0000001.log",
    ]
    assert used_ids(names) == [3, 7, 9]


async def test_flushes_and_compactions_never_get_the_same_log_id(tmp_path: Path) -> None:
    async with open_storage(tmp_path) as storage:
        taken: list[int] = []
        for at in range(3):
            taken.append(storage.maintenance.new_log_id())
            add(storage, 1, range(100 * at, 100 * at + 100))
            await storage.flush()
        written = [int(path.name[:8], 16) for path in entry_logs(tmp_path)]
        assert len(written) > 3
        assert not set(taken) & set(written)


async def test_a_log_is_finished_when_nobody_writes_it_any_more(tmp_path: Path) -> None:
    async with open_storage(tmp_path, ONE_LOG) as storage:
        assert await storage.maintenance.finished_logs() == []
        add(storage, 1, range(10))
        await storage.flush()
        assert await storage.maintenance.finished_logs() == []
    async with open_storage(tmp_path, ONE_LOG) as storage:
        assert await storage.maintenance.finished_logs() == [1]
        (tmp_path / "entry-logs" / "00000005.log.compacting").write_bytes(b"")
        assert await storage.maintenance.finished_logs() == [1]
        add(storage, 1, range(10, 20))
        await storage.flush()
        assert await storage.maintenance.finished_logs() == [1]


async def test_a_run_is_live_while_the_index_points_to_it(tmp_path: Path) -> None:
    async with open_storage(tmp_path, ONE_LOG) as storage:
        maintenance = storage.maintenance
        add(storage, 1, range(5))
        add(storage, 2, range(5))
        await storage.flush()
        first, second = runs_of(maintenance, 1)
        assert maintenance.is_live(*first)
        assert maintenance.is_live(*second)
        assert not maintenance.is_live(*first[:3], second.location)
        add(storage, 1, range(1, 5), b"newer")
        storage.delete_ledger(2)
        await storage.flush()
        assert maintenance.is_live(*first)  # for entry 0
        assert not maintenance.is_live(*second)
        add(storage, 1, range(1), b"newer")
        await storage.flush()
        assert not maintenance.is_live(*first)


async def test_moved_runs_are_read_from_their_copies_after_a_restart_too(tmp_path: Path) -> None:
    async with open_storage(tmp_path / "a", ONE_LOG) as storage:
        add(storage, 1, range(20))
        await storage.flush()
    async with open_storage(tmp_path / "a", ONE_LOG) as storage:
        assert await storage.read(1, 3, 3, BYTES) == packets(range(3, 4))
        moves = copy_log(storage.maintenance, 1)
        await storage.maintenance.move_runs(moves)
        await storage.maintenance.remove_log(1)
        assert [path.name for path in entry_logs(tmp_path / "a")] == [log_name(2)]
        for entry_id in range(20):
            found = await storage.read(1, entry_id, entry_id, BYTES)
            assert found == packets(range(entry_id, entry_id + 1))
        crashed = copy_as_after_a_crash(tmp_path / "a", tmp_path / "b")
    async with open_storage(crashed, ONE_LOG) as storage:
        assert await storage.read(1, 0, ALL, BYTES) == packets(range(20))
        assert await storage.maintenance.finished_logs() == [2]
        assert storage.maintenance.new_log_id() == 3


async def test_10_4_what_is_newer_is_not_moved_and_what_is_deleted_stays_so(
    tmp_path: Path,
) -> None:
    async with open_storage(tmp_path, ONE_LOG) as storage:
        add(storage, 1, range(20))
        add(storage, 2, range(20))
        await storage.flush()
        moves = copy_log(storage.maintenance, 1)
        add(storage, 1, range(7, 12), b"newer")
        storage.delete_ledger(2)
        await storage.flush()
        await storage.maintenance.move_runs(moves)
        expected = packets(range(7)) + packets(range(7, 12), b"newer") + packets(range(12, 20))
        for entry_id in range(20):
            found = await storage.read(1, entry_id, entry_id, BYTES)
            assert found == expected[entry_id : entry_id + 1]
        with pytest.raises(NoSuchLedgerInStorageError):
            await storage.read(2, 0, ALL, BYTES)


async def test_b08_runs_are_not_moved_beside_a_flush(tmp_path: Path) -> None:
    """A flush that has written newer copies, and has yet to index them, wins over the compaction
    that began meanwhile."""
    workers = Workers()
    async with open_held(tmp_path, workers) as storage:
        add(storage, 1, range(10))
        await storage.flush()
        moves = copy_log(storage.maintenance, 1)
        add(storage, 1, range(5), b"newer")
        workers.made["bookie-flush"].hold()
        flush = asyncio.create_task(storage.flush())
        await turn_loop()
        move = asyncio.create_task(storage.maintenance.move_runs(moves))
        finished = asyncio.create_task(storage.maintenance.finished_logs())
        await turn_loop()
        assert not move.done()
        workers.made["bookie-flush"].let_go()
        await asyncio.gather(flush, move, finished)
        expected = packets(range(5), b"newer") + packets(range(5, 10))
        assert await storage.read(1, 0, ALL, BYTES) == expected


async def test_b08_a_log_is_listed_as_finished_only_between_flushes(tmp_path: Path) -> None:
    workers = Workers()
    async with open_held(tmp_path, workers) as storage:
        add(storage, 1, range(10))
        workers.made["bookie-flush"].hold()
        flush = asyncio.create_task(storage.flush())
        await turn_loop()
        finished = asyncio.create_task(storage.maintenance.finished_logs())
        await turn_loop()
        assert not finished.done()
        workers.made["bookie-flush"].let_go()
        await flush
        assert await finished == []


async def test_7_2_a_read_that_finds_its_log_gone_looks_into_the_index_again(
    tmp_path: Path,
) -> None:
    workers = Workers()
    async with open_held(tmp_path, workers) as storage:
        add(storage, 1, range(10))
        await storage.flush()
        maintenance = storage.maintenance
        moves = copy_log(maintenance, 1)
        index = maintenance.index
        find = index.find

        def find_and_compact(ledger_id: int, entry_id: int) -> IndexRecord | None:
            """The log goes between the look into the index and the read."""
            record = find(ledger_id, entry_id)
            if moves:
                index.commit(IndexChanges(last_log_id=2, moves=list(moves)))
                moves.clear()
                remove_file(maintenance, 1)
            return record

        index.find = find_and_compact  # type: ignore[method-assign]
        assert await storage.read(1, 4, 6, BYTES) == packets(range(4, 7))
        remove_file(maintenance, 2)
        storage._memory.read_cache.drop(1)
        storage._open_parts().lanes._lanes[0].logs.close()
        with pytest.raises(StorageIOError):
            await storage.read(1, 9, 9, BYTES)


async def test_a_log_that_could_not_be_removed_is_removed_the_next_time(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with open_held(tmp_path, Workers(), disk) as storage:
        add(storage, 1, range(10))
        await storage.flush()
        maintenance = storage.maintenance
        await maintenance.move_runs(copy_log(maintenance, 1))
    async with open_held(tmp_path, Workers(), disk) as storage:
        maintenance = storage.maintenance
        disk.calls_until_failure = 0
        with pytest.raises(StorageIOError):
            await maintenance.remove_log(1)
        await maintenance.remove_log(1)
        await maintenance.remove_log(1)
        assert await maintenance.finished_logs() == [2]
        assert await storage.read(1, 0, ALL, BYTES) == packets(range(10))


async def test_a_closed_storage_is_not_maintained(tmp_path: Path) -> None:
    async with open_storage(tmp_path) as storage:
        maintenance = storage.maintenance
    for call in (maintenance.finished_logs(), maintenance.move_runs([]), maintenance.remove_log(1)):
        with pytest.raises(StorageClosedError):
            await call
    with pytest.raises(StorageClosedError):
        _ = storage.maintenance
