"""Defect A3: the fragment that is written to is copied and swapped (rule 6.1)."""

from magnetar.ledger.errors import LedgerFencedError
from magnetar.ledger.ledger_metadata import LedgerState
from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.items import lose, publish


@story(bookies=4, brokers=0)
async def test_a03_a_writer_that_goes_on_within_the_grace_keeps_its_ledger(sim: Cluster) -> None:
    w = await sim.writer()
    await w.add(3)
    await sim.recovery(has_auditor=False).start()
    await lose(sim, "b1")
    await publish(sim, w.ledger_id, "b1")
    await sim.sleep(1.0)  # below the grace
    assert sim.metadata(w.ledger_id).last_fragment.bookies == ("b1", "b2", "b3")

    await w.add(3)  # notices by itself
    await sim.wait_repaired()
    metadata = sim.metadata(w.ledger_id)
    assert metadata.state is LedgerState.OPEN
    assert all("b1" not in bookies for _, bookies in metadata.ensembles)
    await w.add(1)
    await w.close()


@story(bookies=4, brokers=0)
async def test_a03_an_idle_ledger_is_fenced_after_the_grace_and_then_repaired(
    sim: Cluster,
) -> None:
    w = await sim.writer()
    await w.add(3)
    sim.store.stall("w")  # it hears of nothing but its bookies
    await sim.recovery(has_auditor=False).start()
    await lose(sim, "b1")
    await publish(sim, w.ledger_id, "b1")
    await sim.wait_repaired()
    metadata = sim.metadata(w.ledger_id)
    assert metadata.state is LedgerState.CLOSED
    assert metadata.last_entry_id == 2

    w.append()
    await sim.until(lambda: w.pending == 0)
    assert isinstance(w.error, LedgerFencedError)
