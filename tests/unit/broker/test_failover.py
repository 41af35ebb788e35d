"""Failover subscriptions: who is active, who is told, and what a change does."""

import asyncio

import pytest

from magnetar.broker.topic.consumer import FAILOVER, Consumer
from magnetar.broker.topic.dispatch.failover import ActiveChoice
from magnetar.ledger.position import Position
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import WAIT_S, Client, Harness, entry
from tests.unit.broker.memory_parts import TOPIC
from tests.waiting import settle

_FAILOVER = pb.CommandSubscribe.Failover


def _consumer(name: str, priority: int = 0) -> Consumer:
    client = Harness().client()
    return Consumer(client.connection.link, 0, name=name, sub_type=FAILOVER, priority=priority)


def choose_active(consumers: list[Consumer], *, topic: str, partition: int) -> Consumer | None:
    """The active one of these consumers."""
    choice = ActiveChoice(topic=topic, partition=partition)
    for consumer in consumers:
        choice.add(consumer)
    return choice.chosen()


@pytest.mark.parametrize("partition", range(5))
async def test_partitions_go_round_robin_over_sorted_names(partition: int) -> None:
    consumers = [_consumer(name) for name in ("c", "a", "b")]
    chosen = choose_active(consumers, topic=TOPIC, partition=partition)
    assert chosen is not None
    assert chosen.name == "abc"[partition % 3]


async def test_only_the_best_priority_counts() -> None:
    consumers = [_consumer("a", priority=1), _consumer("z", priority=0)]
    for partition in (-1, 0, 1):
        chosen = choose_active(consumers, topic=TOPIC, partition=partition)
        assert chosen is consumers[1]


async def test_the_choice_does_not_depend_on_the_order_of_joining() -> None:
    names = [f"consumer-{number}" for number in range(20)]
    one = choose_active([_consumer(name) for name in names], topic=TOPIC, partition=-1)
    two = choose_active([_consumer(name) for name in reversed(names)], topic=TOPIC, partition=-1)
    assert one is not None
    assert two is not None
    assert one.name == two.name


async def test_topics_spread_over_consumers() -> None:
    consumers = [_consumer(f"consumer-{number}") for number in range(4)]
    chosen = {
        choose_active(consumers, topic=f"{TOPIC}-{number}", partition=-1) for number in range(100)
    }
    assert len(chosen) == 4


def test_nobody_is_active_among_nobody() -> None:
    assert choose_active([], topic=TOPIC, partition=0) is None


async def _join(harness: Harness, name: str, permits: int = 0, priority: int = 0) -> Client:
    client = harness.client()
    answer = await client.subscribe(subType=_FAILOVER, consumer_name=name, priority_level=priority)
    assert answer.type == BaseCommand.SUCCESS
    if permits:
        client.flow(permits)
    return client


async def _change(client: Client) -> bool:
    return (await client.next(BaseCommand.ACTIVE_CONSUMER_CHANGE)).active_consumer_change.is_active


def _entry_ids(client: Client) -> list[int]:
    return [
        command.message.message_id.entryId
        for command, _ in client.received()
        if command.type == BaseCommand.MESSAGE
    ]


async def test_without_a_delay_the_first_consumer_is_active_at_once() -> None:
    harness = Harness(failover_delay_ms=0)
    harness.log.store(entry(), entry())
    client = await _join(harness, "a", permits=10)
    assert await _change(client)
    await settle()
    assert _entry_ids(client) == [0, 1]


async def test_of_a_group_that_starts_nobody_is_sent_what_another_one_gets_again() -> None:
    harness = Harness(failover_delay_ms=30)
    harness.log.store(entry(), entry())
    early = await _join(harness, "a", permits=10, priority=1)
    await settle()
    chosen = await _join(harness, "b", permits=10, priority=0)
    assert await _change(chosen)
    await settle()
    assert _entry_ids(chosen) == [0, 1]
    assert _entry_ids(early) == []


