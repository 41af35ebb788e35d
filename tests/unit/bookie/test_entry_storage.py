"""The promises of the db storage that a model does not show: limits, order, faults, damage."""

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.bookie.entry_logs.damage import Damage
from magnetar.bookie.errors import (
    NoSuchEntryInStorageError,
    NoSuchLedgerInStorageError,
    StorageBusyError,
    StorageClosedError,
    StorageCorruptError,
    StorageIOError,
    WrongEngineError,
)
from magnetar.bookie.indexes.index_mark import EngineKind
from magnetar.bookie.indexes.open_index import index_path
from magnetar.bookie.storage import LedgerStorage
from magnetar.ledger.system import ThreadWorker
from tests.ledger_storage import (
    ENGINES,
    SMALL,
    STATE,
    FailingDisk,
    HeldWorker,
    Workers,
    add,
    copy_as_after_a_crash,
    default_engine,
    entry_logs,
    make_block,
    make_packet,
    make_storage,
    open_storage,
    storage_with,
    turn_loop,
)

ALL = 1 << 40
BYTES = 1 << 20


def packets(ledger_id: int, ids: range, payload: bytes = b"") -> list[bytes]:
    return [make_packet(ledger_id, entry_id, payload) for entry_id in ids]


def _index_directory(directory: Path, engine: EngineKind) -> Path:
    return Path(index_path(str(directory), engine))


@pytest.fixture(params=ENGINES, autouse=True)
def engine(request: pytest.FixtureRequest) -> Iterator[EngineKind]:
    """Every promise here is one of both engines."""
    with default_engine(request.param) as kind:
        yield kind


def test_it_is_a_ledger_storage(tmp_path: Path) -> None:
    storage: LedgerStorage = make_storage(tmp_path)
    assert storage.wants_flush is False


async def test_what_was_added_is_read_from_memory_at_once(tmp_path: Path) -> None:
    async with open_storage(tmp_path) as storage:
        add(storage, 1, range(10))
        add(storage, 1, range(10, 12))
        assert storage.read_now(1, 3, ALL, BYTES) == packets(1, range(3, 12))
        assert storage.read_now(1, 3, 4, BYTES) == packets(1, range(3, 5))
        assert storage.read_now(1, 3, ALL, 36 * 2) == packets(1, range(3, 5))
        assert storage.read_now(1, 3, ALL, 1) == packets(1, range(3, 4))
        assert storage.read_now(1, 12, ALL, BYTES) is None
        with pytest.raises(NoSuchEntryInStorageError):
            await storage.read(1, 12, ALL, BYTES)


async def test_the_blocks_bytes_are_shared_and_not_copied(tmp_path: Path) -> None:
    async with open_storage(tmp_path) as storage:
        storage.put_state(1, STATE)
        block = make_block(1, range(3))
        storage.add(1, block, range(3))
        run = storage._memory.active.find(1, 0).run
        assert run is not None
        assert run.data is block.data


async def test_an_unknown_ledger_is_denied_without_asking_the_disk(tmp_path: Path) -> None:
    async with open_storage(tmp_path) as storage:
        with pytest.raises(NoSuchLedgerInStorageError):
            storage.read_now(1, 0, ALL, BYTES)
        assert await storage.last_packet(1) is None
        assert storage.state(1) is None
        with pytest.raises(NoSuchLedgerInStorageError):
            await storage.read(-1, -1, -1, BYTES)


async def test_a_ledger_with_a_state_and_no_entries_denies_entries_only(tmp_path: Path) -> None:
    async with open_storage(tmp_path) as storage:
        storage.put_state(1, STATE)
        with pytest.raises(NoSuchEntryInStorageError):
            await storage.read(1, 0, ALL, BYTES)
        assert await storage.last_packet(1) is None


