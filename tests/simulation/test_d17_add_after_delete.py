"""Defect D17: an add after the deletion recreates the ledger, unfenced."""

import pytest

from magnetar.ledger.errors import LedgerFencedError, NoSuchLedgerError
from tests.simulation.simulation import Simulation, scenario


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d17_the_fence_of_a_deleted_ledger_still_refuses_late_adds(sim: Simulation) -> None:
    # 1. Broker A owns the ledger and is cut off from the metadata store.
    w = await sim.writer()
    sim.store.stall("w")
    # 2. Broker B takes over: fences the ledger, finds it empty, deletes it.
    reader = await sim.recover("r", w.ledger_id)
    assert reader.last_add_confirmed == -1
    await reader.client.run(reader.client.ledgers.delete(w.ledger_id))
    # 3. The bookies restart. What they know of the ledger, above all the fence, must come back.
    for bookie_id in ("b1", "b2", "b3"):
        sim.bookie(bookie_id).crash()
        await sim.bookie(bookie_id).restart()
    # 4. A's add must not be acknowledged.
    w.append()
    await sim.until(lambda: w.pending == 0)
    assert w.acked == []
    assert isinstance(w.error, LedgerFencedError)


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d17_a_writer_withdraws_when_its_ledger_is_deleted(sim: Simulation) -> None:
    w = await sim.writer()
    reader = await sim.recover("r", w.ledger_id)
    stalled = sim.store.hold(client="w")
    await reader.client.run(reader.client.ledgers.delete(w.ledger_id))
    # 3. The bookies have collected the ledger and forgotten its fence.
    for bookie_id in ("b1", "b2", "b3"):
        bookie = sim.bookie(bookie_id)
        await bookie.stop()
        bookie.flushed.states.pop(w.ledger_id)
        bookie.flushed.packets.pop(w.ledger_id, None)
        await bookie.restart()
        assert not bookie.is_fenced(w.ledger_id)
    # 4. Nothing but its watch tells A, and does before A adds.
    stalled.release()
    await sim.until(lambda: w.writer.has_failed)
    with pytest.raises((NoSuchLedgerError, LedgerFencedError)):
        w.append()
