"""Subscriptions of a whole scalable topic: deleted and moved in all its segments."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.broker.base.errors import (
    ConflictError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
)
from magnetar.broker.features.scalable import WholeSubscriptions
from magnetar.broker.features.scalable.changes import HOLDS_MAX
from magnetar.ledger.metadata.url import open_store
from tests.unit.broker.scalable.test_scalable_topics import TOPIC, Scene, have_cursor
from tests.waiting import until


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    store = await open_store(f"embedded:{tmp_path / 'metadata.db'}")
    made = Scene(store)
    await made.create()
    await have_cursor(store, await made.name(0), "s")
    await made.topics.split(TOPIC, 0)
    yield made
    await store.close()


async def subscribed(scene: Scene) -> list[int]:
    """The segments that have the subscription."""
    record = await scene.record()
    return [each.id for each in record.segments if "s" in await scene.subscriptions(each.id)]


async def test_a_subscription_is_deleted_in_all_segments(scene: Scene) -> None:
    assert await subscribed(scene) == [0, 1, 2]
    await WholeSubscriptions(scene.topics).unsubscribe(TOPIC, "s", is_forced=False)
    assert await subscribed(scene) == []
    with pytest.raises(SubscriptionNotFoundError):
        await WholeSubscriptions(scene.topics).unsubscribe(TOPIC, "s", is_forced=False)


async def test_a_split_that_goes_on_meanwhile_does_not_bring_a_deleted_subscription_back(
    scene: Scene,
) -> None:
    async def split() -> None:
        await scene.broker().split(TOPIC, 1)

    scene.owners.on_unsubscribe = split
    await WholeSubscriptions(scene.topics).unsubscribe(TOPIC, "s", is_forced=False)
    assert await scene.active() == [3, 4, 2]
    assert await subscribed(scene) == []


async def test_a_split_that_stands_still_ends_before_a_subscription_is_deleted(
    scene: Scene,
) -> None:
    scene.owners.failures = 1
    with pytest.raises(ServiceNotReadyError):
        await scene.topics.split(TOPIC, 1)
    await WholeSubscriptions(scene.broker()).unsubscribe(TOPIC, "s", is_forced=False)
    assert await scene.active() == [3, 4, 2]
    assert await subscribed(scene) == []


async def test_a_topic_that_does_not_come_to_rest_is_given_up_at_last(scene: Scene) -> None:
    async def again() -> None:
        other = scene.broker()
        record = await other.get(TOPIC)
        if len(record.active) > 1:
            await other.merge(TOPIC, record.active[0].id, record.active[1].id)
        else:
            await other.split(TOPIC, record.active[0].id)
        scene.owners.on_unsubscribe = again

    scene.owners.on_unsubscribe = again
    with pytest.raises(ConflictError, match="changes too often"):
        await WholeSubscriptions(scene.topics).unsubscribe(TOPIC, "s", is_forced=False)


async def test_a_seek_holds_what_came_of_sealed_segments_back_until_all_have_moved(
    scene: Scene,
) -> None:
    await WholeSubscriptions(scene.topics).seek(TOPIC, "s", 5)
    first, *seeks = scene.owners.steps
    assert first == "hold back [None]", "it is in the record before anybody is told"
    assert sorted(seeks) == ["seek 0 [None]", "seek 1 [None]", "seek 2 [None]"]
    assert await scene.owners.holds() == []


async def test_a_seek_of_a_subscription_that_no_segment_has_is_refused(scene: Scene) -> None:
    await WholeSubscriptions(scene.topics).unsubscribe(TOPIC, "s", is_forced=False)
    with pytest.raises(SubscriptionNotFoundError):
        await WholeSubscriptions(scene.topics).seek(TOPIC, "s", 5)


async def test_a_seek_that_fails_releases_what_it_held_back(scene: Scene) -> None:
    for failures in (1, 2):  # the coordinator cannot be told; then also the owner of a segment
        scene.owners.failures = failures
        with pytest.raises(ServiceNotReadyError):
            await WholeSubscriptions(scene.topics).seek(TOPIC, "s", None)
        assert await scene.owners.holds() == []


async def test_two_seeks_hold_a_segment_until_both_have_ended(scene: Scene) -> None:
    name = await scene.name(0)
    first = WholeSubscriptions(scene.topics).rewinding(name, "s")
    await first.__aenter__()
    async with WholeSubscriptions(scene.broker()).rewinding(name, "s"):
        assert await scene.owners.holds() == [0, 0]
        await first.__aexit__(None, None, None)
        assert await scene.owners.holds() == [0]
    assert await scene.owners.holds() == []


async def test_a_seek_in_one_segment_holds_back_what_came_of_that_one(scene: Scene) -> None:
    async with WholeSubscriptions(scene.topics).rewinding(await scene.name(0), "s"):
        assert scene.owners.steps == ["hold back [0]"]
    assert await scene.owners.holds() == []
    async with WholeSubscriptions(scene.topics).rewinding(await scene.name(1), "s"):
        assert len(scene.owners.steps) == 1, "nothing comes of what takes messages"


async def test_seeks_in_many_segments_at_once_do_not_get_in_each_others_way(scene: Scene) -> None:
    """More than one change of a record is tried again, and as many as a record may name."""
    whole, name = WholeSubscriptions(scene.topics), await scene.name(0)
    is_over = asyncio.Event()

    async def seek() -> None:
        async with whole.rewinding(name, "s"):
            await is_over.wait()

    seeks = [asyncio.create_task(seek()) for _ in range(HOLDS_MAX)]
    await until(lambda: len(scene.owners.steps) == HOLDS_MAX, within_s=60)
    is_over.set()
    await asyncio.gather(*seeks)
    assert await scene.owners.holds() == []
    assert not scene.topics._holding
