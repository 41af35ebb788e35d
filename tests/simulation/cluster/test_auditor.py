"""The auditor: what it takes for lost, what it leaves alone, and how fast it goes."""

from magnetar.ledger.autorecovery.auditor import Auditor
from magnetar.ledger.autorecovery.controls import Controls
from magnetar.ledger.layouts.ledger_layout_hierarchical import ledger_path
from magnetar.ledger.under_replication import EVERYTHING, item_path
from tests.simulation.clients import SimClient
from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.items import lose, publisher
from tests.simulation.cluster.recovery import AUDITOR

AUDITS = AUDITOR.model_copy(
    update={
        "gather_s": 0.01,
        "settle_s": 0.0,
        "mass_loss_wait_s": 0.1,
        "audit_again_s": 0.0,
        "retry_delay_s": 0.05,
        "bookie_check_interval_s": 0,
        "all_ledgers_check_interval_s": 0,
        "replicas_check_interval_s": 0,
        "survey_interval_s": 0.5,
    }
)
"""Nothing by itself but audits."""


async def ledgers_of(sim: Cluster) -> list[int]:
    """Three ledgers that name b1, and one more that does not; those that do."""
    named = []
    for ensemble in (("b1", "b2"), ("b3", "b4"), ("b4", "b1"), ("b1", "b3")):
        w = await sim.writer(ensemble=ensemble)
        await w.add(20)
        await w.close()
        if "b1" in ensemble:
            named.append(w.ledger_id)
    return named


async def auditor_of(sim: Cluster, name: str = "ar1", **settings: object) -> Auditor:
    """Start an auditor, and wait until it knows the bookies that run."""
    running = sum(bookie.is_running for bookie in sim.bookies.values())
    recovery = sim.recovery(name, has_worker=False, auditor=AUDITS.model_copy(update=settings))
    await recovery.start()
    assert recovery.running is not None
    auditor = recovery.running.auditor
    await sim.until(lambda: auditor.metrics.bookies_registered == running)
    return auditor


async def controls_of(sim: Cluster) -> tuple[SimClient, Controls]:
    """What an operator has."""
    x = await publisher(sim)
    return x, Controls(x.store)


async def away(sim: Cluster, *bookies: str) -> None:
    """The bookies do not run, and are registered no more."""
    for bookie_id in bookies:
        sim.bookie(bookie_id).crash(power=False)
    paths = [f"/ledgers/available/{bookie_id}" for bookie_id in bookies]
    await sim.until(lambda: all(sim.store.tree.version(path) is None for path in paths))


async def until_items(sim: Cluster, ledger_ids: list[int]) -> None:
    """Until these ledgers, and no others, have items."""
    await sim.until(lambda: sorted(sim.missing_copies()) == ledger_ids)


@story(bookies=4, brokers=0, quorum=(2, 2, 2))
async def test_each_ledger_of_a_lost_bookie_gets_an_item_and_no_other_does(sim: Cluster) -> None:
    named = await ledgers_of(sim)
    auditor = await auditor_of(sim)
    await sim.settle()
    assert sim.missing_copies() == {}
    await away(sim, "b1")
    await until_items(sim, named)
    assert sim.missing_copies()[named[0]] == {"b1": [EVERYTHING]}
    await sim.until(lambda: auditor.metrics.under_replicated_ledgers == len(named))
    assert auditor.metrics.under_replicated_bytes == sum(
        sim.metadata(ledger_id).length for ledger_id in named
    )
    assert auditor.metrics.bookies_lost == 1


@story(bookies=4, brokers=0, quorum=(2, 2, 2))
async def test_a_bookie_that_comes_back_within_the_delay_costs_nothing(sim: Cluster) -> None:
    await ledgers_of(sim)
    auditor = await auditor_of(sim, lost_bookie_recovery_delay_s=600.0)
    await away(sim, "b1")
    await sim.until(lambda: auditor.metrics.delayed_audits_scheduled == 1)
    await sim.sleep(60.0)
    assert sim.missing_copies() == {}
    await sim.bookie("b1").start()
    await sim.until(lambda: auditor.metrics.delayed_audits_cancelled == 1)
    await sim.sleep(30.0)
    assert auditor.metrics.audits == {}
    assert sim.missing_copies() == {}


