"""What is found again of a cursor that another owner left."""

import google_crc32c
import pytest

from magnetar.cursors.errors import (
    CursorUnavailableError,
    InvalidCursorNodeError,
    UnsupportedCursorRecordError,
)
from magnetar.cursors.node import cursor_path
from magnetar.ledger.errors import (
    BookieUnavailableError,
    LedgerError,
    NoSuchEntryError,
    RecoveryUndecidedError,
)
from magnetar.ledger.position import Position
from tests.unit.cursors.world import NAME, UNAVAILABLE, World


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
