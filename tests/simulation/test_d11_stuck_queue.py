"""Defect D11: the queue of adds stuck after an ensemble change."""

from magnetar.ledger.ledger_metadata import Fragment
from magnetar.ledger.wire import Op, Status
from tests.simulation.clients import FAST
from tests.simulation.heard import asked, until_heard
from tests.simulation.mutations.mutation import Mutation
from tests.simulation.mutations.noticing import assert_noticed, mutations_param
from tests.simulation.simulation import Simulation, scenario

PATIENT = FAST.model_copy(update={"request_timeout_s": 30.0})


@scenario(bookies=3, quorum=(2, 1, 1))
async def test_d11_what_was_acked_during_a_change_is_released_when_it_ends(
    sim: Simulation,
) -> None:
    # e0 goes to b1 alone, e1 to b2 alone.
    await sim.client("w", PATIENT)
    w = await sim.writer()
    w.client.placement.replacements.append("b3")
    e0 = sim.net.hold(client="w", bookie="b1", op=Op.ADD, reply=True)
    change = sim.store.hold_cas(client="w")
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b2", op=Op.ADD)
    w.append()
    w.append()
    await sim.until(lambda: bool(change.operations))

    # During the change e0 is acknowledged: its write set has nothing to do with b2.
    e0.release()
    await until_heard(sim, client="w", op=Op.ADD, bookie="b1", entry=0)
    assert w.acked == []

    # b3 takes b2's place, and hangs: no further answer will ever come, neither for e0 nor e1.
    hung = sim.net.hold(client="w", bookie="b3", op=Op.ADD)
    change.release()
    await sim.until(lambda: bool(hung.messages))
    await sim.sleep(1.0)
    assert sim.metadata(w.ledger_id).ensembles == (Fragment(0, ("b1", "b3")),)
    assert len(asked(sim, client="w", op=Op.ADD, entry=0)) == 1  # it was not sent again
    assert w.acked == [0]  # I18, I19
    hung.release()
    await sim.until(lambda: w.pending == 0)
    assert w.acked == [0, 1]


@mutations_param("D11")
def test_the_test_of_d11_notices_when_its_rule_is_off(mutation: Mutation) -> None:
    assert_noticed(mutation, test_d11_what_was_acked_during_a_change_is_released_when_it_ends)
