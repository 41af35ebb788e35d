"""Defect D1: fencing only LAC reads loses an acknowledged entry."""

from magnetar.ledger.errors import LedgerFencedError
from magnetar.ledger.wire import Op, Status
from tests.simulation.heard import heard
from tests.simulation.mutations.mutation import Mutation
from tests.simulation.mutations.noticing import assert_noticed, mutations_param
from tests.simulation.simulation import Simulation, scenario


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d01_recovery_reads_fence_the_bookies_that_deny_the_entry(sim: Simulation) -> None:
    # 1. w sends e0: never to b1, late to b3, stored on b2.
    w = await sim.writer()
    sim.store.stall("w")  # only the bookies can stop it
    sim.net.hold(client="w", bookie="b1", op=Op.ADD)
    late = sim.net.hold(client="w", bookie="b3", op=Op.ADD)
    w.append()
    await sim.until(lambda: sim.bookie("b2").has(w.ledger_id, 0))

    # 2. r fences b1 and b2; its fence to b3 is lost.
    sim.net.drop(client="r", bookie="b3", op=Op.READ_LAC)
    # 3. r reads e0; b1 and b3 do not have it, b2 is too slow to be heard: the ledger is empty.
    sim.net.hold(client="r", bookie="b2", op=Op.READ, reply=True)
    reader = await sim.recover("r", w.ledger_id)
    assert reader.last_add_confirmed == -1
    denied = heard(sim, client="r", op=Op.READ, entry=0)
    assert {each.source for each in denied} == {"b1", "b3"}
    assert {each.status for each in denied} <= {Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER}

    # 4. w's e0 reaches b3, which must refuse it although no LAC read ever fenced it.
    late.release()
    await sim.until(lambda: w.pending == 0)
    assert w.failed == [0]
    assert not sim.bookie("b3").has(w.ledger_id, 0)
    assert isinstance(w.error, LedgerFencedError)


@mutations_param("D1")
def test_the_test_of_d01_notices_when_its_rule_is_off(mutation: Mutation) -> None:
    assert_noticed(mutation, test_d01_recovery_reads_fence_the_bookies_that_deny_the_entry)
