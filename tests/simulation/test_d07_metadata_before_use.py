"""Defect D7: an ensemble installed before the metadata write."""

from magnetar.ledger.wire import Op, Status
from tests.simulation.mutations.mutation import Mutation
from tests.simulation.mutations.noticing import assert_noticed, mutations_param
from tests.simulation.simulation import Simulation, scenario


@scenario(bookies=6, quorum=(3, 3, 2))
async def test_d07_nothing_is_acked_by_an_ensemble_that_is_not_committed(sim: Simulation) -> None:
    w = await sim.writer()
    await w.add()  # e0
    ledger_id = w.ledger_id

    # 1. The metadata store does not answer w any more. b1 fails e1, so that w wants b4 instead.
    w.client.placement.replacements += ["b4", "b5", "b6"]
    stalled = sim.store.hold_cas(client="w")
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b1", op=Op.ADD)
    w.append()
    await sim.until(lambda: bool(stalled.operations))

    # 2. to 5. More entries, and the same for b2 and b3: no bookie outside the committed ensemble
    # may be asked, and no entry be acknowledged.
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b2", op=Op.ADD)
    w.append()
    await sim.settle()
    assert not any(sim.bookie(each).has(ledger_id, 1) for each in ("b4", "b5", "b6"))
    assert w.acked == [0]

    # 6. Whoever recovers goes by the store's ensemble, and finds everything that was acknowledged.
    reader = await sim.recover("r", ledger_id)
    assert reader.last_add_confirmed >= 0
    stalled.release()
    await sim.until(lambda: w.pending == 0)
    assert w.acked == [0]


@mutations_param("D7")
def test_the_test_of_d07_notices_when_its_rule_is_off(mutation: Mutation) -> None:
    assert_noticed(mutation, test_d07_nothing_is_acked_by_an_ensemble_that_is_not_committed)
