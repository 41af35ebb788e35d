"""Topics that nobody uses after all brokers were restarted: one broker keeps each in order."""

from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.trimming import SMALL_LEDGERS, consumed_topic, existing, listed

_AT_REST: dict[str, object] = {
    **SMALL_LEDGERS,
    "topics_at_rest_interval_s": 5.0,
    "inactive_topic_deletion": False,
    "retention_check_interval_s": 1000.0,
}


async def leave_alone(sim: Cluster) -> None:
    """Everybody ends, and the brokers alone come back."""
    for name in ("c", "p"):
        sim.user(name).crash()
    for broker in sim.brokers.values():
        broker.crash()
    await sim.sleep(15.0)  # their sessions are over
    for broker in sim.brokers.values():
        await broker.start()


@story(settings=_AT_REST)
async def test_what_everybody_has_consumed_goes_though_nobody_asks_for_the_topic(
    sim: Cluster,
) -> None:
    await consumed_topic(sim)
    assert len(listed(sim)) > 4
    await leave_alone(sim)
    # What the crash left open is closed by one walk.
    await sim.until(lambda: len(listed(sim)) == 1, timeout_s=60.0)
    await sim.until(lambda: existing(sim) == set(listed(sim)))
    await sim.until(lambda: all(each.topic("t") is None for each in sim.brokers.values()))
    await sim.inspect()


@story(settings=_AT_REST)
async def test_a_consumer_that_comes_while_topics_at_rest_are_kept_misses_nothing(
    sim: Cluster,
) -> None:
    consumer = await sim.user("c").consumer("t")
    producer = await sim.user("p").producer("t")
    await producer.publish(4)
    await consumer.take(2)
    consumer.ack(*consumer.got)
    await sim.settle()
    await leave_alone(sim)
    await sim.sleep(5.2)  # a walk is under way
    late = await sim.user("d").consumer("t")
    assert await late.take(2) == [b"p:2", b"p:3"]
    await sim.inspect()
