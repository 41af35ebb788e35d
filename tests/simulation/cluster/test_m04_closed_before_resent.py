"""Defect M4: publishes are written again before the ledger that failed is closed (rule 3.1)."""

from magnetar.ledger.wire import Op, Status
from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.events import Kept
from tests.simulation.history import Sent


@story(brokers=1)
async def test_m04_nothing_is_written_again_before_the_failed_ledger_has_its_end(
    sim: Cluster,
) -> None:
    producer = await sim.user("p").producer("t")
    await producer.publish(2)
    (failed,) = sim.log_metadata("t").ledgers
    # The third entry is stored on b1 alone, and there is no other bookie.
    for bookie_id in ("b2", "b3"):
        sim.net.refuse(
            Status.IO_ERROR, client="br1", bookie=bookie_id, op=Op.ADD, ledger_id=failed.ledger_id
        )
    closing = sim.store.hold_cas(client="br1", ledger_id=failed.ledger_id)
    producer.send(3)
    await sim.until(lambda: bool(closing.operations))
    await sim.sleep(0.3)
    assert not any(
        event.op == Op.ADD and event.ledger_id > failed.ledger_id
        for _, actor, event in sim.history.of(Sent)
        if actor == "br1"
    ), "no other ledger is written to"

    closing.release()
    await sim.until(lambda: producer.pending == 0)
    await sim.inspect()
    kept = [message for _, _, event in sim.history.of(Kept) for message in event.messages]
    assert kept == [f"p:{number}".encode() for number in range(5)]
