"""Ledgers of a topic that are deleted, what holds them, and what becomes of readers."""

from collections.abc import Sequence
from typing import cast

import pytest

from magnetar.broker.features.retention import trimming
from magnetar.broker.policies.model import Retention
from magnetar.broker.topic import Feature
from magnetar.cursors import Cursor, CursorUnavailableError
from magnetar.ledger.position import EARLIEST, Position
from magnetar.sdk.wire import BaseCommand
from tests.unit.broker.harness import id_of
from tests.unit.broker.keeping.world import World


class HeldCursor:
    """A durable cursor that is stored at a position."""

    name = "held"

    def __init__(self, persisted: Position) -> None:
        self.persisted_mark_delete = persisted
        self.left: list[Position] = []
        self.error: CursorUnavailableError | None = None

    async def leave(self, before: Position) -> None:
        if self.error is not None:
            raise self.error
        self.left.append(before)


async def _world() -> World:
    """Ledgers 7, 8 and 9 with two entries each."""
    world = await World.make()
    for ledger_id in (8, 9):
        world.store(1, 1)
        world.log.roll(ledger_id)
    world.store(1, 1)
    return world


class _Holding(Feature):
    """A feature with a cursor of its own."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor

    def cursors(self) -> Sequence[Cursor]:
        return (self._cursor,)


def _hold(world: World, persisted: Position) -> HeldCursor:
    cursor = HeldCursor(persisted)
    world.topic.host(_Holding(cast(Cursor, cursor)))
    return cursor


def _left(world: World) -> list[int]:
    return list(world.log.entries)


async def test_a_topic_that_nobody_subscribes_to_keeps_its_last_ledger_only() -> None:
    world = await _world()
    assert await trimming.trim(world.topic) == 2
    assert _left(world) == [9]
    assert world.topic.use.trimmed_ledgers == 2
    assert trimming.look_at(world.topic) is None


@pytest.mark.parametrize(
    ("persisted", "left"),
    [
        (EARLIEST, [7, 8, 9]),
        (Position(7, 0), [7, 8, 9]),
        (Position(7, 1), [8, 9]),
        (Position(8, -1), [8, 9]),
        (Position(9, 1), [9]),
    ],
)
async def test_a_cursor_that_is_no_subscription_holds_trimming_back(
    persisted: Position, left: list[int]
) -> None:
    world = await _world()
    cursor = _hold(world, persisted)
    work = trimming.look_at(world.topic)
    if work is not None:
        await work
    assert _left(world) == left
    assert cursor.left == ([Position(left[0], 0)] if left[0] > 7 else [])


async def test_retained_ledgers_stay_until_the_policy_changes() -> None:
    world = await _world()
    world.set(retention=Retention(minutes=-1, mib=-1))
    assert trimming.look_at(world.topic) is None
    world.set(retention=Retention())
    assert await trimming.trim(world.topic) == 2


async def test_a_cursor_that_cannot_be_stored_keeps_every_ledger() -> None:
    world = await _world()
    cursor = _hold(world, Position(8, 1))
    cursor.error = CursorUnavailableError("the bookies are away")
    with pytest.raises(CursorUnavailableError):
        await trimming.trim(world.topic)
    assert _left(world) == [7, 8, 9]
    cursor.error = None
    assert await trimming.trim(world.topic) == 2, "the gate is open again"


async def test_a_topic_that_may_be_another_brokers_is_left_alone() -> None:
    world = await _world()
    world.harness.topics.tenure.is_held = False
    assert await trimming.trim(world.topic) == 0
    assert _left(world) == [7, 8, 9]


async def test_nothing_is_trimmed_while_a_subscription_is_being_opened() -> None:
    world = await _world()
    await world.subscription()
    world.topic.subscriptions["s"].context = None
    assert trimming.trim_point(world.topic) is None


async def test_a_running_reader_goes_on_at_what_is_left() -> None:
    world = await _world()
    client = world.client()
    await client.subscribe(durable=False, start_message_id=id_of(EARLIEST))
    client.flow(1)
    ((message, _),) = await client.messages(1)
    assert message.message_id.ledgerId == 7
    await trimming.trim(world.topic)
    client.flow(10)
    places = [each.message_id for each, _ in await client.messages(2)]
    assert [(place.ledgerId, place.entryId) for place in places] == [(9, 0), (9, 1)]
    assert BaseCommand.CLOSE_CONSUMER not in client.commands()
    assert world.topic.subscriptions["s"].cursor.backlog_entries == 2
