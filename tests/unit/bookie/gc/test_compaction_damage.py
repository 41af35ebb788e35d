"""Compaction of damaged logs: nothing damaged is copied, and nothing is dropped for it."""

import errno
import os
import random
from pathlib import Path

import pytest

from magnetar.bookie.entry_logs.log_names import log_name
from magnetar.bookie.errors import StorageIOError
from magnetar.bookie.gc import log_copier
from magnetar.bookie.gc.log_survey import runs_of
from magnetar.bookie.indexes.index_mark import EngineKind
from magnetar.ledger.errors import InvariantError
from magnetar.ledger.ports import File
from magnetar.ledger.system import SystemDisk, SystemFile
from tests.ledger_storage import ENGINES
from tests.unit.bookie.gc.compacted_store import Store

pytestmark = pytest.mark.parametrize("engine", ENGINES)


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


async def test_a_run_that_would_hold_packets_twice_is_not_written_and_its_log_stays(
    tmp_path: Path, engine: EngineKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stretches that overlap are a defect of the copier. Checked without `assert`: `python -O`."""
    async with Store(tmp_path, engine) as store:
        await store.fill()
        finished = await store.finished()
        monkeypatch.setattr(log_copier, "positions_of", lambda head, stretches: [(0, 2), (1, 3)])
        with pytest.raises(InvariantError):
            await store.compactor.compact(finished)
        assert await store.finished() == finished
        assert {path.suffix for path in store.logs.iterdir()} == {".log"}
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
