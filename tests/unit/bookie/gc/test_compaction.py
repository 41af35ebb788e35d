"""Compaction on real files: nothing is lost, whatever happens beside it or cuts it."""

import asyncio
import errno
import os
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.bookie.engine.entry_storage import EntryStorage
from magnetar.bookie.engine.options import StorageOptions
from magnetar.bookie.engine.parts import FinishCompactions
from magnetar.bookie.entry_logs.damage import Damage
from magnetar.bookie.entry_logs.log_names import log_name
from magnetar.bookie.entry_logs.log_scan import read_log_header
from magnetar.bookie.errors import NoSuchEntryInStorageError, StorageError, StorageIOError
from magnetar.bookie.gc.compaction_phases import COPY_SUFFIX, RECORD_SUFFIX
from magnetar.bookie.gc.compactor import CompactionLimits, Compactor
from magnetar.bookie.gc.finish_compactions import finish_compactions
from magnetar.bookie.gc.log_copier import Copied
from magnetar.bookie.gc.log_survey import LogSurvey, runs_of
from magnetar.bookie.indexes.index_mark import EngineKind
from magnetar.bookie.indexes.location_index import IndexChanges, LocationIndex
from magnetar.ledger.ports import Disk, File
from magnetar.ledger.system import SystemClock, SystemDisk, SystemFile, ThreadWorker
from tests.ledger_storage import (
    ENGINES,
    STATE,
    FailingDisk,
    copy_as_after_a_crash,
    make_block,
    make_packet,
)

pytestmark = pytest.mark.parametrize("engine", ENGINES)

SIZES = StorageOptions(
    write_buffer_bytes=1 << 20,
    read_cache_bytes=0,
    entry_log_bytes_max=20_000,
    run_bytes_max=2000,
    run_entries_max=8,
)
ENTRIES = 12
"""Of each ledger, in each flush."""


class Store:
    """A storage with a compactor, and what should be in it."""

    def __init__(
        self,
        directory: Path,
        engine: EngineKind,
        disk: SystemDisk | None = None,
        moves_max: int = 1000,
        copied_bytes_per_s: float = 0,
    ) -> None:
        self.directory = directory
        self.disk = disk or SystemDisk()
        self.expected: dict[tuple[int, int], bytes] = {}
        self.damages: list[Damage] = []
        self.limits = CompactionLimits(moves_max=moves_max, copied_bytes_per_s=copied_bytes_per_s)
        self.engine = engine
        self.storage = self.make_storage(directory)

    def make_storage(
        self, directory: Path, finish: FinishCompactions = finish_compactions
    ) -> EntryStorage:
        return EntryStorage(
            str(directory),
            disk=self.disk,
            clock=SystemClock(),
            make_worker=ThreadWorker,
            options=replace(SIZES, engine=self.engine),
            finish_compactions=finish,
        )

    async def open(self) -> "Store":
        await self.storage.open()
        self.worker = ThreadWorker("gc")
        self.compactor = Compactor(
            self.storage.maintenance,
            self.worker,
            disk=self.disk,
            clock=SystemClock(),
            limits=self.limits,
            on_damage=self.damages.append,
        )
        return self

    async def close(self) -> None:
        await self.storage.close()
        self.worker.close()

    async def __aenter__(self) -> "Store":
        return await self.open()

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def logs(self) -> Path:
        return self.directory / "entry-logs"

    def add(self, ledger_id: int, ids: Sequence[int], mark: bytes = b"a") -> None:
        if self.storage.state(ledger_id) is None:
            self.storage.put_state(ledger_id, STATE)
        payload = mark * 150
        self.storage.add(ledger_id, make_block(ledger_id, ids, payload), ids)
        for entry_id in ids:
            self.expected[ledger_id, entry_id] = make_packet(ledger_id, entry_id, payload)

    def delete(self, ledger_id: int) -> None:
        self.storage.delete_ledger(ledger_id)
        self.expected = {key: each for key, each in self.expected.items() if key[0] != ledger_id}

    async def fill(self) -> None:
        """Some logs: ledgers that grow, that were overwritten in part, that have gaps, that die."""
        for round_ in range(6):
            at = ENTRIES * round_
            for ledger_id in range(1, 7):
                self.add(ledger_id, range(at, at + ENTRIES))
            self.add(7, range(2 * at, 2 * at + 2 * ENTRIES, 2))
            if round_ == 4:
                self.add(1, range(3, 40), b"b")
                self.add(7, [8, 12, 40], b"c")
            await self.storage.flush()
        for ledger_id in (2, 3, 5):
            self.delete(ledger_id)
        await self.storage.flush()

    async def finished(self) -> list[int]:
        return await self.storage.maintenance.finished_logs()

    async def compact_all(self) -> list[Copied]:
        """All finished logs, three into one."""
        finished = await self.finished()
        return [
            await self.compactor.compact(finished[at : at + 3]) for at in range(0, len(finished), 3)
        ]

    async def check(self, storage: EntryStorage | None = None) -> None:
        await check(storage or self.storage, self.expected)

    def bytes_of_logs(self) -> int:
        return sum(path.stat().st_size for path in self.logs.iterdir())


