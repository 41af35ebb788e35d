"""Defect D2: recovery that starts below the last fragment builds an illegal fragment."""

from magnetar.ledger.ledger_metadata import Fragment, LedgerState
from magnetar.ledger.wire import Flag, Op, Status
from tests.simulation.heard import asked, heard
from tests.simulation.mutations.mutation import Mutation
from tests.simulation.mutations.noticing import assert_noticed, mutations_param
from tests.simulation.simulation import Simulation, scenario


@scenario(bookies=5, quorum=(2, 2, 2))
async def test_d02_recovery_leaves_earlier_fragments_alone(sim: Simulation) -> None:
    # 1. Fragments 0:{b1,b2} and 2:{b3,b2}; w has acknowledged up to e3.
    w = await sim.writer()
    ledger_id = w.ledger_id
    await w.add(2)
    w.client.placement.replacements += ["b3"]
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b1", op=Op.ADD, count=1)
    await w.add(2)

    # e4 fails on both; w adds 4:{b4,b5} and crashes before anything reaches them.
    w.client.placement.replacements += ["b4", "b5"]
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b3", op=Op.ADD)
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b2", op=Op.ADD)
    lost = [sim.net.hold(client="w", bookie=each, op=Op.ADD) for each in ("b4", "b5")]
    w.append()
    await sim.until(lambda: all(hold.messages for hold in lost))
    w.client.crash()
    for hold in lost:
        hold.drop()
    fragments = (
        Fragment(0, ("b1", "b2")),
        Fragment(2, ("b3", "b2")),
        Fragment(4, ("b4", "b5")),
    )
    assert sim.metadata(ledger_id).ensembles == fragments

    # 2. to 4. r hears of no LAC from b4 and b5, and b5 would take nothing written back.
    sim.net.refuse(Status.IO_ERROR, client="r", bookie="b5", op=Op.ADD)
    reader = await sim.recover("r", ledger_id)
    fenced = heard(sim, client="r", op=Op.READ_LAC, flags=Flag.FENCE)
    assert fenced
    assert {each.source for each in fenced} <= {"b4", "b5"}
    assert not any(sim.bookie(each).has(ledger_id, 4) for each in ("b4", "b5"))

    # 5. What earlier fragments hold is committed: r asks for e4 only, and writes nothing back.
    reads = asked(sim, client="r", op=Op.READ, flags=Flag.FENCE)
    assert {each.entry_id for each in reads} == {4}
    assert not asked(sim, client="r", op=Op.ADD)
    metadata = sim.metadata(ledger_id)
    assert metadata.state is LedgerState.CLOSED
    assert metadata.ensembles == fragments  # I11
    assert reader.last_add_confirmed == 3  # I1
    assert len(await reader.read_all()) == 4


@mutations_param("D2")
def test_the_test_of_d02_notices_when_its_rule_is_off(mutation: Mutation) -> None:
    assert_noticed(mutation, test_d02_recovery_leaves_earlier_fragments_alone)