@story(bookies=4, brokers=0, quorum=(2, 2, 2))
async def test_an_operator_may_change_the_delay_while_it_runs(sim: Cluster) -> None:
    named = await ledgers_of(sim)
    auditor = await auditor_of(sim, lost_bookie_recovery_delay_s=600.0)
    await away(sim, "b1")
    await sim.until(lambda: auditor.metrics.delayed_audits_scheduled == 1)
    x, controls = await controls_of(sim)
    await x.run(controls.write_delay(0.0))
    await until_items(sim, named)


@story(bookies=4, brokers=0, quorum=(2, 2, 2))
async def test_writing_the_same_delay_again_starts_an_audit_at_once(sim: Cluster) -> None:
    named = await ledgers_of(sim)
    x, controls = await controls_of(sim)
    await x.run(controls.write_delay(600.0))
    auditor = await auditor_of(sim)
    await away(sim, "b1")
    await sim.until(lambda: auditor.metrics.delayed_audits_scheduled == 1)
    await x.run(controls.write_delay(600.0))
    await until_items(sim, named)
    await sim.until(lambda: bool(auditor.metrics.audits))
    assert set(auditor.metrics.audits) == {"asked"}


@story(bookies=4, brokers=0, quorum=(2, 2, 2))
async def test_while_it_is_switched_off_nothing_is_published(sim: Cluster) -> None:
    named = await ledgers_of(sim)
    x, controls = await controls_of(sim)
    assert await x.run(controls.disable(now_ms=1))
    assert not await x.run(controls.disable(now_ms=2))
    auditor = await auditor_of(sim)
    await away(sim, "b1")
    await sim.until(lambda: auditor.metrics.bookies_lost == 1)
    await x.run(controls.ask_for_audit())
    await sim.until(lambda: auditor.metrics.is_disabled == 1)
    await sim.sleep(30.0)
    assert auditor.metrics.audits == {}
    assert sim.missing_copies() == {}
    assert await x.run(controls.enable())
    assert not await x.run(controls.enable())
    await until_items(sim, named)


@story(bookies=4, brokers=0)
async def test_a11_when_most_bookies_vanish_publishing_waits_and_is_slow(sim: Cluster) -> None:
    for _ in range(8):
        w = await sim.writer()
        await w.add(2)
        await w.close()
    auditor = await auditor_of(sim, mass_loss_wait_s=5.0, mass_loss_items_per_s_max=2.0)
    await away(sim, "b1", "b2")
    gone_s = sim.loop.time()
    await sim.until(lambda: auditor.metrics.is_mass_loss == 1)
    await until_items(sim, list(range(8)))
    assert sim.loop.time() - gone_s > 5.0 + (8 - 2) / 2.0 - 0.1
    await sim.until(lambda: bool(auditor.metrics.audits))


@story(bookies=4, brokers=0)
async def test_a11_bookies_that_are_back_after_an_outage_get_no_items(sim: Cluster) -> None:
    w = await sim.writer()
    await w.add(2)
    await w.close()
    auditor = await auditor_of(sim, mass_loss_wait_s=60.0, gather_s=60.0)
    await away(sim, "b1", "b2", "b3")
    await sim.until(lambda: auditor.metrics.is_mass_loss == 1)
    for bookie_id in ("b1", "b2", "b3"):
        await sim.bookie(bookie_id).start()
    await sim.until(lambda: auditor.metrics.bookies_lost == 0)
    await sim.until(lambda: auditor.metrics.is_mass_loss == 0, timeout_s=300.0)
    await sim.sleep(120.0)
    assert auditor.metrics.audits == {}
    assert sim.missing_copies() == {}


@story(bookies=3, brokers=0)
async def test_a12_an_audit_reads_metadata_no_faster_than_it_may(sim: Cluster) -> None:
    for _ in range(10):
        w = await sim.writer()
        await w.add()
        await w.close()
    auditor = await auditor_of(sim, metadata_reads_per_s_max=2.0, metadata_reads_at_once_max=2)
    began_s = sim.loop.time()
    x, controls = await controls_of(sim)
    await x.run(controls.ask_for_audit())
    await sim.until(lambda: auditor.metrics.audits.get("asked", 0) == 1)
    assert sim.loop.time() - began_s > 8 / 2.0 - 0.1
    assert auditor.metrics.audit_ledgers == 10


