"""Why nothing flows: every reason, on every type of subscription that has it."""

import asyncio
from typing import Any

import pytest

from magnetar.broker.base.errors import NotAllowedError
from magnetar.broker.http.topic_stats import topic_stats
from magnetar.broker.topic.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.topic.dispatch.reasons import Reason
from magnetar.broker.topics.operating import skip_unreadable
from magnetar.ledger.errors import LogUnavailableError
from magnetar.ledger.position import Position
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness, entry
from tests.waiting import settle

_SUB = pb.CommandSubscribe
_ALL = pytest.mark.parametrize(
    "sub_type", [_SUB.Exclusive, _SUB.Failover, _SUB.Shared, _SUB.Key_Shared]
)
_SHARING = pytest.mark.parametrize("sub_type", [_SUB.Shared, _SUB.Key_Shared])


async def _join(harness: Harness, sub_type: Any, permits: int = 0) -> Client:
    client = harness.client()
    client.send_subscribe(subType=sub_type, consumer_name="c")
    await settle()
    if permits:
        client.flow(permits)
    return client


def _why(harness: Harness) -> Reason | None:
    subscription = harness.topic.subscriptions["s"]
    reason = subscription.why_idle()
    told = topic_stats(harness.topic, now_ms=1, owner="b")["subscriptions"]["s"]
    assert told["whyIdle"] == (reason.code if reason is not None else None)
    assert told["whyIdleText"] == (reason.value if reason is not None else None)
    return reason


@_ALL
async def test_from_the_first_consumer_to_the_last(sub_type: Any) -> None:
    harness = Harness(failover_delay_ms=0)
    client = await _join(harness, sub_type)
    await settle()
    assert _why(harness) is Reason.NOTHING_LEFT
    harness.log.store(entry(), entry())
    assert _why(harness) is Reason.NO_PERMITS
    client.flow(1)
    await settle()
    assert _why(harness) is Reason.NO_PERMITS
    client.flow(5)
    await settle()
    assert _why(harness) is Reason.NOTHING_NEW
    client.ack(Position(7, 0), Position(7, 1))
    assert _why(harness) is Reason.NOTHING_LEFT
    client.connection.lost()
    assert _why(harness) is Reason.NO_CONSUMER


@_ALL
async def test_entries_that_are_being_read(sub_type: Any) -> None:
    harness = Harness(failover_delay_ms=0)
    harness.log.store(entry())
    harness.log.read_gate = asyncio.Event()
    client = await _join(harness, sub_type, permits=5)
    await settle()
    client.flow(1)
    assert _why(harness) is Reason.READING
    harness.log.read_gate.set()
    await settle()
    assert _why(harness) is Reason.NOTHING_NEW


@_ALL
async def test_a_topic_that_is_no_longer_owned(sub_type: Any) -> None:
    harness = Harness()
    await _join(harness, sub_type, permits=5)
    harness.topics.tenure.is_held = False
    assert _why(harness) is Reason.PAUSED
    harness.topics.tenure.is_held = True
    harness.topic.disconnect_all()
    assert harness.topic.subscriptions["s"].why_idle() is Reason.PAUSED


async def test_the_active_consumer_is_being_chosen() -> None:
    harness = Harness(failover_delay_ms=1_000_000)
    harness.log.store(entry())
    one = await _join(harness, _SUB.Failover, permits=1)
    await _join(harness, _SUB.Failover)
    one.connection.lost()
    assert _why(harness) is Reason.CHOOSING


@_SHARING
async def test_unacknowledged_messages(sub_type: Any) -> None:
    harness = Harness(unacked_per_consumer_max=2)
    harness.log.store(*(entry() for _ in range(5)))
    await _join(harness, sub_type, permits=5)
    await settle()
    assert _why(harness) is Reason.CONSUMERS_UNACKED
    harness = Harness(unacked_per_subscription_max=2)
    harness.log.store(*(entry() for _ in range(5)))
    await _join(harness, sub_type, permits=5)
    await settle()
    assert _why(harness) is Reason.SUBSCRIPTION_UNACKED


@_ALL
async def test_connections_that_take_no_more_bytes(sub_type: Any) -> None:
    harness = Harness(failover_delay_ms=0)
    client = await _join(harness, sub_type)
    await settle()
    harness.log.store(entry())
    client.connection.on_writable(False)
    client.flow(5)
    assert _why(harness) is Reason.NOT_WRITABLE


class _AllDelayed:
    """Withholds everything, and keeps the positions."""

    def __init__(self) -> None:
        self.positions: list[Position] = []

    def withholds(self, run: Any, index: int) -> bool:
        self.positions.append(Position(run.ledger_id, run.first_entry_id + index))
        return True

    @property
    def next_due_ms(self) -> int | None:
        return 1 << 50

    @property
    def withheld(self) -> int:
        return len(self.positions)

    size_bytes = 0


@_SHARING
async def test_withheld_entries_are_told_and_come_when_they_are_due(sub_type: Any) -> None:
    harness = Harness()
    harness.log.store(
        *(entry(partition_key=key, deliver_at_time=1 << 50) for key in ("a", "a", "b"))
    )
    client = await _join(harness, sub_type)
    subscription = harness.topic.subscriptions["s"]
    dispatcher = subscription.dispatcher
    assert dispatcher is not None
    delays = _AllDelayed()
    object.__setattr__(dispatcher.context, "delays", delays)
    client.flow(10)
    await settle()
    assert delays.withheld == 3
    assert _why(harness) is Reason.DELAYED
    assert [command.type for command, _ in client.received()][1:] == []
    due, delays.positions = delays.positions[:2], delays.positions[2:]
    dispatcher.deliver(due)
    await settle()
    dispatcher.deliver(due)  # they are pending: nothing comes twice
    await settle()
    found = [command for command, _ in client.received() if command.type == BaseCommand.MESSAGE]
    assert [each.message.message_id.entryId for each in found] == [0, 1]
    assert [each.message.redelivery_count for each in found] == [0, 0]
    subscription.check()


