"""Entry logs of a storage that are removed, and when not; on real files."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.bookie.engine.entry_storage import EntryStorage
from magnetar.bookie.entry_logs.damage import Damage
from magnetar.bookie.entry_logs.entry_log import LOG_HEADER_BYTES, StoredRun
from magnetar.bookie.entry_logs.log_names import log_name
from magnetar.bookie.errors import StorageIOError
from magnetar.bookie.gc.log_collector import LogCollector
from magnetar.bookie.gc.log_survey import LogSurvey, runs_of
from magnetar.bookie.gc.schedule import CompactionKind
from magnetar.bookie.indexes.index_mark import EngineKind
from magnetar.bookie.indexes.pages.double_write import DoubleWrite
from magnetar.bookie.indexes.rocks_store import RocksStore
from magnetar.bookie.metrics import GcMetrics
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.storage_options import StorageOptions
from magnetar.ledger.system import SystemClock, SystemDisk, ThreadWorker
from tests.ledger_storage import (
    ENGINES,
    STATE,
    copy_as_after_a_crash,
    make_block,
    make_packet,
)

pytestmark = pytest.mark.parametrize("engine", ENGINES)

MINOR, MAJOR = CompactionKind.MINOR, CompactionKind.MAJOR
LOG_BYTES = 20_000
PAYLOAD = b"p" * 500
ENTRIES = 10
SIZES = StorageOptions(
    write_buffer_bytes=1 << 20,
    read_cache_bytes=0,
    entry_log_bytes_max=LOG_BYTES,
    run_bytes_max=3000,
)


class SmallDisk(SystemDisk):
    """Says how large it is, and how much of it is free."""

    free, total = 1 << 30, 1 << 30

    def free_bytes(self, path: str) -> int:
        return self.free

    def total_bytes(self, path: str) -> int:
        return self.total


class Store:
    """A storage and the collector of its logs."""

    def __init__(
        self, storage: EntryStorage, directory: Path, usage_bytes_max: int, disk: SystemDisk
    ) -> None:
        self.storage = storage
        self.logs = directory / "entry-logs"
        self.metrics = GcMetrics()
        self.has_room = True
        self.worker = ThreadWorker("gc")
        self.collector = LogCollector(
            storage,
            self.worker,
            disk=disk,
            clock=SystemClock(),
            settings=BookieSettings(
                data_directory=directory,
                gc_minor_live_share=0.2,
                gc_major_live_share=0.8,
                gc_compaction_bytes_per_s=0,
                gc_usage_bytes_max=usage_bytes_max,
                disk_full_share=0.5,
                disk_warn_share=0.5,
            ),
            metrics=self.metrics,
            may_compact=lambda kind: self.has_room,
        )

    async def flush(self, ledger_ids: list[int], first: int = 0) -> None:
        for ledger_id in ledger_ids:
            if self.storage.state(ledger_id) is None:
                self.storage.put_state(ledger_id, STATE)
            ids = range(first, first + ENTRIES)
            self.storage.add(ledger_id, make_block(ledger_id, ids, PAYLOAD), ids)
        await self.storage.flush()

    async def delete(self, *ledger_ids: int) -> None:
        for ledger_id in ledger_ids:
            self.storage.delete_ledger(ledger_id)

    async def round(self, kind: CompactionKind | None = None) -> None:
        await self.collector.look()
        await self.storage.flush()
        await self.collector.remove_unused(is_flushed=True)
        if kind is not None:
            await self.collector.compact(kind)

    async def finished(self) -> list[int]:
        return await self.storage.maintenance.finished_logs()

    async def check(self, ledger_ids: list[int], last: int = ENTRIES - 1) -> None:
        for ledger_id in ledger_ids:
            packets = await self.storage.read(ledger_id, 0, last, 1 << 20)
            assert packets == [make_packet(ledger_id, each, PAYLOAD) for each in range(last + 1)]

    def path(self, log_id: int) -> Path:
        return self.logs / log_name(log_id)


@asynccontextmanager
async def opened(
    directory: Path,
    engine: EngineKind,
    usage_bytes_max: int = 1 << 20,
    disk: SystemDisk | None = None,
) -> AsyncIterator[Store]:
    disk = disk or SmallDisk()
    storage = EntryStorage(
        str(directory),
        disk=disk,
        clock=SystemClock(),
        make_worker=ThreadWorker,
        options=replace(SIZES, engine=engine),
    )
    await storage.open()
    store = Store(storage, directory, usage_bytes_max, disk)
    try:
        yield store
    finally:
        await storage.close()
        store.worker.close()


async def test_a_log_goes_when_all_of_its_ledgers_are_dead(
    tmp_path: Path, engine: EngineKind
) -> None:
    async with opened(tmp_path, engine) as store:
        await store.flush(list(range(12)))
        finished = await store.finished()
        assert len(finished) >= 3
        await store.delete(*range(6))
        await store.round()
        left = await store.finished()
        assert 0 < len(left) < len(finished)
        assert store.metrics.removed_logs == len(finished) - len(left)
        await store.check(list(range(6, 12)))


async def test_a_log_with_one_live_ledger_stays(tmp_path: Path, engine: EngineKind) -> None:
    async with opened(tmp_path, engine) as store:
        await store.flush(list(range(12)))
        finished = await store.finished()
        await store.delete(*range(1, 12))
        await store.round()
        assert (await store.finished()) == finished[:1]
        await store.check([0])


async def test_the_deletion_is_durable_before_the_log_goes(
    tmp_path: Path, engine: EngineKind
) -> None:
    """Nothing is removed for a deletion that only memory knows: a crash would undo it."""
    async with opened(tmp_path, engine) as store:
        await store.flush(list(range(12)))
        finished = await store.finished()
        await store.collector.look()
        await store.delete(*range(12))  # after the look: not in this round
        await store.collector.remove_unused(is_flushed=True)
        assert await store.finished() == finished
        await store.round()
        assert await store.finished() == []


async def test_without_a_flush_logs_go_whose_ledgers_were_durably_deleted_before(
    tmp_path: Path, engine: EngineKind
) -> None:
    """On a full disk no flush succeeds; a log whose deletion is in memory alone stays."""
    async with opened(tmp_path / "live", engine) as store:
        await store.flush(list(range(12)))
        finished = await store.finished()
        await store.delete(*range(6))
        await store.storage.flush()
        await store.delete(*range(6, 12))
        await store.collector.look()
        await store.collector.remove_unused(is_flushed=False)
        left = await store.finished()
        assert 0 < len(left) < len(finished)
        copy = copy_as_after_a_crash(tmp_path / "live", tmp_path / "copy")
        await store.round()
        assert await store.finished() == []
    async with opened(copy, engine) as store:
        await store.check(list(range(6, 12)))


async def test_without_a_flush_a_deletion_that_a_flush_has_begun_with_is_not_durable(
    tmp_path: Path, engine: EngineKind
) -> None:
    async with opened(tmp_path, engine) as store:
        await store.flush(list(range(12)))
        await store.delete(*range(12))
        flush = asyncio.ensure_future(store.storage.flush())
        await asyncio.sleep(0)
        assert sorted(store.storage.deletions_in_memory()) == list(range(12))
        await flush
        assert store.storage.deletions_in_memory() == []
        await store.collector.look()
        await store.collector.remove_unused(is_flushed=False)
        assert await store.finished() == []


async def test_on_a_full_disk_deletions_become_durable_and_make_room(
    tmp_path: Path, engine: EngineKind
) -> None:
    """What waits in memory for room must not keep back the deletions that would make it."""
    disk = SmallDisk()
    async with opened(tmp_path / "storage", engine, disk=disk) as store:
        await store.flush(list(range(12)))
        await store.delete(*range(12))
        disk.free = 1000
        with pytest.raises(StorageIOError):
            await store.flush([20])
        await store.delete(20)
        await store.collector.look()
        with pytest.raises(StorageIOError):
            await store.flush([21])
        await store.collector.remove_unused(is_flushed=False)
        assert await store.finished() == []
        await store.check([21])
        copy = copy_as_after_a_crash(tmp_path / "storage", tmp_path / "copy")
        disk.free = disk.total
        await store.storage.flush()
        await store.check([21])
    async with opened(copy, engine) as after:
        assert after.storage.ledger_ids() == []


async def test_a_ledger_that_came_back_keeps_its_new_log_and_loses_the_old_ones(
    tmp_path: Path, engine: EngineKind
) -> None:
    async with opened(tmp_path, engine) as store:
        await store.flush([1, 2, 3, 4, 5])
        await store.delete(1)
        await store.storage.flush()
        await store.flush([1, 6, 7, 8, 9])
        await store.round(MAJOR)
        await store.check([1, 2, 3, 4, 5, 6, 7, 8, 9])


async def test_minor_runs_leave_what_major_runs_take(tmp_path: Path, engine: EngineKind) -> None:
    async with opened(tmp_path, engine) as store:
        for first in range(0, 5 * ENTRIES, ENTRIES):
            await store.flush([1, 2, 3], first)
        await store.delete(1)
        await store.round(MINOR)
        assert store.metrics.compacted_logs == 0
        await store.round(MAJOR)
        assert store.metrics.compacted_logs > 0
        await store.check([2, 3], 5 * ENTRIES - 1)


async def test_a_full_disk_suspends_compaction_and_not_removal(
    tmp_path: Path, engine: EngineKind
) -> None:
    async with opened(tmp_path, engine) as store:
        await store.flush(list(range(12)))
        await store.delete(*range(1, 12))
        store.has_room = False
        await store.collector.look()
        await store.storage.flush()
        await store.collector.remove_unused(is_flushed=True)
        assert store.metrics.removed_logs > 0
        assert not await store.collector.compact(MAJOR)
        assert store.metrics.compacted_logs == 0


async def test_a_compaction_copies_no_more_than_there_is_room_for(
    tmp_path: Path, engine: EngineKind
) -> None:
    """Half of the disk is to stay free here: copies that go beyond would make the bookie read-only,
    and on a small disk leave nothing to the journal."""
    disk = SmallDisk()
    async with opened(tmp_path, engine, disk=disk) as store:
        await store.flush(list(range(12)))
        alive = list(range(0, 12, 2))
        await store.delete(*range(1, 12, 2))
        await store.round()
        live_bytes = [log.live_bytes for log in store.collector.uses]
        before = await store.finished()
        disk.total = 2 * disk.free
        assert not await store.collector.compact(MAJOR)
        disk.total = 2 * (disk.free - min(live_bytes) + 1)
        assert not await store.collector.compact(MAJOR)
        assert store.metrics.copied_bytes == 0
        assert await store.finished() == before
        disk.total = 2 * (disk.free - max(live_bytes))
        assert await store.collector.compact(MAJOR), "one after the other"
        assert store.metrics.compacted_logs == len(before)
        await store.check(alive)


async def test_a_run_ends_when_its_time_is_over(tmp_path: Path, engine: EngineKind) -> None:
    async with opened(tmp_path, engine) as store:
        for first in range(0, 5 * ENTRIES, ENTRIES):
            await store.flush([1, 2, 3], first)
        await store.delete(1)
        await store.round()
        assert await store.collector.compact(MAJOR, until_s=SystemClock().monotonic_s() - 1)
        assert store.metrics.compacted_logs == 0


async def test_what_does_not_fit_into_memory_is_read_again(
    tmp_path: Path, engine: EngineKind
) -> None:
    async with opened(tmp_path, engine, usage_bytes_max=0) as store:
        await store.flush(list(range(12)))
        await store.round()
        await store.delete(*range(6))
        await store.round()
        assert store.metrics.removed_logs > 0
        await store.check(list(range(6, 12)))


async def test_the_live_share_is_told(tmp_path: Path, engine: EngineKind) -> None:
    async with opened(tmp_path, engine) as store:
        await store.flush([1, 2, 3, 4, 5, 6])
        await store.delete(1)
        await store.round()
        first = store.collector.uses[0]
        assert 0.5 < first.live_share < 0.8
        assert first.file_bytes == store.path(first.log_id).stat().st_size


# Logs without a sound footer: rule 4.1, defect B15


async def cut_footers(store: Store) -> None:
    """As if the process had been killed: no log has a footer."""
    for log_id in await store.finished():
        usage_end = max(
            run.location.offset + run.location.size_bytes for run in runs(store, log_id)
        )
        with store.path(log_id).open("r+b") as file:
            file.truncate(usage_end)


def runs(store: Store, log_id: int) -> list[StoredRun]:
    file = SystemDisk().open(str(store.path(log_id)))
    try:
        return list(runs_of(file, log_id))
    finally:
        file.close()


async def test_a_log_without_footer_is_scanned(tmp_path: Path, engine: EngineKind) -> None:
    async with opened(tmp_path, engine) as store:
        await store.flush(list(range(12)))
        await cut_footers(store)
        finished = await store.finished()
        await store.delete(*range(6))
        await store.round()
        assert 0 < len(await store.finished()) < len(finished)
        await store.check(list(range(6, 12)))


@pytest.mark.parametrize("at", ["header", "first run", "later run", "footer"])
async def test_b15_damage_never_makes_a_log_look_unused(
    tmp_path: Path, engine: EngineKind, at: str
) -> None:
    """What the scan does not see may be what the index points to."""
    async with opened(tmp_path, engine) as store:
        await store.flush([1, 2, 3, 4, 5, 6])
        finished = await store.finished()
        found = runs(store, finished[0])
        offset = {
            "header": 3,
            "first run": LOG_HEADER_BYTES + 20,
            "later run": found[2].location.offset + 20,
            "footer": found[-1].location.offset + found[-1].location.size_bytes + 3,
        }[at]
        alive = found[-1].ledger_id
        if at != "footer":
            await cut_footers(store)
        with store.path(finished[0]).open("r+b") as file:
            file.seek(offset)
            file.write(b"\xff\xff\xff\xff")
        await store.delete(*[each for each in range(1, 7) if each != alive])
        await store.round()
        assert store.path(finished[0]).exists()
        await store.check([alive])
        await store.round(MAJOR)
        await store.check([alive])


async def test_b15_garbage_behind_the_runs_becomes_no_ledger(
    tmp_path: Path, engine: EngineKind
) -> None:
    async with opened(tmp_path, engine) as store:
        await store.flush([1, 2, 3, 4, 5, 6])
        (log_id, *_) = await store.finished()
        before = runs(store, log_id)
        await cut_footers(store)
        with store.path(log_id).open("ab") as file:
            file.write(before[0].location.offset.to_bytes(8, "big") * 999)
        usage = LogSurvey(str(store.logs), SystemDisk()).usage(log_id)
        assert not usage.is_certain
        assert set(usage.ledger_ids) == {run.ledger_id for run in before}


async def test_a_torn_log_goes_when_the_index_does_not_point_there(
    tmp_path: Path, engine: EngineKind
) -> None:
    async with opened(tmp_path, engine) as store:
        await store.flush(list(range(12)))
        finished = await store.finished()
        await cut_footers(store)
        with store.path(finished[0]).open("ab") as file:
            file.write(b"\0" * 100)
        await store.delete(0)
        await store.round()
        assert store.path(finished[0]).exists()
        await store.round(MAJOR)
        assert not store.path(finished[0]).exists()
        await store.check(list(range(1, 12)))


async def test_a_torn_log_stays_while_only_memory_knows_that_the_index_does_not_point_there(
    tmp_path: Path, engine: EngineKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash would take away what a failed flush has put into the index."""

    def failing(*_: object) -> None:
        raise StorageIOError("cannot be written")

    async with opened(tmp_path, engine) as store:
        await store.flush(list(range(12)))
        torn = (await store.finished())[0]
        await cut_footers(store)
        with store.path(torn).open("ab") as file:
            file.write(b"\0" * 100)
        await store.delete(0)
        await store.round()
        with monkeypatch.context() as patch:
            patch.setattr(RocksStore, "sync", failing)
            patch.setattr(DoubleWrite, "write", failing)
            with pytest.raises(StorageIOError):
                await store.flush(list(range(1, 12)))
            with pytest.raises(StorageIOError):
                await store.collector.compact(MAJOR)
            assert store.path(torn).exists()
        await store.round(MAJOR)
        assert not store.path(torn).exists()
        await store.check(list(range(1, 12)))


