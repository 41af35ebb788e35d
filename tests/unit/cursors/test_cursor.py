"""The durable cursor: what is saved when, and what is found again."""

import asyncio
import json
from dataclasses import dataclass, field

import google_crc32c
import pytest
from structlog.testing import capture_logs

from magnetar.cursors.cursor import Cursor
from magnetar.cursors.errors import (
    CursorClosedError,
    CursorFencedError,
    CursorStateTooLargeError,
    CursorUnavailableError,
    InvalidCursorNameError,
    InvalidCursorNodeError,
    NoSuchCursorError,
    UnsupportedCursorRecordError,
)
from magnetar.cursors.node import cursor_path, list_cursors
from magnetar.cursors.record import decode_record
from magnetar.cursors.settings import CursorSettings
from magnetar.ledger.errors import (
    BookieUnavailableError,
    LedgerError,
    LedgerWriteError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NotEnoughBookiesError,
    RecoveryUndecidedError,
)
from magnetar.ledger.position import EARLIEST, LATEST, Position
from tests.unit.cursors.doubles import UNKNOWN, MemoryLedgers, MemoryStore, StoppedClock
from tests.unit.cursors.growing_log import GrowingLog

NAME = "my sub/1"
NEVER_MS = 600_000
UNAVAILABLE = MetadataUnavailableError("no contact")
NO_BOOKIES = NotEnoughBookiesError("0 of 3")


@dataclass
class World:
    """Everything around a cursor. `open` again without `close` is what a crash leaves."""

    log: GrowingLog = field(default_factory=lambda: GrowingLog((3, 100), (6, 100)))
    store: MemoryStore = field(default_factory=MemoryStore)
    ledgers: MemoryLedgers = field(default_factory=MemoryLedgers)
    clock: StoppedClock = field(default_factory=StoppedClock)

    async def open(
        self, initial: Position | None = EARLIEST, *, interval_ms: int = NEVER_MS, **changes: int
    ) -> Cursor:
        settings = CursorSettings(ack_persist_interval_ms=interval_ms).model_copy(update=changes)
        return await Cursor.open(
            self.log,
            self.ledgers,
            self.store,
            NAME,
            initial=initial,
            properties={"team": "a"},
            settings=settings,
            clock=self.clock,
        )

    @property
    def node(self) -> dict[str, object]:
        value = json.loads(self.store.nodes[cursor_path(self.log.path, NAME)].value)
        assert isinstance(value, dict)
        return value


@pytest.fixture
async def world() -> World:
    return World()


def every_second(entries: int) -> list[Position]:
    return [Position(3, entry) for entry in range(1, 2 * entries, 2)]


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


# Saving


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


# Recovery


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("open", RecoveryUndecidedError("1 of 3 bookies answered")),
        ("open", UNAVAILABLE),
        ("read", BookieUnavailableError("timed out")),
    ],
)
async def test_m16_a_passing_error_fails_the_open_and_rolls_nothing_back(
    world: World, call: str, error: LedgerError
) -> None:
    cursor = await world.open()
    cursor.ack_cumulative(Position(3, 50))
    await cursor.persist()
    cursor.ack_cumulative(Position(3, 60))
    await cursor.persist()
    node = world.node
    world.ledgers.faults.add(call, error)
    with pytest.raises(CursorUnavailableError) as caught:
        await world.open()
    assert caught.value.retryable
    assert world.node == node
    assert (await world.open()).mark_delete == Position(3, 60)


@pytest.mark.parametrize("loss", ["ledger", "entries", "entry", "damage"])
async def test_m16_a_ledger_gone_for_good_rolls_back_to_the_snapshot(
    world: World, loss: str
) -> None:
    cursor = await world.open()
    cursor.ack_cumulative(Position(3, 50))
    await cursor.persist()
    cursor.ack_cumulative(Position(3, 60))
    await cursor.persist()
    (ledger,) = world.ledgers.ledgers.values()
    if loss == "ledger":
        world.ledgers.ledgers.clear()
    elif loss == "entries":
        ledger.entries.clear()
    elif loss == "entry":
        world.ledgers.faults.add("read", NoSuchEntryError("all bookies are certain"))
    else:
        ledger.entries[-1] = ledger.entries[-1][:-1] + b"\xff"
    again = await world.open()
    assert again.mark_delete == again.persisted_mark_delete == Position(3, 50)
    assert world.node["cursor_ledger_id"] == -1


async def test_a_record_of_a_newer_release_is_never_rolled_back(world: World) -> None:
    cursor = await world.open()
    cursor.ack(Position(3, 0))
    await cursor.persist()
    (ledger,) = world.ledgers.ledgers.values()
    body = b"\x00\x02" + ledger.entries[-1][10:]
    ledger.entries[-1] = b"MCUR" + google_crc32c.value(body).to_bytes(4, "big") + body
    with pytest.raises(UnsupportedCursorRecordError):
        await world.open()


async def test_a_node_that_cannot_be_understood_is_refused(world: World) -> None:
    await world.open()
    path = cursor_path(world.log.path, NAME)
    world.store.nodes[path] = type(world.store.nodes[path])(b'{"format": 2}', 7)
    with pytest.raises(InvalidCursorNodeError):
        await world.open()


async def test_a_cursor_in_a_trimmed_ledger_moves_to_what_is_left(world: World) -> None:
    cursor = await world.open()
    cursor.ack(Position(3, 50))
    await cursor.close()
    world.log.trim()
    again = await world.open()
    assert again.mark_delete == Position(6, -1)
    assert again.backlog_entries == 100
    assert not again.has_holes


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
