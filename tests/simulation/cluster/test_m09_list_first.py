"""Defect M9: a ledger is deleted before it left the list, or never (rule 6.1)."""

from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.trimming import (
    SMALL_LEDGERS,
    consumed_topic,
    existing,
    listed,
    swept,
    trim_soon,
)


@story(settings=SMALL_LEDGERS)
async def test_m09_nothing_is_deleted_before_the_list_is_changed(sim: Cluster) -> None:
    owner = await consumed_topic(sim)
    before = listed(sim)
    listing = sim.store.hold(client=owner.name, kind="set", path=sim.log_path("t"))
    trim_soon(owner)
    await sim.until(lambda: bool(listing.operations))
    await sim.sleep(0.5)
    assert set(before) <= existing(sim)
    owner.crash()
    listing.drop()
    await sim.moved("t", away_from=owner)
    late = await sim.user("d").consumer("t", "late")
    assert await late.take(4) == [b"p:0", b"p:1", b"p:2", b"p:3"]
    await sim.inspect()


@story(settings=SMALL_LEDGERS)
async def test_m09_ledgers_that_an_owner_left_behind_are_swept(sim: Cluster) -> None:
    owner = await consumed_topic(sim)
    before = listed(sim)
    sim.store.hold(client=owner.name, kind="delete")
    trim_soon(owner)
    await sim.until(lambda: len(listed(sim)) == 2)
    owner.crash()
    await sim.moved("t", away_from=owner)
    assert set(before[:3]) <= existing(sim), "orphans, and no hole in the topic"
    assert sorted(await swept(sim)) == before[:3]
    assert before[3] in existing(sim)
    await sim.inspect()


@story(settings=SMALL_LEDGERS)
async def test_m09_a_trimming_whose_reply_was_lost_has_happened(sim: Cluster) -> None:
    owner = await consumed_topic(sim)
    before = listed(sim)
    sim.store.lose_reply(client=owner.name, path=sim.log_path("t"))
    assert await trim_soon(owner) == 3
    assert not set(before[:3]) & existing(sim)
    await sim.inspect()


@story(settings=SMALL_LEDGERS)
async def test_m09_who_has_lost_the_topic_deletes_nothing_of_it(sim: Cluster) -> None:
    owner = await consumed_topic(sim)
    before = listed(sim)
    listing = sim.store.hold(client=owner.name, kind="set", path=sim.log_path("t"))
    trim_soon(owner)
    await sim.until(lambda: bool(listing.operations))
    owner.pause()
    second = await sim.moved("t", away_from=owner)
    listing.release()
    owner.resume()
    await sim.settle()
    assert set(before[:4]) <= existing(sim)
    late = await sim.user("d").consumer("t", "late")
    assert await late.take(4) == [b"p:0", b"p:1", b"p:2", b"p:3"]
    assert second is not owner
    await sim.inspect()