async def test_a_damaged_log_is_tried_again_when_it_was_healed(
    tmp_path: Path, engine: EngineKind
) -> None:
    damages: list[Damage] = []
    async with opened(tmp_path, engine) as store:
        store.storage.on_damage = damages.append
        await store.flush([1, 2, 3, 4, 5, 6])
        (log_id, *_) = await store.finished()
        run = runs(store, log_id)[0]
        with store.path(log_id).open("r+b") as file:
            file.seek(run.location.offset + run.location.tables_bytes + 700)
            file.write(b"\xff\xff")
        await store.delete(2, 3)
        await store.round(MAJOR)
        assert store.collector.incomplete == {log_id}
        assert damages[0].ledger_id == run.ledger_id
        ids = range(damages[0].first, damages[0].last + 1)
        store.storage.add(run.ledger_id, make_block(run.ledger_id, ids, PAYLOAD), ids)
        await store.round(MAJOR)
        assert not store.path(log_id).exists()
        assert store.collector.incomplete == set()
        await store.check([1, 4, 5, 6])


async def test_b08_removal_beside_flushes_that_fill_several_logs(
    tmp_path: Path, engine: EngineKind
) -> None:
    async with opened(tmp_path, engine) as store:
        await store.flush(list(range(12)))
        await store.delete(*range(6))
        for at in range(20, 40, 2):
            filling = asyncio.ensure_future(store.flush([at, at + 1, 6, 7], ENTRIES))
            await store.round(MAJOR)
            await filling
        await store.check(list(range(8, 12)))
        await store.check([6, 7], 2 * ENTRIES - 1)


async def test_a_missing_directory_removes_nothing(tmp_path: Path, engine: EngineKind) -> None:
    async with opened(tmp_path, engine) as store:
        await store.flush(list(range(12)))
        store.logs.rename(tmp_path / "elsewhere")
        with pytest.raises(StorageIOError):
            await store.collector.look()
        (tmp_path / "elsewhere").rename(store.logs)
        await store.round()
        await store.check(list(range(12)))
