"""Where entries come from: the tail cache, reads ahead, and what failures do."""

import asyncio

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.topic.dispatch.range_reads import RangeReads
from magnetar.broker.topic.dispatch.source import EntrySource
from magnetar.broker.topic.run import Run
from magnetar.broker.topic.tail_cache import TailCache, TailCachePool
from magnetar.cursors import NonDurableCursor
from magnetar.ledger.errors import LogUnavailableError
from magnetar.ledger.position import EARLIEST, Position
from tests.unit.broker.harness import entry
from tests.unit.broker.memory_log import MemoryLog
from tests.waiting import settle

_SIZE = len(entry())
_RETRY_MS_MAX = 4


class _Source:
    """A source, and how often it said that something is ready."""

    def __init__(self, log: MemoryLog, *, entries_max: int = 10) -> None:
        self.log = log
        self.ready = 0
        self.cache = TailCache(TailCachePool(1 << 20))
        self.cursor = NonDurableCursor(log, "s", initial=EARLIEST)
        settings = BrokerSettings(
            read_ahead_bytes=1 << 20,
            read_ahead_entries=entries_max,
            read_retry_ms=1,
            read_retry_ms_max=_RETRY_MS_MAX,
        )
        reads = RangeReads(log, self.cache, settings)
        self.source = EntrySource(log, reads, self.cursor, label="s", on_ready=self._on_ready)

    def _on_ready(self) -> None:
        self.ready += 1

    def take(self) -> list[Position]:
        """Everything that is there now."""
        found: list[Position] = []
        while (next_run := self.source.next_run()) is not None:
            run, index = next_run
            found += [
                Position(run.ledger_id, run.first_entry_id + at)
                for at in range(index, len(run.entries))
            ]
            self.source.advance(run, len(run.entries))
        return found


def _log(count: int) -> MemoryLog:
    log = MemoryLog()
    log.store(*(entry() for _ in range(count)))
    return log


def _at(*entry_ids: int) -> list[Position]:
    return [Position(7, each) for each in entry_ids]


async def test_the_cache_is_served_without_a_read() -> None:
    source = _Source(_log(3))
    source.cache.add(Run(7, 0, source.log.entries[7]))
    assert source.take() == _at(0, 1, 2)
    assert source.log.reads == []


async def test_behind_the_tail_ranges_are_read_and_one_more_ahead() -> None:
    source = _Source(_log(50), entries_max=10)
    assert source.take() == []
    await settle()
    # The second range was read although nobody has taken the first; a third was not.
    assert source.log.reads == _at(0, 10)
    assert source.ready >= 1
    found = source.take()
    while len(found) < 50:
        await settle()
        found += source.take()
    assert found == _at(*range(50))
    assert source.log.reads == _at(0, 10, 20, 30, 40)


async def test_reads_stop_where_the_cache_begins() -> None:
    source = _Source(_log(20), entries_max=10)
    source.cache.add(Run(7, 10, source.log.entries[7][10:]))
    source.take()
    await settle()
    assert source.take() == _at(*range(20))
    assert source.log.reads == _at(0)


async def test_nothing_beyond_the_end_and_on_with_what_is_appended() -> None:
    source = _Source(_log(0))
    assert source.take() == []
    assert source.log.reads == []
    source.log.store(entry())
    source.take()
    await settle()
    assert source.take() == _at(0)


async def test_ledger_borders_are_crossed() -> None:
    log = _log(2)
    log.roll(9)
    log.roll(12)
    log.store(entry())
    source = _Source(log)
    found = source.take()
    for _ in range(3):
        await settle()
        found += source.take()
    assert found == [*_at(0, 1), Position(12, 0)]


async def test_acknowledged_ranges_are_jumped_over() -> None:
    source = _Source(_log(1000), entries_max=10)
    source.cursor.ack_range(7, 1, 990)
    source.take()
    await settle()
    source.cursor.ack(Position(7, 0))
    source.source.rewind()
    found = source.take()
    await settle()
    assert found + source.take() == _at(*range(991, 1000))


async def test_rewind_starts_at_the_first_open_entry_and_drops_what_was_read() -> None:
    source = _Source(_log(3))
    source.take()
    await settle()
    assert source.take() == _at(0, 1, 2)
    source.cursor.ack(Position(7, 0))
    source.source.rewind()
    assert source.take() == _at(1, 2)


async def test_a_read_that_was_under_way_at_a_rewind_is_dropped() -> None:
    source = _Source(_log(3))
    source.log.read_gate = asyncio.Event()
    source.take()
    await settle()
    source.source.rewind()
    source.log.read_gate.set()
    await settle()
    assert source.ready == 0


async def test_a_failed_read_is_repeated_later() -> None:
    source = _Source(_log(1))
    source.log.read_error = LogUnavailableError("bookies are away")
    source.take()
    await settle()
    assert source.take() == []
    assert len(source.log.reads) == 1  # not at once
    source.log.read_error = None
    async with asyncio.timeout(5):
        while not source.ready:
            await settle()
    source.take()
    await settle()
    assert source.take() == _at(0)


async def test_closing_stops_reads_and_retries() -> None:
    source = _Source(_log(1))
    source.log.read_error = LogUnavailableError("bookies are away")
    source.take()
    await settle()
    source.source.close()
    before = source.ready
    source.log.read_error = None
    later = asyncio.Event()
    asyncio.get_running_loop().call_later(2 * _RETRY_MS_MAX / 1000, later.set)
    await later.wait()
    await settle()
    assert source.ready == before
