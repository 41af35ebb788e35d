"""What the index of pages promises beyond its answers: crashes, damage, lost files, limits."""

import errno
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from magnetar.bookie.entry_logs.entry_log import RunLocation, StoredRun
from magnetar.bookie.entry_logs.packet_run import ENTRY_ID_MAX
from magnetar.bookie.errors import StorageCorruptError, StorageIOError
from magnetar.bookie.indexes.index_mark import IndexMark, decode_mark
from magnetar.bookie.indexes.ledger_state import encode_state
from magnetar.bookie.indexes.location_index import IndexChanges, NewRun, RunMove
from magnetar.bookie.indexes.page_index import PageIndex
from magnetar.bookie.indexes.pages.page_files import directory_of, file_name
from magnetar.bookie.indexes.pages.page_format import PAGES_BEGIN, decode_page
from magnetar.bookie.indexes.pages.round_format import decode_round
from magnetar.bookie.storage_options import StorageOptions
from magnetar.ledger.system import SystemDisk
from tests.ledger_storage import STATE, FailingDisk

SMALL_PAGES = StorageOptions(index_page_bytes=64, index_cache_bytes=1 << 20, index_open_files_max=4)
"""Six cells a page."""


class Runs:
    """Runs as an entry log would have them."""

    def __init__(self) -> None:
        self.stored: dict[tuple[int, int], StoredRun] = {}

    def new(self, ledger_id: int, first: int, last: int, log_id: int = 1) -> NewRun:
        offset = 64 + 100 * len(self.stored)
        location = RunLocation(log_id, offset, 90, last - first + 1, False)
        self.stored[log_id, offset] = StoredRun(ledger_id, first, last, location)
        return NewRun(location, [(first, last)], first, last)

    def locate(self, log_id: int, offset: int) -> StoredRun:
        return self.stored[log_id, offset]


RUNS = Runs()


def open_pages(
    directory: Path, *, disk: SystemDisk | None = None, options: StorageOptions = SMALL_PAGES
) -> PageIndex:
    disk = disk or SystemDisk()
    mark = IndexMark(str(directory / "index-mark"), disk)
    path = str(directory / "page-index")
    return PageIndex.open(path, mark, disk=disk, locate=RUNS.locate, options=options)


@contextmanager
def pages(
    directory: Path, *, disk: SystemDisk | None = None, options: StorageOptions = SMALL_PAGES
) -> Iterator[PageIndex]:
    index = open_pages(directory, disk=disk, options=options)
    try:
        yield index
    finally:
        index.close()


def commit(index: PageIndex, ledger_id: int, first: int, last: int) -> None:
    run = RUNS.new(ledger_id, first, last)
    index.commit(IndexChanges(1, runs={ledger_id: [run]}, states={ledger_id: STATE}))


def held(index: PageIndex, ledger_id: int) -> list[int]:
    records = index.records_from(ledger_id, 0, 1000)
    return [each for record in records for each in range(record.first, record.last + 1)]


