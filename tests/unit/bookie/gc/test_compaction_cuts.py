"""Compaction that is cut, by a crash or a failing write: nothing is lost."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from magnetar.bookie.errors import StorageIOError
from magnetar.bookie.gc.compaction_phases import COPY_SUFFIX, RECORD_SUFFIX
from magnetar.bookie.gc.finish_compactions import finish_compactions
from magnetar.bookie.indexes.index_mark import EngineKind
from magnetar.bookie.indexes.location_index import IndexChanges, LocationIndex
from magnetar.ledger.ports import Disk
from magnetar.ledger.system import SystemDisk
from tests.ledger_storage import ENGINES, FailingDisk, copy_as_after_a_crash
from tests.unit.bookie.gc.compacted_store import Store, check

pytestmark = pytest.mark.parametrize("engine", ENGINES)


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
        self.on_step(f"before {Path(path).name}")
        super().replace_file(path, data)
        self.on_step(f"after {Path(path).name}")


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
        if what.startswith("after ") and what.endswith(RECORD_SUFFIX) and not cut.exists():
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
