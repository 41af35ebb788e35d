"""Cursors that nobody has open here: read without disturbing their owners, and made."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from structlog.testing import capture_logs

from magnetar.cursors.closed_cursors import make_closed, read_closed
from magnetar.cursors.node import CursorNode, cursor_path, decode_node
from magnetar.cursors.settings import CursorSettings
from magnetar.ledger.errors import (
    BookieUnavailableError,
    LedgerError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from magnetar.ledger.position import Position
from tests.unit.cursors.doubles import MemoryLedger, MemoryLedgers
from tests.unit.cursors.world import NAME, World, every_second


@dataclass
class Undisturbed:
    """A reader that learns of the last record's confirmation only from the next one."""

    ledger: MemoryLedger
    beyond: LedgerError | None = None

    @property
    def is_ledger_closed(self) -> bool:
        return not self.ledger.is_open

    async def read_last_add_confirmed(self) -> int:
        return max(-1, len(self.ledger.entries) - (2 if self.ledger.is_open else 1))

    async def read_unconfirmed(self, entry_id: int) -> bytes:
        if entry_id > await self.read_last_add_confirmed() and self.beyond is not None:
            raise self.beyond
        if entry_id >= len(self.ledger.entries):
            raise NoSuchEntryError(f"entry {entry_id}")
        return self.ledger.entries[entry_id]

    async def close(self) -> None: ...


@dataclass
class Client:
    """Opens ledgers without recovering them."""

    ledgers: MemoryLedgers
    beyond: LedgerError | None = None

    async def open(self, ledger_id: int) -> Undisturbed:
        if ledger_id not in self.ledgers.ledgers:
            raise NoSuchLedgerError(f"ledger {ledger_id}")
        return Undisturbed(self.ledgers.ledgers[ledger_id], self.beyond)


async def read(
    world: World,
    beyond: LedgerError | None = None,
    on_rolled_back: Callable[[], None] = lambda: None,
) -> CursorNode:
    client = Client(world.ledgers, beyond)
    found = await read_closed(
        client, world.store, world.log.path, NAME, on_rolled_back=on_rolled_back
    )
    assert found is not None
    return found


async def test_the_last_record_is_read_and_the_owner_goes_on(world: World) -> None:
    cursor = await world.open()
    for entry in (50, 60):
        cursor.ack_cumulative(Position(3, entry))
        await cursor.persist()
    cursor.ack(Position(3, 70))
    await cursor.persist()
    found = await read(world)
    assert found.mark_delete == (3, 60)
    assert found.ranges == ((3, 70, 70),)
    assert found.properties == {"team": "a"}
    assert found.cursor_ledger_id == -1
    cursor.ack_cumulative(Position(3, 80))
    await cursor.persist()
    assert (await read(world)).mark_delete == (3, 80)


async def test_while_a_bookie_is_down_the_last_confirmed_record_counts(world: World) -> None:
    cursor = await world.open()
    for entry in (50, 60):
        cursor.ack_cumulative(Position(3, entry))
        await cursor.persist()
    found = await read(world, BookieUnavailableError("down"))
    assert found.mark_delete == (3, 50)


async def test_a_cursor_ledger_that_is_gone_leaves_the_snapshot_in_the_node(world: World) -> None:
    cursor = await world.open()
    for entry in (50, 60):
        cursor.ack_cumulative(Position(3, entry))
        await cursor.persist()
    (ledger_id,) = world.ledgers.ledgers
    world.ledgers.ledgers.clear()
    rolled_back: list[str] = []
    with capture_logs() as logs:
        found = await read(world, on_rolled_back=lambda: rolled_back.append(NAME))
    assert found.mark_delete == (3, 50)
    assert rolled_back == [NAME]
    assert [(each["event"], each["ledger_id"]) for each in logs] == [
        ("cursor_rolled_back", ledger_id)
    ]


@pytest.mark.parametrize("payload", [None, b"no record"])
async def test_a_cursor_ledger_without_a_good_record_is_told_too(
    world: World, payload: bytes | None
) -> None:
    cursor = await world.open()
    for entry in (50, 60):
        cursor.ack_cumulative(Position(3, entry))
        await cursor.persist()
    (ledger,) = world.ledgers.ledgers.values()
    ledger.entries[:] = [] if payload is None else [payload] * len(ledger.entries)
    rolled_back: list[str] = []
    found = await read(world, on_rolled_back=lambda: rolled_back.append(NAME))
    assert found.mark_delete == (3, 50)
    assert rolled_back == [NAME]


async def test_a_cursor_that_can_be_read_is_not_rolled_back(world: World) -> None:
    cursor = await world.open()
    for entry in (50, 60):
        cursor.ack_cumulative(Position(3, entry))
        await cursor.persist()
    rolled_back: list[str] = []
    await read(world, BookieUnavailableError("down"), lambda: rolled_back.append(NAME))
    assert rolled_back == []


async def test_there_may_be_no_such_cursor(world: World) -> None:
    client = Client(world.ledgers)
    assert await read_closed(client, world.store, world.log.path, "nobody") is None


async def make(world: World, state: CursorNode) -> bool:
    return await make_closed(
        world.ledgers,
        world.store,
        world.log.path,
        NAME,
        state,
        settings=CursorSettings(),
        clock=world.clock,
    )


@pytest.mark.parametrize("acked", [3, 2_000])
async def test_a_made_cursor_stands_where_it_was_told_to(world: World, acked: int) -> None:
    """In its node, or in a ledger if it is large."""
    state = CursorNode(
        epoch=1,
        mark_delete=(3, 0),
        ranges=tuple((3, each.entry_id, each.entry_id) for each in every_second(acked)[1:]),
        batches=((6, 5, (0b101,)),),
        position_properties={"p": 4},
        properties={"team": "b"},
        last_active_ms=17,
    )
    assert await make(world, state)
    assert bool(world.ledgers.ledgers) == (acked > 1_000)
    found = await read(world)
    now_ms = world.clock.wall_ms()
    assert found == state.model_copy(update={"epoch": found.epoch, "last_active_ms": now_ms})
    assert not await make(world, state)


async def test_making_a_cursor_that_was_broken_off_goes_on(world: World) -> None:
    state = CursorNode(epoch=1, mark_delete=(3, 7), properties={"team": "b"}, last_active_ms=17)
    assert await make(world, state)
    path = cursor_path(world.log.path, NAME)
    whole = world.store.nodes[path]
    world.store.faults.add("set", BookieUnavailableError("crash"))
    del world.store.nodes[path]
    with pytest.raises(BookieUnavailableError):
        await make(world, state)
    world.clock.now_s += 60
    assert await make(world, state)
    made = decode_node(world.store.nodes[path].value)
    assert made.last_active_ms == world.clock.wall_ms()
    assert made.model_copy(update={"last_active_ms": 0}) == decode_node(whole.value).model_copy(
        update={"last_active_ms": 0}
    )


async def test_a_cursor_of_somebody_else_stays_as_it_is(world: World) -> None:
    cursor = await world.open()
    cursor.ack_cumulative(Position(3, 50))
    await cursor.persist()
    assert not await make(world, CursorNode(epoch=1, mark_delete=(3, 7)))
    assert cursor.mark_delete == Position(3, 50)
