"""What is gathered of topics: bounded series, right sums, nobody held up."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features.replication.sending import Sending
from magnetar.broker.http.metrics.page import Gathering, SumsOfCounters
from magnetar.broker.http.metrics.sampler import STEPS_AT_ONCE, Sampler
from magnetar.broker.http.metrics.text import Table, Value
from magnetar.broker.http.metrics.topic_values import (
    TOPIC,
    InSubscriptions,
    in_subscriptions,
    with_replication,
)
from magnetar.broker.topic import Topic
from magnetar.broker.topic.consumer import SHARED
from magnetar.broker.topics.services import Counters
from magnetar.sdk.wire import TopicName
from tests.unit.broker.harness import Harness, entry
from tests.unit.broker.memory_log import ManualClock
from tests.unit.broker.replication.sending_parts import CopiedTopic

Samples = Mapping[str, Value]


class _World:
    """Some topics, and what is gathered of them."""

    def __init__(self, **settings: Any) -> None:
        self.harness = Harness()
        self.settings = BrokerSettings(**settings)
        self.clock = ManualClock()
        self.topics: list[Topic] = []
        self.sums = SumsOfCounters()
        self.sampler = Sampler(
            lambda: self.topics,
            self.harness.topics.pool,
            Counters(),
            clock=self.clock,
            interval_s=60,
            with_consumers=self.settings.expose_consumer_level_metrics,
        )

    async def load(self, count: int, *, namespace: str = "public/default") -> None:
        for number in range(len(self.topics), len(self.topics) + count):
            name = TopicName.parse(f"persistent://{namespace}/t{number}")
            self.topics.append(await self.harness.services.topics.get(name))

    def gather(self, *senders: Sending) -> dict[str, Value]:
        """Sample (name and labels) to value."""
        gathering = Gathering(self.settings, self.sampler, senders, cluster="c")
        for topic in self.topics:
            gathering.add(topic)
        return _samples(gathering.tables(self.sums))


def _samples(tables: list[Table[Any]]) -> dict[str, Value]:
    return {
        metric.name + labels: values[index]
        for table in tables
        for labels, values in table.rows
        for index, metric in enumerate(table.metrics)
        if values[index] is not None
    }


def _series_of(name: str, samples: Samples) -> list[str]:
    return [each.removeprefix(name) for each in samples if each.startswith(name + "{")]


async def test_topics_beyond_the_bound_are_added_up_by_namespace_and_counted() -> None:
    world = _World(metrics_topics_max=2)
    await world.load(5)
    for number, topic in enumerate(world.topics):
        topic.line.messages_in = 10**number
    found = world.gather()
    own = '{cluster="c",namespace="public/default",topic="persistent://public/default/t'
    assert _series_of("pulsar_in_messages_total", found) == [
        f'{own}0"}}',
        f'{own}1"}}',
        '{cluster="c",namespace="public/default"}',
    ]
    assert found['pulsar_in_messages_total{cluster="c",namespace="public/default"}'] == 11_100
    assert found["magnetar_metrics_topics_left_out"] == 3
    assert found['pulsar_topics_count{cluster="c",namespace="public/default"}'] == 5
    assert found['pulsar_broker_topics_count{cluster="c"}'] == 5


async def test_at_the_bound_nothing_is_left_out() -> None:
    world = _World(metrics_topics_max=3)
    await world.load(3)
    found = world.gather()
    assert len(_series_of("pulsar_rate_in", found)) == 3
    assert found["magnetar_metrics_topics_left_out"] == 0


async def test_without_topics_each_namespace_has_one_series_and_none_is_missing() -> None:
    world = _World(expose_topic_level_metrics=False)
    await world.load(4)
    world.topics[0].line.bytes_in = 7
    world.topics[3].line.bytes_in = 5
    found = world.gather()
    labels = '{cluster="c",namespace="public/default"}'
    assert _series_of("pulsar_in_bytes_total", found) == [labels]
    assert found[f"pulsar_in_bytes_total{labels}"] == 12
    assert found[f"pulsar_subscription_delayed{labels}"] == 0
    assert _series_of("pulsar_subscription_back_log", found) == []
    assert found["magnetar_metrics_topics_left_out"] == 0, "that was asked for"


async def test_copies_to_a_cluster_have_series_of_their_topic_or_else_of_its_namespace() -> None:
    for is_shown in (True, False):
        world, copied = _World(expose_topic_level_metrics=is_shown), CopiedTopic()
        copied.there.is_away = True
        await copied.begin()
        copied.store(entry(), entry())
        copied.clock.advance(9_000)
        world.topics.append(copied.topic)
        found = world.gather(copied.sender)
        topic = f',topic="{copied.topic.name}"' if is_shown else ""
        labels = f'{{cluster="c",namespace="public/default"{topic},remote_cluster="west"}}'
        shown = {
            each.removeprefix("pulsar_replication_").removesuffix(labels): value
            for each, value in found.items()
            if each.startswith("pulsar_replication_")
        }
        assert shown == {
            "rate_in": 0,
            "rate_out": 0,
            "throughput_in": 0,
            "throughput_out": 0,
            "backlog": 2,
            "connected_count": 0,
            "disconnected_count": 1,
            "rate_expired": 0,
            "delay_in_seconds": 9,
        }
        await copied.end()


def test_a_namespace_shows_the_sums_of_its_copies_and_the_longest_delay() -> None:
    row = (1.0, 2.0, 3.0, 4.0, 5.0, 1.0, 0.0, 6.0, 70.0)
    assert with_replication(row, (*row[:-1], 50.0)) == (2, 4, 6, 8, 10, 2, 0, 12, 70)


async def test_a_topic_that_is_copied_nowhere_has_no_such_series() -> None:
    world = _World()
    await world.load(1)
    assert not [each for each in world.gather() if "replication" in each]


async def test_subscriptions_have_a_bound_of_their_own() -> None:
    world = _World(metrics_subscriptions_max=1)
    client = world.harness.client()
    await client.subscribe(subscription="one", subType=SHARED)
    await client.subscribe(1, subscription="two", subType=SHARED)
    world.topics.append(world.harness.topic)
    found = world.gather()
    assert len(_series_of("pulsar_subscription_back_log", found)) == 1
    assert found["magnetar_metrics_subscriptions_left_out"] == 1
    assert [value for name, value in found.items() if "pulsar_consumers_count" in name] == [2]


async def test_consumers_have_series_if_that_is_asked_for() -> None:
    for is_shown in (False, True):
        world = _World(expose_consumer_level_metrics=is_shown)
        client = world.harness.client()
        await client.subscribe(subscription="one", subType=SHARED)
        world.topics.append(world.harness.topic)
        assert len(_series_of("pulsar_consumer_available_permits", world.gather())) == is_shown


async def test_a_topic_that_leaves_takes_nothing_from_the_counters_of_its_namespace() -> None:
    world = _World(expose_topic_level_metrics=False)
    await world.load(2)
    world.topics[0].line.messages_in, world.topics[1].line.messages_in = 100, 5
    name = 'pulsar_in_messages_total{cluster="c",namespace="public/default"}'
    gauge = 'pulsar_subscriptions_count{cluster="c",namespace="public/default"}'
    assert world.gather()[name] == 105
    del world.topics[0]
    assert world.gather()[name] == 105, "less would look like a restart"
    world.topics[0].line.messages_in += 3
    found = world.gather()
    assert found[name] == 108
    assert found[gauge] == 0


async def test_rates_are_sampled_in_slices_and_shown() -> None:
    world = _World()
    await world.load(2 * STEPS_AT_ONCE + 1)
    turns = 0

    def on_turn() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(on_turn)

    await world.sampler.sample()
    world.topics[-1].line.messages_in = 120
    world.clock.advance(60_000)
    on_turn()
    await world.sampler.sample()
    assert turns >= 3, "the loop had no turn while all topics were sampled"
    shown = world.sampler.topics.of(world.topics[-1])
    assert shown[0] == 2
    assert world.sampler.topics.of(world.topics[0])[0] == 0
    assert len(TOPIC) == len({each.name for each in TOPIC})


def test_a_subscription_that_is_being_opened_counts_in_no_sum() -> None:
    cursor = SimpleNamespace(backlog_entries=7)
    context = SimpleNamespace(delays=None)
    opened = SimpleNamespace(is_open=True, consumers=[1], cursor=cursor, context=context)
    opening = SimpleNamespace(is_open=False, consumers=[2])
    topic = SimpleNamespace(subscriptions={"a": opened, "b": opening})
    assert in_subscriptions(cast(Topic, topic)) == InSubscriptions(1, 1, 7, 0)
