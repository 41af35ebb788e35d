"""Defect M14: a topic stays fenced after metadata trouble that passed, and nobody unloads it."""

from tests.simulation.cluster.cluster import Cluster, story


@story(settings={"ledger_entries_max": 1})
async def test_m14_a_topic_serves_again_when_the_list_can_be_written_again(sim: Cluster) -> None:
    producer = await sim.user("p").producer("t")
    owner = sim.owner_of("t")
    sim.store.refuse(client=owner.name, kind="set", path=sim.log_path("t"), count=20)
    producer.send(6)
    await sim.until(lambda: producer.pending == 0)
    assert not producer.failed
    await sim.inspect()


@story(brokers=1, settings={"ledger_entries_max": 1})
async def test_m14_the_only_broker_serves_again_after_an_outage_of_the_store(sim: Cluster) -> None:
    consumer = await sim.user("c").consumer("t")
    producer = await sim.user("p").producer("t")
    await producer.publish(2)
    sim.store.stall()
    await sim.sleep(6.0)  # three sessions long
    producer.send(2)
    assert producer.pending
    sim.store.resume()
    await sim.until(lambda: producer.pending == 0)
    got: set[bytes] = set()
    while len(got) < 4:
        got |= set(await consumer.take())
    await sim.inspect()