async def test_consumers_that_keep_coming_do_not_put_off_the_start() -> None:
    harness = Harness(failover_delay_ms=20)
    harness.log.store(entry())
    group: list[Client] = []
    async with asyncio.timeout(WAIT_S):
        while not any(_entry_ids(client) for client in group):
            group.append(await _join(harness, "c", permits=1, priority=10_000 - len(group)))
    assert len(group) > 1


async def test_a_standby_is_told_and_sent_nothing() -> None:
    harness = Harness(failover_delay_ms=0)
    harness.log.store(entry())
    active = await _join(harness, "a", permits=10)
    await _change(active)
    standby = await _join(harness, "b", permits=10, priority=1)
    assert not await _change(standby)
    await settle()
    assert _entry_ids(standby) == []
    assert _entry_ids(active) == [0]


async def test_a_standby_takes_over_from_the_first_open_entry() -> None:
    harness = Harness(failover_delay_ms=0)
    harness.log.store(*(entry() for _ in range(4)))
    active = await _join(harness, "a", permits=10)
    await _change(active)
    standby = await _join(harness, "b", permits=10, priority=1)
    await settle()
    active.ack(Position(7, 0))
    assert not await _change(standby)
    active.connection.lost()
    assert await _change(standby)
    await settle()
    assert _entry_ids(standby) == [1, 2, 3]


async def test_the_former_active_consumer_has_time_to_acknowledge() -> None:
    harness = Harness(failover_delay_ms=30)
    harness.log.store(*(entry() for _ in range(3)))
    first = await _join(harness, "a", permits=10, priority=1)
    assert await _change(first)
    await settle()
    assert _entry_ids(first) == [0, 1, 2]
    better = await _join(harness, "b", permits=10, priority=0)
    await settle()
    assert _entry_ids(better) == []
    first.ack(Position(7, 0), Position(7, 1))
    assert await _change(better)
    await settle()
    assert _entry_ids(better) == [2]
    assert not await _change(first)


@pytest.mark.parametrize(
    ("kind", "told"), [("persistent", [None, False]), ("non-persistent", [True, False])]
)
async def test_a_newcomer_is_told_when_it_can_listen(kind: str, told: list[bool | None]) -> None:
    # The Go client notes a consumer after the answer to SUBSCRIBE, and sends FLOW after that.
    # Who will be active is told when it is: on a topic that is not stored that is at once.
    topic = TOPIC.replace("persistent", kind)
    harness = Harness(failover_delay_ms=1_000_000)
    clients = [harness.client() for _ in range(2)]
    for priority, client in enumerate(clients):
        answer = await client.subscribe(
            topic=topic, subType=_FAILOVER, consumer_name="c", priority_level=priority
        )
        assert answer.type == BaseCommand.SUCCESS
        await settle()
        assert client.received() == []
    for client, is_active in zip(clients, told, strict=True):
        client.flow(1)
        if is_active is not None:
            assert await _change(client) == is_active
        client.flow(1)
        await settle()
        assert client.received() == []


async def test_a_newcomer_that_asks_for_nothing_is_told_after_the_delay() -> None:
    harness = Harness(failover_delay_ms=30)
    client = await _join(harness, "a")
    await settle()
    assert client.received() == []
    assert await _change(client)


async def test_old_clients_are_not_told() -> None:
    harness = Harness(failover_delay_ms=0)
    client = harness.client(version=11)
    await client.subscribe(subType=_FAILOVER)
    client.flow(1)
    await settle()
    await asyncio.sleep(0)
    assert client.received() == []


async def test_a_standby_may_neither_redeliver_nor_unsubscribe_alone() -> None:
    harness = Harness(failover_delay_ms=0)
    harness.log.store(entry())
    active = await _join(harness, "a", permits=10)
    standby = await _join(harness, "b", permits=10, priority=1)
    await settle()
    active.received()
    standby.received()
    standby.redeliver()
    standby.send(
        BaseCommand.UNSUBSCRIBE, unsubscribe=pb.CommandUnsubscribe(consumer_id=0, request_id=1)
    )
    assert (await standby.next()).error.error == pb.ServerError.MetadataError
    assert active.received() == []
