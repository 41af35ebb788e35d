"""Topics that nobody uses: which ones go, and when."""

from magnetar.broker.features.retention.inactivity import InactiveTopics, check_unused, is_used
from magnetar.broker.policies.model import DeleteMode, InactiveTopic, Policies, Retention
from magnetar.broker.topic import Topic
from magnetar.ledger.system import SystemClock
from magnetar.sdk.wire import BaseCommand, parse_topic_name
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness
from tests.unit.broker.memory_parts import TOPIC

NO_SUBSCRIPTIONS = DeleteMode.NO_SUBSCRIPTIONS
CAUGHT_UP = DeleteMode.CAUGHT_UP


class Hands(SystemClock):
    """A clock that goes on when the test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s


class World:
    """A topic, whoever uses it, and the looks at it."""

    def __init__(self) -> None:
        self.harness = Harness()
        self.clock = Hands()
        self.deleted: list[Topic] = []
        self.inactive = InactiveTopics(self.clock, self)

    async def delete_unless_used(self, topic: Topic) -> None:
        check_unused(topic)
        self.deleted.append(topic)

    def policy(self, mode: DeleteMode, *, is_on: bool = True, retention_minutes: int = 0) -> None:
        self.harness.policies.topics[parse_topic_name(TOPIC)] = Policies(
            inactive_topic=InactiveTopic(is_on=is_on, mode=mode, max_s=60),
            retention=Retention(minutes=retention_minutes, mib=-1 if retention_minutes else 0),
        )
        self.harness.topics.apply_policies()

    async def is_deleted_after(self, seconds: float) -> bool:
        """Whether it goes when it was looked at, and so much later again."""
        for passes_s in (0.0, seconds):
            self.clock.now_s += passes_s
            work = self.inactive.look_at(self.harness.topic)
            if work is not None:
                await work
        return bool(self.deleted)

    async def producer_leaves(self, client: Client) -> None:
        client.send(
            BaseCommand.CLOSE_PRODUCER,
            close_producer=pb.CommandCloseProducer(producer_id=0, request_id=5),
        )
        await client.next(BaseCommand.SUCCESS)

    async def consumer_leaves(self, client: Client) -> None:
        client.send(
            BaseCommand.CLOSE_CONSUMER,
            close_consumer=pb.CommandCloseConsumer(consumer_id=0, request_id=6),
        )
        await client.next(BaseCommand.SUCCESS)


async def test_an_unused_topic_goes_after_its_time_and_not_before() -> None:
    world = World()
    client = world.harness.client()
    await client.produce()
    world.policy(NO_SUBSCRIPTIONS)
    assert not await world.is_deleted_after(1000)  # A producer is connected.
    await world.producer_leaves(client)
    assert not await world.is_deleted_after(59)
    assert await world.is_deleted_after(1)


async def test_a_subscription_keeps_a_topic_in_the_default_mode() -> None:
    world = World()
    client = world.harness.client()
    await client.subscribe()
    await world.consumer_leaves(client)
    world.policy(NO_SUBSCRIPTIONS)
    assert not await world.is_deleted_after(10_000)


async def test_a_subscription_without_backlog_keeps_none_in_the_other_mode() -> None:
    world = World()
    client = world.harness.client()
    await client.subscribe()
    world.policy(CAUGHT_UP)
    assert not await world.is_deleted_after(10_000)  # A consumer is connected.
    await world.consumer_leaves(client)
    assert await world.is_deleted_after(60)


async def test_a_backlog_keeps_a_topic_in_the_other_mode() -> None:
    world = World()
    client = world.harness.client()
    await client.subscribe()
    await client.produce()
    client.publish(0)
    await client.next(BaseCommand.SEND_RECEIPT)
    await world.producer_leaves(client)
    await world.consumer_leaves(client)
    world.policy(CAUGHT_UP)
    assert not await world.is_deleted_after(10_000)


async def test_nothing_goes_where_the_policy_is_off_or_retention_keeps_it() -> None:
    world = World()
    client = world.harness.client()
    await client.produce()
    await world.producer_leaves(client)
    world.policy(NO_SUBSCRIPTIONS, is_on=False)
    assert not await world.is_deleted_after(10_000)
    world.policy(NO_SUBSCRIPTIONS, retention_minutes=5)
    assert not await world.is_deleted_after(299)
    assert await world.is_deleted_after(1)


async def test_who_comes_back_starts_the_time_anew() -> None:
    world = World()
    client = world.harness.client()
    await client.produce()
    await world.producer_leaves(client)
    world.policy(NO_SUBSCRIPTIONS)
    assert not await world.is_deleted_after(50)
    await client.produce()
    assert is_used(world.harness.topic)
    assert not await world.is_deleted_after(50)
    await world.producer_leaves(client)
    assert not await world.is_deleted_after(50)
    assert await world.is_deleted_after(10)


async def test_who_comes_and_goes_between_two_looks_starts_the_time_anew() -> None:
    world = World()
    client = world.harness.client()
    await client.produce()
    await world.producer_leaves(client)
    world.policy(NO_SUBSCRIPTIONS)
    for _ in range(3):
        assert not await world.is_deleted_after(50)
        await client.produce()
        await world.producer_leaves(client)
    world.policy(CAUGHT_UP)
    for _ in range(3):
        assert not await world.is_deleted_after(50)
        await client.subscribe()
        await world.consumer_leaves(client)
    assert not await world.is_deleted_after(50)
    assert await world.is_deleted_after(10)