async def test_b14_a_missing_log_is_an_io_error_and_never_no_such_entry(tmp_path: Path) -> None:
    async with open_storage(tmp_path) as storage:
        add(storage, 1, range(3))
        await storage.flush()
    entry_logs(tmp_path)[0].unlink()
    async with open_storage(tmp_path) as storage:
        for read in (
            lambda: storage.read(1, 0, ALL, BYTES),
            lambda: storage.read(1, 1, 1, 1),
            lambda: storage.last_packet(1),
        ):
            with pytest.raises(StorageIOError):
                await read()
        with pytest.raises(NoSuchEntryInStorageError):
            await storage.read(1, 3, ALL, BYTES)


async def test_b14_a_truncated_log_is_an_io_error_and_never_no_such_entry(tmp_path: Path) -> None:
    async with open_storage(tmp_path / "a") as storage:
        add(storage, 1, range(4))
        await storage.flush()
    (log,) = entry_logs(tmp_path / "a")
    data = log.read_bytes()
    for size in (0, 63, 64, 100, 150, 250):
        log.write_bytes(data[:size])
        async with open_storage(copy_as_after_a_crash(tmp_path / "a", tmp_path / str(size))) as s:
            with pytest.raises(StorageIOError):
                await s.read(1, 3, 3, BYTES)
            with pytest.raises(StorageIOError):
                await s.last_packet(1)


async def test_b14_damage_that_a_read_meets_is_told_and_the_other_entries_are_served(
    tmp_path: Path,
) -> None:
    payload = b"x" * 1000
    options = replace(
        SMALL, run_bytes_max=1 << 20, run_entries_max=100, entry_log_bytes_max=1 << 20
    )
    async with open_storage(tmp_path, options) as storage:
        add(storage, 1, range(20), payload)
        await storage.flush()
        (log,) = entry_logs(tmp_path)
        data = bytearray(log.read_bytes())
        data[-600] ^= 1  # in the last whole piece: the file has no footer yet
        log.write_bytes(data)
        told: list[Damage] = []
        storage.on_damage = told.append
        for entry_id in range(20):
            if entry_id < 15:
                found = await storage.read(1, entry_id, entry_id, BYTES)
                assert found == packets(1, range(entry_id, entry_id + 1), payload)
            else:
                told.clear()
                with pytest.raises(StorageCorruptError):
                    await storage.read(1, entry_id, entry_id, BYTES)
                assert [(each.path, *each[2:5]) for each in told[-1:]] == [(str(log), 1, 15, 19)]
        told.clear()
        with pytest.raises(StorageCorruptError):
            await storage.last_packet(1)
        assert len(told) == 1


async def test_6_3_a_lost_index_is_not_an_empty_one(tmp_path: Path, engine: EngineKind) -> None:
    async with open_storage(tmp_path) as storage:
        storage.put_state(1, STATE)
        await storage.flush()
    index = _index_directory(tmp_path, engine)
    shutil.rmtree(index)
    with pytest.raises(StorageIOError):
        await make_storage(tmp_path).open()
    index.mkdir(exist_ok=True)
    with pytest.raises(StorageIOError):
        await make_storage(tmp_path).open()


async def test_6_3_logs_without_a_mark_are_a_lost_storage(
    tmp_path: Path, engine: EngineKind
) -> None:
    async with open_storage(tmp_path) as storage:
        add(storage, 1, range(3))
        await storage.flush()
    (tmp_path / "index-mark").unlink()
    with pytest.raises(StorageCorruptError):
        await make_storage(tmp_path).open()
    shutil.rmtree(index_path(str(tmp_path), engine))
    with pytest.raises(StorageCorruptError):
        await make_storage(tmp_path).open()


async def test_6_3_an_older_index_is_refused(tmp_path: Path, engine: EngineKind) -> None:
    index = _index_directory(tmp_path, engine)
    async with open_storage(tmp_path) as storage:
        add(storage, 1, range(3))
        await storage.flush()
    shutil.copytree(index, tmp_path / "older")
    async with open_storage(tmp_path) as storage:
        add(storage, 1, range(3, 6))
        await storage.flush()
    shutil.rmtree(index)
    (tmp_path / "older").rename(index)
    with pytest.raises(StorageCorruptError, match="lost records"):
        await make_storage(tmp_path).open()


