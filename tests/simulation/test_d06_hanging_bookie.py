"""Defect D6: one hanging bookie blocks recovery for ever."""

from magnetar.ledger.wire import Op, Status
from tests.simulation.clients import FAST
from tests.simulation.heard import heard
from tests.simulation.mutations.mutation import Mutation
from tests.simulation.mutations.noticing import assert_noticed, mutations_param
from tests.simulation.simulation import Simulation, scenario


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d06_recovery_does_not_wait_for_a_bookie_that_hangs(sim: Simulation) -> None:
    w = await sim.writer()
    await w.add(2)
    w.client.crash()

    # 1. b3 hangs: its connections stay, nothing is ever answered.
    sim.bookie("b3").pause()
    started_s = sim.loop.time()
    r = await sim.client("r")
    reader = await r.recover(w.ledger_id)

    # 2. b1 and b2 say that there is no e2. 3. and 4. That is the end, whatever b3 would say.
    denied = heard(sim, client="r", op=Op.READ, status=Status.NO_SUCH_ENTRY, entry=2)
    assert {each.source for each in denied} == {"b1", "b2"}
    assert not heard(sim, client="r", op=Op.READ, bookie="b3")
    assert reader.last_add_confirmed == 1
    assert sim.loop.time() - started_s < FAST.request_timeout_s  # I18: not even its timeout
    sim.bookie("b3").resume()


@mutations_param("D6")
def test_the_test_of_d06_notices_when_its_rule_is_off(mutation: Mutation) -> None:
    assert_noticed(mutation, test_d06_recovery_does_not_wait_for_a_bookie_that_hangs)
