"""A flush that nobody waits for leaves the disk to journals; one that somebody needs does not."""

import asyncio
import itertools
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.bookie.engine.entry_storage import EntryStorage
from magnetar.bookie.engine.flush_pace import PART_BYTES, FlushPace
from magnetar.bookie.errors import StorageFullError, StorageIOError
from magnetar.ledger.system import SystemClock, SystemDisk
from tests.ledger_storage import SMALL, add, copy_as_after_a_crash, open_storage

PAYLOAD = b"x" * 10_000
FOUR_PARTS = range(4 * PART_BYTES // len(PAYLOAD) + 1)
HOUR = replace(
    SMALL,
    write_buffer_bytes=16 * PART_BYTES,
    run_bytes_max=PART_BYTES // 4,
    run_entries_max=1000,
    entry_log_bytes_max=64 * PART_BYTES,
    flush_spread_s=3600.0,
)
"""A flush that nobody hurries ends in none of these tests."""


class StandingClock(SystemClock):
    now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s


class Rests:
    """How long the flush worker was told to rest, instead of resting."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds: list[float] = []

        def wait(_: threading.Event, timeout: float | None = None) -> bool:
            assert timeout is not None
            self.seconds.append(round(timeout, 3))
            return False

        monkeypatch.setattr(threading.Event, "wait", wait)


def test_each_part_waits_for_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rests, clock = Rests(monkeypatch), StandingClock()
    pace = FlushPace(2.0, clock)
    pace.begin(is_gentle=True)
    pace.start(400)
    pace.rest(100)
    clock.now_s += 0.9  # the next part took so long
    pace.rest(100)
    clock.now_s += 3.0  # behind: at full speed until it has caught up
    pace.rest(100)
    assert rests.seconds == [0.5, 0.1]


def test_runs_have_heads_and_no_rest_is_longer_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rests = Rests(monkeypatch)
    pace = FlushPace(2.0, StandingClock())
    pace.begin(is_gentle=True)
    pace.start(100)
    pace.rest(110)
    assert rests.seconds == [2.0]


def test_computing_rests_after_each_millisecond_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rests, clock = Rests(monkeypatch), StandingClock()
    pace = FlushPace(2.0, clock)
    pace.begin(is_gentle=True)
    pace.start(100)
    pace.rest_from_work()
    for worked_s in (0.0005, 0.0005, 0.0004, 0.002, 0.3):
        clock.now_s += worked_s
        pace.rest_from_work()
    assert rests.seconds == [0.004, 0.01, 0.02], "what took long was not all computing"


def test_the_rests_of_computing_are_not_longer_than_a_flush_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rests, clock = Rests(monkeypatch), StandingClock()
    pace = FlushPace(1.0, clock)
    pace.begin(is_gentle=True)
    pace.start(100)
    for _ in range(1000):
        clock.now_s += 0.002
        pace.rest_from_work()
    assert sum(rests.seconds) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(("spread_s", "is_gentle"), [(0.0, True), (2.0, False)])
def test_a_flush_that_may_not_take_its_time_is_in_a_hurry(spread_s: float, is_gentle: bool) -> None:
    pace = FlushPace(spread_s, StandingClock())
    pace.begin(is_gentle=is_gentle)
    assert not pace.is_gentle


def test_a_hurry_ends_with_its_flush() -> None:
    clock = StandingClock()
    pace = FlushPace(2.0, clock)
    pace.begin(is_gentle=True)
    pace.hurry()
    assert not pace.is_gentle
    clock.now_s += 2.0
    pace.begin(is_gentle=True)
    assert pace.is_gentle


def test_flushes_that_follow_each_other_closely_do_not_rest() -> None:
    """Such flushes come from adds as many as the disk can take, and resting would make it fewer."""
    clock = StandingClock()
    pace = FlushPace(2.0, clock)
    pace.begin(is_gentle=False)
    clock.now_s += 1.9
    pace.begin(is_gentle=True)
    assert not pace.is_gentle


@pytest.fixture
async def rested(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when a flush rests for the first time."""
    rest, event, loop = FlushPace.rest, asyncio.Event(), asyncio.get_running_loop()

    def noticed(self: FlushPace, written_bytes: int) -> None:
        loop.call_soon_threadsafe(event.set)
        rest(self, written_bytes)

    monkeypatch.setattr(FlushPace, "rest", noticed)
    return event


async def begin(storage: EntryStorage, rested: asyncio.Event) -> "asyncio.Task[None]":
    """A flush that nobody waits for, after its first part."""
    add(storage, 1, FOUR_PARTS, PAYLOAD)
    flush = asyncio.create_task(storage.flush(is_gentle=True))
    await rested.wait()
    assert not flush.done()
    return flush


async def test_somebody_who_needs_a_flush_hurries_the_one_under_way(
    tmp_path: Path, rested: asyncio.Event
) -> None:
    async with open_storage(tmp_path, HOUR) as storage:
        gentle = await begin(storage, rested)
        async with asyncio.timeout(30):
            await storage.flush()
            await gentle


async def test_one_of_several_who_need_the_next_flush_makes_it_a_quick_one(
    tmp_path: Path, rested: asyncio.Event
) -> None:
    async with open_storage(tmp_path, HOUR) as storage:
        first = await begin(storage, rested)
        add(storage, 2, FOUR_PARTS, PAYLOAD)
        async with asyncio.timeout(30):
            await asyncio.gather(
                first, storage.flush(is_gentle=True), storage.flush(), storage.flush(is_gentle=True)
            )


async def test_adds_that_need_the_room_soon_hurry_a_flush(
    tmp_path: Path, rested: asyncio.Event
) -> None:
    async with open_storage(tmp_path, HOUR) as storage:
        gentle = await begin(storage, rested)
        half = range(8 * PART_BYTES // len(PAYLOAD) + 1)
        add(storage, 2, half[:-100], PAYLOAD)
        assert not gentle.done()
        add(storage, 2, half[-100:], PAYLOAD)
        async with asyncio.timeout(30):
            await gentle


class SmallDisk(SystemDisk):
    """Has room when the test says so."""

    is_full = False

    def free_bytes(self, path: str) -> int:
        return 0 if self.is_full else super().free_bytes(path)


async def test_a_cache_that_is_full_is_not_flushed_at_leisure(
    tmp_path: Path, rested: asyncio.Event
) -> None:
    """As behind a flush that failed: adds are refused until this one has ended."""
    disk = SmallDisk()
    async with open_storage(tmp_path, HOUR, disk) as storage:
        disk.is_full = True
        add(storage, 1, FOUR_PARTS, PAYLOAD)
        with pytest.raises(StorageIOError):
            await storage.flush()
        for ledger_id in itertools.count(2):
            try:
                add(storage, ledger_id, FOUR_PARTS, PAYLOAD)
            except StorageFullError:
                break
        disk.is_full = False
        async with asyncio.timeout(30):
            await storage.flush(is_gentle=True)
        assert not rested.is_set()


async def test_a_storage_that_is_closed_waits_for_no_rest(
    tmp_path: Path, rested: asyncio.Event
) -> None:
    async with asyncio.timeout(30):
        async with open_storage(tmp_path / "storage", HOUR) as storage:
            gentle = await begin(storage, rested)
        await gentle
    async with open_storage(tmp_path / "storage", HOUR) as storage:
        found = await storage.read(1, 0, FOUR_PARTS[-1], 1 << 30)
        assert len(found) == len(FOUR_PARTS)


async def test_what_a_resting_flush_has_written_does_not_count_before_its_end(
    tmp_path: Path, rested: asyncio.Event
) -> None:
    async with open_storage(tmp_path / "storage", HOUR) as storage:
        gentle = await begin(storage, rested)
        assert storage.read_now(1, 0, 0, 1 << 20) is not None
        copy = copy_as_after_a_crash(tmp_path / "storage", tmp_path / "copy")
        await storage.flush()
        await gentle
    async with open_storage(copy, HOUR) as storage:
        assert storage.ledger_ids() == []