@story(bookies=5, brokers=0)
async def test_publishing_again_changes_nothing_and_another_bookie_is_added(sim: Cluster) -> None:
    w = await sim.writer()
    await w.add(2)
    await w.close()
    path = item_path("/ledgers", w.ledger_id)
    auditor = await auditor_of(sim)
    await away(sim, "b1")
    await until_items(sim, [w.ledger_id])
    before = sim.store.tree.get(path)
    x, controls = await controls_of(sim)
    await x.run(controls.ask_for_audit())
    await sim.until(lambda: auditor.metrics.audits.get("asked", 0) == 1)
    assert sim.store.tree.get(path) == before
    await away(sim, "b2")
    await sim.until(lambda: auditor.metrics.items_published.get("audit", 0) == 2)
    assert set(sim.missing_copies()[w.ledger_id]) == {"b1", "b2"}


@story(bookies=4, brokers=0, quorum=(2, 2, 2))
async def test_a_second_auditor_takes_over_when_the_first_one_goes(sim: Cluster) -> None:
    named = await ledgers_of(sim)
    first = await auditor_of(sim, "ar1")
    recovery = sim.recovery("ar2", has_worker=False, auditor=AUDITS)
    await recovery.start()
    assert recovery.running is not None
    second = recovery.running.auditor
    assert second.election.leader() == "ar1"
    await away(sim, "b1")
    await until_items(sim, named)
    assert second.metrics.elections_won == 0
    await sim.recovery("ar1").stop()
    await sim.until(lambda: second.metrics.is_auditor == 1)
    assert first.metrics.is_auditor == 0
    assert first.metrics.bookies_lost == 0
    await sim.until(lambda: second.metrics.bookies_lost == 1)
    await sim.until(lambda: bool(second.metrics.audits))


@story(bookies=4, brokers=0, quorum=(2, 2, 2))
async def test_an_audit_that_fails_is_done_again(sim: Cluster) -> None:
    named = await ledgers_of(sim)
    auditor = await auditor_of(sim)
    sim.store.refuse(client="ar1", kind="get", path=ledger_path("/ledgers", named[-1]), count=2)
    await away(sim, "b1")
    await until_items(sim, named)
    assert auditor.metrics.audit_failures == 2


@story(bookies=3, brokers=0)
async def test_an_audit_that_was_asked_for_and_failed_is_done_all_the_same(sim: Cluster) -> None:
    w = await sim.writer()
    await w.add()
    await w.close()
    auditor = await auditor_of(sim)
    sim.store.refuse(client="ar1", kind="get", path=ledger_path("/ledgers", w.ledger_id))
    x, controls = await controls_of(sim)
    await x.run(controls.ask_for_audit())
    await sim.until(lambda: auditor.metrics.audits == {"asked": 1})
    assert auditor.metrics.audit_failures == 1


@story(bookies=4, brokers=0)
async def test_an_item_that_is_not_understood_is_left_alone_and_said_so(sim: Cluster) -> None:
    w = await sim.writer()
    await w.add()
    await w.close()
    path, tree = item_path("/ledgers", w.ledger_id), sim.store.tree
    tree.create(path, b'{"format":9}', session=None, sequential=False)
    auditor = await auditor_of(sim)
    await sim.until(lambda: auditor.metrics.unreadable_items == 1)
    await away(sim, "b1")
    await sim.until(lambda: bool(auditor.metrics.audits))
    assert tree.get(path).value == b'{"format":9}'


@story(bookies=4, brokers=0, quorum=(2, 2, 2))
async def test_a_delay_that_is_not_understood_changes_nothing(sim: Cluster) -> None:
    named = await ledgers_of(sim)
    x, controls = await controls_of(sim)
    await x.run(x.store.create(controls.delay_path, b"ten minutes"))
    await auditor_of(sim)
    await away(sim, "b1")
    await until_items(sim, named)
    assert sim.store.tree.get(controls.delay_path).value == b"ten minutes"


@story(bookies=4, brokers=0, quorum=(2, 2, 2))
async def test_where_the_items_are_kept_otherwise_nothing_is_touched(sim: Cluster) -> None:
    await ledgers_of(sim)
    x = await publisher(sim)
    await x.run(x.store.create("/ledgers/underreplication/LAYOUT", b'{"format":2}'))
    recovery = sim.recovery(has_worker=False, auditor=AUDITS)
    await recovery.start()
    assert recovery.running is not None
    auditor = recovery.running.auditor
    await lose(sim, "b1")
    await sim.until(lambda: auditor.metrics.is_auditor == 1)
    await sim.sleep(30.0)
    assert auditor.metrics.bookies_registered == 0
    assert sim.missing_copies() == {}
