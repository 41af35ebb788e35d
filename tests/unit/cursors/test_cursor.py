"""The durable cursor: opening, closing, seeking, and who may have it."""

import asyncio

import pytest

from magnetar.cursors.errors import (
    CursorClosedError,
    CursorFencedError,
    CursorStateTooLargeError,
    CursorUnavailableError,
    InvalidCursorNameError,
    NoSuchCursorError,
)
from magnetar.cursors.node import cursor_path, list_cursors
from magnetar.ledger.position import EARLIEST, LATEST, Position
from tests.unit.cursors.doubles import UNKNOWN
from tests.unit.cursors.world import NAME, UNAVAILABLE, World, every_second

# Making room for trimming


async def test_m07_a_cursor_leaves_a_ledger_durably_before_that_goes(world: World) -> None:
    cursor = await world.open()
    cursor.ack_range(3, 0, 99)
    await cursor.persist()
    assert cursor.persisted_mark_delete == Position(3, 99)
    await cursor.leave(Position(6, 0))
    assert cursor.mark_delete == cursor.persisted_mark_delete == Position(6, -1)
    assert (await world.open(None)).mark_delete == Position(6, -1)


async def test_a_cursor_that_is_further_on_is_left_alone(world: World) -> None:
    cursor = await world.open()
    cursor.ack_range(3, 0, 99)
    cursor.ack(Position(6, 0))
    await cursor.persist()
    saves = cursor.statistics.saves
    await cursor.leave(Position(6, 0))
    assert cursor.mark_delete == Position(6, 0)
    assert cursor.statistics.saves == saves


async def test_m07_a_position_that_is_ahead_in_memory_only_is_saved_before_its_ledger_goes(
    world: World,
) -> None:
    cursor = await world.open()
    cursor.ack_range(3, 0, 99)
    await cursor.persist()
    cursor.ack_range(6, 0, 4)
    await cursor.leave(Position(6, 0))
    assert cursor.persisted_mark_delete == Position(6, 4)


# Opening a new one


async def test_a_new_cursor_is_registered_before_open_returns(world: World) -> None:
    cursor = await world.open()
    assert world.node["mark_delete"] == [3, -1]
    assert world.node["cursor_ledger_id"] == -1
    assert world.node["properties"] == {"team": "a"}
    assert cursor.persisted_mark_delete == cursor.mark_delete == Position(3, -1)
    assert cursor.backlog_entries == 200
    assert await list_cursors(world.store, world.log.path) == [NAME]


async def test_a_new_cursor_at_the_latest_position_sees_only_what_follows(world: World) -> None:
    cursor = await world.open(LATEST)
    assert cursor.backlog_entries == 0
    world.log.append(2)
    assert cursor.backlog_entries == 2


async def test_a_new_cursor_may_begin_inside_a_batch(world: World) -> None:
    cursor = await world.open(Position(3, 7), words=(0b1100,))
    assert cursor.mark_delete == Position(3, 6)
    assert cursor.remaining_words(Position(3, 7)) == (0b1100,)
    again = await world.open()
    assert again.remaining_words(Position(3, 7)) == (0b1100,)


async def test_an_unknown_cursor_without_an_initial_position_is_an_error(world: World) -> None:
    with pytest.raises(NoSuchCursorError):
        await world.open(None)


async def test_an_existing_cursor_ignores_the_initial_position(world: World) -> None:
    cursor = await world.open()
    cursor.ack(Position(3, 0))
    await cursor.close()
    again = await world.open(LATEST)
    assert again.mark_delete == Position(3, 0)
    assert again.properties == {"team": "a"}


async def test_a_registration_whose_reply_is_lost_is_found_again(world: World) -> None:
    world.store.faults.add("create", UNKNOWN, done=True)
    cursor = await world.open()
    assert cursor.mark_delete == Position(3, -1)
    cursor.ack(Position(3, 0))
    await cursor.persist()


@pytest.mark.parametrize("name", ["", "x" * 1025])
def test_a_name_that_cannot_be_stored_is_refused(name: str) -> None:
    with pytest.raises(InvalidCursorNameError):
        cursor_path("/log", name)


@pytest.mark.parametrize(
    ("name", "node"),
    [("a", "a"), ("a/b", "a%2Fb"), (".", "%2E"), ("..", "%2E%2E"), ("ä b", "%C3%A4%20b")],
)
def test_names_are_quoted_into_one_node_name(name: str, node: str) -> None:
    assert cursor_path("/log", name) == f"/log/{node}"


async def test_a_log_that_does_not_exist_has_no_cursors(world: World) -> None:
    assert await list_cursors(world.store, "/nothing") == []


# Closing


