"""Defect D15: corruption reported as absence."""

import pytest

from magnetar.ledger.errors import BookieUnavailableError, RecoveryUndecidedError
from magnetar.ledger.ledger_metadata import LedgerState
from magnetar.ledger.wire import Op, Status
from tests.simulation.clients import SimWriter
from tests.simulation.heard import heard
from tests.simulation.mutations.mutation import Mutation
from tests.simulation.mutations.noticing import assert_noticed, mutations_param
from tests.simulation.simulation import Simulation, scenario


async def _e0_on_b1_and_b3(sim: Simulation) -> SimWriter:
    """e0 is acknowledged by b1 and b3; b2 never got it. The writer is gone."""
    w = await sim.writer()
    sim.net.hold(client="w", bookie="b2", op=Op.ADD)
    await w.add()
    w.client.crash()
    return w


async def _recover_without_b3(sim: Simulation, ledger_id: int) -> None:
    """b2 denies e0, b3 cannot be heard, and b1 is in trouble: nothing may be decided."""
    slow = sim.net.hold(client="r", bookie="b3", op=Op.READ, reply=True)
    with pytest.raises(RecoveryUndecidedError, match="entry 0 is undecided: 1 of 3"):
        await sim.recover("r", ledger_id)
    denied = heard(sim, client="r", op=Op.READ, status=Status.NO_SUCH_ENTRY, entry=0)
    assert {each.source for each in denied} == {"b2"}
    assert sim.metadata(ledger_id).state is LedgerState.IN_RECOVERY
    slow.drop()


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d15_a_bookie_that_cannot_read_its_files_does_not_deny(sim: Simulation) -> None:
    w = await _e0_on_b1_and_b3(sim)
    sim.bookie("b1").storage.read_error = True
    await _recover_without_b3(sim, w.ledger_id)
    assert heard(sim, client="r", op=Op.READ, bookie="b1", status=Status.IO_ERROR, entry=0)

    reader = await sim.recover("r", w.ledger_id)
    assert reader.last_add_confirmed == 0  # I1
    assert len(await reader.read_all()) == 1


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d15_a_replica_that_fails_its_digest_does_not_deny(sim: Simulation) -> None:
    w = await _e0_on_b1_and_b3(sim)
    sim.bookie("b1").corrupt(w.ledger_id, 0)
    await _recover_without_b3(sim, w.ledger_id)
    assert heard(sim, client="r", op=Op.READ, bookie="b1", status=Status.OK, entry=0)
    counted = sim.clients["r"].ledgers.fetcher.digest_mismatches
    assert counted["b1"] > 0, "rule 9.2 holds for recovery reads too"

    reader = await sim.recover("r", w.ledger_id)
    assert reader.last_add_confirmed == 0  # I1, I20
    assert len(await reader.read_all()) == 1
    assert sim.bookie("b1").has(w.ledger_id, 0)


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d15_a_reader_is_told_of_the_trouble_and_not_of_an_absence(sim: Simulation) -> None:
    """Rule 9.1, at an ordinary read: re-replication must not take the entry as never written."""
    w = await sim.writer()
    sim.net.hold(client="w", bookie="b2", op=Op.ADD)
    await w.add()
    await w.close()

    reader = await (await sim.client("t")).open(w.ledger_id)
    sim.bookie("b1").storage.read_error = True
    sim.bookie("b3").storage.read_error = True
    with pytest.raises(BookieUnavailableError):
        await reader.read_all()
    answers = {each.source: each.status for each in heard(sim, client="t", op=Op.READ, entry=0)}
    assert answers["b2"] in (Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER)
    assert answers["b1"] == answers["b3"] == Status.IO_ERROR

    sim.bookie("b3").storage.read_error = False
    assert len(await reader.read_all()) == 1


@mutations_param("D15")
def test_the_test_of_d15_notices_when_its_rule_is_off(mutation: Mutation) -> None:
    assert_noticed(
        mutation,
        test_d15_a_bookie_that_cannot_read_its_files_does_not_deny,
        test_d15_a_replica_that_fails_its_digest_does_not_deny,
        test_d15_a_reader_is_told_of_the_trouble_and_not_of_an_absence,
    )
