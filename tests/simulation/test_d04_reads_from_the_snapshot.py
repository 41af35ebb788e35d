"""Defect D4: recovery reads that follow the recoverer's own replacements."""

from magnetar.ledger.ledger_metadata import Fragment
from magnetar.ledger.wire import Flag, Op, Status
from tests.simulation.clients import FAST
from tests.simulation.heard import asked, heard
from tests.simulation.mutations.mutation import Mutation
from tests.simulation.mutations.noticing import assert_noticed, mutations_param
from tests.simulation.simulation import Simulation, scenario

STEP_BY_STEP = FAST.model_copy(update={"recovery_read_bytes_max": 1, "channel_bytes_max": 1024})
"""One entry per read, and only a few of them on their way back while the next is read."""

ENTRIES = 8


@scenario(bookies=5, quorum=(3, 3, 2))
async def test_d04_recovery_reads_from_the_bookies_that_had_the_ledger(sim: Simulation) -> None:
    w = await sim.writer()
    ledger_id = w.ledger_id
    await w.add(ENTRIES)
    w.client.crash()

    # 1. While r writes the first entries back, b1 and b2 fail: b4 and b5 take their places.
    r = await sim.client("r", STEP_BY_STEP)
    r.placement.replacements += ["b4", "b5"]
    sim.net.refuse(Status.IO_ERROR, client="r", bookie="b1", op=Op.ADD)
    sim.net.refuse(Status.IO_ERROR, client="r", bookie="b2", op=Op.ADD)
    # 2. b3 answers late when r reads the last entry: whoever else is asked decides.
    last = ENTRIES - 1
    sim.net.hold(client="r", bookie="b3", op=Op.READ, entry=last, reply=True)
    reader = await r.recover(ledger_id)

    # 3. Nothing is lost.
    assert reader.last_add_confirmed == last
    assert len(await reader.read_all()) == ENTRIES

    # The replacements were in r's ensemble when it read the last entry, and b1 and b2 were asked.
    assert sim.metadata(ledger_id).ensembles == (Fragment(0, ("b4", "b5", "b3")),)
    facts = [each.event for each in sim.history.entries]
    reads = asked(sim, client="r", op=Op.READ, entry=last, flags=Flag.FENCE)
    writes = asked(sim, client="r", op=Op.ADD, bookie="b5", entry=0, flags=Flag.RECOVERY)
    assert facts.index(writes[0]) < facts.index(reads[0])
    assert {each.target for each in reads} == {"b1", "b2", "b3"}
    assert not heard(sim, client="r", op=Op.READ, bookie="b3", entry=last, flags=Flag.FENCE)


@mutations_param("D4")
def test_the_test_of_d04_notices_when_its_rule_is_off(mutation: Mutation) -> None:
    assert_noticed(mutation, test_d04_recovery_reads_from_the_bookies_that_had_the_ledger)
