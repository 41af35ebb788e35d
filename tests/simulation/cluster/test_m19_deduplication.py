"""Defect M19 and rule 3.2: with deduplication each message is there once, whatever became of it.

A message that was confirmed as a duplicate and is not there would be noticed by C1 as well.
"""

from magnetar.ledger.wire import Op, Status
from tests.simulation.cluster.broker import SimBroker
from tests.simulation.cluster.clients import SimProducer
from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.events import Kept
from tests.simulation.frame_rules import Hold

_ON: dict[str, object] = {"deduplication": True}
_SNAPSHOTS: dict[str, object] = {**_ON, "dedup_snapshot_entries": 1, "ack_persist_interval_ms": 0}


def hold_adds(
    sim: Cluster, broker: SimBroker, *, ledger_id: int | None = None, entry: int | None = None
) -> Hold:
    """What the broker sends to bookies is on its way for a long time, and what is behind it."""
    return sim.net.hold(client=broker.name, op=Op.ADD, ledger_id=ledger_id, entry=entry)


async def settled_once(sim: Cluster, producer: SimProducer) -> None:
    """All messages of the producer are confirmed, and in the end each is there once, in order."""
    await sim.until(lambda: producer.pending == 0)
    assert not producer.failed
    await sim.inspect()
    kept = [message for _, _, event in sim.history.of(Kept) for message in event.messages]
    assert kept == [f"{producer.name}:{number}".encode() for number in range(producer.published)]


@story(settings=_ON)
async def test_m19_what_was_stored_without_a_receipt_is_not_stored_by_the_next_owner(
    sim: Cluster,
) -> None:
    producer = await sim.user("p").producer("t")
    await producer.publish(2)
    first = sim.owner_of("t")
    sim.front.hold_command("SEND_RECEIPT", source=first.name)
    producer.send(3)
    await sim.sleep(0.2)  # stored by now
    first.crash()
    await sim.moved("t", away_from=first)
    await settled_once(sim, producer)


@story(settings=_ON)
async def test_m19_nor_after_an_orderly_move(sim: Cluster) -> None:
    producer = await sim.user("p").producer("t")
    await producer.publish(2)
    first = sim.owner_of("t")
    sim.front.hold_command("SEND_RECEIPT", source=first.name)
    producer.send(3)
    await sim.sleep(0.2)
    await first.unload("t", destination=sim.another(first).name)
    sim.front.heal_all()
    await settled_once(sim, producer)


@story(settings=_ON)
async def test_m19_what_the_owner_lost_is_stored_by_the_next_one(sim: Cluster) -> None:
    producer = await sim.user("p").producer("t")
    await producer.publish(2)
    first = sim.owner_of("t")
    hold_adds(sim, first)
    producer.send(3)
    await sim.sleep(0.2)
    first.crash()
    await sim.moved("t", away_from=first)
    await settled_once(sim, producer)


@story(settings=_ON)
async def test_m19_a_part_of_what_was_under_way_is_completed(sim: Cluster) -> None:
    producer = await sim.user("p").producer("t")
    await producer.publish(2)
    first = sim.owner_of("t")
    hold_adds(sim, first, entry=4)
    producer.send(2)
    await sim.sleep(0.05)
    producer.send(2)
    await sim.sleep(0.2)
    first.crash()
    await sim.moved("t", away_from=first)
    await settled_once(sim, producer)


@story(bookies=6, seed="0", settings={**_ON, "ledger_entries_max": 2})
async def test_m19_a_message_lost_before_a_rotation_is_not_taken_for_one_behind_it(
    sim: Cluster,
) -> None:
    producer = await sim.user("p").producer("t")
    await producer.publish(1)
    first = sim.owner_of("t")
    (draining,) = sim.log_metadata("t").ledgers
    hold_adds(sim, first, ledger_id=draining.ledger_id)  # the second entry gets nowhere
    producer.send(1)
    await sim.until(lambda: len(sim.log_metadata("t").ledgers) > 1)
    await sim.sleep(0.05)  # the owner has heard of it
    producer.send(2)
    await sim.sleep(0.2)
    first.crash()
    await sim.moved("t", away_from=first)
    await settled_once(sim, producer)


@story(bookies=6, seed="0", settings=_SNAPSHOTS)
async def test_m19_a_snapshot_is_not_newer_than_its_position(sim: Cluster) -> None:
    producer = await sim.user("p").producer("t")
    await producer.publish(1)
    first = sim.owner_of("t")
    (current,) = sim.log_metadata("t").ledgers
    await sim.sleep(0.3)  # the first snapshot is saved
    # Message 1 is on its way when 2 is accepted behind it; 2 gets nowhere.
    slow = hold_adds(sim, first, ledger_id=current.ledger_id, entry=1)
    hold_adds(sim, first, ledger_id=current.ledger_id, entry=2)
    producer.send(1)
    await sim.sleep(0.05)
    producer.send(1)
    await sim.sleep(0.05)
    slow.release()
    await sim.until(lambda: len(producer.confirmed) == 2)
    await sim.sleep(0.5)  # a snapshot is saved
    first.crash()
    await sim.moved("t", away_from=first)
    await settled_once(sim, producer)


@story(brokers=1, settings=_ON)
async def test_m19_an_append_that_failed_is_decided_by_a_recovery(sim: Cluster) -> None:
    producer = await sim.user("p").producer("t")
    await producer.publish(2)
    # Each new ledger fails on two bookies: the log gives up. What is on b1 may be in it.
    refusals = [
        sim.net.refuse(Status.IO_ERROR, client="br1", bookie=each, op=Op.ADD)
        for each in ("b2", "b3")
    ]
    producer.send(3)
    topic = sim.broker("br1").topic("t")
    assert topic is not None
    await sim.until(lambda: topic.is_closed, timeout_s=120)
    for refusal in refusals:
        refusal.count = 0
    await settled_once(sim, producer)


@story(settings=_ON)
async def test_m19_a_client_that_reconnects_meets_its_own_messages_under_way(sim: Cluster) -> None:
    producer = await sim.user("p").producer("t")
    await producer.publish(2)
    first = sim.owner_of("t")
    slow = hold_adds(sim, first)
    producer.send(3)
    await sim.sleep(0.2)
    sim.front.drop_command("PING", source=first.name)  # with its connection
    await sim.sleep(1.5)
    slow.release()
    await settled_once(sim, producer)


@story(settings={**_SNAPSHOTS, "ledger_entries_max": 2})
async def test_m19_the_state_survives_one_owner_after_another(sim: Cluster) -> None:
    producer = await sim.user("p").producer("t")
    for _ in range(3):
        await producer.publish(3)
        owner = sim.owner_of("t")
        hold = sim.front.hold_command("SEND_RECEIPT", source=owner.name)
        producer.send(2)
        await sim.sleep(0.3)
        owner.crash()
        await sim.moved("t", away_from=owner)
        await sim.until(lambda: producer.pending == 0)
        hold.release()
        await owner.start()
    await settled_once(sim, producer)
