"""Defect D8: entries released while the queue is still being judged anew."""

from magnetar.ledger.ledger_metadata import Fragment
from magnetar.ledger.wire import Op, Status
from tests.simulation.heard import until_heard
from tests.simulation.mutations.mutation import Mutation
from tests.simulation.mutations.noticing import assert_noticed, mutations_param
from tests.simulation.simulation import Simulation, scenario


@scenario(bookies=3, quorum=(2, 1, 1))
async def test_d08_an_ack_that_is_about_to_be_revoked_releases_nothing(sim: Simulation) -> None:
    # e0 and e2 go to b1, e1 and e3 to b2; one copy each.
    w = await sim.writer()
    ledger_id = w.ledger_id
    w.client.placement.replacements.append("b3")
    e0 = sim.net.hold(client="w", bookie="b1", op=Op.ADD, reply=True)
    w.append()
    w.append()
    # 1. e1 is acknowledged by b2, behind e0. Then b2 fails e3, and a change starts.
    await until_heard(sim, client="w", op=Op.ADD, bookie="b2", entry=1)
    change = sim.store.hold_cas(client="w")
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b2", op=Op.ADD)
    w.append()
    w.append()
    await sim.until(lambda: bool(change.operations))
    # Meanwhile e0 is acknowledged, and held: nothing is released during a change.
    e0.release()
    await until_heard(sim, client="w", op=Op.ADD, bookie="b1", entry=0)
    assert w.acked == []  # I17

    # 2. The CAS succeeds: b3 is in b2's place. 3. and 4. e0 may be released now, e1 may not.
    e1 = sim.net.hold(client="w", bookie="b3", op=Op.ADD)
    change.release()
    await sim.until(lambda: bool(e1.messages))
    await sim.sleep(0.01)
    assert sim.metadata(ledger_id).ensembles == (Fragment(0, ("b1", "b3")),)
    assert w.acked == [0]  # I2, I16: b2's word for e1 is worth nothing any more

    # 5. e1 is where the metadata says before it is acknowledged, and read from there.
    e1.release()
    await sim.until(lambda: w.pending == 0)
    assert w.acked == [0, 1, 2, 3]
    assert sim.bookie("b3").has(ledger_id, 1)
    sim.bookie("b2").lose()
    await w.close()
    assert len(await (await w.client.open(ledger_id)).read_all()) == 4


@mutations_param("D8")
def test_the_test_of_d08_notices_when_its_rule_is_off(mutation: Mutation) -> None:
    assert_noticed(mutation, test_d08_an_ack_that_is_about_to_be_revoked_releases_nothing)
