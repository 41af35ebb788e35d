"""Subscriptions that nobody has used for long are deleted, where a policy says so."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.broker.broker import Broker
from magnetar.broker.features.retention.inactivity import InactiveSubscriptions
from magnetar.broker.topic import Topic
from magnetar.ledger.system import SystemClock
from tests.integration.broker.broker_on_bookies import TOPIC, broker_on
from tests.integration.broker.wire_client import WireClient
from tests.integration.ledger.cluster import cluster_of

_HOUR_S = 3600


class LaterClock(SystemClock):
    """`later_s` have passed; the wall clock is ahead by `ahead_s` more."""

    later_s = 0
    ahead_s = 0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.later_s

    def wall_ms(self) -> int:
        return super().wall_ms() + (self.later_s + self.ahead_s) * 1000


class Scene:
    def __init__(self, broker: Broker, client: WireClient, *, expiration_minutes: int) -> None:
        self.client = client
        self.topic: Topic = broker.services.topics.loaded[0]
        self.topic.apply_policies(
            self.topic.policies.with_values(subscription_expiration_minutes=expiration_minutes)
        )
        self.clock = LaterClock()
        self.inactive = InactiveSubscriptions(self.clock)

    async def look(self) -> list[str]:
        """Look for inactive subscriptions; return those that are left."""
        work = self.inactive.look_at(self.topic)
        if work is not None:
            await work
        return sorted(self.topic.subscriptions)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        client = await WireClient.open(broker.port)
        await client.subscribe(TOPIC, subscription="left")
        await client.leave(0)
        await client.subscribe(TOPIC, subscription="used", consumer_id=1)
        scene = Scene(broker, client, expiration_minutes=60)
        assert await scene.look() == ["left", "used"]
        yield scene
        await client.close()


async def test_what_is_unused_for_longer_is_deleted_and_what_is_used_stays(scene: Scene) -> None:
    assert await scene.look() == ["left", "used"]
    scene.clock.later_s = _HOUR_S - 60
    assert await scene.look() == ["left", "used"]
    scene.clock.later_s = _HOUR_S + 60
    assert await scene.look() == ["used"]
    assert not scene.topic.subscriptions["used"].is_closed


async def test_the_time_runs_from_when_a_consumer_was_last_seen(scene: Scene) -> None:
    scene.clock.later_s = _HOUR_S + 60
    assert await scene.look() == ["used"]
    await scene.client.leave(1)
    assert await scene.look() == ["used"]
    scene.clock.later_s += _HOUR_S + 60
    assert await scene.look() == []


async def test_a_wall_clock_that_is_corrected_deletes_nothing(scene: Scene) -> None:
    await scene.client.leave(1)
    assert await scene.look() == ["left", "used"]
    for ahead_s in (20 * 365 * 24 * _HOUR_S, -20 * 365 * 24 * _HOUR_S):
        scene.clock.ahead_s = ahead_s
        assert await scene.look() == ["left", "used"]
    scene.clock.later_s = _HOUR_S + 60
    assert await scene.look() == []


async def test_without_a_policy_nothing_is_deleted(scene: Scene) -> None:
    scene.topic.apply_policies(scene.topic.policies.with_values(subscription_expiration_minutes=0))
    scene.clock.later_s = 1000 * _HOUR_S
    assert await scene.look() == ["left", "used"]


async def test_a_consumer_that_comes_in_the_same_moment_keeps_its_subscription(
    scene: Scene,
) -> None:
    scene.clock.later_s = _HOUR_S + 60
    work = scene.inactive.look_at(scene.topic)
    assert work is not None
    await scene.client.subscribe(TOPIC, subscription="left", consumer_id=2)
    await work
    assert sorted(scene.topic.subscriptions) == ["left", "used"]


async def test_the_time_begins_anew_behind_a_consumer_that_no_look_has_seen(scene: Scene) -> None:
    for _ in range(3):
        scene.clock.later_s += _HOUR_S - 60
        await scene.client.subscribe(TOPIC, subscription="left")
        await scene.client.leave(0)
        assert await scene.look() == ["left", "used"]
    await scene.client.leave(1)
    scene.clock.later_s += _HOUR_S + 60
    assert await scene.look() == ["used"]


async def test_the_time_begins_when_the_last_consumer_leaves(scene: Scene) -> None:
    assert await scene.look() == ["left", "used"]
    scene.clock.later_s += _HOUR_S + 60
    await scene.client.leave(1)
    assert await scene.look() == ["used"]
