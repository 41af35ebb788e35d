"""Defect D16: an empty bookie under the identity of one that had data."""

import pytest

from magnetar.bookie.errors import CookieError
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.ledger_metadata import LedgerState
from tests.simulation.simulation import Simulation, scenario


async def _decommission_both(sim: Simulation, ledger_id: int) -> None:
    """b2 goes, the ledger is recovered without it, and b3 goes."""
    sim.bookie("b2").lose()
    await sim.settle()
    reader = await sim.recover("r", ledger_id)
    assert reader.last_add_confirmed == 0
    sim.bookie("b3").lose()
    await sim.sleep(3.0)  # the sessions of both have ended


@scenario(bookies=4, quorum=(2, 2, 2))
async def test_d16_an_empty_bookie_does_not_start_under_an_id_that_had_data(
    sim: Simulation,
) -> None:
    # 1. w has e0 on b2 and b3, and pauses. No watch would wake it: the store does not reach it.
    w = await sim.writer(ensemble=("b2", "b3"))
    await w.add()
    sim.store.stall("w")
    w.client.pause()

    # 2. b2 and b3 are decommissioned, and replaced by empty machines with the same ids.
    await _decommission_both(sim, w.ledger_id)
    for bookie_id in ("b2", "b3"):
        with pytest.raises(CookieError, match="was in use"):
            await sim.make_empty(bookie_id).start()

    # 3. and 4. w wakes and sends e1 to b2 and b3: nobody is there to take it.
    w.client.resume()
    w.append()
    await sim.settle()
    assert w.acked == [0]
    assert sim.metadata(w.ledger_id).last_entry_id == 0


@scenario(bookies=4, quorum=(2, 2, 2))
async def test_d16_a_writer_hears_that_its_ledger_was_closed_before_it_writes_again(
    sim: Simulation,
) -> None:
    w = await sim.writer(ensemble=("b2", "b3"))
    await w.add()
    w.client.pause()
    await _decommission_both(sim, w.ledger_id)

    # The hardening: an operator has removed the cookies too, so that the empty machines do start.
    for bookie_id in ("b2", "b3"):
        sim.store.tree.delete(f"/ledgers/cookies/{bookie_id}", version=None)
        machine = sim.bookies[bookie_id] = sim.make_empty(bookie_id)
        await machine.start()
    assert sim.metadata(w.ledger_id).state is LedgerState.CLOSED

    # w wakes and looks at its metadata before it is asked to add anything.
    w.client.resume()
    await sim.sleep(0.1)
    with pytest.raises(LedgerError, match="closed by another client"):
        w.append()
    assert not sim.bookie("b2").has(w.ledger_id, 1)
