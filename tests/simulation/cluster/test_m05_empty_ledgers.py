"""Defect M5: the next owner deletes an empty ledger, and the former one goes on in it (10.3)."""

from magnetar.ledger.wire import Op
from tests.simulation.cluster.cluster import Cluster, story


@story()
async def test_m05_an_owner_whose_empty_ledger_is_deleted_confirms_nothing_in_it(
    sim: Cluster,
) -> None:
    producer = await sim.user("p").producer("t")
    first = sim.owner_of("t")
    # Its first ledger is there and listed; the first entries are on their way for long.
    adding = sim.net.hold(client=first.name, op=Op.ADD)
    producer.send(2)
    await sim.until(lambda: len(adding.messages) == 3)
    (empty,) = sim.log_metadata("t").ledgers
    first.pause()
    other = await sim.user("q").producer("t")
    await sim.until(lambda: sim.store.metadata(empty.ledger_id) is None)
    await other.publish(1)

    adding.release()
    first.resume()
    await sim.until(lambda: producer.pending == 0)
    assert all(place[0] != empty.ledger_id for _, place in producer.confirmed)
    assert not any(sim.bookie(each).has(empty.ledger_id, 0) for each in sim.bookies)
    await sim.inspect()


@story()
async def test_m05_an_empty_ledger_is_deleted_only_behind_the_new_list(sim: Cluster) -> None:
    producer = await sim.user("p").producer("t")
    first = sim.owner_of("t")
    sim.net.hold(client=first.name, op=Op.ADD)
    producer.send(1)
    await sim.until(lambda: bool(sim.log_metadata("t").ledgers))
    (empty,) = sim.log_metadata("t").ledgers
    second = sim.another(first)
    listing = sim.store.hold(client=second.name, kind="set", path=sim.log_path("t"))
    first.crash()
    await sim.until(lambda: bool(listing.operations))
    await sim.sleep(0.5)
    assert sim.store.metadata(empty.ledger_id) is not None
    listing.release()
    await sim.until(lambda: sim.store.metadata(empty.ledger_id) is None)
    await sim.until(lambda: producer.pending == 0)
    await sim.inspect()