async def test_a_clean_close_leaves_the_state_in_the_node_and_no_ledger(world: World) -> None:
    cursor = await world.open()
    cursor.ack_many([Position(3, 0), Position(3, 2)])
    await cursor.persist()
    cursor.ack(Position(3, 4))
    await cursor.close()
    assert world.node["cursor_ledger_id"] == -1
    assert world.node["ranges"] == [[3, 2, 2], [3, 4, 4]]
    assert world.ledgers.ledgers == {}
    assert cursor.persisted_mark_delete == Position(3, 0)
    await cursor.close()


@pytest.mark.parametrize(("ranges", "in_node"), [(10, True), (11, False)])
async def test_a_large_state_stays_in_its_ledger_which_is_closed(
    world: World, ranges: int, in_node: bool
) -> None:
    cursor = await world.open(node_ranges_max=10)
    cursor.ack_many(every_second(ranges))
    await cursor.close()
    assert (world.node["cursor_ledger_id"] == -1) == in_node
    assert all(not ledger.is_open for ledger in world.ledgers.ledgers.values())
    again = await world.open(node_ranges_max=10)
    assert again.range_count == ranges
    assert len(world.ledgers.ledgers) == (0 if in_node else 1)


async def test_a_closed_cursor_saves_nothing_any_more(world: World) -> None:
    cursor = await world.open(interval_ms=0)
    await cursor.close()
    cursor.ack(Position(3, 0))
    assert cursor._timer is None
    with pytest.raises(CursorClosedError):
        await cursor.persist()
    with pytest.raises(CursorClosedError):
        await cursor.reset(EARLIEST)


async def test_a_close_that_fails_can_be_tried_again(world: World) -> None:
    cursor = await world.open()
    cursor.ack(Position(3, 0))
    world.store.faults.add("set", UNAVAILABLE)
    with pytest.raises(CursorUnavailableError):
        await cursor.close()
    await cursor.close()
    assert (await world.open()).mark_delete == Position(3, 0)


async def test_an_abandoned_cursor_writes_nothing(world: World) -> None:
    cursor = await world.open(interval_ms=0)
    writes = world.store.writes
    cursor.ack(Position(3, 0))
    cursor.abandon()
    assert cursor._timer is None
    await cursor.close()
    assert world.store.writes == writes


@pytest.mark.parametrize("saves_before", [0, 1])
async def test_a_save_of_a_cursor_that_is_abandoned_ends_before_its_next_write(
    world: World, saves_before: int
) -> None:
    cursor = await world.open()
    for entry_id in range(saves_before):
        cursor.ack(Position(3, entry_id))
        await cursor.persist()
    writes = world.store.writes
    cursor.ack(Position(3, 9))
    world.ledgers.hold_adds()
    saving = asyncio.create_task(cursor.persist())
    await world.ledgers.add_waits.wait()
    cursor.abandon()
    world.ledgers.gate.set()
    with pytest.raises(CursorClosedError):
        await saving
    assert world.store.writes == writes
    assert [writer.is_abandoned for writer in world.ledgers.writers] == [True]


async def test_a_save_that_is_cancelled_leaves_no_open_writer(world: World) -> None:
    """The close of a topic runs out of time while the bookies do not answer."""
    cursor = await world.open()
    cursor.ack(Position(3, 9))
    world.ledgers.hold_adds()
    saving = asyncio.create_task(cursor.persist())
    await world.ledgers.add_waits.wait()
    saving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saving
    assert [writer.is_abandoned for writer in world.ledgers.writers] == [True]


async def test_a_deleted_cursor_leaves_neither_node_nor_ledger(world: World) -> None:
    cursor = await world.open()
    cursor.ack(Position(3, 0))
    await cursor.persist()
    await cursor.delete()
    assert world.store.nodes == {}
    assert world.ledgers.ledgers == {}
    with pytest.raises(CursorClosedError):
        await cursor.persist()


@pytest.mark.parametrize("happened", [True, False])
async def test_a_deletion_whose_reply_is_lost_is_looked_after(world: World, happened: bool) -> None:
    cursor = await world.open()
    world.store.faults.add("delete", UNKNOWN, done=happened)
    await cursor.delete()
    assert world.store.nodes == {}


async def test_a_cursor_that_may_be_deleted_saves_nothing_without_having_looked(
    world: World,
) -> None:
    cursor = await world.open()
    cursor.ack(Position(3, 0))
    await cursor.persist()
    world.store.faults.add("delete", UNKNOWN, done=True)
    world.store.faults.add("get", UNAVAILABLE)
    with pytest.raises(CursorUnavailableError):
        await cursor.delete()
    cursor.ack(Position(3, 1))
    with pytest.raises(CursorFencedError):
        await cursor.persist()
    assert cursor.persisted_mark_delete == Position(3, 0)


