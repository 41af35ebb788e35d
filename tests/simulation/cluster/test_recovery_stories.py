"""Auto-recovery as a whole: what is lost is found, and made up for."""

from magnetar.ledger.ledger_metadata import LedgerState
from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.items import closed_ledger, lose, publish, publisher

AVAILABLE = "/ledgers/available"


@story(bookies=4, brokers=0)
async def test_the_replicas_of_a_lost_bookie_are_made_anew(sim: Cluster) -> None:
    w = await sim.writer()
    await w.add(4)
    await w.close()
    await sim.recovery().start()
    sim.bookie("b1").lose()
    await sim.until(lambda: "b1" not in sim.metadata(w.ledger_id).last_fragment.bookies)
    await sim.wait_repaired()
    assert all(sim.bookie("b4").has(w.ledger_id, entry) for entry in range(4))


@story(bookies=3, brokers=1)
async def test_publishing_goes_on_without_a_spare_bookie_after_the_grace(sim: Cluster) -> None:
    await sim.recovery().start()
    producer = await sim.user("p").producer("t")
    await producer.publish(2)
    [ledger] = sim.log_metadata("t").ledgers
    sim.bookie("b1").lose()
    await sim.until(lambda: "b1" in sim.missing_copies().get(ledger.ledger_id, {}))
    for _ in range(3):
        await sim.sleep(5.0)  # the grace is 3 s
        await producer.publish(1)
    assert [each.ledger_id for each in sim.log_metadata("t").ledgers] == [ledger.ledger_id]

    await sim.make_bookie().start()
    await sim.wait_repaired()
    await producer.publish(1)


@story(bookies=4, brokers=0)
async def test_an_open_ledger_is_closed_only_when_a_new_one_could_be_written(sim: Cluster) -> None:
    w = await sim.writer()
    await w.add(3)
    sim.store.stall("w")  # it hears of nothing but its bookies
    await sim.recovery(has_auditor=False).start()
    # b4 could take the place of b1, but no ensemble of three is left for a new ledger.
    x = await publisher(sim)
    value = sim.store.tree.get(f"{AVAILABLE}/b3").value
    await x.run(x.store.create(f"{AVAILABLE}/readonly/b3", value, ephemeral=True))
    await x.run(x.store.delete(f"{AVAILABLE}/b3"))
    await lose(sim, "b1")
    await publish(sim, w.ledger_id, "b1")
    await sim.sleep(10.0)  # the grace is 3 s
    assert sim.metadata(w.ledger_id).state is LedgerState.OPEN

    await x.run(x.store.create(f"{AVAILABLE}/b3", value, ephemeral=True))
    await x.run(x.store.delete(f"{AVAILABLE}/readonly/b3"))
    await sim.wait_repaired()
    assert sim.metadata(w.ledger_id).state is LedgerState.CLOSED


@story(bookies=3, brokers=0)
async def test_a_ledger_that_is_fenced_already_is_closed_without_a_spare_bookie(
    sim: Cluster,
) -> None:
    w = await sim.writer()
    await w.add(3)
    ledger = await (x := await sim.client("x")).run(x.ledgers.manager.read(w.ledger_id))
    await x.run(x.ledgers.manager.write(ledger.metadata.in_recovery(), version=ledger.version))
    await sim.recovery(has_auditor=False).start()
    await lose(sim, "b1")
    await publish(sim, w.ledger_id, "b1")
    await sim.until(lambda: sim.metadata(w.ledger_id).state is LedgerState.CLOSED)


@story(bookies=4, brokers=0)
async def test_a_bookie_that_restarts_is_not_taken_for_lost_over_a_single_entry(
    sim: Cluster,
) -> None:
    w = await closed_ledger(sim)
    await sim.sleep(6.0)  # it is flushed: no replay of the journal heals the entry
    sim.bookie("b1").corrupt(w.ledger_id, 2)
    sim.bookie("b1").crash(power=False)
    await sim.until(lambda: sim.store.tree.version(f"{AVAILABLE}/b1") is None)
    await publish(sim, w.ledger_id, missing={"b1": [(2, 2)]})
    await sim.recovery(has_auditor=False).start()
    await sim.sleep(15.0)
    assert sim.metadata(w.ledger_id).last_fragment.bookies == ("b1", "b2", "b3")
    assert w.ledger_id in sim.missing_copies()

    await sim.bookie("b1").start()
    await sim.wait_repaired()
    assert not sim.bookie("b1").rotten
    assert sim.metadata(w.ledger_id).last_fragment.bookies == ("b1", "b2", "b3")


@story(bookies=4, brokers=0)
async def test_a_writer_keeps_its_ledger_while_a_bookie_that_missed_entries_restarts(
    sim: Cluster,
) -> None:
    w = await sim.writer()
    await w.add(3)
    sim.store.stall("w")  # it hears of nothing but its bookies
    sim.bookie("b1").crash(power=False)
    await sim.until(lambda: sim.store.tree.version(f"{AVAILABLE}/b1") is None)
    await publish(sim, w.ledger_id, missing={"b1": [(2, 2)]})
    await sim.recovery(has_auditor=False).start()
    await sim.sleep(15.0)  # the grace is 3 s
    assert sim.metadata(w.ledger_id).state is LedgerState.OPEN
    assert w.ledger_id in sim.missing_copies()

    await sim.bookie("b1").start()
    await sim.wait_repaired()


@story(bookies=4, brokers=0)
async def test_a_bad_copy_that_was_noted_is_made_anew_though_its_bookie_was_called_lost_since(
    sim: Cluster,
) -> None:
    w = await closed_ledger(sim)
    sim.bookie("b3").corrupt(w.ledger_id, 2)
    await publish(sim, w.ledger_id, missing={"b3": [(2, 2)]})
    await publish(sim, w.ledger_id, "b3")
    await sim.recovery(has_auditor=False).start()
    await sim.wait_repaired()
    assert not sim.bookie("b3").rotten
    assert sim.metadata(w.ledger_id).last_fragment.bookies == ("b1", "b2", "b3")


@story(bookies=5, brokers=0)
async def test_a_lock_of_which_its_taker_did_not_hear_does_not_keep_others_away_for_ever(
    sim: Cluster,
) -> None:
    w = await closed_ledger(sim)
    lock = f"/ledgers/underreplication/locks/urL{w.ledger_id}"
    await lose(sim, "b1")
    sim.store.lose_reply(client="ar1", kind="create", path=lock)
    sim.store.refuse(client="ar1", kind="get", path=lock, count=1)
    await sim.recovery(has_auditor=False).start()
    await publish(sim, w.ledger_id, "b1")
    await sim.wait_repaired()


@story(bookies=5, brokers=0)
async def test_a_bookie_that_is_called_lost_again_is_not_forgotten_by_who_saw_it_back(
    sim: Cluster,
) -> None:
    w = await closed_ledger(sim)
    await publish(sim, w.ledger_id, "b1")  # it was away, and is back with all its entries
    items = "/ledgers/underreplication/ledgers"
    deleting = sim.store.hold(client="ar1", kind="delete", path=items)
    await sim.recovery(has_auditor=False).start()
    await sim.until(lambda: bool(deleting.operations))
    await lose(sim, "b1")
    await publish(sim, w.ledger_id, "b1")
    deleting.release()
    await sim.wait_repaired()
    assert "b1" not in sim.metadata(w.ledger_id).last_fragment.bookies
