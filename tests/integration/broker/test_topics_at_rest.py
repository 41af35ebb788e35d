"""Topics that nobody uses after a restart are kept in order like those in use, and stay unused."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from magnetar.broker.base import naming
from magnetar.broker.broker import Broker
from magnetar.broker.topic import Topic
from magnetar.cursors import list_cursors
from magnetar.cursors.node import CursorNode, cursor_path, encode_node
from magnetar.ledger.errors import MetadataUnavailableError
from magnetar.ledger.managed_log.log_ledgers import RESTORED_PROPERTY
from magnetar.ledger.managed_log.log_metadata import CREATED_PROPERTY, LogLedger, LogMetadata
from magnetar.ledger.system import SystemClock
from magnetar.sdk.wire import TopicName, parse_topic_name
from tests.integration.broker.broker_on_bookies import TOPIC, broker_on
from tests.integration.broker.wire_client import WireClient
from tests.integration.ledger.cluster import Cluster, cluster_of
from tests.waiting import until

_DAY_S = 86_400
NAME = parse_topic_name(TOPIC)
PATH = naming.log_path(NAME)

LEDGERS = 4


class LaterClock(SystemClock):
    """`later_s` have passed, and the wall clock was set to `set_s` later than it should be."""

    later_s = 0.0
    set_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.later_s

    def wall_ms(self) -> int:
        return super().wall_ms() + int((self.later_s + self.set_s) * 1000)


async def ledgers(cluster: Cluster) -> Sequence[LogLedger]:
    """Of the topic, as they are stored."""
    node = await cluster.store.get(PATH)
    return LogMetadata.from_json(node.value, path=PATH).ledgers


async def fill(cluster: Cluster, *, subscriptions: Sequence[str] = ("s",), **settings: Any) -> None:
    """Have a topic of `LEDGERS` ledgers with a backlog of a message in each; its broker ends."""
    async with broker_on(cluster, **settings) as broker:
        client = await WireClient.open(broker.port)
        for number, subscription in enumerate(subscriptions):
            await client.subscribe(TOPIC, subscription=subscription, consumer_id=number)
            await client.leave(number)
        await client.produce(TOPIC)
        (topic,) = broker.services.topics.loaded
        for sequence_id in range(LEDGERS):
            await topic.log.rotate()
            await client.publish_ok(sequence_id, b"body")
        await client.close()
    assert len(await ledgers(cluster)) == LEDGERS


async def looked_after(broker: Broker) -> None:
    """One walk. Nothing is loaded behind it, and nothing failed."""
    await broker.at_rest.walk()
    assert broker.services.topics.loaded == []
    assert broker.at_rest.failures == broker.upkeep.failures == 0


async def test_expired_messages_of_a_topic_that_nobody_uses_let_their_ledgers_go(
    tmp_path: Path,
) -> None:
    async with cluster_of(1, tmp_path) as cluster:
        await fill(cluster)
        clock = LaterClock()
        async with broker_on(cluster, seed=4, clock=clock, ttl_s=60) as broker:
            await looked_after(broker)
            assert len(await ledgers(cluster)) == LEDGERS
            clock.later_s = 3600
            await looked_after(broker)
            assert broker.at_rest.loads == 1
        (last,) = await ledgers(cluster)
        assert last.entries


async def test_a_topic_in_which_nothing_is_due_is_not_loaded(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster:
        await fill(cluster)
        clock = LaterClock()
        async with broker_on(cluster, seed=4, clock=clock) as broker:
            clock.later_s = 30 * _DAY_S
            version = await cluster.store.exists(PATH)
            await looked_after(broker)
            assert (broker.at_rest.looks, broker.at_rest.loads) == (1, 0)
            assert await cluster.store.exists(PATH) == version
        assert len(await ledgers(cluster)) == LEDGERS


async def test_retention_ends_for_a_topic_that_nobody_uses(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster:
        kept: dict[str, Any] = {"retention_minutes": 60, "retention_mib": -1}
        kept["inactive_topic_deletion"] = False
        await fill(cluster, subscriptions=(), **kept)
        clock = LaterClock()
        async with broker_on(cluster, seed=4, clock=clock, **kept) as broker:
            await looked_after(broker)
            assert len(await ledgers(cluster)) == LEDGERS
            clock.later_s = 2 * 3600
            await looked_after(broker)
        assert len(await ledgers(cluster)) == 1


async def test_an_unused_subscription_goes_and_with_it_what_it_held(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster:
        await fill(cluster, subscriptions=("s", "t"))
        clock = LaterClock()
        week = 7 * _DAY_S // 60
        async with broker_on(
            cluster,
            seed=4,
            clock=clock,
            subscription_expiration_minutes=week,
            inactive_topic_deletion=False,
        ) as broker:
            for days, left in ((0, ["s", "t"]), (5, ["s", "t"]), (8, [])):
                clock.later_s = days * _DAY_S
                await looked_after(broker)
                assert await list_cursors(cluster.store, PATH) == left
        assert len(await ledgers(cluster)) == 1


async def test_a_topic_without_subscriptions_goes_after_its_time_of_disuse(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster:
        await fill(cluster, subscriptions=())
        clock = LaterClock()
        async with broker_on(cluster, seed=4, clock=clock, inactive_topic_max_s=300) as broker:
            await looked_after(broker)  # trims it, which is no use of the topic
            assert broker.at_rest.loads == 1
            clock.later_s = 200
            await looked_after(broker)
            assert await cluster.store.exists(PATH) is not None
            clock.later_s = 301
            await looked_after(broker)
            assert await cluster.store.exists(PATH) is None


async def test_a_use_begins_the_time_of_disuse_anew(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster:
        await fill(cluster, subscriptions=())
        clock = LaterClock()
        async with broker_on(cluster, seed=4, clock=clock, inactive_topic_max_s=300) as broker:
            await looked_after(broker)
            clock.later_s = 200
            client = await WireClient.open(broker.port)
            await client.produce(TOPIC)
            await client.close()
            await broker.services.topics.ends.hand_over([NAME], None, timeout_s=20)
            clock.later_s = 400
            await looked_after(broker)
            assert await cluster.store.exists(PATH) is not None
            clock.later_s = 501
            await looked_after(broker)
            assert await cluster.store.exists(PATH) is None


async def test_a_topic_that_was_deleted_takes_no_place_among_those_that_rest(
    tmp_path: Path,
) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        topics = broker.services.topics
        client = await WireClient.open(broker.port)
        await client.produce(TOPIC)
        await client.close()
        await topics.ends.hand_over([NAME], None, timeout_s=20)
        assert len(broker.at_rest._disuse) == 1
        await topics.get(NAME)
        await topics.removal.delete(NAME, is_forced=True)
        assert len(broker.at_rest._disuse) == 0


async def test_what_a_crash_left_open_is_closed_and_then_kept_by_its_time(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster:
        async with broker_on(cluster) as broker:
            client = await WireClient.open(broker.port)
            await client.subscribe(TOPIC)
            await client.leave(0)
            await client.produce(TOPIC)
            await client.publish_ok(0, b"body")
            # As if it had been killed: nothing of the topic is closed.
            broker.services.topics.ends.drop([NAME], "as if it were killed")
            await client.close()
        (left_open,) = await ledgers(cluster)
        assert not left_open.is_closed
        async with broker_on(cluster, seed=4, ttl_s=3600) as broker:
            await looked_after(broker)
            assert broker.at_rest.loads == 1
            (closed,) = await ledgers(cluster)
            assert closed.is_closed
            assert closed.entries == 1
            await looked_after(broker)
            assert broker.at_rest.loads == 1


async def test_a_topic_that_somebody_asks_for_meanwhile_stays_loaded(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster:
        await fill(cluster)
        clock = LaterClock()
        async with broker_on(cluster, seed=4, clock=clock, ttl_s=60) as broker:
            clock.later_s = 3600
            look_after = broker.upkeep.look_after

            async def with_a_client(topic: Any) -> int:
                assert await broker.services.topics.get(NAME) is topic
                return await look_after(topic)

            broker.upkeep.look_after = with_a_client  # type: ignore[method-assign]
            await broker.at_rest.walk()
            (topic,) = broker.services.topics.loaded
            assert not topic.is_closed


async def test_no_topic_is_loaded_where_the_broker_has_no_room(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster:
        await fill(cluster)
        clock = LaterClock()
        async with broker_on(
            cluster, seed=4, clock=clock, ttl_s=60, topics_max=2, topics_at_rest_loaded_max=2
        ) as broker:
            client = await WireClient.open(broker.port)
            await client.produce("persistent://public/default/in-use")
            clock.later_s = 3600
            await broker.at_rest.walk()
            assert broker.at_rest.loads == 0
            assert len(await ledgers(cluster)) == LEDGERS
            await client.close()


async def test_walks_keep_to_their_rate_of_reads_and_come_by_themselves(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster:
        await fill(cluster)
        settings: dict[str, Any] = {
            "topics_at_rest_interval_s": 0.05,
            "topics_at_rest_reads_per_s": 50,
            "topics_at_rest_remembered_max": 1,
        }
        clock = SystemClock()
        async with broker_on(cluster, seed=4, **settings) as broker:
            started_s = clock.monotonic_s()
            with capture_logs() as logged:
                await until(lambda: broker.at_rest.looks >= 3, "three walks")
            # Each walk lists the tenant, the namespace and its topics, and reads three nodes.
            assert clock.monotonic_s() - started_s > 3 * 6 / 50
            assert [each for each in logged if each["log_level"] in ("warning", "error")] == []


async def test_no_more_topics_are_loaded_at_once_than_may_be(tmp_path: Path) -> None:
    names = [f"persistent://public/default/crowd-{number}" for number in range(5)]
    async with cluster_of(1, tmp_path) as cluster:
        async with broker_on(cluster) as broker:
            client = await WireClient.open(broker.port)
            for number, name in enumerate(names):
                await client.subscribe(name, consumer_id=number)
                await client.leave(number)
                await client.produce(name, number)
                await client.publish_ok(0, b"body", number)
            await client.close()
        clock = LaterClock()
        async with broker_on(
            cluster, seed=4, clock=clock, ttl_s=60, topics_at_rest_loaded_max=2
        ) as broker:
            clock.later_s = 3600
            look_after, most = broker.upkeep.look_after, 0

            async def counted(topic: Any) -> int:
                nonlocal most
                works = await look_after(topic)
                most = max(most, len(broker.services.topics.loaded))
                return works

            broker.upkeep.look_after = counted  # type: ignore[method-assign]
            await looked_after(broker)
            assert broker.at_rest.loads == len(names)
            assert 1 <= most <= 2


# Topics and subscriptions that came into being without being loaded. The broker runs for 20 days.

WHOLE = parse_topic_name("persistent://public/default/orders")
YOUNG = parse_topic_name("persistent://public/default/young")
WEEK: dict[str, Any] = {
    "subscription_expiration_minutes": 7 * _DAY_S // 60,
    "inactive_topic_deletion": False,
}
DAY: dict[str, Any] = {"inactive_topic_max_s": _DAY_S}


async def weekly_on_first_partition(broker: Broker) -> None:
    """Have the subscription `weekly` on the first partition of `WHOLE`, which nobody uses then."""
    client = await WireClient.open(broker.port)
    await client.subscribe(str(WHOLE.partition(0)), subscription="weekly")
    await client.leave(0)
    await client.close()
    await broker.services.topics.ends.hand_over([WHOLE.partition(0)], None, timeout_s=20)


async def weekly(cluster: Cluster) -> list[bool]:
    """Whether each of two partitions has the subscription."""
    paths = [naming.log_path(WHOLE.partition(index)) for index in range(2)]
    return ["weekly" in await list_cursors(cluster.store, path) for path in paths]


async def test_a_subscription_that_growth_copied_is_not_older_than_its_copy(
    tmp_path: Path,
) -> None:
    async with cluster_of(1, tmp_path) as cluster:
        clock = LaterClock()
        async with broker_on(cluster, seed=4, clock=clock, **WEEK) as broker:
            partitioned = broker.services.topics.partitioned
            await partitioned.create(WHOLE, 1)
            await weekly_on_first_partition(broker)
            await looked_after(broker)
            clock.later_s = 6 * _DAY_S
            await partitioned.grow(WHOLE, 2, is_forced=False)
            for days, left in ((8, [False, True]), (12, [False, True]), (22, [False, False])):
                clock.later_s = days * _DAY_S
                await looked_after(broker)
                assert await weekly(cluster) == left, days


@pytest.mark.parametrize(
    "mode", ["delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"]
)
async def test_a_subscription_that_an_old_partition_lacked_is_not_older_than_its_copy(
    tmp_path: Path, mode: str
) -> None:
    async with cluster_of(1, tmp_path) as cluster:
        clock = LaterClock()
        settings = WEEK | DAY | {"inactive_topic_deletion": True, "inactive_topic_mode": mode}
        async with broker_on(cluster, seed=4, clock=clock, **settings) as broker:
            partitioned = broker.services.topics.partitioned
            await partitioned.create(WHOLE, 2)
            clock.later_s = 20 * _DAY_S
            await weekly_on_first_partition(broker)
            await partitioned.create_missed(WHOLE)
            await looked_after(broker)
            assert await weekly(cluster) == [True, True]


async def test_a_topic_that_was_created_and_never_loaded_has_its_whole_time(
    tmp_path: Path,
) -> None:
    async with cluster_of(1, tmp_path) as cluster:
        clock = LaterClock()
        async with broker_on(cluster, seed=4, clock=clock, **DAY) as broker:
            topics = broker.services.topics
            for begun, has_walked in ((20, False), (40, True)):
                clock.later_s = begun * _DAY_S
                if has_walked:
                    await looked_after(broker)
                await topics.partitioned.create_plain(YOUNG, {})
                for hours, exists in ((0.1, True), (23, True), (25, False)):
                    clock.later_s = begun * _DAY_S + hours * 3600
                    await looked_after(broker)
                    assert await topics.exists(YOUNG) == exists, (begun, hours)


async def test_a_topic_that_was_deleted_and_created_again_has_its_whole_time(
    tmp_path: Path,
) -> None:
    async with cluster_of(1, tmp_path) as cluster:
        clock = LaterClock()
        async with broker_on(cluster, seed=4, clock=clock, **DAY) as broker:
            topics = broker.services.topics
            await topics.partitioned.create_plain(YOUNG, {})
            await looked_after(broker)
            clock.later_s = 20 * _DAY_S
            await topics.removal.delete(YOUNG, is_forced=True)
            await topics.partitioned.create_plain(YOUNG, {})
            await looked_after(broker)
            assert await topics.exists(YOUNG)


async def test_a_topic_created_anew_while_the_walk_waits_to_load_it_has_its_whole_time(
    tmp_path: Path,
) -> None:
    async with cluster_of(1, tmp_path) as cluster:
        clock = LaterClock()
        async with broker_on(cluster, seed=4, clock=clock, **DAY) as broker:
            topics = broker.services.topics
            await topics.partitioned.create_plain(YOUNG, {})
            await looked_after(broker)
            clock.later_s = 20 * _DAY_S
            wake = topics.wake

            async def anew(name: TopicName) -> Topic:
                await topics.removal.delete(name, is_forced=True)
                await topics.partitioned.create_plain(name, {})
                return await wake(name)

            topics.wake = anew  # type: ignore[method-assign]
            await looked_after(broker)
            assert broker.at_rest.loads == 1
            assert await topics.exists(YOUNG)


async def test_a_subscription_that_is_made_while_the_walk_waits_keeps_its_topic(
    tmp_path: Path,
) -> None:
    async with cluster_of(1, tmp_path) as cluster:
        clock = LaterClock()
        mode = "delete_when_subscriptions_caught_up"
        async with broker_on(
            cluster, seed=4, clock=clock, inactive_topic_mode=mode, **DAY
        ) as broker:
            topics = broker.services.topics
            await topics.partitioned.create_plain(YOUNG, {})
            await looked_after(broker)
            clock.later_s = 20 * _DAY_S
            wake = topics.wake

            async def subscribed(name: TopicName) -> Topic:
                cursor = encode_node(CursorNode(epoch=1, mark_delete=(-1, -1)))
                await cluster.store.create(cursor_path(naming.log_path(name), "new"), cursor)
                return await wake(name)

            topics.wake = subscribed  # type: ignore[method-assign]
            await looked_after(broker)
            assert broker.at_rest.loads == 1
            assert await list_cursors(cluster.store, naming.log_path(YOUNG)) == ["new"]


@pytest.mark.parametrize(("years", "has_walked"), [(30, False), (30, True), (-30, True)])
async def test_setting_the_wall_clock_makes_no_topic_older(
    tmp_path: Path, years: int, has_walked: bool
) -> None:
    """Set to a wrong time after the creation, or right again after a creation in the wrong time."""
    async with cluster_of(1, tmp_path) as cluster:
        clock = LaterClock()
        async with broker_on(cluster, seed=4, clock=clock, **DAY) as broker:
            topics = broker.services.topics
            if has_walked:
                await looked_after(broker)
            clock.later_s = 20 * _DAY_S
            clock.set_s = min(0, years) * 365 * _DAY_S
            await topics.partitioned.create_plain(YOUNG, {})
            clock.set_s = max(0, years) * 365 * _DAY_S
            await looked_after(broker)
            assert await topics.exists(YOUNG)
            clock.later_s += 25 * 3600
            await looked_after(broker)
            assert not await topics.exists(YOUNG)


_RESTORED = {CREATED_PROPERTY: "17", RESTORED_PROPERTY: "{}"}


@pytest.mark.parametrize(
    ("properties", "has_walked"),
    [
        ({}, False),
        ({}, True),
        (_RESTORED, False),
        (_RESTORED, True),
        ({CREATED_PROPERTY: "17"}, True),  # by a clock that stood at 1970
        ({CREATED_PROPERTY: str(1 << 60)}, False),
        ({CREATED_PROPERTY: "yesterday"}, False),
    ],
)
async def test_whatever_a_topic_says_of_its_creation_it_counts_from_when_it_is_first_seen(
    tmp_path: Path, properties: Mapping[str, str], has_walked: bool
) -> None:
    async with cluster_of(1, tmp_path) as cluster:
        clock = LaterClock()
        settings = WEEK | {"inactive_topic_deletion": True, "inactive_topic_max_s": 9 * _DAY_S}
        async with broker_on(cluster, seed=4, clock=clock, **settings) as broker:
            topics = broker.services.topics
            await topics.partitioned.create_plain(NAME, {})
            await looked_after(broker)
            clock.later_s = 20 * _DAY_S
            if has_walked:
                await looked_after(broker)
            path = naming.log_path(YOUNG)
            await cluster.store.create(path, LogMetadata(properties=dict(properties)).to_json())
            cursor = encode_node(CursorNode(epoch=1, mark_delete=(-1, -1)))
            await cluster.store.create(cursor_path(path, "weekly"), cursor)
            for days, cursors in ((0, ["weekly"]), (6, ["weekly"]), (8, [])):
                clock.later_s = (20 + days) * _DAY_S
                await looked_after(broker)
                assert await list_cursors(cluster.store, path) == cursors
            assert await topics.exists(YOUNG)
            clock.later_s = 30 * _DAY_S
            await looked_after(broker)
            assert not await topics.exists(YOUNG)


async def test_a_topic_that_is_restored_anew_has_its_whole_time(tmp_path: Path) -> None:
    """With the creation time of the one that was there before."""
    async with cluster_of(1, tmp_path) as cluster:
        clock = LaterClock()
        async with broker_on(cluster, seed=4, clock=clock, **DAY) as broker:
            topics, path = broker.services.topics, naming.log_path(YOUNG)
            await topics.partitioned.create_plain(YOUNG, {})
            log = LogMetadata.from_json((await cluster.store.get(path)).value, path=path)
            await looked_after(broker)
            clock.later_s = 20 * _DAY_S
            await cluster.store.delete(path)
            restored = log.with_properties({RESTORED_PROPERTY: "{}"})
            await cluster.store.create(path, restored.to_json())
            await looked_after(broker)
            assert await topics.exists(YOUNG)


async def test_a_look_that_fails_makes_no_topic_younger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_: object) -> None:
        raise MetadataUnavailableError("the store is away")

    async with cluster_of(1, tmp_path) as cluster:
        clock = LaterClock()
        async with broker_on(cluster, seed=4, clock=clock, **DAY) as broker:
            topics = broker.services.topics
            await topics.partitioned.create_plain(YOUNG, {})
            await looked_after(broker)
            clock.later_s = _DAY_S / 2
            with monkeypatch.context() as patch:
                patch.setattr(broker.at_rest, "_look_at", unavailable)
                await broker.at_rest.walk()
            assert broker.at_rest.failures == 1
            clock.later_s = _DAY_S + 60
            await broker.at_rest.walk()
            assert not await topics.exists(YOUNG)


async def test_cursors_below_no_log_are_no_topic_and_no_failure(tmp_path: Path) -> None:
    """An earlier release made them below the node of a log that was deleted at that moment."""
    async with cluster_of(1, tmp_path) as cluster:
        cursor = encode_node(CursorNode(epoch=1, mark_delete=(-1, -1)))
        await cluster.store.create(PATH, b"")
        await cluster.store.create(cursor_path(PATH, "s"), cursor)
        async with broker_on(cluster, seed=4) as broker:
            await looked_after(broker)
            assert (broker.at_rest.looks, broker.at_rest.loads) == (0, 0)