async def test_an_index_of_the_other_kind_is_refused_and_the_text_says_how_to_convert(
    tmp_path: Path, engine: EngineKind
) -> None:
    async with open_storage(tmp_path) as storage:
        add(storage, 1, range(3))
        await storage.flush()
    other: EngineKind = "interleaved" if engine == "db" else "db"
    with default_engine(other), pytest.raises(WrongEngineError, match=f"convert --to {other}"):
        await make_storage(tmp_path).open()
    async with open_storage(tmp_path) as storage:
        assert await storage.read(1, 0, ALL, BYTES) == packets(1, range(3))


async def test_a_start_that_ended_before_the_mark_is_repeated(
    tmp_path: Path, engine: EngineKind
) -> None:
    (tmp_path / "entry-logs").mkdir()
    index = _index_directory(tmp_path, engine)
    index.mkdir()
    disk = FailingDisk()
    disk.calls_until_failure = 0
    with pytest.raises(StorageIOError):
        await make_storage(tmp_path, disk=disk).open()
    assert disk.writes == ["replace_file"]
    assert list(index.iterdir())
    async with open_storage(tmp_path) as storage:
        assert storage.ledger_ids() == []


async def test_a_storage_that_is_open_elsewhere_is_not_opened(tmp_path: Path) -> None:
    async with open_storage(tmp_path):
        with pytest.raises(StorageIOError):
            await make_storage(tmp_path).open()


async def test_b26_a_run_that_was_being_read_when_its_ledger_went_is_not_cached(
    tmp_path: Path,
) -> None:
    workers = Workers()
    storage = storage_with(tmp_path, workers)
    await storage.open()
    add(storage, 1, range(5))
    await storage.flush()
    workers.made["bookie-read-0"].hold()
    read = asyncio.create_task(storage.read(1, 0, 4, BYTES))
    await turn_loop()
    storage.delete_ledger(1)
    workers.made["bookie-read-0"].let_go()
    await read  # began before the deletion: either answer is fine
    await storage.flush()
    storage.put_state(1, STATE)
    assert storage.read_now(1, 0, ALL, BYTES) is None
    with pytest.raises(NoSuchEntryInStorageError):
        await storage.read(1, 0, ALL, BYTES)
    await storage.close()


async def test_reading_in_order_reads_each_run_once(tmp_path: Path) -> None:
    options = replace(SMALL, run_bytes_max=1 << 20, run_entries_max=100, read_cache_bytes=1 << 20)
    async with open_storage(tmp_path, options) as storage:
        add(storage, 1, range(1000))
        await storage.flush()
        loads = 0
        load_run = storage._open_parts().lanes._lanes[0].logs.load_run

        def counting(*arguments: object) -> object:
            nonlocal loads
            loads += 1
            return load_run(*arguments)  # type: ignore[arg-type]

        storage._open_parts().lanes._lanes[0].logs.load_run = counting  # type: ignore[assignment,method-assign]
        for entry_id in range(1000):
            assert await storage.read(1, entry_id, entry_id, BYTES) == packets(
                1, range(entry_id, entry_id + 1)
            )
        assert loads == 10


async def test_reads_that_wait_for_the_disk_are_bounded(tmp_path: Path) -> None:
    workers = Workers()
    storage = storage_with(tmp_path, workers, replace(SMALL, pending_reads_max=2))
    await storage.open()
    add(storage, 1, range(3))
    await storage.flush()
    workers.made["bookie-read-0"].hold()
    waiting = [asyncio.create_task(storage.read(1, at, at, BYTES)) for at in range(2)]
    await turn_loop()
    with pytest.raises(StorageBusyError):
        await storage.read(1, 2, 2, BYTES)
    workers.made["bookie-read-0"].let_go()
    assert await asyncio.gather(*waiting) == [packets(1, range(1)), packets(1, range(1, 2))]
    assert await storage.read(1, 2, 2, BYTES) == packets(1, range(2, 3))
    await storage.close()


