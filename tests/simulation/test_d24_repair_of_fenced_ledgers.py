"""Defect D24: re-replication refused on fenced ledgers, so that they can never be repaired."""

from random import Random

from magnetar.ledger.wire import Op
from tests.simulation.clients import FAST
from tests.simulation.mover import Mover
from tests.simulation.simulation import Simulation, scenario


@scenario(bookies=5, quorum=(3, 3, 2))
async def test_d24_copies_are_taken_by_bookies_that_fenced_the_ledger(sim: Simulation) -> None:
    # b1, b2, b3 and b4 are fenced: b4 was the third member while e0 was written.
    w = await sim.writer()
    await w.add(2)
    w.client.crash()
    await sim.recover("r", w.ledger_id)
    assert sim.bookie("b3").is_fenced(w.ledger_id)

    # b3 leaves the ensemble for b4 or b5, and comes back to it, fenced as it is.
    mover_client = await sim.client("m")
    mover = Mover(mover_client, FAST)
    random = Random("d24")
    left = back = False
    for _ in range(60):
        before = sim.metadata(w.ledger_id).ensembles[0].bookies
        await mover_client.run(mover.move(w.ledger_id, random))
        after = sim.metadata(w.ledger_id).ensembles[0].bookies
        left = left or ("b3" in before and "b3" not in after)
        back = back or (left and "b3" not in before and "b3" in after)
        if back:
            break
    assert back, "the fenced bookie took the copies"
    assert sim.bookie("b3").is_fenced(w.ledger_id)
    reader = await (await sim.client("c")).open(w.ledger_id)
    assert len(await reader.read_all()) == 2


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d24_a_fenced_bookie_that_lacks_an_entry_gets_it_by_a_recovery_add(
    sim: Simulation,
) -> None:
    w = await sim.writer()
    never = sim.net.hold(client="w", bookie="b3", op=Op.ADD)
    w.append()
    await sim.until(lambda: w.acked == [0])
    w.client.crash()
    never.drop()
    await sim.recover("r", w.ledger_id)
    assert sim.bookie("b3").is_fenced(w.ledger_id)
    # The recovery itself writes e0 back: after the fence, to the bookie that was fenced.
    await sim.until(lambda: sim.bookie("b3").has(w.ledger_id, 0))
