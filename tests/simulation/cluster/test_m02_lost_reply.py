"""Defect M2: an update of the list whose reply is lost is taken for a failure (rule 1.3)."""

from tests.simulation.cluster.cluster import Cluster, story


@story(settings={"ledger_entries_max": 2})
async def test_m02_a_ledger_that_the_list_names_is_kept_though_the_reply_was_lost(
    sim: Cluster,
) -> None:
    producer = await sim.user("p").producer("t")
    owner = sim.owner_of("t")
    sim.store.lose_reply(client=owner.name, path=sim.log_path("t"))
    await producer.publish(2)
    await sim.until(lambda: len(sim.log_metadata("t").ledgers) > 1)
    await producer.publish(3)
    await sim.inspect()


@story(settings={"ledger_entries_max": 2})
async def test_m02_a_list_that_was_not_written_is_written_again(sim: Cluster) -> None:
    producer = await sim.user("p").producer("t")
    owner = sim.owner_of("t")
    sim.store.lose_request(client=owner.name, path=sim.log_path("t"))
    await producer.publish(2)
    await sim.until(lambda: len(sim.log_metadata("t").ledgers) > 1)
    await producer.publish(3)
    await sim.inspect()


@story()
async def test_m02_a_takeover_whose_list_was_written_with_the_reply_lost_is_no_failure(
    sim: Cluster,
) -> None:
    for broker in sim.brokers:
        sim.store.lose_reply(client=broker, path=sim.log_path("t"))
    producer = await sim.user("p").producer("t")
    await producer.publish(3)
    await sim.inspect()
