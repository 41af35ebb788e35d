"""Defect M6: a new subscription begins in a ledger that is being trimmed (rule 5.2)."""

from magnetar.cursors.node import decode_node
from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.trimming import (
    SMALL_LEDGERS,
    consumed_topic,
    listed,
    loaded_topic,
    trim_soon,
)


@story(settings=SMALL_LEDGERS)
async def test_m06_a_subscription_that_is_being_made_holds_trimming_back(sim: Cluster) -> None:
    owner = await consumed_topic(sim)
    making = sim.store.hold(client=owner.name, kind="create", path=sim.cursor_path("t", "late"))
    user = sim.user("d")
    late = user.spawn(user.consumer_here("t", "late"))
    await sim.until(lambda: bool(making.operations))
    trimming = trim_soon(owner)
    await sim.sleep(0.5)
    making.release()
    consumer = await late
    await trimming
    assert await consumer.take(4) == [b"p:0", b"p:1", b"p:2", b"p:3"]
    await sim.inspect()


@story(settings=SMALL_LEDGERS)
async def test_m06_a_subscription_that_comes_while_ledgers_go_begins_behind_them(
    sim: Cluster,
) -> None:
    owner = await consumed_topic(sim)
    user = sim.user("d")
    subscribing = sim.front.hold_command("SUBSCRIBE", source=user.name)
    late = user.spawn(user.consumer_here("t", "late"))
    await sim.until(lambda: bool(subscribing.messages))
    listing = sim.store.hold(client=owner.name, kind="set", path=sim.log_path("t"))
    trimming = trim_soon(owner)
    await sim.until(lambda: bool(listing.operations))
    subscribing.release()
    await sim.sleep(0.3)
    listing.release()
    assert await trimming == 3
    consumer = await late
    path = sim.cursor_path("t", "late")
    assert decode_node(sim.store.tree.get(path).value).mark_delete[0] in listed(sim)
    assert loaded_topic(owner).subscriptions["late"].cursor.backlog_entries == 1
    assert await consumer.take(1) == [b"p:3"]
    assert consumer.got[0].ledger_id in listed(sim)
    await sim.inspect()
