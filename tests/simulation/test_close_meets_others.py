"""Closes that meet something: a second close, reads that are under way."""

import pytest

from magnetar.ledger.errors import BookieUnavailableError
from magnetar.ledger.wire import Op
from tests.simulation.simulation import Simulation, scenario


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_two_closes_at_once_both_end_when_the_adds_are_confirmed(sim: Simulation) -> None:
    w = await sim.writer()
    held = [sim.net.hold(client="w", bookie=bookie_id, op=Op.ADD) for bookie_id in ("b1", "b2")]
    w.append()
    closing = [w.client.spawn(w.writer.close()) for _ in range(2)]
    await sim.until(lambda: all(hold.messages for hold in held))
    began_s = sim.loop.time()
    for hold in held:
        hold.release()
    for each in closing:
        assert (await each).last_entry_id == 0
    assert sim.loop.time() - began_s < 0.2, "neither waits for the other's event"


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_a_client_that_closes_with_a_read_under_way_asks_nobody_else(sim: Simulation) -> None:
    w = await sim.writer()
    await w.add(2)
    await w.close()
    c = await sim.client("c")
    handle = await c.open(w.ledger_id)
    held = sim.net.hold(client="c", op=Op.READ, reply=True)
    reading = c.spawn(handle.read(0, 1))
    await sim.until(lambda: bool(held.messages))
    # The next replica has no connection of this client yet.
    await c.run(c.ledgers.close())
    with pytest.raises(BookieUnavailableError):
        await reading
