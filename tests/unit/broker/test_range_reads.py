"""Subscriptions of a topic share their reads: an entry is read once for all that want it soon."""

import asyncio

import pytest

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.topic.dispatch.range_reads import RangeReads
from magnetar.broker.topic.run import Run
from magnetar.broker.topic.tail_cache import TailCache, TailCachePool
from magnetar.ledger.errors import LogUnavailableError
from magnetar.ledger.position import Position
from tests.unit.broker.harness import entry
from tests.unit.broker.memory_log import MemoryLog
from tests.waiting import settle


def _reads(entries: int, *, entries_max: int = 10, cache_bytes: int = 1 << 20) -> RangeReads:
    log = MemoryLog()
    log.store(*(entry() for _ in range(entries)))
    settings = BrokerSettings(
        read_ahead_bytes=1 << 20,
        read_ahead_entries=entries_max,
        read_retry_ms=1,
        read_retry_ms_max=4,
    )
    return RangeReads(log, TailCache(TailCachePool(cache_bytes)), settings)


def _log(reads: RangeReads) -> MemoryLog:
    assert isinstance(reads._log, MemoryLog)
    return reads._log


def _begin(reads: RangeReads, entry_id: int) -> "asyncio.Task[Run | None]":
    return asyncio.get_running_loop().create_task(reads.read(Position(7, entry_id)))


async def _span(task: "asyncio.Task[Run | None]") -> tuple[int, int]:
    run = await task
    assert run is not None
    return run.first_entry_id, run.first_entry_id + len(run.entries)


async def test_twenty_who_want_the_same_cost_one_read() -> None:
    reads = _reads(10)
    gate = _log(reads).read_gate = asyncio.Event()
    tasks = [_begin(reads, 0) for _ in range(20)]
    await settle()
    gate.set()
    runs = await asyncio.gather(*tasks)
    assert len(_log(reads).reads) == 1
    assert all(run is runs[0] for run in runs)


async def test_who_comes_later_finds_what_was_read() -> None:
    reads = _reads(30)
    assert await _span(_begin(reads, 0)) == (0, 10)
    assert await _span(_begin(reads, 7)) == (0, 10)
    assert _log(reads).reads == [Position(7, 0)]


async def test_a_read_ends_where_something_is_there_or_under_way() -> None:
    reads = _reads(30)
    reads.cache.add(Run(7, 25, _log(reads).entries[7][25:]))
    gate = _log(reads).read_gate = asyncio.Event()
    later = _begin(reads, 16)
    await settle()
    earlier = _begin(reads, 10)
    inside = _begin(reads, 18)
    await settle()
    gate.set()
    assert await _span(later) == (16, 25)
    assert await _span(earlier) == (10, 16)
    assert await _span(inside) == (16, 25)
    assert _log(reads).reads == [Position(7, 16), Position(7, 10)]


async def test_without_room_in_the_cache_those_who_wait_are_served_all_the_same() -> None:
    reads = _reads(10, cache_bytes=0)
    gate = _log(reads).read_gate = asyncio.Event()
    tasks = [_begin(reads, each) for each in (0, 0, 5)]
    await settle()
    gate.set()
    runs = await asyncio.gather(*tasks)
    assert len(_log(reads).reads) == 1
    assert all(run is runs[0] for run in runs)


async def test_who_gives_up_does_not_take_the_others_with_it() -> None:
    reads = _reads(10)
    gate = _log(reads).read_gate = asyncio.Event()
    reading, waiting, other = (_begin(reads, 0) for _ in range(3))
    await settle()
    waiting.cancel()
    await settle()
    reading.cancel()
    await settle()
    gate.set()
    assert await _span(other) == (0, 10)


async def test_a_failed_read_is_told_to_everybody_and_the_next_one_is_a_new_one() -> None:
    reads = _reads(10)
    _log(reads).read_error = LogUnavailableError("bookies are away")
    failed = await asyncio.gather(
        *(reads.read(Position(7, 0)) for _ in range(3)), return_exceptions=True
    )
    assert all(isinstance(error, LogUnavailableError) for error in failed)
    _log(reads).read_error = None
    assert await _span(_begin(reads, 0)) == (0, 10)


async def test_behind_the_end_there_is_nothing() -> None:
    reads = _reads(1)
    assert await reads.read(Position(7, 1)) is None


async def test_an_error_that_nobody_expects_leaves_nobody_waiting() -> None:
    reads = _reads(1)

    async def broken(*_: object, **__: object) -> tuple[Position, list[bytes]]:
        raise RuntimeError("a defect")

    reads._log.read_range = broken  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(RuntimeError):
            await reads.read(Position(7, 0))
