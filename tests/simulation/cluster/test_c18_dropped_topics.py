"""C18: a topic that a broker has lost is dropped, and its log is not written to any more."""

from magnetar.cursors.node import NO_LEDGER, decode_node
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


@story()
async def test_c18_so_is_the_log_of_a_topic_of_which_only_a_cursor_was_taken_over(
    sim: Cluster,
) -> None:
    """Auto-recovery closes the ledger of a cursor to mend it: to the owner that looks the same."""
    consumer = await sim.user("c").consumer("t")
    producer = await sim.user("p").producer("t")
    await producer.publish(4)
    await consumer.take(4)
    consumer.ack(consumer.got[1])

    def cursor_ledger() -> int:
        return decode_node(sim.store.tree.get(sim.cursor_path("t")).value).cursor_ledger_id

    await sim.until(lambda: cursor_ledger() != NO_LEDGER)
    await (await sim.client("x")).recover(cursor_ledger())
    consumer.ack(consumer.got[2])
    await sim.until(lambda: any(True for _ in sim.history.of(Dropped)))
    await producer.publish(2)
    await sim.inspect()
