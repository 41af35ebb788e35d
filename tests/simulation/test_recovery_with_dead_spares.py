"""A recovery whose ensemble and spares are down must not spin."""

import pytest

from magnetar.ledger.errors import RecoveryUndecidedError
from tests.simulation.simulation import Simulation, scenario


@scenario(bookies=4, quorum=(3, 3, 2))
async def test_dead_bookies_do_not_replace_each_other_without_end(sim: Simulation) -> None:
    w = await sim.writer()
    client = await sim.client("r")
    await w.add()
    w.client.crash()
    # Still registered, and nobody listens: a refusal takes no time.
    hold = sim.store.hold(client="r")
    sim.bookie("b3").crash()
    sim.bookie("b4").crash()
    sim.net.block("b1", "r")
    hold.release()
    steps = sim.loop.steps
    with pytest.raises(RecoveryUndecidedError):
        await client.recover(w.ledger_id)
    assert sim.loop.steps - steps < 5_000