async def test_a_closed_storage_knows_nothing(tmp_path: Path) -> None:
    workers = Workers()
    storage = storage_with(tmp_path, workers)
    await storage.open()
    add(storage, 1, range(3))
    workers.made["bookie-flush"].hold()
    flushing = asyncio.create_task(storage.flush())
    await turn_loop()
    waiting = asyncio.create_task(storage.flush())
    await turn_loop()
    close = asyncio.create_task(storage.close())
    await turn_loop()
    workers.made["bookie-flush"].let_go()
    await close
    await flushing
    with pytest.raises(StorageClosedError):
        await waiting
    with pytest.raises(StorageClosedError):
        storage.read_now(1, 0, ALL, BYTES)
    with pytest.raises(StorageClosedError):
        storage.add(1, make_block(1, range(1)), range(1))
    with pytest.raises(StorageClosedError):
        storage.put_state(1, STATE)
    with pytest.raises(StorageClosedError):
        storage.delete_ledger(1)
    with pytest.raises(StorageClosedError):
        await storage.read(1, 0, ALL, BYTES)
    with pytest.raises(StorageClosedError):
        await storage.flush()
    await storage.close()


async def test_an_unreadable_record_is_an_error_and_the_others_are_read(tmp_path: Path) -> None:
    async with open_storage(tmp_path) as storage:
        add(storage, 1, range(10), b"x" * 10)
        await storage.flush()
    (log,) = entry_logs(tmp_path)
    data = bytearray(log.read_bytes())
    at = data.index(make_packet(1, 3, b"x" * 10))
    data[at + 15] ^= 1
    log.write_bytes(data)
    async with open_storage(tmp_path) as storage:
        for entry_id in range(5):  # they share a piece of 4 KiB
            with pytest.raises(StorageCorruptError):
                await storage.read(1, entry_id, ALL, BYTES)
        assert await storage.read(1, 5, ALL, BYTES) == packets(1, range(5, 10), b"x" * 10)


def test_workers_are_the_ports_workers() -> None:
    assert issubclass(HeldWorker, ThreadWorker)


async def test_a_run_read_before_is_not_served_after_newer_copies_were_flushed(
    tmp_path: Path,
) -> None:
    async with open_storage(tmp_path, replace(SMALL, read_cache_bytes=1 << 16)) as storage:
        add(storage, 1, range(5))
        await storage.flush()
        assert await storage.read(1, 0, ALL, BYTES) == packets(1, range(5))
        assert storage.read_now(1, 0, ALL, BYTES) == packets(1, range(5))
        add(storage, 1, range(2, 4), b"newer")
        await storage.flush()
        expected = (
            packets(1, range(2)) + packets(1, range(2, 4), b"newer") + packets(1, range(4, 5))
        )
        for _ in range(2):  # from the log, then from the read cache
            assert await storage.read(1, 0, ALL, BYTES) == expected
        assert storage.read_now(1, 0, ALL, BYTES) == expected
        assert await storage.read(1, 4, ALL, BYTES) == packets(1, range(4, 5))


async def test_the_last_packet_is_the_highest_of_memory_and_disk(tmp_path: Path) -> None:
    async with open_storage(tmp_path) as storage:
        add(storage, 1, range(5, 10))
        await storage.flush()
        add(storage, 1, range(3), b"recovered")
        assert await storage.last_packet(1) == make_packet(1, 9)
        add(storage, 1, range(10, 12))
        assert await storage.last_packet(1) == make_packet(1, 11)
        await storage.flush()
        assert await storage.last_packet(1) == make_packet(1, 11)
