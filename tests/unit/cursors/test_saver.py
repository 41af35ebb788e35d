"""What is saved of a cursor, when, and where."""

import asyncio

import pytest
from structlog.testing import capture_logs

from magnetar.cursors.cursor import Cursor
from magnetar.cursors.errors import CursorUnavailableError
from magnetar.cursors.record import decode_record
from magnetar.ledger.errors import LedgerWriteError
from magnetar.ledger.position import Position
from tests.unit.cursors.doubles import UNKNOWN
from tests.unit.cursors.world import NAME, NO_BOOKIES, UNAVAILABLE, World, every_second


async def test_acks_are_saved_in_the_background_in_a_ledger_of_their_own(world: World) -> None:
    cursor = await world.open(interval_ms=0)
    cursor.ack(Position(3, 0))
    cursor.ack(Position(3, 2))
    assert cursor.persisted_mark_delete == Position(3, -1)
    await world.ledgers.adds.acquire()
    await cursor.persist()
    assert cursor.persisted_mark_delete == Position(3, 0)
    (ledger,) = world.ledgers.ledgers.values()
    assert world.node["cursor_ledger_id"] == ledger.ledger_id
    assert ledger.custom_metadata == {
        "component": "cursor",
        "log": world.log.path,
        "cursor": NAME,
    }


async def test_changes_within_an_interval_become_one_record(world: World) -> None:
    cursor = await world.open()
    for entry in range(50):
        cursor.ack(Position(3, entry))
    await cursor.persist()
    assert world.ledgers.adds_started == 1
    assert cursor.statistics.saves == 1


async def test_at_most_one_save_is_under_way_and_the_next_takes_the_newest_state(
    world: World,
) -> None:
    cursor = await world.open()
    world.ledgers.hold_adds()
    cursor.ack(Position(3, 0))
    saves = [asyncio.create_task(cursor.persist())]
    await world.ledgers.add_waits.wait()
    for entry in range(1, 20):
        cursor.ack(Position(3, entry))
        saves.append(asyncio.create_task(cursor.persist()))
    world.ledgers.gate.set()
    await asyncio.gather(*saves)
    assert world.ledgers.adds_started == 2
    assert cursor.persisted_mark_delete == Position(3, 19)


async def test_a_clean_cursor_has_no_timer_and_writes_nothing(world: World) -> None:
    cursor = await world.open(interval_ms=0)
    writes = world.store.writes
    cursor.ack(Position(5, 0))  # no such entry
    assert cursor._timer is None
    await cursor.persist()
    await cursor.close()
    assert world.store.writes == writes
    assert world.ledgers.adds_started == 0


async def test_batch_acks_that_change_nothing_are_not_saved(world: World) -> None:
    cursor = await world.open()
    cursor.ack(Position(3, 0))
    cursor.ack_batch(Position(3, 7), [6], 3)
    await cursor.persist()
    assert cursor.ack_batch(Position(3, 0), [2], 3)  # acknowledged already
    assert not cursor.ack_batch(Position(3, 7), [6], 3)
    assert not cursor.ack_batch(Position(3, 7), [7], 3)
    assert not cursor.ack_batch(Position(9, 0), [6], 3)  # there is no such entry
    await cursor.persist()
    assert cursor.statistics.saves == 1
    assert not cursor.ack_batch(Position(3, 7), [4], 3)
    await cursor.persist()
    assert cursor.statistics.saves == 2


async def test_after_a_crash_the_last_saved_state_is_found(world: World) -> None:
    cursor = await world.open()
    cursor.ack_many([Position(3, 0), Position(3, 2), Position(6, 5)])
    cursor.ack_batch(Position(3, 7), [6], 3)
    cursor.set_position_properties({"producer-1": 17})
    await cursor.persist()
    cursor.ack(Position(3, 1))  # younger than the last save: comes again
    again = await world.open()
    assert again.mark_delete == again.persisted_mark_delete == Position(3, 0)
    assert [again.is_acked(Position(3, entry)) for entry in (1, 2, 7)] == [False, True, False]
    assert again.is_acked(Position(6, 5))
    assert again.remaining_words(Position(3, 7)) == (6,)
    assert again.position_properties == {"producer-1": 17}
    assert again.backlog_entries == 197


async def test_recovery_folds_a_small_state_into_the_node(world: World) -> None:
    cursor = await world.open()
    cursor.ack(Position(3, 0))
    await cursor.persist()
    await world.open()
    assert world.node["cursor_ledger_id"] == -1
    assert world.node["mark_delete"] == [3, 0]
    assert world.ledgers.ledgers == {}


@pytest.mark.parametrize("rolled_by", ["entries", "age"])
async def test_a_full_or_old_cursor_ledger_is_replaced_and_deleted(
    world: World, rolled_by: str
) -> None:
    cursor = await world.open(ledger_entries_max=2 if rolled_by == "entries" else 100)
    for entry in range(2):
        cursor.ack(Position(3, entry))
        await cursor.persist()
    first = world.node["cursor_ledger_id"]
    if rolled_by == "age":
        world.clock.now_s += 14_400
    cursor.ack(Position(3, 2))
    await cursor.persist()
    assert world.node["cursor_ledger_id"] != first
    assert list(world.ledgers.ledgers) == [world.node["cursor_ledger_id"]]
    assert (await world.open()).mark_delete == Position(3, 2)