async def check(storage: EntryStorage, expected: dict[tuple[int, int], bytes]) -> None:
    """Every entry that should be there is, as it was last stored; nothing else is."""
    for ledger_id in storage.ledger_ids():
        last = max((each for each in expected if each[0] == ledger_id), default=(0, -1))[1]
        for entry_id in range(last + 2):
            packet = expected.get((ledger_id, entry_id))
            if packet is None:
                with pytest.raises(NoSuchEntryInStorageError):
                    await storage.read(ledger_id, entry_id, entry_id, 1 << 20)
            else:
                assert await storage.read(ledger_id, entry_id, entry_id, 0) == [packet]
    assert {key[0] for key in expected} <= set(storage.ledger_ids())


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
    """Who has the logs alone takes the copy of the highest rank for the newest."""
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


# Cuts


class Stop(Exception):
    """The process ends here."""


class CutDisk(SystemDisk):
    """Tells before and after each change of a file's name, and each sync."""

    def __init__(self) -> None:
        self.on_step: Callable[[str], None] = lambda what: None

    def sync_directory(self, path: str) -> None:
        self.on_step("before sync of the directory")
        super().sync_directory(path)
        self.on_step("after sync of the directory")

    def rename(self, source: str, target: str) -> None:
        self.on_step("before rename")
        super().rename(source, target)
        self.on_step("after rename")

    def remove(self, path: str) -> None:
        self.on_step(f"before remove of {path[-12:]}")
        super().remove(path)
        self.on_step("after remove")

    def replace_file(self, path: str, data: bytes) -> None:
        self.on_step("before the record")
        super().replace_file(path, data)
        self.on_step("after the record")


async def test_b09_a_crash_at_any_step_loses_nothing(tmp_path: Path, engine: EngineKind) -> None:
    """The directory is copied at each step of a compaction, and opened: as after kill -9."""
    disk = CutDisk()
    steps: list[str] = []
    copies: list[Path] = []

    def copy(what: str) -> None:
        steps.append(what)
        copies.append(copy_as_after_a_crash(tmp_path / "live", tmp_path / f"copy-{len(steps)}"))

    store = Store(tmp_path / "live", engine, disk)
    async with store:
        await store.fill()
        finished = await store.finished()
        disk.on_step = copy
        await store.compactor.compact(finished[:3])
        disk.on_step = lambda what: None
        await store.check()
    assert len(steps) >= 12
    for what, directory in zip(steps, copies, strict=True):
        cut = store.make_storage(directory)
        await cut.open()
        try:
            await check(cut, store.expected)
        except BaseException as error:
            error.add_note(f"cut {what}")
            raise
        finally:
            await cut.close()
        names = [path.name for path in (directory / "entry-logs").iterdir()]
        assert [name for name in names if not name.endswith(".log")] == [], what


