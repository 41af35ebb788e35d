"""Defect D13: a fence lost by a bookie's restart."""

from magnetar.ledger.errors import LedgerFencedError
from magnetar.ledger.wire import Op
from tests.simulation.mutations.mutation import Mutation
from tests.simulation.mutations.noticing import assert_noticed, mutations_param
from tests.simulation.simulation import Simulation, scenario


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d13_a_fence_survives_the_restart_of_its_bookie(sim: Simulation) -> None:
    w = await sim.writer()
    await w.add(2)  # e0, e1

    # w hears nothing from the metadata store, so that only the bookies can stop it.
    sim.store.stall("w")
    # 1. r fences b1 and b2, nothing of it reaches b3; r closes at e1.
    sim.net.partition("r", "b3")
    reader = await sim.recover("r", w.ledger_id)
    assert reader.last_add_confirmed == 1

    # 2. b2 loses everything that was not synced.
    sim.bookie("b2").crash()
    await sim.bookie("b2").restart()

    # 3. w sends e2: b1 would refuse, were it not too slow. b2 and b3 would be the ack quorum.
    sim.net.hold(client="w", bookie="b1", op=Op.ADD)
    w.append()
    await sim.until(lambda: w.pending == 0)

    # 4. e2 would lie behind the end of the ledger.
    assert w.acked == [0, 1]
    assert isinstance(w.error, LedgerFencedError)
    assert not sim.bookie("b2").has(w.ledger_id, 2)


@mutations_param("D13")
def test_the_test_of_d13_notices_when_its_rule_is_off(mutation: Mutation) -> None:
    assert_noticed(mutation, test_d13_a_fence_survives_the_restart_of_its_bookie)
