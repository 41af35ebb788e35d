"""An index made anew from the entry logs: the newest copies, and no promise that is not known."""

import errno
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.bookie.entry_logs.entry_log import encode_log_header, rebind_run_head
from magnetar.bookie.entry_logs.log_names import log_ids, log_name
from magnetar.bookie.entry_logs.log_scan import scan_log
from magnetar.bookie.errors import (
    NoSuchEntryInStorageError,
    NoSuchLedgerInStorageError,
    StorageError,
)
from magnetar.bookie.indexes.index_mark import EngineKind
from magnetar.bookie.indexes.open_index import index_path
from magnetar.bookie.indexes.rebuild import rebuild_index
from magnetar.bookie.integrity.loss_mark import is_check_needed, is_pass_needed
from magnetar.bookie.storage import LedgerState
from magnetar.bookie.storage_options import StorageOptions
from magnetar.ledger.ports import File
from magnetar.ledger.system import SystemClock, SystemDisk, SystemFile
from tests.ledger_storage import (
    ENGINES,
    SMALL,
    FailingDisk,
    add,
    copy_as_after_a_crash,
    default_engine,
    entry_logs,
    make_packet,
    open_storage,
)

PAGES = StorageOptions(index_page_bytes=64, index_cache_bytes=6000, index_open_files_max=2)
FEW_ROUNDS = StorageOptions(index_page_bytes=64)
LEDGERS = {1: range(40), 2: range(0, 30, 3), 300: range(7, 15)}
STATE = LedgerState(b"key", False, 12, bytes(36))
EMPTY = 70_000
"""A ledger without entries, but with a fence."""


async def fill(directory: Path) -> None:
    async with open_storage(directory, SMALL) as storage:
        for ledger_id, ids in LEDGERS.items():
            storage.put_state(ledger_id, STATE)
            add(storage, ledger_id, ids, b"older")
            await storage.flush()
            add(storage, ledger_id, ids[3:7], b"newer")
            await storage.flush()
        storage.put_state(EMPTY, LedgerState(b"key", True, -1))
        await storage.flush()


async def check_entries(directory: Path, engine: EngineKind) -> dict[int, LedgerState | None]:
    with default_engine(engine):
        async with open_storage(directory, SMALL) as storage:
            for ledger_id, ids in LEDGERS.items():
                page = await storage.list_entries(ledger_id, 0, 1000)
                assert list(page.entry_ids()) == list(ids)
                for entry_id in ids:
                    payload = b"newer" if entry_id in ids[3:7] else b"older"
                    expected = [make_packet(ledger_id, entry_id, payload)]
                    assert await storage.read(ledger_id, entry_id, entry_id, 1 << 20) == expected
                with pytest.raises(NoSuchEntryInStorageError):
                    await storage.read(ledger_id, 1000, 1000, 1)
            return {each: storage.state(each) for each in storage.ledger_ids()}


@pytest.mark.parametrize("engine", ENGINES)
async def test_c3_a_lost_index_is_made_anew_and_every_ledger_is_in_limbo_and_fenced(
    tmp_path: Path, engine: EngineKind
) -> None:
    """The index alone knew of ledgers without entries: the next start has to find out."""
    with default_engine(engine):
        await fill(tmp_path)
    shutil.rmtree(index_path(str(tmp_path), engine))
    done = rebuild_index(
        str(tmp_path), engine, disk=SystemDisk(), clock=SystemClock(), options=PAGES
    )
    assert (done.ledgers, done.salvaged, done.are_states_complete) == (len(LEDGERS), 0, False)
    assert done.problems == []
    states = await check_entries(tmp_path, engine)
    assert states == dict.fromkeys(LEDGERS, LedgerState(b"", True, -1, limbo=True))
    assert is_pass_needed(SystemDisk(), [str(tmp_path)])
    assert (tmp_path / "integrity-check").exists()


@pytest.mark.parametrize("engine", ENGINES)
async def test_what_the_old_index_can_say_is_salvaged(tmp_path: Path, engine: EngineKind) -> None:
    with default_engine(engine):
        await fill(tmp_path)
    done = rebuild_index(
        str(tmp_path), engine, disk=SystemDisk(), clock=SystemClock(), options=PAGES
    )
    assert (done.salvaged, done.are_states_complete) == (len(LEDGERS) + 1, True)
    states = await check_entries(tmp_path, engine)
    in_limbo = LedgerState(STATE.master_key, False, 12, STATE.explicit_lac, limbo=True)
    assert states == dict.fromkeys(LEDGERS, in_limbo) | {
        EMPTY: LedgerState(b"key", True, -1, limbo=True)
    }
    assert is_check_needed(SystemDisk(), [str(tmp_path)])


