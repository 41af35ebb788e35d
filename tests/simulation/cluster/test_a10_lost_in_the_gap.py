"""Defect A10: a new auditor knows nothing of bookies that died while there was none."""

from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.items import closed_ledger, lose
from tests.simulation.cluster.recovery import AUDITOR

NO_CHECKS = AUDITOR.model_copy(
    update={
        "bookie_check_interval_s": 0.0,
        "all_ledgers_check_interval_s": 0.0,
        "replicas_check_interval_s": 0.0,
    }
)
"""Only what the auditor knows of the bookies leads to an audit."""


@story(bookies=4, brokers=0)
async def test_a10_a_bookie_that_died_before_the_auditor_came_is_found(sim: Cluster) -> None:
    w = await closed_ledger(sim)
    await lose(sim, "b2")
    await sim.recovery(auditor=NO_CHECKS).start()
    await sim.wait_repaired()
    assert "b2" not in sim.metadata(w.ledger_id).last_fragment.bookies


@story(bookies=4, brokers=0)
async def test_a10_the_next_auditor_finds_what_the_dead_one_had_not_published(
    sim: Cluster,
) -> None:
    w = await closed_ledger(sim)
    await sim.recovery("ar1", has_worker=False, auditor=NO_CHECKS).start()
    await sim.recovery("ar2", auditor=NO_CHECKS).start()
    await sim.until(lambda: sim.recovery("ar1").is_auditor)
    sim.recovery("ar1").crash()
    await lose(sim, "b2")
    await sim.until(lambda: sim.recovery("ar2").is_auditor)
    await sim.wait_repaired()
    assert "b2" not in sim.metadata(w.ledger_id).last_fragment.bookies
