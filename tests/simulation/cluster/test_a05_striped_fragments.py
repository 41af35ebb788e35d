"""Defect A5: a lost member on which no entry falls is never replaced (rule 5.3)."""

from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.items import closed_ledger


@story(bookies=4, brokers=0, quorum=(3, 2, 2))
async def test_a05_a_member_that_holds_no_entry_is_replaced_too(sim: Cluster) -> None:
    w = await closed_ledger(sim, entries=1)  # on b1 and b2
    await sim.recovery().start()
    sim.bookie("b3").lose()
    await sim.wait_repaired()
    assert sim.metadata(w.ledger_id).last_fragment.bookies == ("b1", "b2", "b4")


@story(bookies=4, brokers=0)
async def test_a05_in_an_empty_ledger_as_well(sim: Cluster) -> None:
    w = await closed_ledger(sim, entries=0)
    await sim.recovery().start()
    sim.bookie("b3").lose()
    await sim.wait_repaired()
    assert sim.metadata(w.ledger_id).last_fragment.bookies == ("b1", "b2", "b4")