@pytest.mark.parametrize("engine", ENGINES)
async def test_c3_entries_may_be_missing_though_all_states_are_there(
    tmp_path: Path, engine: EngineKind
) -> None:
    """A log that lost its end has nothing that tells of it. What was acknowledged in the last
    fragment of an open ledger is known to nobody but its writer: so the next start has to fence
    those ledgers, as after any loss, before their limbo may end."""
    with default_engine(engine):
        await fill(tmp_path)
    newest = entry_logs(tmp_path)[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    done = rebuild_index(
        str(tmp_path), engine, disk=SystemDisk(), clock=SystemClock(), options=PAGES
    )
    assert (done.are_states_complete, done.problems) == (True, [])
    assert is_pass_needed(SystemDisk(), [str(tmp_path)])


async def test_page_files_that_are_left_give_their_keys_and_no_more(tmp_path: Path) -> None:
    with default_engine("interleaved"):
        await fill(tmp_path)
    lost = sorted((tmp_path / "page-index").rglob("*.idx"))[0]
    lost.unlink()
    done = rebuild_index(
        str(tmp_path), "interleaved", disk=SystemDisk(), clock=SystemClock(), options=PAGES
    )
    assert (done.salvaged, done.are_states_complete) == (len(LEDGERS), False)
    states = await check_entries(tmp_path, "interleaved")
    assert states[1] == LedgerState(b"", True, -1, limbo=True)
    assert states[2] == LedgerState(STATE.master_key, True, 12, STATE.explicit_lac, limbo=True)


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_rebuilding_that_is_cut_anywhere_is_repeated_or_goes_on(
    tmp_path: Path, engine: EngineKind
) -> None:
    """A start in between is refused, or finds one of the two indexes whole."""
    with default_engine(engine):
        await fill(tmp_path / "full")
        steps = 0
        while True:
            copy = copy_as_after_a_crash(tmp_path / "full", tmp_path / str(steps))
            disk = FailingDisk()
            disk.calls_until_failure = steps
            try:
                rebuild_index(str(copy), engine, disk=disk, clock=SystemClock(), options=FEW_ROUNDS)
            except (StorageError, OSError):
                try:
                    async with open_storage(copy, SMALL) as storage:
                        assert len(storage.ledger_ids()) == len(LEDGERS) + 1
                except StorageError:
                    pass
            if disk.calls_until_failure is not None:
                break
            is_built = (copy / "index-mark.rebuilt").exists()
            done = rebuild_index(
                str(copy), engine, disk=SystemDisk(), clock=SystemClock(), options=FEW_ROUNDS
            )
            assert done.was_built_before == is_built, "its report would say that it found nothing"
            assert done.are_states_complete != is_built
            states = await check_entries(copy, engine)
            assert len(states) == len(LEDGERS) + 1
            steps += 2
        assert steps > 8


async def test_b15_damage_in_a_log_is_reported_and_the_runs_behind_it_are_found(
    tmp_path: Path,
) -> None:
    await fill(tmp_path)
    first = entry_logs(tmp_path)[0]
    data = bytearray(first.read_bytes())
    data[70] ^= 1  # in the head of the first run
    first.write_bytes(data)
    header = entry_logs(tmp_path)[1]
    header.write_bytes(b"?" + header.read_bytes()[1:])
    done = rebuild_index(str(tmp_path), "db", disk=SystemDisk(), clock=SystemClock(), options=PAGES)
    assert sorted(problem.path for problem in done.problems) == [str(first), str(header)]
    async with open_storage(tmp_path, SMALL) as storage:
        assert storage.ledger_ids() == [*LEDGERS, EMPTY]
        page = await storage.list_entries(1, 0, 1000)
        assert 0 < len(list(page.entry_ids())) < 40


class BrokenSectors(SystemDisk):
    """A disk that cannot read some sectors any more."""

    def __init__(self, broken: dict[str, range]) -> None:
        self._broken = broken
        """By file: bytes."""

    def open(self, path: str) -> File:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return _BrokenFile(descriptor, self._broken.get(path, range(0)))


class _BrokenFile(SystemFile):
    def __init__(self, descriptor: int, broken: range) -> None:
        super().__init__(descriptor)
        self._broken = broken

    def pread(self, size: int, offset: int) -> bytes:
        if offset < self._broken.stop and offset + size > self._broken.start:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().pread(size, offset)


@pytest.mark.parametrize("engine", ENGINES)
async def test_sectors_that_cannot_be_read_are_told_and_the_runs_behind_them_are_found(
    tmp_path: Path, engine: EngineKind
) -> None:
    """What they held is in limbo like the rest, and the check after the next start fetches it."""
    options = replace(SMALL, entry_log_bytes_max=1 << 20, run_bytes_max=1 << 16)
    with default_engine(engine):
        async with open_storage(tmp_path, options) as storage:
            for ledger_id in range(1, 31):
                add(storage, ledger_id, range(5), bytes(1000))
            await storage.flush()
        first = str(entry_logs(tmp_path)[0])
        disk = BrokenSectors({first: range(8192, 16384)})
        done = rebuild_index(str(tmp_path), engine, disk=disk, clock=SystemClock(), options=PAGES)
        told = [(each.path, each.begin, each.end) for each in done.problems]
        assert (first, 8192, 16384) in told
        assert all(8192 - 6000 < begin < end < 16384 + 6000 for _, begin, end in told)
        async with open_storage(tmp_path, options) as storage:
            found = []
            for ledger_id in range(1, 31):
                state = storage.state(ledger_id)
                assert state is not None
                assert state.limbo
                with suppress(NoSuchLedgerInStorageError, NoSuchEntryInStorageError):
                    found += [ledger_id] * len(await storage.read(ledger_id, 0, 4, 1 << 20))
            # A run is of five packets and a little more than 5000 bytes.
            assert found[:5] == [1] * 5
            assert found[-5:] == [30] * 5
            assert 5 * 27 <= len(found) < 5 * 30


async def test_a_log_whose_header_cannot_be_read_is_told(tmp_path: Path) -> None:
    await fill(tmp_path)
    first = str(entry_logs(tmp_path)[0])
    disk = BrokenSectors({first: range(4096)})
    done = rebuild_index(str(tmp_path), "db", disk=disk, clock=SystemClock(), options=PAGES)
    assert [problem.path for problem in done.problems] == [first]


async def test_a_rebuilt_index_may_be_of_the_other_kind(tmp_path: Path) -> None:
    await fill(tmp_path)
    rebuild_index(
        str(tmp_path), "interleaved", disk=SystemDisk(), clock=SystemClock(), options=PAGES
    )
    await check_entries(tmp_path, "interleaved")


def _compact(directory: Path, source: int, target: int) -> None:
    """Copy all runs of a log to a new one, as compaction does, and remove it."""
    logs = directory / "entry-logs"
    data = (logs / log_name(source)).read_bytes()
    file = SystemDisk().open(str(logs / log_name(source)))
    scan = scan_log(file, source)
    file.close()
    copy = bytearray(encode_log_header(target, 1, scan.header.rank))
    for run in scan.runs:
        at = run.location.offset
        assert at == len(copy)
        head = data[at : at + run.location.tables_bytes]
        copy += rebind_run_head(head, log_id=target, offset=at)
        copy += data[at + len(head) : at + run.location.size_bytes]
    (logs / log_name(target)).write_bytes(copy)
    (logs / log_name(source)).unlink()


@pytest.mark.parametrize("engine", ENGINES)
async def test_10_4_what_compaction_copied_does_not_win_over_newer_copies(
    tmp_path: Path, engine: EngineKind
) -> None:
    """The copy has the higher log id; its rank is that of the log it was copied from."""
    await fill(tmp_path)
    last = log_ids([path.name for path in entry_logs(tmp_path)])[-1]
    for number, log_id in enumerate(range(1, last), 1):
        _compact(tmp_path, log_id, last + number)
    rebuild_index(str(tmp_path), engine, disk=SystemDisk(), clock=SystemClock(), options=FEW_ROUNDS)
    await check_entries(tmp_path, engine)
