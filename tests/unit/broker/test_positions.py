"""Positions that clients name."""

import pytest

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
