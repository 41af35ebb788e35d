"""Defect D14: a bookie that lost data answers NoSuchEntry."""

import pytest

from magnetar.bookie.errors import CookieError
from magnetar.ledger.errors import RecoveryUndecidedError
from magnetar.ledger.ledger_metadata import LedgerState
from magnetar.ledger.wire import Op, Status
from tests.simulation.clients import SimWriter
from tests.simulation.disk import SimDisk
from tests.simulation.heard import heard
from tests.simulation.mutations.mutation import Mutation
from tests.simulation.mutations.noticing import assert_noticed, mutations_param
from tests.simulation.simulation import Simulation, scenario
from tests.simulation.storage import Flushed


async def _e0_on_b1_and_b3(sim: Simulation) -> SimWriter:
    """e0 is acknowledged by b1 and b3; b2 never got it. The writer is gone."""
    w = await sim.writer()
    sim.net.hold(client="w", bookie="b2", op=Op.ADD)
    await w.add()
    w.client.crash()
    return w


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d14_what_a_bookie_acknowledged_is_there_after_a_power_loss(sim: Simulation) -> None:
    # 1. e0 is on b1 and b3. 2. b1 loses its power, at once, and starts again.
    w = await _e0_on_b1_and_b3(sim)
    sim.bookie("b1").crash()
    assert not sim.bookie("b1").flushed.packets.get(w.ledger_id)  # it was in the journal alone
    await sim.bookie("b1").restart()

    # 3. r asks for e0: b2 denies it, b3 is too slow to be heard. b1's word decides.
    sim.net.hold(client="r", bookie="b3", op=Op.READ, reply=True)
    reader = await sim.recover("r", w.ledger_id)
    denied = heard(sim, client="r", op=Op.READ, status=Status.NO_SUCH_ENTRY, entry=0)
    assert {each.source for each in denied} == {"b2"}  # I14

    # 4. The ledger is not closed empty.
    assert reader.last_add_confirmed == 0
    assert len(await reader.read_all()) == 1


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d14_a_bookie_that_lost_its_disks_says_nothing_at_all(sim: Simulation) -> None:
    w = await _e0_on_b1_and_b3(sim)

    # 2. b1's disks are exchanged for empty ones. Under this identity it does not start.
    b1 = sim.bookie("b1")
    b1.crash()
    b1.disk = SimDisk(seed=f"{b1.seed}/new-disk")
    b1.flushed = Flushed()
    with pytest.raises(CookieError, match="was in use"):
        await b1.restart()

    # 3. r hears one negative, from b2; b1 says nothing, b3 is slow. That decides nothing.
    slow = sim.net.hold(client="r", bookie="b3", op=Op.READ, reply=True)
    with pytest.raises(RecoveryUndecidedError, match="entry 0 is undecided"):
        await sim.recover("r", w.ledger_id)
    assert sim.metadata(w.ledger_id).state is LedgerState.IN_RECOVERY
    denied = heard(sim, client="r", op=Op.READ, status=Status.NO_SUCH_ENTRY, entry=0)
    assert {each.source for each in denied} == {"b2"}

    # 4. When b3 can be heard, e0 is there.
    slow.drop()
    reader = await sim.recover("r", w.ledger_id)
    assert reader.last_add_confirmed == 0
    assert len(await reader.read_all()) == 1


@mutations_param("D14")
def test_the_test_of_d14_notices_when_its_rule_is_off(mutation: Mutation) -> None:
    assert_noticed(
        mutation,
        test_d14_what_a_bookie_acknowledged_is_there_after_a_power_loss,
        test_d14_a_bookie_that_lost_its_disks_says_nothing_at_all,
    )
