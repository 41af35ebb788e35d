"""Converting an index into one of the other kind: nothing lost, wherever it is cut."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from magnetar.bookie.errors import StorageIOError
from magnetar.bookie.indexes import convert, rocks_index
from magnetar.bookie.indexes.convert import convert_index
from magnetar.bookie.indexes.index_mark import EngineKind
from magnetar.bookie.indexes.key_value import Operation
from magnetar.bookie.indexes.open_index import open_index_to_read
from magnetar.bookie.indexes.rocks_store import RocksStore
from magnetar.bookie.storage import LedgerState
from magnetar.bookie.storage_options import StorageOptions
from magnetar.ledger.system import SystemDisk
from tests.ledger_storage import (
    ENGINES,
    SMALL,
    FailingDisk,
    add,
    copy_as_after_a_crash,
    default_engine,
    make_packet,
    open_storage,
)

PAGES = StorageOptions(index_page_bytes=64, index_cache_bytes=6000, index_open_files_max=2)
LEDGERS = {1: range(40), 2: range(0, 30, 3), 5: range(0), 300: range(7, 9), 70_000: range(0)}
FENCED = LedgerState(b"key", True, 12, bytes(36))


def other(engine: EngineKind) -> EngineKind:
    return "interleaved" if engine == "db" else "db"


async def fill(directory: Path) -> None:
    async with open_storage(directory, SMALL) as storage:
        for ledger_id, ids in LEDGERS.items():
            storage.put_state(ledger_id, FENCED)
            for part in (ids[:5], ids[5:]):
                if part:
                    add(storage, ledger_id, part, b"x" * 20)
                    await storage.flush()
        add(storage, 1, range(10, 13), b"newer")
        await storage.flush()


async def check(directory: Path, engine: EngineKind) -> None:
    with default_engine(engine):
        async with open_storage(directory, SMALL) as storage:
            assert storage.ledger_ids() == list(LEDGERS)
            for ledger_id, ids in LEDGERS.items():
                assert storage.state(ledger_id) == FENCED
                page = await storage.list_entries(ledger_id, 0, 1000)
                assert list(page.entry_ids()) == list(ids)
                for entry_id in ids:
                    payload = b"x" * 20
                    if ledger_id == 1 and 10 <= entry_id < 13:
                        payload = b"newer"
                    expected = [make_packet(ledger_id, entry_id, payload)]
                    assert await storage.read(ledger_id, entry_id, entry_id, 1 << 20) == expected


@pytest.mark.parametrize("engine", ENGINES)
async def test_an_index_is_converted_and_back(tmp_path: Path, engine: EngineKind) -> None:
    with default_engine(engine):
        await fill(tmp_path)
    disk = SystemDisk()
    done = convert_index(str(tmp_path), other(engine), disk=disk, options=PAGES)
    assert (done.source, done.target, done.ledgers) == (engine, other(engine), len(LEDGERS))
    assert done.records > 0
    await check(tmp_path, other(engine))
    again = convert_index(str(tmp_path), other(engine), disk=disk, options=PAGES)
    assert again.records == 0
    convert_index(str(tmp_path), engine, disk=disk, options=PAGES)
    await check(tmp_path, engine)


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_conversion_that_is_cut_anywhere_goes_on(
    tmp_path: Path, engine: EngineKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every cut the storage has one index that says everything, and can be used with it."""
    monkeypatch.setattr("magnetar.bookie.indexes.convert._RECORDS_PER_COMMIT", 3)
    with default_engine(engine):
        await fill(tmp_path / "full")
    steps = 0
    while True:
        copy = copy_as_after_a_crash(tmp_path / "full", tmp_path / str(steps))
        disk = FailingDisk()
        disk.calls_until_failure = steps
        try:
            convert_index(str(copy), other(engine), disk=disk, options=PAGES)
        except (StorageIOError, OSError):
            with_records = open_index_to_read(str(copy), disk=SystemDisk())
            assert len(with_records.states()) == len(LEDGERS)
            with_records.close()
        if disk.calls_until_failure is not None:
            break  # it came to its end before
        convert_index(str(copy), other(engine), disk=SystemDisk(), options=PAGES)
        await check(copy, other(engine))
        steps += 11
    assert steps > 10


@pytest.mark.parametrize("records_per_commit", [3, 10_000])
async def test_a_conversion_that_is_cut_between_two_batches_of_a_commit_goes_on(
    tmp_path: Path, records_per_commit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledgers without entries come last in a commit: what is missing is not only behind the
    last ledger that was carried over."""
    monkeypatch.setattr(convert, "_RECORDS_PER_COMMIT", records_per_commit)
    monkeypatch.setattr(rocks_index, "_BATCH_OPERATIONS", 1)
    with default_engine("interleaved"):
        await fill(tmp_path / "full")
    write = RocksStore.write
    batches, is_cut = 0, True
    while is_cut:
        copy = copy_as_after_a_crash(tmp_path / "full", tmp_path / str(batches))
        with monkeypatch.context() as patch:
            left = batches

            def write_some(store: RocksStore, batch: Sequence[Operation]) -> None:
                nonlocal left
                if left == 0:
                    raise StorageIOError("killed")
                left -= 1
                write(store, batch)

            patch.setattr(RocksStore, "write", write_some)
            try:
                convert_index(str(copy), "db", disk=SystemDisk(), options=PAGES)
                is_cut = False
            except StorageIOError:
                pass
        convert_index(str(copy), "db", disk=SystemDisk(), options=PAGES)
        await check(copy, "db")
        batches += 1
    assert batches > len(LEDGERS)


async def test_a_conversion_begins_anew_when_the_old_index_has_changed(tmp_path: Path) -> None:
    await fill(tmp_path)
    disk = FailingDisk()
    disk.calls_until_failure = 40
    with pytest.raises(StorageIOError):
        convert_index(str(tmp_path), "interleaved", disk=disk, options=PAGES)
    async with open_storage(tmp_path, SMALL) as storage:
        storage.delete_ledger(300)
        storage.put_state(1, LedgerState(b"key", True, 99))
        await storage.flush()
    convert_index(str(tmp_path), "interleaved", disk=SystemDisk(), options=PAGES)
    with default_engine("interleaved"):
        async with open_storage(tmp_path, SMALL) as storage:
            assert storage.ledger_ids() == [1, 2, 5, 70_000]
            assert storage.state(1) == LedgerState(b"key", True, 99)


async def test_an_index_that_is_open_is_not_converted(tmp_path: Path) -> None:
    await fill(tmp_path)
    async with open_storage(tmp_path, SMALL):
        with pytest.raises(StorageIOError):
            convert_index(str(tmp_path), "interleaved", disk=SystemDisk())
    await check(tmp_path, "db")
