"""C17: publishes under way are answered before a topic moves, so that none is stored twice."""

import asyncio

from magnetar.ledger.wire import Op
from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.events import Calm


@story()
async def test_c17_publishes_under_way_are_answered_before_a_topic_moves(sim: Cluster) -> None:
    sim.history.add(sim.loop.time(), "plan", Calm())
    producer = await sim.user("p").producer("t")
    await producer.publish(1)
    owner = sim.owner_of("t")
    hold = sim.net.hold(client=owner.name, op=Op.ADD, reply=True)
    producer.send(3)
    await sim.until(lambda: hold.seen > 0)
    moving = asyncio.ensure_future(owner.unload("t"))
    await sim.sleep(0.2)  # a publish may take so long that a move waits for it
    hold.release()
    await moving
    await sim.until(lambda: producer.pending == 0)
    await sim.inspect()
