"""The periodic checks when bookies answer badly: what they never report."""

from magnetar.ledger.autorecovery.auditor import Auditor
from magnetar.ledger.wire import Op, Status
from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.items import closed_ledger, publisher
from tests.simulation.cluster.recovery import AUDITOR

REPLICAS = AUDITOR.model_copy(
    update={
        "replicas_check_interval_s": 86_400.0,
        "bookie_check_interval_s": 0,
        "all_ledgers_check_interval_s": 0,
    }
)


async def auditor_of(sim: Cluster) -> Auditor:
    """Start an auditor that makes one check of replicas, and no other."""
    recovery = sim.recovery(has_worker=False, auditor=REPLICAS)
    await recovery.start()
    assert recovery.running is not None
    return recovery.running.auditor


async def ended(sim: Cluster, auditor: Auditor) -> None:
    """Wait until the check has come to its end once."""
    await sim.until(lambda: auditor.metrics.checks.get("replicas", 0) == 1)


@story(bookies=3, brokers=0)
async def test_rule_5_5_no_answer_is_never_reported_as_missing(sim: Cluster) -> None:
    await closed_ledger(sim, 20)
    sim.net.refuse(Status.IO_ERROR, client="ar1", bookie="b1", op=Op.LIST_ENTRIES)
    auditor = await auditor_of(sim)
    await ended(sim, auditor)
    assert sim.missing_copies() == {}
    assert auditor.metrics.undecided_ledgers == {"replicas": 1}


@story(bookies=3, brokers=0)
async def test_a_bookie_that_answers_at_the_second_look_is_believed(sim: Cluster) -> None:
    await closed_ledger(sim, 20)
    trouble = sim.net.refuse(Status.IO_ERROR, client="ar1", op=Op.LIST_ENTRIES, count=1)
    auditor = await auditor_of(sim)
    await ended(sim, auditor)
    assert trouble.count == 0
    assert auditor.metrics.undecided_ledgers == {}
    assert sim.missing_copies() == {}


@story(bookies=3, brokers=0)
async def test_a_ledger_that_is_deleted_while_it_is_checked_gets_no_item(sim: Cluster) -> None:
    """Bookies rightly have nothing of a deleted ledger: the metadata is read again before a
    report."""
    w = await closed_ledger(sim, 20)
    x = await publisher(sim)
    sim.net.refuse(Status.NO_SUCH_LEDGER, client="ar1", op=Op.LIST_ENTRIES)
    auditor = await auditor_of(sim)
    running = sim.recovery().running
    assert running is not None
    manager = running.ledgers.manager
    catch_up, checks = manager.catch_up, 0

    async def deleted_meanwhile() -> None:
        nonlocal checks
        checks += 1
        if checks == 2:  # the first one begins the scan
            await x.run(x.ledgers.delete(w.ledger_id))
        await catch_up()

    manager.catch_up = deleted_meanwhile  # type: ignore[method-assign]
    await ended(sim, auditor)
    assert checks == 2
    assert sim.missing_copies() == {}