def page_files(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.idx"))


class CrashingDisk(FailingDisk):
    """After the first call that fails, all others do: the process has ended."""

    def on_write(self, what: str, undo: Callable[[], None] | None = None) -> None:
        if self.calls_until_failure == 0:
            self.ended = True
        if self.ended:
            self.calls_until_failure = 0
        super().on_write(what, undo)

    ended = False


def _prepare(directory: Path) -> None:
    with pages(directory) as index:
        commit(index, 1, 0, 20)
        commit(index, 2, 0, 5)
        commit(index, 300, 0, 3)


def _change(index: PageIndex) -> None:
    """Grows a ledger, deletes one and makes it anew, deletes another, makes a new one."""
    runs = {
        1: [RUNS.new(1, 15, 60)],
        2: [RUNS.new(2, 3, 3)],
        70_000: [RUNS.new(70_000, 0, 0)],
    }
    states = {2: STATE, 70_000: STATE}
    index.commit(IndexChanges(2, deleted=[2, 300], runs=runs, states=states))


BEFORE = {1: range(21), 2: range(6), 300: range(4), 70_000: range(0)}
AFTER = {1: range(61), 2: range(3, 4), 300: range(0), 70_000: range(1)}


def _snapshot(index: PageIndex) -> dict[int, list[int]]:
    return {ledger_id: held(index, ledger_id) for ledger_id in BEFORE}


@pytest.mark.parametrize("is_power_loss", [False, True])
def test_b16_a_commit_that_is_cut_anywhere_is_done_or_was_never_begun(
    tmp_path: Path, is_power_loss: bool
) -> None:
    """Each call that writes is cut in its middle; then the start itself is cut at every call."""
    seen: set[str] = set()
    steps = 0
    while True:
        directory = tmp_path / str(steps)
        directory.mkdir()
        _prepare(directory)
        disk = CrashingDisk()
        index = open_pages(directory, disk=disk)
        disk.writes.clear()
        disk.calls_until_failure = steps
        try:
            _change(index)
        except StorageIOError:
            pass
        index.close()
        if is_power_loss:
            _tear_pages(directory)
        for cut in (1, 4, 9):
            _cut_start(directory, cut)
        with pages(directory) as again:
            found = {ledger_id: range(0) for ledger_id in BEFORE} | _ranges(_snapshot(again))
            assert found in (BEFORE, AFTER)
            seen.add("after" if found == AFTER else "before")
            assert set(again.states()) == {each for each, ids in found.items() if ids}
        if not disk.ended:
            break
        steps += 1
    assert seen == {"before", "after"}
    assert steps > 10


def _ranges(found: dict[int, list[int]]) -> dict[int, range]:
    ranges = {}
    for ledger_id, ids in found.items():
        ranges[ledger_id] = range(ids[0], ids[-1] + 1) if ids else range(0)
        assert list(ranges[ledger_id]) == ids
    return ranges


def _tear_pages(directory: Path) -> None:
    """What a whole round writes in place may have been written, and not synced: it is garbage."""
    try:
        todo = decode_round((directory / "page-index" / "double-write").read_bytes())
    except (FileNotFoundError, StorageCorruptError):
        return
    if todo.promise.sequence == decode_mark((directory / "index-mark").read_bytes()).sequence:
        return  # done, and synced
    for ledger_id, offset, data in todo.writes:
        path = directory / "page-index" / directory_of(ledger_id) / file_name(ledger_id)
        if path.exists():
            found = bytearray(path.read_bytes())
            found[offset : offset + len(data)] = b"x" * len(data)
            path.write_bytes(found)


@contextmanager
def pages_to_read(directory: Path) -> Iterator[PageIndex]:
    disk = SystemDisk()
    mark = IndexMark(str(directory / "index-mark"), disk)
    path = str(directory / "page-index")
    index = PageIndex.open(path, mark, disk=disk, locate=RUNS.locate, may_write=False)
    try:
        yield index
    finally:
        index.close()


def _cut_start(directory: Path, calls: int) -> None:
    disk = CrashingDisk()
    disk.calls_until_failure = calls
    try:
        open_pages(directory, disk=disk).close()
    except StorageIOError:
        pass


@pytest.mark.parametrize("calls", range(24))
def test_8_6_after_a_failed_commit_the_next_one_does_all_of_it(tmp_path: Path, calls: int) -> None:
    _prepare(tmp_path)
    disk = FailingDisk()
    index = open_pages(tmp_path, disk=disk)
    disk.calls_until_failure = calls
    try:
        _change(index)
    except StorageIOError:
        # Readers see it all the same, and may: the runs are synced.
        assert _ranges(_snapshot(index)) == AFTER
    disk.calls_until_failure = None
    index.commit(IndexChanges(2))
    assert _ranges(_snapshot(index)) == AFTER
    index.close()
    with pages(tmp_path) as again:
        assert _ranges(_snapshot(again)) == AFTER


def test_b25_a_deleted_ledger_that_is_made_anew_has_nothing_of_its_former_life(
    tmp_path: Path,
) -> None:
    with pages(tmp_path) as index:
        commit(index, 7, 0, 50)
        index.commit(IndexChanges(1, deleted=[7]))
        assert page_files(tmp_path) == []
        assert (held(index, 7), index.states()) == ([], {})
        commit(index, 7, 20, 20)
        assert held(index, 7) == [20]
    with pages(tmp_path) as index:
        assert held(index, 7) == [20]
        index.commit(IndexChanges(1, deleted=[7], states={7: STATE}))
        assert (held(index, 7), index.states()) == ([], {7: encode_state(STATE)})


def test_5_1_dirty_pages_are_written_early_ledger_by_ledger_and_only_behind_the_log(
    tmp_path: Path,
) -> None:
    """A commit comes after the sync of the log, so its pages may go to the disk at any moment."""
    options = StorageOptions(index_page_bytes=64, index_cache_bytes=20_000, index_open_files_max=2)
    with pages(tmp_path, options=options) as index:
        before = index.sequence()
        runs = {ledger_id: [RUNS.new(ledger_id, 0, 17)] for ledger_id in range(30)}
        index.commit(IndexChanges(1, runs=runs))
        assert index.sequence() > before + 5  # as many rounds
        assert index.cached_bytes <= 1.1 * options.index_cache_bytes
        assert index.open_files <= options.open_files_max
        for ledger_id in range(30):
            assert held(index, ledger_id) == list(range(18))
            assert index.cached_bytes <= 1.1 * options.index_cache_bytes
            assert index.open_files <= options.open_files_max


def test_5_1_without_a_cache_a_commit_of_some_ledgers_is_one_round(tmp_path: Path) -> None:
    """Each round syncs several files: one per ledger would hold up the flush of 100 000 ledgers."""
    options = StorageOptions(index_page_bytes=64, index_cache_bytes=0, index_open_files_max=2)
    with pages(tmp_path, options=options) as index:
        before = index.sequence()
        runs = {ledger_id: [RUNS.new(ledger_id, 0, 17)] for ledger_id in range(30)}
        index.commit(IndexChanges(1, runs=runs))
        assert index.sequence() == before + 1
        copies = [RUNS.new(ledger_id, 0, 17, log_id=2) for ledger_id in range(30)]
        nowhere = RunLocation(7, 64, 90, 18, False)
        moves = [
            RunMove(ledger_id, 0, 17, nowhere, copy.location)
            for ledger_id, copy in enumerate(copies)
        ]
        assert index.commit(IndexChanges(2, moves=moves)) == set()
        assert index.sequence() == before + 2
        assert index.cached_bytes == 0


def test_6_1_byte_order_is_numeric_order_of_ledgers(tmp_path: Path) -> None:
    ledgers = [0, 1, 255, 256, 1 << 16, 1 << 24, (1 << 63) - 1]
    with pages(tmp_path) as index:
        for ledger_id in reversed(ledgers):
            commit(index, ledger_id, 0, 0)
        assert [ledger_id for ledger_id, _ in index.all_records()] == ledgers
        assert index.find(-1, 0) is None
        with pytest.raises(AssertionError):
            index.commit(IndexChanges(1, states={-1: STATE}))


def test_6_2_a_move_never_wins_over_a_newer_run(tmp_path: Path) -> None:
    with pages(tmp_path) as index:
        old = RUNS.new(1, 0, 9)
        index.commit(IndexChanges(1, runs={1: [old]}))
        newer = RUNS.new(1, 4, 5)
        index.commit(IndexChanges(1, runs={1: [newer]}))
        copy = RUNS.new(1, 0, 9, log_id=2)
        move = RunMove(1, 0, 9, old.location, copy.location)
        assert index.commit(IndexChanges(2, moves=[move])) == {1}
        assert [(each.first, each.last, each.location) for each in index.records_from(1, 0, 9)] == [
            (0, 3, copy.location),
            (4, 5, newer.location),
            (6, 9, copy.location),
        ]
        assert index.commit(IndexChanges(2, moves=[move])) == set()
        assert index.commit(IndexChanges(2, deleted=[1], moves=[move])) == set()
        assert held(index, 1) == []


def test_6_3_a_lost_page_file_is_missed_at_the_start(tmp_path: Path) -> None:
    with pages(tmp_path) as index:
        commit(index, 1, 0, 3)
        commit(index, 2, 0, 3)
    page_files(tmp_path)[0].unlink()
    with pytest.raises(StorageCorruptError, match="rebuild-index"):
        open_pages(tmp_path)


def test_6_3_a_page_file_that_came_back_is_noticed(tmp_path: Path) -> None:
    with pages(tmp_path) as index:
        commit(index, 1, 0, 3)
        copy = shutil.copy(page_files(tmp_path)[0], tmp_path / "copy")
        index.commit(IndexChanges(1, deleted=[1]))
    directory = tmp_path / "page-index" / "00" / "00"
    shutil.move(copy, directory / f"{1:016x}.idx")
    with pytest.raises(StorageCorruptError, match="lost or got"):
        open_pages(tmp_path)


def test_6_3_a_page_file_lost_while_open_is_damage_and_never_no_entry(tmp_path: Path) -> None:
    options = StorageOptions(index_page_bytes=64, index_cache_bytes=0, index_open_files_max=1)
    with pages(tmp_path, options=options) as index:
        commit(index, 1, 0, 3)
        commit(index, 2, 0, 3)
        path = page_files(tmp_path)[0]
        path.unlink()
        assert held(index, 2) == [0, 1, 2, 3]
        with pytest.raises(StorageCorruptError) as caught:
            index.find(1, 100)
        damage = caught.value.damage
        assert damage is not None
        assert (damage.path, damage.ledger_id, damage.last) == (str(path), 1, ENTRY_ID_MAX)


def test_6_3_a_lost_double_write_file_is_missed(tmp_path: Path) -> None:
    with pages(tmp_path) as index:
        commit(index, 1, 0, 3)
    (tmp_path / "page-index" / "double-write").unlink()
    with pytest.raises(StorageCorruptError, match="lost"):
        open_pages(tmp_path)


def _damage_page_of(directory: Path, base: int) -> None:
    """Flip a bit in the leaf for the entries from `base` on, of the only ledger."""
    (path,) = page_files(directory)
    data = bytearray(path.read_bytes())
    for at in range(PAGES_BEGIN, len(data), SMALL_PAGES.index_page_bytes):
        page_bytes = SMALL_PAGES.index_page_bytes
        number = (at - PAGES_BEGIN) // page_bytes + 1
        page = decode_page(bytes(data[at : at + page_bytes]), 1, number, page_bytes=page_bytes)
        if (page.level, page.base) == (0, base):
            data[at + page_bytes - 1] ^= 1
            path.write_bytes(data)
            return
    raise AssertionError(f"no leaf of {base}")


def _damage_first_leaf(directory: Path) -> Path:
    (path,) = page_files(directory)
    data = bytearray(path.read_bytes())
    data[PAGES_BEGIN + 30] ^= 1
    path.write_bytes(data)
    return path


def test_b14_a_damaged_page_is_an_error_for_its_entries_alone(tmp_path: Path) -> None:
    with pages(tmp_path) as index:
        commit(index, 1, 0, 19)
    path = _damage_first_leaf(tmp_path)
    with pages(tmp_path) as index:
        for entry_id in range(6):
            with pytest.raises(StorageCorruptError) as caught:
                index.find(1, entry_id)
            damage = caught.value.damage
            assert damage is not None
            assert damage[:5] == (str(path), PAGES_BEGIN, 1, 0, 5)
        assert index.floor(1, ENTRY_ID_MAX) is not None
        assert index.find(1, 100) is None


def test_b14_a_damaged_page_does_not_hold_up_moves_and_never_denies_anything(
    tmp_path: Path,
) -> None:
    """A compaction that was decided must come to its end: it may not keep a bookie from starting
    that one page beside, or under, what it moves is damaged."""
    with pages(tmp_path) as index:
        runs = [RUNS.new(1, first, last) for first, last in ((6, 9), (13, 20), (2, 3))]
        index.commit(IndexChanges(1, runs={1: runs}, states={1: STATE}))
    _damage_page_of(tmp_path, 12)
    with pages(tmp_path) as index:
        copies = [RUNS.new(1, first, last, log_id=2) for first, last in ((6, 9), (13, 20))]
        moves = [
            RunMove(1, old.first, old.last, old.location, copy.location)
            for old, copy in zip(runs, copies, strict=False)
        ]
        assert index.commit(IndexChanges(2, moves=moves)) == {1}
        for entry_id, location in ((6, copies[0].location), (2, runs[2].location)):
            found = index.find(1, entry_id)
            assert found is not None
            assert found.location == location
        found = index.find(1, 18)
        assert found is not None
        assert found.location == copies[1].location
        for entry_id in range(12, 18):
            with pytest.raises(StorageCorruptError):
                index.find(1, entry_id)
        index.commit(IndexChanges(2, runs={1: [RUNS.new(1, 12, 17)]}))  # healed
        assert held(index, 1) == [2, 3, 6, 7, 8, 9, *range(12, 21)]


def test_b14_a_damaged_page_takes_new_entries_and_stays_in_doubt_for_the_others(
    tmp_path: Path,
) -> None:
    with pages(tmp_path) as index:
        commit(index, 1, 0, 19)
    _damage_first_leaf(tmp_path)
    with pages(tmp_path) as index:
        commit(index, 1, 2, 3)
    with pages(tmp_path) as index:
        assert index.find(1, 2) is not None
        assert index.find(1, 3) is not None
        for entry_id in (0, 1, 4, 5):
            with pytest.raises(StorageCorruptError, match="not known"):
                index.find(1, entry_id)
        commit(index, 1, 0, 5)  # healed
        assert held(index, 1) == list(range(20))


def test_what_a_crash_left_half_done_is_seen_by_readers_that_write_nothing(tmp_path: Path) -> None:
    _prepare(tmp_path)
    disk = CrashingDisk()
    index = open_pages(tmp_path, disk=disk)
    disk.writes.clear()
    disk.calls_until_failure = 5  # the round is synced, and hardly begun
    with pytest.raises(StorageIOError):
        _change(index)
    index.close()
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pages_to_read(tmp_path) as index:
        assert _ranges(_snapshot(index)) == AFTER
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files


def test_an_index_that_is_open_elsewhere_is_not_opened(tmp_path: Path) -> None:
    with pages(tmp_path):
        with pytest.raises(StorageIOError):
            open_pages(tmp_path)
        with pages_to_read(tmp_path):
            pass


@pytest.mark.parametrize("calls", [0, 1, 3])
def test_what_a_crash_left_half_done_on_a_full_disk_is_served_and_done_when_there_is_room(
    tmp_path: Path, calls: int
) -> None:
    _prepare(tmp_path)
    crashing = CrashingDisk()
    index = open_pages(tmp_path, disk=crashing)
    crashing.calls_until_failure = 5
    with pytest.raises(StorageIOError):
        _change(index)
    index.close()
    disk = FullDisk()
    disk.error = errno.ENOSPC
    disk.calls_until_failure = calls
    with pages(tmp_path, disk=disk) as index:
        assert disk.is_full
        assert _ranges(_snapshot(index)) == AFTER
        with pytest.raises(StorageIOError):
            index.commit(IndexChanges(2, states={5: STATE}))
        assert _ranges(_snapshot(index)) == AFTER
        disk.is_full, disk.calls_until_failure = False, None
        commit(index, 5, 0, 1)
    with pages(tmp_path) as index:
        assert _ranges(_snapshot(index)) == AFTER
        assert held(index, 5) == [0, 1]


class FullDisk(FailingDisk):
    """From the first failure on there is no room."""

    is_full = False

    def on_write(self, what: str, undo: Callable[[], None] | None = None) -> None:
        if what not in ("write_at", "append", "replace_file", "create"):
            return  # takes no room
        if self.is_full:
            self.calls_until_failure = 0
        self.is_full = self.is_full or self.calls_until_failure == 0
        super().on_write(what, undo)


def test_what_a_crash_left_half_done_keeps_its_removals_when_there_is_no_room_to_sync_it(
    tmp_path: Path,
) -> None:
    _prepare(tmp_path)
    crashing = CrashingDisk()
    index = open_pages(tmp_path, disk=crashing)
    crashing.calls_until_failure = 3  # the round is beside the pages, and nothing was removed
    with pytest.raises(StorageIOError):
        _change(index)
    index.close()
    assert (tmp_path / "page-index" / directory_of(300) / file_name(300)).exists()
    disk = UnsyncedDisk()
    disk.error = errno.EDQUOT
    disk.calls_until_failure = 0
    with pages(tmp_path, disk=disk) as index:
        assert disk.calls_until_failure is None
        assert _ranges(_snapshot(index)) == AFTER
        disk.calls_until_failure = 0
        with pytest.raises(StorageIOError):
            commit(index, 5, 0, 1)
        disk.writes.clear()
        commit(index, 5, 0, 1)
        # What was not synced is written again before anything relies on it.
        assert disk.writes.index("write_at") < disk.writes.index("remove")
    with pages(tmp_path) as index:
        assert _ranges(_snapshot(index)) == AFTER
        assert held(index, 5) == [0, 1]


class UnsyncedDisk(FailingDisk):
    """Counts the calls that sync a file's content alone."""

    def on_write(self, what: str, undo: Callable[[], None] | None = None) -> None:
        if what == "datasync":
            super().on_write(what, undo)
        else:
            self.writes.append(what)
