"""Defect M3: the ledger before the last is still written to when the log is taken over."""

from magnetar.ledger.wire import Op
from tests.simulation.cluster.cluster import Cluster, story


@story(settings={"ledger_entries_max": 2})
async def test_m03_a_takeover_ends_the_ledger_that_drains_as_well(sim: Cluster) -> None:
    producer = await sim.user("p").producer("t")
    await producer.publish(1)
    first = sim.owner_of("t")
    (draining,) = sim.log_metadata("t").ledgers
    # Its second entry is on one bookie, and on its way to the others for a long time.
    late = [
        sim.net.hold(client=first.name, bookie=each, op=Op.ADD, ledger_id=draining.ledger_id)
        for each in ("b2", "b3")
    ]
    producer.send(1)
    await sim.until(lambda: len(sim.log_metadata("t").ledgers) > 1)
    producer.send(2)
    await sim.sleep(0.1)
    assert len(producer.confirmed) == 1, "the second ledger is not reported before the first"

    first.pause()
    await sim.moved("t", away_from=first)
    for hold in late:
        hold.release()
    first.resume()
    await sim.until(lambda: producer.pending == 0)
    await sim.settle()
    await sim.inspect()
