"""Defect M13: a session expired, and the broker goes on with its topics (section 10, rule 10.1)."""

import pytest

from magnetar.sdk.settings import SubscriptionType
from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.events import Spoke

SESSION_S = 2.0


def said_by(sim: Cluster, name: str, *, since_s: float) -> list[str]:
    """Receipts and messages of a broker from then on."""
    return [
        str(entry.event)
        for entry in sim.history.entries
        if isinstance(entry.event, Spoke)
        and entry.time_s >= since_s
        and entry.actor == name
        and entry.event.command in ("SEND_RECEIPT", "MESSAGE")
    ]


@story()
async def test_m13_a_broker_cut_off_from_the_store_stops_before_its_leases_are_gone(
    sim: Cluster,
) -> None:
    consumer = await sim.user("c").consumer("t")
    producer = await sim.user("p").producer("t")
    await producer.publish(1)
    first = sim.owner_of("t")
    sim.store.stall(first.name)
    cut_s = sim.loop.time()
    while first.is_valid:
        await producer.publish(1)
        await sim.sleep(0.1)
    stopped_s = sim.loop.time()
    assert stopped_s - cut_s < SESSION_S
    producer.send(3)
    await sim.moved("t", away_from=first)
    assert sim.loop.time() > stopped_s
    await sim.until(lambda: producer.pending == 0)
    assert not said_by(sim, first.name, since_s=stopped_s)
    # Its clients are told, and the messages come from the other one.
    wanted = {payload for payload, _ in producer.confirmed}
    got: set[bytes] = set()
    while got != wanted:
        got |= set(await consumer.take())

    sim.store.resume(first.name)
    await sim.until(lambda: first.is_valid)
    await sim.inspect()


@story()
async def test_m13_a_paused_broker_that_goes_on_says_nothing_for_what_it_lost(
    sim: Cluster,
) -> None:
    await sim.user("c").consumer("t")
    producer = await sim.user("p").producer("t")
    await producer.publish(2)
    first = sim.owner_of("t")
    # What the bookies answer, and what clients ask, waits in its sockets.
    first.pause()
    producer.send(2)
    second = await sim.moved("t", away_from=first)
    await sim.until(lambda: producer.pending == 0)
    resumed_s = sim.loop.time()
    first.resume()
    await sim.settle()
    assert not said_by(sim, first.name, since_s=resumed_s)
    await producer.publish(2)
    assert sim.owner_of("t") is second
    await sim.inspect()


@story()
async def test_m13_the_same_when_the_machine_was_asleep(sim: Cluster) -> None:
    producer = await sim.user("p").producer("t")
    await producer.publish(2)
    first = sim.owner_of("t")
    producer.send(1)
    await sim.sleep(0.0003)  # on its way
    asleep = sim.loop.create_task(first.suspend(4.0))
    second = await sim.moved("t", away_from=first)
    await asleep
    resumed_s = sim.loop.time()
    await sim.settle()
    assert not said_by(sim, first.name, since_s=resumed_s)
    await producer.publish(1)
    assert sim.owner_of("t") is second
    await sim.inspect()


@story()
async def test_m13_a_broker_whose_session_survived_keeps_its_topics(sim: Cluster) -> None:
    producer = await sim.user("p").producer("t")
    await producer.publish(1)
    first = sim.owner_of("t")
    sim.store.stall(first.name)
    await sim.sleep(0.8)
    sim.store.resume(first.name)
    await producer.publish(3)
    await sim.sleep(3.0)
    assert sim.owner_of("t") is first
    await producer.publish(1)
    await sim.inspect()


@story()
async def test_m13_leases_are_gone_when_the_store_gives_up_the_session(sim: Cluster) -> None:
    producer = await sim.user("p").producer("t")
    await producer.publish(1)
    first = sim.owner_of("t")
    sim.store.expire_session(first.name)
    await sim.settle()
    await producer.publish(3)
    await sim.inspect()


@story()
async def test_m13_a_paused_broker_delivers_nothing_that_was_asked_for_meanwhile(
    sim: Cluster,
) -> None:
    """The credit that a consumer gave lies in its socket, in front of everything else."""
    await _ask_a_paused_broker(sim, SubscriptionType.EXCLUSIVE)


@story()
async def test_m13_nor_on_a_shared_subscription(sim: Cluster) -> None:
    await _ask_a_paused_broker(sim, SubscriptionType.SHARED)


async def _ask_a_paused_broker(sim: Cluster, kind: SubscriptionType) -> None:
    consumer = await sim.user("c").consumer("t", kind=kind, queue=2)
    await (await sim.user("p").producer("t")).publish(6)  # in the broker's memory
    first = sim.owner_of("t")
    first.pause()
    await consumer.take(2)  # which lie here already; the credit for more is on its way
    # Somebody else brings the topic to the other broker.
    await sim.user("q").producer("t")
    assert sim.owner_of("t") is not first
    resumed_s = sim.loop.time()
    first.resume()
    await sim.settle()
    assert not said_by(sim, first.name, since_s=resumed_s)
    await sim.inspect()


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
def test_m13_the_wall_clock_does_not_matter(jump_ms: int) -> None:
    @story()
    async def jump(sim: Cluster) -> None:
        producer = await sim.user("p").producer("t")
        first = sim.owner_of("t")
        first.clock.wall_skew_ms += jump_ms
        await producer.publish(2)
        await sim.sleep(5.0)
        await producer.publish(2)
        assert sim.owner_of("t") is first
        await sim.inspect()

    jump()
