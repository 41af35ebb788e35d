"""Writes of leases whose outcome is not known, or which fail at first: bundles that move go where
their leases say, and no lease stays that nobody wants."""

import pytest

from magnetar.broker.base.errors import BrokerMetadataError
from tests.simulation.cluster.broker import SimBroker
from tests.simulation.cluster.cluster import Cluster, story

SESSION_S = 2.0


async def _published_through(sim: Cluster, name: str, broker: SimBroker) -> None:
    """A new client, which knows only this broker, finds the topic's owner."""
    user = sim.user(name, url=f"pulsar://{broker.name}:6650")
    await (await user.producer("t")).publish(1)


@story()
async def test_an_announcement_whose_reply_is_lost_is_carried_out(sim: Cluster) -> None:
    producer = await sim.user("p").producer("t")
    await producer.publish(2)
    first = sim.owner_of("t")
    second = sim.another(first)
    sim.store.lose_reply(client=first.name, path="/namespace/")
    await first.unload("t", destination=second.name)
    await _published_through(sim, "q", second)
    assert sim.owner_of("t") is second
    await producer.publish(1)
    await sim.inspect()


@story()
async def test_an_announcement_that_is_in_doubt_at_the_end_of_a_term_is_carried_out(
    sim: Cluster,
) -> None:
    """The store is away for so long that the owner stops serving, and its session survives."""
    await (await sim.user("p").producer("t")).publish(2)
    first = sim.owner_of("t")
    second = sim.another(first)
    sim.store.lose_reply(client=first.name, path="/namespace/")
    looking = sim.store.hold(client=first.name, kind="get", path="/namespace/")
    unloading = sim.loop.create_task(first.unload("t", destination=second.name))
    await sim.until(lambda: bool(looking.operations) or unloading.done())
    sim.store.stall(first.name)
    await sim.until(lambda: not first.is_valid)
    sim.store.resume(first.name)
    looking.release()
    await unloading
    await _published_through(sim, "q", second)
    await sim.inspect()


@story()
async def test_a_lease_that_cannot_be_deleted_before_a_term_ends_is_deleted_after_it(
    sim: Cluster,
) -> None:
    """As long as it stands, everybody is sent to the broker that it names, which waits for it."""
    await (await sim.user("p").producer("t")).publish(2)
    first = sim.owner_of("t")
    second = sim.another(first)
    sim.store.refuse(client=first.name, kind="delete", path="/namespace/", count=1_000_000)
    unloading = sim.loop.create_task(first.unload("t", destination=second.name))
    await sim.sleep(0.2)
    assert not unloading.done()
    sim.store.refuse(client=first.name, kind="catch_up", count=1_000_000)
    await sim.until(lambda: not first.is_valid)
    await sim.sleep(SESSION_S)
    sim.store.accidents.clear()
    await _published_through(sim, "q", second)
    assert sim.owner_of("t") is second
    await unloading
    await sim.inspect()


@story()
async def test_the_halves_of_a_split_that_failed_are_given_back_also_at_the_second_try(
    sim: Cluster,
) -> None:
    """Otherwise no other owner of the bundle could split it there as long as this broker runs."""
    await (await sim.user("p").producer("t")).publish(1)
    first = sim.owner_of("t")
    leases = _leases(sim)
    sim.store.refuse(client=first.name, kind="set", path="/admin/")
    sim.store.refuse(client=first.name, kind="delete", path="/namespace/", count=1)
    with pytest.raises(BrokerMetadataError):
        await first.split("t")
    await sim.until(lambda: _leases(sim) == leases)
    await sim.inspect()


@story()
async def test_one_half_is_given_back_if_the_other_cannot_be_taken(sim: Cluster) -> None:
    await (await sim.user("p").producer("t")).publish(1)
    first = sim.owner_of("t")
    leases = _leases(sim)
    sim.store.refuse(client=first.name, kind="create", path="/namespace/", skip=1)
    with pytest.raises(BrokerMetadataError):
        await first.split("t")
    await sim.until(lambda: _leases(sim) == leases)
    await sim.inspect()


@story()
async def test_the_lease_of_a_bundle_that_was_split_goes_also_at_the_second_try(
    sim: Cluster,
) -> None:
    await (await sim.user("p").producer("t")).publish(1)
    first = sim.owner_of("t")
    [parent] = _leases(sim)
    sim.store.refuse(client=first.name, kind="delete", path="/namespace/", count=1)
    with pytest.raises(BrokerMetadataError):
        await first.split("t")
    await sim.until(lambda: parent not in _leases(sim))
    assert len(_leases(sim)) == 2
    await sim.inspect()


def _leases(sim: Cluster) -> set[str]:
    """The bundles that are owned, by the names of their nodes."""
    return set(sim.store.tree.children("/namespace/public/default"))