# Seeking


async def test_a_reset_is_durable_on_return_and_frees_the_old_position_at_once(
    world: World,
) -> None:
    cursor = await world.open()
    cursor.ack_cumulative(Position(6, 10))
    cursor.ack(Position(6, 20))
    await cursor.persist()
    world.ledgers.hold_adds()
    reset = asyncio.create_task(cursor.reset(Position(3, 5)))
    await world.ledgers.add_waits.wait()
    assert cursor.persisted_mark_delete == Position(3, 4)
    world.ledgers.gate.set()
    await reset
    again = await world.open()
    assert again.mark_delete == Position(3, 4)
    assert not again.has_holes


async def test_a_save_under_way_does_not_undo_a_reset(world: World) -> None:
    cursor = await world.open()
    cursor.ack_cumulative(Position(6, 10))
    world.ledgers.hold_adds()
    save = asyncio.create_task(cursor.persist())
    await world.ledgers.add_waits.wait()
    reset = asyncio.create_task(cursor.reset(EARLIEST))  # runs before the save wakes up
    world.ledgers.gate.set()
    await save
    assert cursor.persisted_mark_delete == Position(3, -1)
    await reset
    assert (await world.open()).mark_delete == Position(3, -1)


# Fencing


async def test_whoever_opens_a_cursor_fences_the_owner_before(world: World) -> None:
    old = await world.open()
    old.ack(Position(3, 0))
    await old.persist()
    fenced: list[bool] = []
    old.on_fenced(lambda: fenced.append(True))
    new = await world.open()
    old.ack(Position(3, 1))
    with pytest.raises(CursorFencedError):
        await old.persist()
    with pytest.raises(CursorFencedError):
        await old.persist()
    assert fenced == [True]
    new.ack(Position(3, 5))
    await new.persist()
    await old.close()
    assert new.mark_delete == Position(3, 0)
    assert len(world.ledgers.ledgers) == 1


async def test_an_owner_that_wakes_up_without_a_ledger_is_fenced_by_the_node(world: World) -> None:
    old = await world.open()
    new = await world.open()
    old.ack_cumulative(Position(6, 50))
    with pytest.raises(CursorFencedError):
        await old.persist()
    new.ack(Position(3, 0))
    await new.persist()
    assert (await world.open()).mark_delete == Position(3, 0)
    assert world.ledgers.ledgers == {}


async def test_a_fenced_owner_deletes_nothing(world: World) -> None:
    old = await world.open()
    new = await world.open()
    with pytest.raises(CursorFencedError):
        await old.delete()
    new.ack(Position(3, 0))
    await new.persist()


async def test_an_owner_that_rolls_over_during_the_takeover_is_read_again(world: World) -> None:
    old = await world.open(ledger_entries_max=1)
    old.ack(Position(3, 0))
    await old.persist()
    path = cursor_path(world.log.path, NAME)
    stored = world.store.nodes[path]

    def former_owner_writes() -> None:
        world.store.before_set = lambda: None
        world.store.nodes[path] = type(stored)(
            stored.value.replace(b'"mark_delete":[3,0]', b'"mark_delete":[3,7]').replace(
                str(world.node["cursor_ledger_id"]).encode(), b"-1"
            ),
            stored.version + 1,
        )

    world.store.before_set = former_owner_writes
    new = await world.open()
    assert new.mark_delete == Position(3, 7)


async def test_m20_who_has_lost_the_log_leaves_its_cursors_to_the_next_owner(world: World) -> None:
    old = await world.open()
    old.ack(Position(3, 0))
    await old.persist()
    before = dict(world.store.nodes)
    world.log.has_other_owner = True
    with pytest.raises(CursorFencedError):
        await world.open()
    assert world.store.nodes == before


async def test_a_deleted_node_fences_the_owner(world: World) -> None:
    cursor = await world.open()
    world.store.nodes.clear()
    cursor.ack(Position(3, 0))
    with pytest.raises(CursorFencedError):
        await cursor.persist()
    assert world.ledgers.ledgers == {}


# Properties


async def test_subscription_properties_are_durable_and_bounded(world: World) -> None:
    cursor = await world.open(node_bytes_max=4096)
    await cursor.set_properties({"team": "b"})
    assert cursor.properties == {"team": "b"}
    assert world.node["properties"] == {"team": "b"}
    with pytest.raises(CursorStateTooLargeError):
        await cursor.set_properties({"team": "b" * 5000})
    cursor.ack(Position(3, 0))
    await cursor.persist()
    assert (await world.open()).properties == {"team": "b"}
