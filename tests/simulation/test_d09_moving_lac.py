"""Defect D9: the LAC moves after the start of the new fragment was chosen."""

from magnetar.ledger.ledger_metadata import Fragment
from magnetar.ledger.wire import Op, Status
from tests.simulation.heard import until_heard
from tests.simulation.mutations.mutation import Mutation
from tests.simulation.mutations.noticing import assert_noticed, mutations_param
from tests.simulation.simulation import Simulation, scenario


@scenario(bookies=4, quorum=(2, 2, 1))
async def test_d09_nothing_is_released_once_the_new_fragment_is_chosen(sim: Simulation) -> None:
    # Fragment 0:{b1,b2}, nothing confirmed.
    w = await sim.writer()
    ledger_id = w.ledger_id
    w.client.placement.replacements += ["b3", "b4"]

    # 1. e0 and e1 are on their way; e2 fails at once on both bookies, and triggers a change.
    late = [sim.net.hold(client="w", bookie=each, op=Op.ADD) for each in ("b1", "b2")]
    w.append()
    await sim.sleep(0.01)
    w.append()
    await sim.sleep(0.01)
    change = sim.store.hold_cas(client="w")
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b1", op=Op.ADD, entry=2)
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b2", op=Op.ADD, entry=2)
    w.append()
    # 2. Entry 0 is chosen as the start of the new ensemble.
    await sim.until(lambda: bool(change.operations))

    # 3. Before the change is applied, b1 and b2 acknowledge e0 and e1: Qa each.
    for hold in late:
        hold.release()
    for bookie, entry in (("b1", 0), ("b2", 0), ("b1", 1), ("b2", 1)):
        await until_heard(sim, client="w", op=Op.ADD, bookie=bookie, status=Status.OK, entry=entry)
    assert w.acked == []  # I17
    assert w.writer.last_add_confirmed == -1

    # 4. They are sent to b3 and b4, and acknowledged when these have them.
    arriving = [sim.net.hold(client="w", bookie=each, op=Op.ADD) for each in ("b3", "b4")]
    change.release()
    await sim.until(lambda: all(hold.messages for hold in arriving))
    assert sim.metadata(ledger_id).ensembles == (Fragment(0, ("b3", "b4")),)
    assert w.acked == []  # I16
    for hold in arriving:
        hold.release()
    await sim.until(lambda: w.pending == 0)
    assert w.acked == [0, 1, 2]

    # 5. Their readers find them without b1 and b2.
    sim.bookie("b1").lose()
    sim.bookie("b2").lose()
    await w.close()
    assert len(await (await w.client.open(ledger_id)).read_all()) == 3


@mutations_param("D9")
def test_the_test_of_d09_notices_when_its_rule_is_off(mutation: Mutation) -> None:
    assert_noticed(mutation, test_d09_nothing_is_released_once_the_new_fragment_is_chosen)