async def test_a_full_ledger_is_used_on_while_no_other_can_be_made(world: World) -> None:
    cursor = await world.open(ledger_entries_max=1)
    cursor.ack(Position(3, 0))
    await cursor.persist()
    world.ledgers.faults.add("create", NO_BOOKIES)
    cursor.ack(Position(3, 1))
    await cursor.persist()
    assert cursor.persisted_mark_delete == Position(3, 1)
    assert (await world.open()).mark_delete == Position(3, 1)


async def test_a_full_ledger_is_used_on_while_the_metadata_store_is_away(world: World) -> None:
    cursor = await world.open(ledger_entries_max=1)
    cursor.ack(Position(3, 0))
    await cursor.persist()
    world.store.faults.add("set", UNAVAILABLE, times=1_000)
    for entry in (1, 2):
        cursor.ack(Position(3, entry))
        await cursor.persist()
    assert cursor.persisted_mark_delete == Position(3, 2)
    world.store.faults.add("set", UNAVAILABLE, times=0)
    assert (await world.open()).mark_delete == Position(3, 2)


async def test_a_node_names_a_ledger_only_when_the_state_is_in_it(world: World) -> None:
    cursor = await world.open()
    world.ledgers.hold_adds()
    cursor.ack(Position(3, 0))
    saving = asyncio.create_task(cursor.persist())
    await world.ledgers.add_waits.wait()
    (ledger,) = world.ledgers.ledgers.values()
    assert world.node["cursor_ledger_id"] != ledger.ledger_id
    world.ledgers.gate.set()
    await saving
    assert world.node["cursor_ledger_id"] == ledger.ledger_id


async def test_a_failed_write_moves_to_a_new_ledger(world: World) -> None:
    cursor = await world.open()
    cursor.ack(Position(3, 0))
    await cursor.persist()
    broken = world.node["cursor_ledger_id"]
    world.ledgers.faults.add("add", LedgerWriteError("2 of 3 failed"))
    cursor.ack(Position(3, 1))
    await cursor.persist()
    assert cursor.persisted_mark_delete == Position(3, 1)
    assert list(world.ledgers.ledgers) == [world.node["cursor_ledger_id"]] != [broken]


async def test_without_bookies_the_state_goes_into_the_node(world: World) -> None:
    world.ledgers.faults.add("create", NO_BOOKIES, times=1)
    cursor = await world.open()
    cursor.ack_many([Position(3, 0), Position(3, 5)])
    await cursor.persist()
    assert world.node["mark_delete"] == [3, 0]
    assert world.node["ranges"] == [[3, 5, 5]]
    assert cursor.persisted_mark_delete == Position(3, 0)
    assert (await world.open()).is_acked(Position(3, 5))


async def test_a_state_too_large_for_the_node_is_shortened_and_stays_to_be_saved(
    world: World,
) -> None:
    cursor = await world.open(node_ranges_max=3)
    world.ledgers.faults.add("create", NO_BOOKIES)
    cursor.ack_many(every_second(5))
    await cursor.persist()
    assert world.node["ranges"] == [[3, 1, 1], [3, 3, 3], [3, 5, 5]]
    assert cursor.statistics.ranges_not_saved == 2
    await cursor.persist()
    assert cursor.statistics.ranges_not_saved == 0
    assert (await world.open(node_ranges_max=3)).range_count == 5


async def test_with_neither_bookies_nor_metadata_the_change_waits(world: World) -> None:
    cursor = await world.open()
    world.ledgers.faults.add("create", NO_BOOKIES)
    world.store.faults.add("set", UNAVAILABLE)
    cursor.ack(Position(3, 0))
    with pytest.raises(CursorUnavailableError):
        await cursor.persist()
    assert cursor.persisted_mark_delete == Position(3, -1)
    await cursor.persist()
    assert cursor.persisted_mark_delete == Position(3, 0)


async def test_the_background_tries_again_after_a_failure(world: World) -> None:
    cursor = await world.open(interval_ms=0, persist_retry_ms=1)
    world.ledgers.faults.add("create", UNAVAILABLE, times=2)
    cursor.ack(Position(3, 0))
    await world.ledgers.adds.acquire()
    await cursor.persist()
    assert cursor.persisted_mark_delete == Position(3, 0)
    assert cursor.statistics.failed_saves == 2


async def test_ranges_beyond_the_limit_are_left_out_counted_and_come_again(world: World) -> None:
    cursor = await world.open(unacked_ranges_persisted_max=10)
    cursor.ack_many(every_second(10))
    await cursor.persist()
    assert cursor.statistics.ranges_not_saved == 0
    cursor.ack_many(every_second(11))
    await cursor.persist()
    assert cursor.statistics.ranges_not_saved == 1
    again = await world.open()
    assert again.is_acked(Position(3, 19))
    assert not again.is_acked(Position(3, 21))


