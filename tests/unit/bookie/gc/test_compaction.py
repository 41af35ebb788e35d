"""Compaction on real files: nothing is lost, whatever happens beside it."""

import asyncio
import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from magnetar.bookie.entry_logs.log_names import log_name
from magnetar.bookie.entry_logs.log_scan import read_log_header
from magnetar.bookie.errors import StorageError, StorageIOError
from magnetar.bookie.gc.log_survey import LogSurvey
from magnetar.bookie.indexes.index_mark import EngineKind
from magnetar.bookie.indexes.location_index import IndexRecord
from magnetar.bookie.indexes.rocks_store import RocksStore
from magnetar.ledger.ports import File
from magnetar.ledger.system import SystemClock, SystemDisk
from tests.ledger_storage import ENGINES, copy_as_after_a_crash
from tests.unit.bookie.gc.compacted_store import ENTRIES, Store

pytestmark = pytest.mark.parametrize("engine", ENGINES)


async def test_what_lives_is_read_as_before_and_the_rest_is_given_back(
    tmp_path: Path, engine: EngineKind
) -> None:
    async with Store(tmp_path, engine) as store:
        await store.fill()
        finished = await store.finished()
        before = store.bytes_of_logs()
        await store.compact_all()
        await store.check()
        assert not set(finished) & set(await store.finished())
        assert store.bytes_of_logs() < 0.75 * before
        assert {path.suffix for path in store.logs.iterdir()} == {".log"}
        await store.close()
        store.storage = store.make_storage(tmp_path)
        await store.open()
        await store.check()


async def test_a_copy_holds_nothing_but_what_lives(tmp_path: Path, engine: EngineKind) -> None:
    async with Store(tmp_path, engine) as store:
        await store.fill()
        await store.compact_all()
        before = store.bytes_of_logs()
        await store.compact_all()
        assert abs(store.bytes_of_logs() - before) < 500
        await store.check()


async def test_copying_is_slowed_down_however_little_there_is_to_copy(
    tmp_path: Path, engine: EngineKind
) -> None:
    async with Store(tmp_path, engine, copied_bytes_per_s=500_000) as store:
        await store.fill()
        clock = SystemClock()
        begun_s = clock.monotonic_s()
        copied = sum(each.written_bytes for each in await store.compact_all())
        assert copied > 50_000
        assert clock.monotonic_s() - begun_s >= 0.9 * copied / 500_000


async def test_a_copy_has_the_highest_rank_of_its_sources(
    tmp_path: Path, engine: EngineKind
) -> None:
    """A reader that has the logs alone takes the copy of the highest rank for the newest."""
    async with Store(tmp_path, engine) as store:
        await store.fill()
        finished = await store.finished()
        await store.compact_all()
        ranks = []
        for log_id in sorted(set(await store.finished()) - set(finished)):
            file = SystemDisk().open(str(store.logs / log_name(log_id)))
            ranks.append(read_log_header(file, log_id).rank)
            file.close()
        assert ranks == [max(finished[at : at + 3]) for at in range(0, len(finished), 3)]


async def test_the_footer_of_a_copy_tells_of_its_ledgers(
    tmp_path: Path, engine: EngineKind
) -> None:
    async with Store(tmp_path, engine) as store:
        await store.fill()
        await store.compact_all()
        survey = LogSurvey(str(store.logs), SystemDisk())
        for log_id in await store.finished():
            usage = survey.usage(log_id)
            assert usage.is_certain
            assert not set(usage.ledger_ids) & {2, 3, 5}


async def test_logs_without_anything_alive_leave_no_copy(
    tmp_path: Path, engine: EngineKind
) -> None:
    async with Store(tmp_path, engine) as store:
        await store.fill()
        for ledger_id in (1, 4, 6, 7):
            store.delete(ledger_id)
        await store.storage.flush()
        await store.compact_all()
        assert await store.finished() == []


async def test_more_runs_than_one_record_takes_are_copied_in_several_goes(
    tmp_path: Path, engine: EngineKind
) -> None:
    async with Store(tmp_path, engine, moves_max=7) as store:
        await store.fill()
        left = finished = await store.finished()
        rounds = 0
        while left:
            copied = await store.compactor.compact(left)
            left = [each for each in left if each not in copied.complete]
            await store.check()
            rounds += 1
        assert rounds > len(finished) / 3
        assert not set(finished) & set(await store.finished())


async def test_gaps_that_newer_copies_left_behind_go_with_the_log(
    tmp_path: Path, engine: EngineKind
) -> None:
    """An index by runs keeps records of the ids between the entries of a run with gaps."""
    async with Store(tmp_path, engine) as store:
        store.add(1, [2, 5, 8])
        store.add(2, [7, 10, 20])
        for ledger_id in range(3, 13):
            store.add(ledger_id, range(ENTRIES))
        await store.storage.flush()
        store.add(1, [2, 5, 8], b"b")
        store.add(2, [7, 20], b"b")
        await store.storage.flush()
        finished = await store.finished()
        assert finished[0] == 1
        await store.compactor.compact(finished[:1])
        assert finished[0] not in await store.finished()
        await store.check()
        for ledger_id, held in ((1, [2, 5, 8]), (2, [7, 10, 20])):
            listed = await store.storage.list_entries(ledger_id, 0, 1 << 10)
            assert listed.entry_ids() == held


# Beside others


