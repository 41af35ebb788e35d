"""Defect M5: the next owner deletes an empty ledger, and the former one goes on in it (10.3)."""

from tests.simulation.cluster.cluster import Cluster, story


@story()
async def test_m05_an_owner_whose_empty_ledger_is_deleted_confirms_nothing_in_it(
    sim: Cluster,
) -> None:
    producer = await sim.user("p").producer("t")
    first = sim.owner_of("t")
    (empty,) = sim.log_metadata("t").ledgers
    sending = sim.front.hold_command("SEND", source="p", target=first.name)
    producer.send(2)
    first.pause()
    other = await sim.user("q").producer("t")
    await sim.until(lambda: sim.store.metadata(empty.ledger_id) is None)
    await other.publish(1)

    first.resume()
    sending.release()
    await sim.until(lambda: producer.pending == 0)
    assert all(place[0] != empty.ledger_id for _, place in producer.confirmed)
    await sim.inspect()


@story()
async def test_m05_an_empty_ledger_is_deleted_only_behind_the_new_list(sim: Cluster) -> None:
    await sim.user("p").producer("t")
    first = sim.owner_of("t")
    (empty,) = sim.log_metadata("t").ledgers
    second = sim.another(first)
    listing = sim.store.hold(client=second.name, kind="set", path=sim.log_path("t"))
    first.crash()
    await sim.until(lambda: bool(listing.operations))
    await sim.sleep(0.5)
    assert sim.store.metadata(empty.ledger_id) is not None
    listing.release()
    await sim.until(lambda: sim.store.metadata(empty.ledger_id) is None)
    await sim.inspect()