async def test_the_log_says_once_that_acknowledgements_are_too_many_to_be_saved(
    world: World,
) -> None:
    cursor = await world.open(unacked_ranges_persisted_max=10)
    with capture_logs() as lines:
        for count in (11, 12):
            cursor.ack_many(every_second(count))
            await cursor.persist()
    (line,) = (each for each in lines if each["event"] == "acknowledgements_not_saved")
    assert line["ranges"] == 1


async def test_a_record_larger_than_an_entry_is_shortened(world: World) -> None:
    cursor = await world.open(record_bytes_max=4096)
    for entry in range(100):
        cursor.ack_batch(Position(6, entry), [-1] * 16, 1024)
    await cursor.persist()
    (ledger,) = world.ledgers.ledgers.values()
    assert len(ledger.entries[0]) <= 4096
    saved = decode_record(ledger.entries[0]).snapshot.batches
    assert 0 < len(saved) == 100 - cursor.statistics.batches_not_saved


# Unknown outcomes


@pytest.mark.parametrize("done", [True, False])
async def test_a_node_write_with_unknown_outcome_is_settled_by_reading(
    world: World, done: bool
) -> None:
    cursor = await world.open()
    world.store.faults.add("set", UNKNOWN, done=done)
    cursor.ack(Position(3, 0))
    await cursor.persist()
    assert list(world.ledgers.ledgers) == [world.node["cursor_ledger_id"]]
    cursor.ack(Position(3, 1))
    await cursor.persist()
    assert (await world.open()).mark_delete == Position(3, 1)


async def test_m02_a_ledger_that_the_node_may_name_is_not_deleted(world: World) -> None:
    cursor = await world.open()
    world.store.faults.add("set", UNKNOWN, times=3, done=True)
    cursor.ack(Position(3, 0))
    await cursor.persist()
    assert list(world.ledgers.ledgers) == [world.node["cursor_ledger_id"]]
    assert (await world.open()).mark_delete == Position(3, 0)


async def test_while_the_node_is_in_doubt_nothing_goes_to_the_old_ledger(world: World) -> None:
    cursor = await world.open(ledger_entries_max=1)
    cursor.ack(Position(3, 0))
    await cursor.persist()
    world.store.faults.add("set", UNKNOWN, times=3)
    cursor.ack(Position(3, 1))
    with pytest.raises(CursorUnavailableError):
        await cursor.persist()
    cursor.ack(Position(3, 2))
    await cursor.persist()
    assert list(world.ledgers.ledgers) == [world.node["cursor_ledger_id"]]
    assert (await world.open()).mark_delete == Position(3, 2)


async def _with_a_failed_switch_in_the_node(world: World) -> Cursor:
    """Return a cursor whose writer has the first ledger while the node names the second one.

    The reply to the node's write was lost; the next save read the node again and could not write.
    """
    cursor = await world.open(ledger_entries_max=1)
    cursor.ack(Position(3, 0))
    await cursor.persist()
    world.store.faults.add("set", UNKNOWN, done=True)
    world.store.faults.add("get", UNAVAILABLE)
    cursor.ack(Position(3, 1))
    with pytest.raises(CursorUnavailableError):
        await cursor.persist()
    world.store.faults.add("set", UNAVAILABLE)
    with pytest.raises(CursorUnavailableError):
        await cursor.persist()
    return cursor


async def test_nothing_is_saved_in_a_ledger_that_the_node_does_not_name_any_more(
    world: World,
) -> None:
    cursor = await _with_a_failed_switch_in_the_node(world)
    world.ledgers.faults.add("create", UNAVAILABLE)
    cursor.ack(Position(3, 2))
    with pytest.raises(CursorUnavailableError):
        await cursor.persist()
    await cursor.persist()
    assert list(world.ledgers.ledgers) == [world.node["cursor_ledger_id"]]
    assert (await world.open()).mark_delete == cursor.persisted_mark_delete == Position(3, 2)


async def test_a_reset_after_a_switch_that_failed_is_durable_on_return(world: World) -> None:
    cursor = await _with_a_failed_switch_in_the_node(world)
    world.ledgers.faults.add("create", UNAVAILABLE)
    with pytest.raises(CursorUnavailableError):
        await cursor.reset(Position(3, 0))
    await cursor.reset(Position(3, 0))
    again = await world.open()
    assert again.next_unacked(again.mark_delete) == Position(3, 0)


async def test_after_a_close_that_the_node_holds_the_old_ledger_gets_no_record(
    world: World,
) -> None:
    cursor = await world.open()
    cursor.ack(Position(3, 0))
    await cursor.persist()
    world.store.faults.add("set", UNKNOWN, done=True)
    world.store.faults.add("get", UNAVAILABLE)
    with pytest.raises(CursorUnavailableError):
        await cursor.close()
    assert world.node["cursor_ledger_id"] == -1
    cursor.ack(Position(3, 1))
    world.store.faults.add("set", UNAVAILABLE)
    with pytest.raises(CursorUnavailableError):
        await cursor.persist()
    cursor.ack(Position(3, 2))
    await cursor.persist()
    assert (await world.open()).mark_delete == cursor.persisted_mark_delete == Position(3, 2)
