"""Copies of one topic to one cluster: what is sent, and what statistics say of it."""

from collections.abc import AsyncIterator

import pytest

from magnetar.ledger.position import Position
from tests.unit.broker.harness import batch, entry
from tests.unit.broker.replication.sending_parts import CopiedTopic
from tests.waiting import settle, until


@pytest.fixture
async def copied() -> AsyncIterator[CopiedTopic]:
    found = CopiedTopic()
    await found.begin()
    yield found
    await found.end()


def message(world: CopiedTopic, *, age_ms: int = 0) -> bytes:
    return entry(publish_time=world.clock.now_ms - age_ms)


async def test_entries_are_sent_in_order_and_the_mark_follows_the_receipts(
    copied: CopiedTopic,
) -> None:
    copied.store(*(message(copied) for _ in range(3)))
    await settle()
    assert copied.there.places == [0, 1, 2]
    copied.there.receipt(0, 1)
    assert copied.cursor.mark_delete == Position(7, 1)
    copied.there.receipt(2)
    assert copied.cursor.mark_delete == Position(7, 2)


async def test_statistics_count_messages_and_say_whether_it_is_connected(
    copied: CopiedTopic,
) -> None:
    copied.store(batch(3), message(copied))
    await settle()
    shown = copied.sender.shown()
    assert (shown["msgOutCount"], shown["replicationBacklog"], shown["connected"]) == (4, 2, True)
    assert shown["outboundConnectedSince"] == copied.clock.now_ms
    copied.clock.advance(2_000)
    assert copied.sender.shown()["msgRateOut"] == 2.0
    copied.there.is_away = True
    copied.there.lose()
    await until(lambda: bool(copied.sender.problem))
    shown = copied.sender.shown()
    assert (shown["connected"], shown["outboundConnectedSince"]) == (False, None)


async def test_the_delay_is_the_age_of_the_oldest_message_that_is_not_receipted(
    copied: CopiedTopic,
) -> None:
    def delay() -> int:
        return int(copied.sender.shown()["replicationDelayInSeconds"])

    await settle()
    assert delay() == 0
    copied.store(message(copied))
    await settle()
    copied.clock.advance(4_000)
    copied.store(message(copied))
    await settle()
    assert delay() == 4
    copied.there.receipt(0)
    await settle()
    copied.clock.advance(3_000)
    assert delay() == 3
    copied.there.receipt(1)
    await settle()
    copied.clock.advance(60_000)
    assert delay() == 0


async def test_the_delay_grows_while_the_other_side_is_away() -> None:
    world = CopiedTopic()
    world.there.is_away = True
    await world.begin()
    world.store(message(world))
    await until(lambda: bool(world.sender.problem))
    world.clock.advance(90_000)
    assert world.sender.shown()["replicationDelayInSeconds"] == 90
    world.there.is_away = False
    await until(lambda: world.there.places == [0])
    assert world.sender.shown()["replicationDelayInSeconds"] == 90
    world.there.receipt(0)
    await settle()
    assert world.sender.shown()["replicationDelayInSeconds"] == 0
    await world.end()
