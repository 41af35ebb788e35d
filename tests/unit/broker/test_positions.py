"""Positions that clients name."""

import pytest

from magnetar.broker.base.entry import publish_time_ms_of
from magnetar.broker.topic.positions import position_at_time, position_of, signed
from magnetar.cursors import NonDurableCursor
from magnetar.ledger.position import EARLIEST, LATEST, Position
from magnetar.sdk.wire.pulsar_pb2 import MessageIdData
from tests.unit.broker.harness import entry
from tests.unit.broker.memory_log import MemoryLog


def test_minus_one_travels_unsigned() -> None:
    assert signed(2**64 - 1) == -1
    assert signed(5) == 5
    assert position_of(MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)) == EARLIEST
    assert position_of(MessageIdData(ledgerId=2**63 - 1, entryId=2**63 - 1)) == LATEST


def _log(*publish_times: int) -> MemoryLog:
    """Five entries per ledger."""
    log = MemoryLog(1)
    for number, publish_time in enumerate(publish_times):
        if number and number % 5 == 0:
            log.roll(1 + number)
        log.store(entry(publish_time=publish_time))
    return log


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        (0, Position(1, 0)),
        (10, Position(1, 0)),
        (11, Position(1, 1)),
        (50, Position(1, 4)),
        (51, Position(6, 0)),
        (120, Position(11, 1)),
        (121, Position(11, 2)),
    ],
)
async def test_the_first_entry_at_or_after_a_time(time: int, expected: Position) -> None:
    log = _log(*(10 * each for each in range(1, 13)))
    assert await position_at_time(log, time) == expected
    assert len(log.reads) <= 4  # a binary search


async def test_an_empty_log_has_nothing_at_any_time() -> None:
    assert await position_at_time(MemoryLog(), 5) == Position(7, 0)


class _BusyLog(MemoryLog):
    """Somebody publishes while it is read."""

    async def read_range(
        self, start: Position, *, entries_max: int, bytes_max: int
    ) -> tuple[Position, list[bytes]]:
        found = await super().read_range(start, entries_max=entries_max, bytes_max=bytes_max)
        if len(self.reads) == 1:
            self.store(entry(publish_time=200))
            self.roll(20)
        self.store(entry(publish_time=201))
        return found


@pytest.mark.parametrize("is_rolled", [False, True])
async def test_what_is_published_while_a_time_is_looked_for_is_not_passed_over(
    is_rolled: bool,
) -> None:
    log = _BusyLog(1)
    for publish_time in (10, 20, 30):
        log.store(entry(publish_time=publish_time))
    if is_rolled:
        log.roll(10)
    cursor = NonDurableCursor(log, "s", initial=EARLIEST)
    await cursor.reset(await position_at_time(log, 100))
    first = cursor.next_unacked(cursor.mark_delete)
    assert first == (Position(10, 0) if is_rolled else Position(1, 3))


@pytest.mark.parametrize("at", range(7))
async def test_an_unreadable_entry_has_nothing_passed_over_that_is_not_older(at: int) -> None:
    log = MemoryLog(1)
    log.store(*(entry(publish_time=10 * each) for each in range(7)))
    log.entries[1][at] = b"nonsense"
    for time_ms in range(0, 70, 10):
        assert await position_at_time(log, time_ms) <= Position(1, time_ms // 10)


HOUR_MS = 3_600_000


async def test_a_time_before_its_entry_can_have_been_stored_is_not_looked_for() -> None:
    """Of a producer whose clock is a day behind, after one whose clock was right."""
    log = _log(*(HOUR_MS * each for each in (40, 41, 42, 43, 44)))
    log.closed_ms[1] = 44 * HOUR_MS + 1
    log.roll(10)
    for each in (21, 22):
        log.store(entry(publish_time=HOUR_MS * each))
    assert await position_at_time(log, 44 * HOUR_MS) == Position(1, 4)
    assert await position_at_time(log, 44 * HOUR_MS + 1) == Position(10, 0)


async def test_producers_that_take_turns_hide_no_time_from_each_other() -> None:
    log = MemoryLog(1)
    for each in range(40):
        log.store(entry(publish_time=each * 1000 if each % 4 == 0 else 1))
    found = await position_at_time(log, 20_000)
    assert Position(1, 13) <= found <= Position(1, 20)


async def test_clocks_that_differ_a_little_are_taken_at_their_word() -> None:
    log = MemoryLog(1)
    log.created_ms[1] = 100_000
    for publish_time in (99_000, 99_500, 101_000):
        log.store(entry(publish_time=publish_time))
    assert await position_at_time(log, 99_500) == Position(1, 1)


def _of_index(log: MemoryLog, per_run: int) -> None:
    """Have an object with an index for each closed ledger, with so many entries in a run."""

    def index_of(ledger_id: int, publish_ms: int) -> range | None:
        payloads = log.entries[ledger_id]
        times = [publish_time_ms_of(each) for each in payloads]
        for first in range(0, len(times), per_run):
            if any(each is None or each >= publish_ms for each in times[first : first + per_run]):
                return range(first, min(len(times), first + per_run))
        return range(len(times), len(times))

    log.index_of = index_of


TIMES = [10 * each for each in range(1, 101)]


@pytest.mark.parametrize("time", [0, 10, 11, 135, 500, 501, 999, 1_000, 1_001])
async def test_an_index_leads_to_the_same_entry_as_reading(time: int) -> None:
    log, indexed = _log(*TIMES), _log(*TIMES)
    _of_index(indexed, 2)
    assert await position_at_time(indexed, time) == await position_at_time(log, time)


async def test_with_indexes_of_runs_of_one_entry_no_entry_is_read() -> None:
    log = _log(*TIMES)
    _of_index(log, 1)
    assert await position_at_time(log, 505) == Position(51, 0)
    assert log.reads == []
    assert len(log.indexes_read) == len(set(log.indexes_read)) <= 6


async def test_entries_are_read_of_one_run_only_and_of_what_has_no_index() -> None:
    log = _log(*TIMES)
    _of_index(log, 5)
    by_index = log.index_of
    assert await position_at_time(log, 535) == Position(51, 3)
    assert {each.ledger_id for each in log.reads} == {51}
    log.reads.clear()
    log.index_of = lambda ledger_id, time: by_index(ledger_id, time) if ledger_id < 50 else None
    assert await position_at_time(log, 535) == Position(51, 3)
    assert all(each.ledger_id >= 50 for each in log.reads)


async def test_an_index_does_not_pass_over_times_of_a_clock_that_is_behind() -> None:
    """The index has the producers' times; those long before their entries were stored count as
    late as that."""
    log = _log(*(HOUR_MS * each for each in (40, 41, 42, 43, 44)))
    log.closed_ms[1] = 44 * HOUR_MS + 1
    log.roll(10)
    for each in (21, 22):
        log.store(entry(publish_time=HOUR_MS * each))
    log.roll(20)
    log.store(entry(publish_time=HOUR_MS * 50))
    _of_index(log, 1)
    assert await position_at_time(log, 44 * HOUR_MS + 1) == Position(10, 0)
    assert await position_at_time(log, 45 * HOUR_MS) == Position(20, 0)
