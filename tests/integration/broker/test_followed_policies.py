"""A topic tells its parts of a policy if they follow it, and they follow what they go by."""

import types
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from magnetar.broker.policies.model import DispatchRate, Policies, PublishRate, Retention
from magnetar.broker.topic.feature import Feature
from magnetar.broker.topic.topic import Topic
from magnetar.deploy.broker_server import broker_settings
from magnetar.deploy.options import Listen, Quorum, Sources
from magnetar.deploy.standalone import Standalone
from magnetar.sdk import Client, ConsumerSettings, SubscriptionType

TOPIC = "persistent://public/default/followed"


class Watched:
    """Policies that note which of them is looked at."""

    def __init__(self, policies: Policies) -> None:
        self.known = policies
        self.seen: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        found = getattr(Policies, name, None)
        if isinstance(found, types.FunctionType):
            return types.MethodType(found, self)
        if isinstance(found, property):
            assert found.fget is not None
            return found.fget(self)
        self.seen.add(name)
        return getattr(self.known, name)


@asynccontextmanager
async def loaded_topic(data: Path) -> AsyncIterator[Topic]:
    """A topic with all features that a standalone gives it, and a subscription."""
    sources = Sources(environment={})
    settings = broker_settings(
        sources, listen=Listen("127.0.0.1"), port=0, http_port=0, quorum=Quorum(1, 1, 1)
    )
    standalone = Standalone(data, settings, sources, bookies=1)
    await standalone.start()
    try:
        async with Client(f"pulsar://127.0.0.1:{standalone.broker.port}") as client:
            await client.consumer(
                TOPIC, "sub", ConsumerSettings(subscription_type=SubscriptionType.SHARED)
            )
            topics = standalone.broker.services.topics.loaded
            (topic,) = [each for each in topics if str(each.name) == TOPIC]
            yield topic
    finally:
        await standalone.stop()


async def test_features_follow_the_policies_that_they_look_at_when_told(tmp_path: Path) -> None:
    async with loaded_topic(tmp_path) as topic:
        known, told = topic.policies, 0
        for feature in topic.features:
            watched = Watched(known)
            topic.policies = watched  # type: ignore[assignment]
            try:
                feature.rows()
                feature.policies_changed(watched)  # type: ignore[arg-type]
            finally:
                topic.policies = known
            assert watched.seen <= feature.follows, feature
            is_told = type(feature).policies_changed is not Feature.policies_changed
            assert bool(feature.follows) == is_told, feature
            assert feature.follows <= Policies.model_fields.keys(), feature
            told += is_told
        assert told >= 5


async def test_the_parts_of_a_topic_follow_what_they_look_at(tmp_path: Path) -> None:
    async with loaded_topic(tmp_path) as topic:
        known = topic.policies
        for part, is_told in (
            (topic.line, topic.line.policies_changed),
            (topic.access, topic.access.policies_changed),
            (topic.dispatch_rates, topic.dispatch_rates.update),
            (topic.subscriptions, topic.subscriptions["sub"].limits_changed),
        ):
            watched = Watched(known)
            topic.policies = watched  # type: ignore[assignment]
            try:
                is_told()
            finally:
                topic.policies = known
            of_features = set[str]().union(*(each.follows for each in topic.features))
            allowed = set(part.follows) | (of_features if part is topic.line else set())
            assert watched.seen, part
            assert watched.seen <= allowed, part
            assert set(part.follows) <= Policies.model_fields.keys(), part


class Told(Feature):
    def __init__(self, *names: str) -> None:
        self.follows = frozenset(names)
        self.count = 0

    def policies_changed(self, before: Policies) -> None:
        self.count += 1


async def test_a_feature_is_told_of_the_policies_that_it_follows_and_of_no_others(
    tmp_path: Path,
) -> None:
    async with loaded_topic(tmp_path) as topic:
        retention, both = Told("retention"), Told("retention", "message_ttl_s")
        topic.host(*topic.features, retention, both)
        topic.apply_policies(topic.policies.with_values(retention=Retention(minutes=7)))
        assert (retention.count, both.count) == (1, 1)
        topic.apply_policies(topic.policies.with_values(message_ttl_s=9))
        assert (retention.count, both.count) == (1, 2)
        topic.apply_policies(topic.policies.with_values(message_ttl_s=9))
        assert (retention.count, both.count) == (1, 2)


async def test_limits_count_from_the_moment_in_which_they_change(tmp_path: Path) -> None:
    async with loaded_topic(tmp_path) as topic:
        topic.apply_policies(
            topic.policies.with_values(
                publish_rate=PublishRate(messages=7),
                dispatch_rate=DispatchRate(messages=5),
                max_message_bytes=100,
                max_unacked_per_subscription=3,
            )
        )
        assert topic.line.rate.is_limited
        assert topic.dispatch_rates.topic.rate.messages == 5
        assert len(topic.line.checks) == 1