async def test_b09_a_crash_while_a_crash_is_mended_loses_nothing(
    tmp_path: Path, engine: EngineKind
) -> None:
    """Cut at each step of a compaction, and then at each step of the start that finishes it."""
    disk = CutDisk()
    copies: list[Path] = []

    def copy(what: str) -> None:
        copies.append(copy_as_after_a_crash(tmp_path / "live", tmp_path / f"copy-{len(copies)}"))

    store = Store(tmp_path / "live", engine, disk)
    async with store:
        await store.fill()
        disk.on_step = copy
        await store.compactor.compact((await store.finished())[:3])
        disk.on_step = lambda what: None

    cuts = 0

    def stop_at(nth: int) -> Callable[[str], None]:
        def stop(what: str) -> None:
            nonlocal nth
            nth -= 1
            if nth == 0:
                raise OSError(5, "the process ends here")

        return stop

    for directory in copies[2::4]:
        for nth in (1, 2, 4, 99):
            twice = directory.with_name("twice")
            shutil.copytree(directory, twice)
            disk.on_step = stop_at(nth)
            cut = store.make_storage(twice)
            try:
                await cut.open()
            except StorageIOError:
                cuts += 1
            else:
                await cut.close()
            disk.on_step = lambda what: None
            again = store.make_storage(twice)
            await again.open()
            await check(again, store.expected)
            await again.close()
            shutil.rmtree(twice)
    assert cuts > 3


async def test_a_start_on_a_full_disk_serves_what_a_compaction_left_and_gc_finishes_it(
    tmp_path: Path, engine: EngineKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = CutDisk()
    cut = tmp_path / "cut"

    def copy(what: str) -> None:
        if what == "after the record" and not cut.exists():
            copy_as_after_a_crash(tmp_path / "live", cut)

    async with Store(tmp_path / "live", engine, disk) as store:
        await store.fill()
        disk.on_step = copy
        sources = (await store.finished())[:3]
        await store.compactor.compact(sources)
        disk.on_step = lambda what: None

    def fail(changes: IndexChanges) -> set[int]:
        raise StorageIOError("index") from OSError(errno.ENOSPC, "No space left on device")

    def finish_without_room(directory: str, disk: Disk, index: LocationIndex) -> None:
        with monkeypatch.context() as full:
            full.setattr(index, "commit", fail)
            finish_compactions(directory, disk, index)

    again = Store(cut, engine)
    again.expected = store.expected
    again.storage = again.make_storage(cut, finish_without_room)
    async with again:
        await again.check()
        again.add(1, [1000])
        await again.storage.flush()
        await again.check()
        assert set(sources) <= set(await again.finished())
        await again.compactor.finish_left_over()
        assert not set(sources) & set(await again.finished())
        await again.check()
    assert [path.name for path in again.logs.iterdir() if path.suffix != ".log"] == []


@pytest.mark.parametrize("nth", range(16))
async def test_a_failed_write_at_any_step_loses_nothing_and_is_made_good(
    tmp_path: Path, engine: EngineKind, nth: int
) -> None:
    disk = FailingDisk()
    async with Store(tmp_path, engine, disk) as store:
        await store.fill()
        finished = await store.finished()
        disk.calls_until_failure = nth
        try:
            await store.compactor.compact(finished[:3])
        except StorageIOError:
            await store.check()
        disk.calls_until_failure = None
        await store.check()
        await store.compactor.finish_left_over()
        left = [each for each in finished[:3] if each in await store.finished()]
        if left:
            await store.compactor.compact(left)
        await store.check()
        names = [path.name for path in store.logs.iterdir()]
        assert not [name for name in names if name.endswith((COPY_SUFFIX, RECORD_SUFFIX))]
        assert not set(finished[:3]) & set(await store.finished())


# Damage


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x40]))


@pytest.mark.parametrize("seed", range(12))
async def test_a_flipped_byte_in_a_source_is_never_copied_nor_dropped(
    tmp_path: Path, engine: EngineKind, seed: int
) -> None:
    rng = random.Random(seed)
    async with Store(tmp_path, engine) as store:
        await store.fill()
        finished = await store.finished()
        victim = store.logs / log_name(rng.choice(finished))
        flip(victim, rng.randrange(victim.stat().st_size))
        intact = {}
        for key, packet in store.expected.items():
            try:
                assert await store.storage.read(*key, key[1], 0) == [packet]
                intact[key] = packet
            except StorageIOError:
                pass
        copied = [each for log_id in finished for each in [await store.compactor.compact([log_id])]]
        for key, packet in store.expected.items():
            if key in intact:
                assert await store.storage.read(*key, key[1], 0) == [packet]
            else:
                with pytest.raises(StorageIOError):
                    await store.storage.read(*key, key[1], 0)
        if len(intact) < len(store.expected):
            assert victim.exists()
            assert int(victim.stem, 16) in [log for each in copied for log in each.incomplete]


