"""C18: a topic that a broker has lost is dropped, and its log is not written to any more."""

from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.events import Dropped


@story()
async def test_c18_the_log_of_a_topic_that_was_lost_is_left_as_it_is(sim: Cluster) -> None:
    producer = await sim.user("p").producer("t")
    await producer.publish(2)
    owner = sim.owner_of("t")
    sim.store.expire_session(owner.name)
    await sim.until(lambda: any(name == owner.name for _, name, _ in sim.history.of(Dropped)))
    await producer.publish(2)
    await sim.inspect()
