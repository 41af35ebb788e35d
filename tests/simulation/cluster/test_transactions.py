"""A message of a transaction that got a receipt is in the log, whatever became of its owner."""

import asyncio

from magnetar.ledger.wire import Op
from magnetar.sdk import MessageId, Transaction
from tests.simulation.cluster.clients import SimProducer
from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.events import Kept


def send(
    producer: SimProducer, transaction: Transaction, *bodies: bytes
) -> list[asyncio.Task[MessageId]]:
    """Send messages in a transaction, without waiting."""
    return [
        producer.user.spawn(producer.producer.send(body, transaction=transaction))
        for body in bodies
    ]


@story(bookies=6, seed="0", settings={"ledger_entries_max": 2, "transaction_coordinators": 1})
async def test_a_message_lost_before_a_rotation_is_not_taken_for_one_behind_it(
    sim: Cluster,
) -> None:
    user = sim.user("p")
    producer = await user.producer("t")
    transaction = await user.run(user.client.transaction().begin())
    await asyncio.gather(*send(producer, transaction, b"a"))
    first = sim.owner_of("t")
    (draining,) = sim.log_metadata("t").ledgers
    # The second entry gets nowhere.
    sim.net.hold(client=first.name, op=Op.ADD, ledger_id=draining.ledger_id)
    sends = send(producer, transaction, b"b")
    await sim.until(lambda: len(sim.log_metadata("t").ledgers) > 1)
    await sim.sleep(0.05)  # the owner has heard of it
    sends += send(producer, transaction, b"c", b"d")
    await sim.sleep(0.2)
    first.crash()
    await sim.moved("t", away_from=first)
    await asyncio.gather(*sends)
    await sim.inspect()
    kept = [message for _, _, event in sim.history.of(Kept) for message in event.messages]
    assert kept == [b"a", b"b", b"c", b"d"]
