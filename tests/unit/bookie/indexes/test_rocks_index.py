"""What the index of the `db` engine owes to RocksDB: errors, lost files, what a crash cuts off."""

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from magnetar.bookie.engine.entry_storage import EntryStorage
from magnetar.bookie.entry_logs.entry_log import RunLocation
from magnetar.bookie.errors import StorageCorruptError, StorageIOError
from magnetar.bookie.indexes import rocks_index
from magnetar.bookie.indexes.index_mark import IndexMark
from magnetar.bookie.indexes.key_value import Operation, Put
from magnetar.bookie.indexes.location_index import IndexChanges, NewRun, RunMove
from magnetar.bookie.indexes.rocks_index import RocksIndex
from magnetar.bookie.indexes.rocks_store import RocksStore
from magnetar.deploy.explain import explain
from magnetar.ledger.system import SystemDisk
from tests.ledger_storage import (
    STATE,
    add,
    copy_as_after_a_crash,
    make_packet,
    make_storage,
    open_storage,
)

ALL = 1 << 40
BYTES = 1 << 20


def packets(ledger_id: int, ids: range, payload: bytes = b"") -> list[bytes]:
    return [make_packet(ledger_id, entry_id, payload) for entry_id in ids]


def _rocks_index(storage: EntryStorage) -> RocksIndex:
    index = storage._open_parts().index
    assert isinstance(index, RocksIndex)
    return index


@pytest.mark.parametrize("is_written", [False, True])
async def test_8_6_after_a_failed_index_write_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    write = RocksIndex._write

    def failing(index: RocksIndex, changes: IndexChanges, pause: Callable[[], None]) -> set[int]:
        if is_written:
            write(index, changes, pause)
        raise StorageIOError("no")

    async with open_storage(tmp_path / "a") as storage:
        add(storage, 1, range(10))
        with monkeypatch.context() as patch:
            patch.setattr(RocksIndex, "_write", failing)
            with pytest.raises(StorageIOError):
                await storage.flush()
        store = _rocks_index(storage)._store
        assert storage.read_now(1, 0, ALL, BYTES) == packets(1, range(10))
        crashed = copy_as_after_a_crash(tmp_path / "a", tmp_path / "crashed")
        add(storage, 1, range(5, 12), b"newer")
        await storage.flush()
        # RocksDB takes no write after a failed one: it was opened anew.
        assert _rocks_index(storage)._store is not store
        expected = packets(1, range(5)) + packets(1, range(5, 12), b"newer")
        assert await storage.read(1, 0, ALL, BYTES) == expected
        copy = copy_as_after_a_crash(tmp_path / "a", tmp_path / "b")
    async with open_storage(copy) as storage:
        assert await storage.read(1, 0, ALL, BYTES) == expected
    async with open_storage(crashed) as storage:
        if is_written:
            assert await storage.read(1, 0, ALL, BYTES) == packets(1, range(10))
        else:
            assert storage.ledger_ids() == []


async def test_6_3_an_index_that_lost_its_root_is_not_an_empty_one(tmp_path: Path) -> None:
    async with open_storage(tmp_path) as storage:
        storage.put_state(1, STATE)
        await storage.flush()
    (tmp_path / "index" / "CURRENT").unlink()
    with pytest.raises(StorageIOError):
        await make_storage(tmp_path).open()


def _open(directory: Path) -> RocksIndex:
    mark = IndexMark(str(directory / "index-mark"), SystemDisk())
    return RocksIndex.open(str(directory / "index"), mark)


def _new_run(first: int, last: int, log_id: int = 1) -> NewRun:
    location = RunLocation(log_id, 64 + first, 100, last - first + 1, False)
    return NewRun(location, [(first, last)], first, last)


def _commit(index: RocksIndex, ledger_id: int, first: int, last: int) -> None:
    index.commit(IndexChanges(last_log_id=1, runs={ledger_id: [_new_run(first, last)]}))