async def test_rule_10_4_a_newer_copy_and_a_deletion_are_not_undone(
    tmp_path: Path, engine: EngineKind
) -> None:
    """Entries are stored again, and a ledger is deleted, between the copy and the move."""
    async with Store(tmp_path, engine) as store:
        await store.fill()
        move = store.storage.maintenance.move_runs

        async def interfere(moves: Sequence[object]) -> None:
            store.storage.maintenance.move_runs = move  # type: ignore[method-assign]
            store.add(4, range(30), b"z")
            store.delete(6)
            await store.storage.flush()
            await move(moves)  # type: ignore[arg-type]

        store.storage.maintenance.move_runs = interfere  # type: ignore[method-assign]
        await store.compact_all()
        await store.check()
        assert 6 not in store.storage.ledger_ids()
        with pytest.raises(StorageError):
            await store.storage.read(6, 0, 0, 0)


async def test_b08_a_flush_and_a_compaction_do_not_pass_each_other(
    tmp_path: Path, engine: EngineKind
) -> None:
    """Flushes run all the time, of entries in ledgers that are being compacted."""
    async with Store(tmp_path, engine) as store:
        await store.fill()
        at = 1000
        finished = await store.finished()
        for log_id in finished:
            flush = store.storage.flush()
            store.add(1, range(at, at + 5))
            store.add(4, range(at % 60, at % 60 + 5), b"y")
            at += 5
            await store.compactor.compact([log_id])
            await flush
        await store.check()


async def test_no_packet_is_copied_twice_when_a_flush_joins_records_between_two_looks(
    tmp_path: Path, engine: EngineKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copier reads the records of a run in several calls.

    Entry 6 is in a gap of the run, and no record covers it any more. The flush lays entry 3 over
    the record before the gap, and joins the rest of it to the record behind the gap.
    """
    async with Store(tmp_path, engine) as store:
        index = store.storage.maintenance.index

        async def flush_into_own_log(ids: Sequence[int], mark: bytes) -> int:
            store.add(1, ids, mark)
            await store.storage.flush()
            for ledger_id in range(2, 13):  # they fill the log up: the next flush begins another
                store.add(ledger_id, range(ENTRIES))
            await store.storage.flush()
            record = index.find(1, ids[0])
            assert record is not None
            return record.location.log_id

        below = await flush_into_own_log([5, 7], b"a")
        source = await flush_into_own_log([2, 3, 4, 5, 7, 8, 9], b"b")
        await store.compactor.compact([below])
        real, loop, looks = index.records_from, asyncio.get_running_loop(), 0

        async def flush_newer() -> None:
            store.add(1, [3, 9], b"c")
            await store.storage.flush()

        def records_from(ledger_id: int, entry_id: int, records_max: int) -> list[IndexRecord]:
            nonlocal looks
            looks += ledger_id == 1
            if looks == 2 and ledger_id == 1:
                asyncio.run_coroutine_threadsafe(flush_newer(), loop).result()
            return real(ledger_id, entry_id, records_max)

        monkeypatch.setattr(index, "records_from", records_from)
        copied = await store.compactor.compact([source])
        # The records of an index by pages are joined over the gap from the beginning.
        assert looks >= 2 or engine == "interleaved"
        assert copied.complete == [source]
        await store.check()


async def test_b08_a_log_of_a_flush_that_runs_is_not_finished(
    tmp_path: Path, engine: EngineKind
) -> None:
    """The flush fills several logs before the index hears of any: none of them may be looked at."""
    async with Store(tmp_path, engine) as store:
        for ledger_id in range(20):
            store.add(ledger_id, range(ENTRIES))
        waiting = store.storage.flush()
        task = asyncio.ensure_future(waiting)
        await asyncio.sleep(0)
        finished = await store.finished()
        await store.compactor.compact(finished)
        await task
        await store.check()


# While the index cannot be written


class DiskWithoutRoomForPages(SystemDisk):
    is_full = False

    def update(self, path: str) -> File:
        if self.is_full and path.endswith("double-write"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return super().update(path)


@pytest.mark.parametrize("has_others", [False, True], ids=["nothing live", "others live"])
async def test_a_log_stays_while_only_memory_knows_that_its_entries_are_elsewhere(
    tmp_path: Path, engine: EngineKind, monkeypatch: pytest.MonkeyPatch, has_others: bool
) -> None:
    """The flush of newer copies put them into the index and failed before they were durable there:
    readers see them, and a crash takes them away. With other entries to copy, the restarted bookie
    would finish the compaction, and remove the log."""

    def failing(store: RocksStore) -> None:
        raise StorageIOError("cannot be synced")

    disk = DiskWithoutRoomForPages()
    async with Store(tmp_path / "live", engine, disk) as store:
        ids = range(ENTRIES)
        store.add(1, ids)
        await store.storage.flush()
        for ledger_id in range(2, 13):  # they fill the log up
            store.add(ledger_id, ids)
        await store.storage.flush()
        for ledger_id in range(3 if has_others else 2, 13):
            store.add(ledger_id, ids, b"b")
        await store.storage.flush()
        log = store.logs / log_name(1)
        durable = copy_as_after_a_crash(tmp_path / "live", tmp_path / "durable")
        store.add(1, ids, b"b")
        with monkeypatch.context() as patch:
            disk.is_full = True
            patch.setattr(RocksStore, "sync", failing)
            for work in (store.storage.flush(), store.compactor.compact([1])):
                with pytest.raises(StorageIOError):
                    await work
            assert log.exists()
            crashed = copy_as_after_a_crash(tmp_path / "live", tmp_path / "crashed")
            if engine == "db":  # what was not synced is lost: the index is that of before
                for path in [each for each in durable.iterdir() if each.name != store.logs.name]:
                    _replace(crashed / path.name, path)
            disk.is_full = False
        assert (await store.compactor.compact([1])).complete == [1]
        assert not log.exists()
        await store.check()
    async with Store(crashed, engine) as store:
        for ledger_id in (1, 2):
            for entry_id in ids:
                assert await store.storage.read(ledger_id, entry_id, entry_id, 0)


def _replace(path: Path, new: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    shutil.move(new, path)
