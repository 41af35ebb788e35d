"""Defect M8: a cursor at the end of a ledger, before an empty one, is not seen as caught up."""

from tests.simulation.cluster.cluster import Cluster, story


@story()
async def test_m08_a_subscription_that_consumed_everything_has_no_backlog_at_the_next_owner(
    sim: Cluster,
) -> None:
    consumer = await sim.user("c").consumer("t")
    producer = await sim.user("p").producer("t")
    await producer.publish(3)
    await consumer.take(3)
    consumer.ack(*consumer.got)
    await sim.settle()
    first = sim.owner_of("t")
    first.crash()
    second = await sim.moved("t", away_from=first)
    await sim.until(lambda: consumer.consumer.is_connected)
    assert await consumer.has_nothing(for_s=1.0)
    topic = second.topic("t")
    assert topic is not None
    cursor = topic.subscriptions["s"].cursor
    assert cursor.is_caught_up
    assert cursor.backlog_entries == 0
    await sim.inspect()
