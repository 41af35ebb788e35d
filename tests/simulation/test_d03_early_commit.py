"""Defect D3: a recovery that commits its ensemble changes early truncates the ledger."""

from magnetar.ledger.ledger_metadata import LedgerState
from magnetar.ledger.wire import Flag, Op, Status
from tests.simulation.clients import FAST
from tests.simulation.heard import heard
from tests.simulation.mutations.mutation import Mutation
from tests.simulation.mutations.noticing import assert_noticed, mutations_param
from tests.simulation.simulation import Simulation, scenario

ONE_BY_ONE = FAST.model_copy(update={"recovery_read_bytes_max": 1})
"""Recovery reads return one entry each, as in the sheet."""


async def _recover_without_e1(
    sim: Simulation, name: str, ledger_id: int, *, failing: str, instead: str
) -> None:
    """A recoverer replaces a bookie while writing e0 back, and crashes before it has read e1."""
    recoverer = await sim.client(name, ONE_BY_ONE)
    recoverer.placement.replacements.append(instead)
    sim.net.refuse(Status.IO_ERROR, client=name, bookie=failing, op=Op.ADD)
    e1 = sim.net.hold(client=name, op=Op.READ, entry=1)
    recoverer.spawn(recoverer.recover(ledger_id))
    await sim.until(lambda: sim.bookie(instead).has(ledger_id, 0))
    await sim.until(lambda: e1.seen >= 2)
    await sim.sleep(0.1)
    recoverer.crash()
    e1.drop()
    assert not sim.bookie(instead).has(ledger_id, 1)


@scenario(bookies=5, quorum=(3, 3, 2))
async def test_d03_a_recovery_that_crashes_leaves_the_ensemble_as_it_was(sim: Simulation) -> None:
    # 1. e0 and e1 are acknowledged on b1, b2, b3.
    w = await sim.writer()
    ledger_id = w.ledger_id
    await w.add(2)
    w.client.crash()
    before = sim.metadata(ledger_id).ensembles

    # 2. r1 writes e0 back: b1 fails and b4 takes its place. r1 crashes before it copied e1.
    await _recover_without_e1(sim, "r1", ledger_id, failing="b1", instead="b4")
    # A second round likewise brings in b5 for b2 (or, were b4 committed, beside it).
    await _recover_without_e1(sim, "r2", ledger_id, failing="b2", instead="b5")
    metadata = sim.metadata(ledger_id)
    assert metadata.state is LedgerState.IN_RECOVERY
    assert metadata.ensembles == before

    # 3. and 4. r3 hears b3 too late; b4 and b5 would both deny e1.
    sim.net.hold(client="r3", bookie="b3", op=Op.READ, reply=True)
    reader = await sim.recover("r3", ledger_id)
    denied = heard(sim, client="r3", op=Op.READ, status=Status.NO_SUCH_ENTRY, entry=1)
    assert not denied
    assert heard(sim, client="r3", op=Op.READ, status=Status.OK, entry=1, flags=Flag.FENCE)

    # 5. The ledger ends at e1.
    assert reader.last_add_confirmed == 1
    assert len(await reader.read_all()) == 2


@mutations_param("D3")
def test_the_test_of_d03_notices_when_its_rule_is_off(mutation: Mutation) -> None:
    assert_noticed(mutation, test_d03_a_recovery_that_crashes_leaves_the_ensemble_as_it_was)