@pytest.mark.parametrize("zeros", [100, 3000])
def test_6_3_zeros_in_the_log_that_was_not_synced_do_not_stop_the_start(
    tmp_path: Path, zeros: int
) -> None:
    """A file system may know the size of a file whose pages a power loss has taken."""
    (tmp_path / "a").mkdir()
    index = _open(tmp_path / "a")
    _commit(index, 1, 0, 9)
    for key in range(200):
        index._store.write([Put(b"x%d" % key, bytes(50))])  # not synced
    copy = copy_as_after_a_crash(tmp_path / "a", tmp_path / "b")
    index.close()
    (log,) = (copy / "index").glob("*.log")
    log.write_bytes(log.read_bytes()[:-zeros] + bytes(zeros))
    again = _open(copy)
    assert again.find(1, 5) is not None
    again.close()


def test_6_3_zeros_in_what_was_synced_are_a_lost_index(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    index = _open(tmp_path / "a")
    _commit(index, 1, 0, 9)
    copy = copy_as_after_a_crash(tmp_path / "a", tmp_path / "b")
    index.close()
    (log,) = (copy / "index").glob("*.log")
    log.write_bytes(log.read_bytes()[:-20] + bytes(20))
    with pytest.raises(StorageCorruptError, match="lost records"):
        _open(copy)


def test_6_3_what_was_lost_when_the_store_is_opened_anew_is_not_denied(tmp_path: Path) -> None:
    index = _open(tmp_path)
    older = copy_as_after_a_crash(tmp_path / "index", tmp_path / "older")
    _commit(index, 1, 0, 9)
    index._make_store = lambda path, may_create: RocksStore.open(str(older), may_create)
    index._store.write = failing_write  # type: ignore[method-assign]
    with pytest.raises(StorageIOError):
        _commit(index, 1, 10, 19)
    for _ in range(2):
        with pytest.raises(StorageCorruptError, match="lost records"):
            _commit(index, 1, 10, 19)
        assert index.find(1, 5) is not None


@pytest.mark.parametrize("is_read_only_possible", [False, True])
def test_what_is_stored_can_be_read_while_the_store_cannot_be_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_read_only_possible: bool
) -> None:
    """As when too many files are open: that passes, and the store is opened with a later commit."""

    def failing(*_: object) -> RocksStore:
        raise StorageIOError("Too many open files")

    index = _open(tmp_path)
    _commit(index, 1, 0, 9)
    with monkeypatch.context() as patch:
        patch.setattr(index, "_make_store", failing)
        patch.setattr(RocksStore, "write", failing)
        if not is_read_only_possible:
            patch.setattr(RocksStore, "open_beside", failing)
        for _ in range(3):
            with pytest.raises(StorageIOError):
                _commit(index, 1, 10, 19)
            assert index.find(1, 5) is not None
            assert index.find(1, 15) is None
    _commit(index, 1, 10, 19)
    assert index.find(1, 5) is not None
    assert index.find(1, 15) is not None
    index.close()


def test_a_store_that_is_opened_beside_a_busy_one_finds_no_damage_and_keeps_its_files(
    tmp_path: Path,
) -> None:
    """Files that a flush or a compaction takes away meanwhile would look like those of a damaged
    index, and the bookie would end."""
    path, value = str(tmp_path / "index"), bytes(1 << 20)
    RocksStore.open(path, True).close()
    for round_ in range(5):
        store = RocksStore.open(path, False)
        for key in range(30):  # enough for flushes, and compactions of what they wrote
            store.write([Put(b"%d-%d" % (round_, key), value)])
        store.sync()
        beside = store.open_beside()
        found = set(tmp_path.glob("index/*.log"))
        with suppress(StorageIOError):
            store.close()
        assert beside.sequence() == 30 * (round_ + 1)
        assert found <= set(tmp_path.glob("index/*.log"))
        assert beside.get(b"0-0") == value
        beside.close()


def test_an_index_that_is_opened_to_be_read_needs_no_room_on_its_disk(tmp_path: Path) -> None:
    """Not even to write again what is there: a full disk may have no room for that."""
    index = _open(tmp_path)
    _commit(index, 1, 0, 9)
    index.close()
    for _ in range(2):
        RocksStore.open_to_read(str(tmp_path / "index")).close()
        before = _files(tmp_path / "index")
    store = RocksStore.open_to_read(str(tmp_path / "index"))
    assert store.sequence() > 0
    assert _files(tmp_path / "index") == before


