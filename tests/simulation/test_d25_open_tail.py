"""Defect D25: re-replication of the fragment that is still written to."""

from dataclasses import replace
from random import Random

import pytest

from magnetar.ledger.errors import LedgerWriteError
from magnetar.ledger.ledger_metadata import Fragment, LedgerState
from magnetar.ledger.wire import Op, Status
from tests.simulation.clients import FAST
from tests.simulation.mover import Mover
from tests.simulation.simulation import Simulation, scenario


@scenario(bookies=6, quorum=(3, 3, 2))
async def test_d25_replicas_move_under_a_writer_but_never_those_of_its_last_fragment(
    sim: Simulation,
) -> None:
    w = await sim.writer()
    w.client.placement.replacements.append("b4")
    await w.add(2)
    mover_client = await sim.client("m")
    mover = Mover(mover_client, FAST)
    random = Random("d25")
    # The only fragment is the last: nothing may be moved.
    assert not await mover_client.run(mover.move(w.ledger_id, random))

    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b1", op=Op.ADD)
    await w.add()
    last = sim.metadata(w.ledger_id).last_fragment
    assert last == (2, ("b4", "b2", "b3"))
    # The first fragment is finished now; w goes on while its replicas move.
    for _ in range(5):
        assert await mover_client.run(mover.move(w.ledger_id, random))
        await w.add()
    metadata = sim.metadata(w.ledger_id)
    assert metadata.last_fragment == last
    assert metadata.ensembles[0].bookies != ("b1", "b2", "b3")

    # An ensemble change after it is computed from the value that the move has written.
    w.client.placement.replacements.append("b5")
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b2", op=Op.ADD)
    await w.add()
    after = sim.metadata(w.ledger_id)
    assert after.ensembles[0] == metadata.ensembles[0]
    assert after.last_fragment == (8, ("b4", "b5", "b3"))
    await w.close()


@scenario(bookies=4, quorum=(3, 3, 2))
async def test_d25_a_writer_stops_when_somebody_swaps_its_ensemble(sim: Simulation) -> None:
    w = await sim.writer()
    await w.add()
    # A careless worker copies e0 to b4, and swaps b1 for it while w keeps writing to b1.
    careless = await sim.client("x")
    manager = careless.ledgers.manager
    ledger = await careless.run(manager.read(w.ledger_id))
    swapped = replace(ledger.metadata, ensembles=(Fragment(0, ("b4", "b2", "b3")),))
    await careless.run(manager.write(swapped, version=ledger.version))

    await sim.until(lambda: w.writer.has_failed)
    with pytest.raises(LedgerWriteError, match="two writers act on it"):
        w.append()
    assert w.acked == [0]
    assert sim.metadata(w.ledger_id).state is LedgerState.OPEN
    # Until it is recovered, what w had confirmed must be safe: it is on b2 and b3.
    assert (await sim.recover("r", w.ledger_id)).last_add_confirmed == 0