@_SHARING
async def test_what_expires_is_forgotten(sub_type: Any) -> None:
    harness = Harness()
    harness.log.store(*(entry() for _ in range(6)))
    client = await _join(harness, sub_type, permits=6)
    await settle()
    client.redeliver(Position(7, 0), Position(7, 5))
    await settle()
    subscription = harness.topic.subscriptions["s"]
    dispatcher = subscription.dispatcher
    assert dispatcher is not None
    subscription.cursor.ack_cumulative(Position(7, 3))
    dispatcher.acked_through(Position(7, 3))
    await settle()
    subscription.check()
    assert subscription.unacked_messages == 1  # entry 4; 5 waits for credit
    client.received()
    client.flow(20)
    await settle()
    assert [
        command.message.message_id.entryId
        for command, _ in client.received()
        if command.type == BaseCommand.MESSAGE
    ] == [5]
    client.ack(Position(7, 4), Position(7, 5))
    assert subscription.cursor.backlog_entries == 0
    assert subscription.unacked_messages == 0


def _damage(harness: Harness, damaged: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """No bookie can serve these entries of the first ledger."""
    read = harness.log.read_range

    async def read_range(
        start: Position, *, entries_max: int, bytes_max: int
    ) -> tuple[Position, list[bytes]]:
        if start.entry_id in damaged:
            raise LogUnavailableError("the digest does not match")
        if start.entry_id < damaged.start:
            entries_max = min(entries_max, damaged.start - start.entry_id)
        return await read(start, entries_max=entries_max, bytes_max=bytes_max)

    monkeypatch.setattr(harness.log, "read_range", read_range)


@_SHARING
async def test_entries_that_cannot_be_read_again_are_named_and_skipped_alone(
    sub_type: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = Harness(read_retry_ms=1, read_retry_ms_max=1)
    harness.log.store(*(entry() for _ in range(8)))
    client = await _join(harness, sub_type, permits=100)
    client.received()
    await settle()
    damaged = range(2, 5)
    _damage(harness, damaged, monkeypatch)
    subscription = harness.topic.subscriptions["s"]
    dispatcher = subscription.dispatcher
    if isinstance(dispatcher, KeySharedDispatcher):
        dispatcher.left._kept.clear()
    client.received()
    client.redeliver()
    while subscription.why_idle() is not Reason.UNREADABLE:
        await settle()
    told = topic_stats(harness.topic, now_ms=1, owner="b")["subscriptions"]["s"]
    assert told["whyIdle"] == "unreadable"
    assert "from entry 2 of ledger 7 on: the digest does not match" in told["whyIdleText"]
    assert await skip_unreadable(harness.topic, subscription) == len(damaged)
    found = await client.messages(5)
    assert sorted(message.message_id.entryId for message, _ in found) == [0, 1, 5, 6, 7]
    assert subscription.why_idle() is Reason.NOTHING_NEW
    with pytest.raises(NotAllowedError, match="whyIdle"):
        await skip_unreadable(harness.topic, subscription)


async def test_entries_of_a_compacted_ledger_that_cannot_be_read_are_not_skipped_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness(read_retry_ms=1, read_retry_ms_max=1)
    harness.log.store(*(entry() for _ in range(8)))
    _damage(harness, range(8), monkeypatch)
    client = harness.client()
    await client.subscribe(subType=pb.CommandSubscribe.Exclusive)
    subscription = harness.topic.subscriptions["s"]
    client.flow(100)
    while subscription.why_idle() is not Reason.UNREADABLE:
        await settle()
    assert subscription.dispatcher is not None
    source = type(subscription.dispatcher.source)
    monkeypatch.setattr(source, "is_view_unreadable", property(lambda _: True))
    with pytest.raises(NotAllowedError, match="compacted"):
        await skip_unreadable(harness.topic, subscription)
    assert subscription.cursor.backlog_entries == 8


@_ALL
async def test_entries_that_cannot_be_read_are_named_and_skipped_alone(
    sub_type: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = Harness(failover_delay_ms=0, read_retry_ms=1, read_retry_ms_max=1)
    harness.log.store(*(entry() for _ in range(8)))
    damaged = range(2, 5)
    _damage(harness, damaged, monkeypatch)
    client = await _join(harness, sub_type)
    client.received()
    client.flow(100)
    await client.messages(2)
    subscription = harness.topic.subscriptions["s"]
    while subscription.why_idle() is not Reason.UNREADABLE:
        await settle()
    told = topic_stats(harness.topic, now_ms=1, owner="b")["subscriptions"]["s"]
    assert told["whyIdle"] == "unreadable"
    assert "from entry 2 of ledger 7 on: the digest does not match" in told["whyIdleText"]
    assert await skip_unreadable(harness.topic, subscription) == len(damaged)
    assert len(await client.messages(3)) == 3
    assert subscription.cursor.backlog_entries == 5
    with pytest.raises(NotAllowedError, match="whyIdle"):
        await skip_unreadable(harness.topic, subscription)