def _files(directory: Path) -> dict[str, tuple[int, int, int]]:
    """Inode, size and time of the last change of each file."""
    stats = {path.name: path.lstat() for path in directory.iterdir()}
    return {name: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


def failing_write(batch: object) -> None:
    raise StorageIOError("no")


def test_6_3_a_store_without_format_is_not_an_empty_index(tmp_path: Path) -> None:
    index = _open(tmp_path)
    _commit(index, 1, 0, 9)
    index.close()
    shutil.rmtree(tmp_path / "index")
    RocksStore.open(str(tmp_path / "index"), True).close()
    with pytest.raises(StorageCorruptError, match="lost"):
        _open(tmp_path)


def test_b25_entries_and_state_of_a_deleted_ledger_go_in_one_batch(tmp_path: Path) -> None:
    """Whatever part of a commit survives a crash, a ledger that comes back has all of it."""
    index = _open(tmp_path)
    changes = IndexChanges(
        last_log_id=1, runs={7: [_new_run(0, 9), _new_run(10, 19)]}, states={7: STATE}
    )
    index.commit(changes)
    batches: list[list[str]] = []
    write = index._store.write

    def noting(batch: list[object]) -> None:
        batches.append([type(operation).__name__ for operation in batch])
        write(batch)  # type: ignore[arg-type]

    index._store.write = noting  # type: ignore[method-assign,assignment]
    index.commit(IndexChanges(last_log_id=1, deleted=[7]))
    assert batches == [["DeleteRange", "Delete", "Put"]]
    assert index.states() == {}
    assert list(index.all_records()) == []
    index.close()


def test_a_crash_during_a_commit_leaves_no_ledger_with_entries_and_without_a_state(
    tmp_path: Path,
) -> None:
    """Nothing would ever remove these entries: what is not known is not collected either."""
    index = _open(tmp_path)
    write, ledgers = index._store.write, 600  # more than one batch

    def write_then_look(batch: Sequence[Operation]) -> None:
        write(batch)
        stored = {ledger_id for ledger_id, _ in index.all_records()}
        assert stored <= index.states().keys()

    index._store.write = write_then_look  # type: ignore[method-assign]
    runs = {ledger_id: [_new_run(0, 9)] for ledger_id in range(ledgers)}
    states = dict.fromkeys(range(ledgers + 5), STATE)
    index.commit(IndexChanges(last_log_id=1, runs=runs, states=states))
    assert len(index.states()) == ledgers + 5
    index.close()


def test_a_moved_record_is_replaced_in_one_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two batches a crash may come. The finished compaction would find no record to move,
    and delete the log that has the entry."""
    monkeypatch.setattr(rocks_index, "_BATCH_OPERATIONS", 1)
    index = _open(tmp_path)
    source = RunLocation(1, 64, 50, 3, True)
    run = NewRun(source, [(0, 0), (10, 10), (20, 20)], 0, 20)
    index.commit(IndexChanges(last_log_id=1, runs={7: [run]}, states={7: STATE}))
    _commit(index, 7, 0, 0)  # its record begins behind this entry now, in a gap of the run
    target = RunLocation(2, 64, 50, 2, True)
    found: list[RunLocation | None] = []
    write = index._store.write

    def write_then_look(batch: Sequence[Operation]) -> None:
        write(batch)
        record = index.find(7, 10)
        found.append(record and record.location)

    index._store.write = write_then_look  # type: ignore[method-assign]
    move = RunMove(7, 10, 20, source, target)
    assert index.commit(IndexChanges(last_log_id=2, moves=[move])) == {7}
    assert None not in found
    assert found[-1] == target
    index.close()


def test_a_store_without_its_current_file_is_damaged_and_can_be_rebuilt(tmp_path: Path) -> None:
    path = tmp_path / "index"
    RocksStore.open(str(path), may_create=True).close()
    (path / "CURRENT").unlink()
    with pytest.raises(StorageCorruptError) as caught:
        RocksStore.open(str(path), may_create=False)
    told = explain(caught.value)
    assert "bookie-tool rebuild-index" in str(told)