async def test_a_run_is_copied_when_its_damaged_part_was_healed(
    tmp_path: Path, engine: EngineKind
) -> None:
    async with Store(tmp_path, engine) as store:
        await store.fill()
        finished = await store.finished()
        victim = store.logs / log_name(finished[0])
        file = SystemDisk().open(str(victim))
        run = next(run for run in runs_of(file, finished[0]) if run.ledger_id == 4)
        file.close()
        flip(victim, run.location.offset + run.location.tables_bytes + 300)
        copied = await store.compactor.compact([finished[0]])
        assert copied.incomplete == [finished[0]]
        (damage,) = store.damages
        assert damage.path == str(victim)
        for entry_id in range(damage.first, damage.last + 1):
            if (damage.ledger_id, entry_id) in store.expected:
                store.add(damage.ledger_id, [entry_id], b"h")
        await store.storage.flush()
        copied = await store.compactor.compact([finished[0]])
        assert copied.complete == [finished[0]]
        assert not victim.exists()
        await store.check()


async def test_a_torn_log_is_copied_and_not_removed(tmp_path: Path, engine: EngineKind) -> None:
    """What follows the last whole run may be anything."""
    async with Store(tmp_path, engine) as store:
        await store.fill()
        finished = await store.finished()
        victim = store.logs / log_name(finished[-1])
        victim.write_bytes(victim.read_bytes()[:-40] + b"\0" * 5000)
        copied = await store.compactor.compact([finished[-1]])
        assert (copied.complete, copied.incomplete) == ([], [finished[-1]])
        assert victim.exists()
        await store.check()


@pytest.mark.parametrize("unreadable", ["whole", "first block", "last block"])
async def test_a_log_that_cannot_be_read_does_not_hold_up_the_others(
    tmp_path: Path, engine: EngineKind, unreadable: str
) -> None:
    disk = UnreadableDisk()
    async with Store(tmp_path, engine, disk) as store:
        await store.fill()
        sources = (await store.finished())[:3]
        victim = store.logs / log_name(sources[1])
        size = victim.stat().st_size
        spans = {"first block": range(512), "last block": range(size - 512, size)}
        disk.bad[str(victim)] = spans.get(unreadable)
        copied = await store.compactor.compact(sources)
        disk.bad.clear()
        assert copied.complete == [sources[0], sources[2]]
        assert copied.incomplete == [sources[1]]
        assert victim.exists()
        await store.check()
        copied = await store.compactor.compact([sources[1]])
        assert copied.complete == [sources[1]]
        await store.check()


async def test_a_process_at_its_limit_of_files_calls_no_log_unreadable(
    tmp_path: Path, engine: EngineKind
) -> None:
    disk = UnreadableDisk()
    async with Store(tmp_path, engine, disk) as store:
        await store.fill()
        sources = (await store.finished())[:3]
        disk.bad[str(store.logs / log_name(sources[1]))] = None
        disk.error = errno.EMFILE
        with pytest.raises(StorageIOError):
            await store.compactor.compact(sources)
        disk.bad.clear()
        assert (await store.compactor.compact(sources)).complete == sources


class UnreadableDisk(SystemDisk):
    """Files that cannot be opened, or read where a disk is broken."""

    def __init__(self) -> None:
        self.bad: dict[str, range | None] = {}
        """Where; None for all of it, the opening included."""
        self.error = errno.EIO

    def open(self, path: str) -> File:
        bad = self.bad.get(path, range(0))
        if bad is None:
            raise OSError(self.error, os.strerror(self.error), path)
        return _BrokenFile(os.open(path, os.O_RDONLY), bad) if bad else super().open(path)


class _BrokenFile(SystemFile):
    def __init__(self, descriptor: int, bad: range) -> None:
        super().__init__(descriptor)
        self._bad = bad

    def pread(self, size: int, offset: int) -> bytes:
        self._check(size, offset)
        return super().pread(size, offset)

    def read_once(self, size: int, offset: int) -> bytes:
        self._check(size, offset)
        return super().read_once(size, offset)

    def _check(self, size: int, offset: int) -> None:
        if offset < self._bad.stop and offset + size > self._bad.start:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
