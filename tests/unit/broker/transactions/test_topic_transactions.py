"""What the next owner of a topic knows of its transactions, whatever was on its way meanwhile."""

import asyncio
from collections.abc import Coroutine
from typing import cast

import pytest

from magnetar.broker.base.errors import BrokerPersistenceError, ServiceNotReadyError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features.transactions.errors import InvalidTransactionStatusError
from magnetar.broker.features.transactions.ids import TransactionId
from magnetar.broker.features.transactions.pending_acks import Ack
from magnetar.broker.features.transactions.topic_transactions import transactions_of
from magnetar.broker.topic import Topic
from magnetar.broker.topic.consumer import Consumer
from magnetar.broker.topic.dispatch.exclusive import ExclusiveDispatcher
from magnetar.broker.topic.subscription import Subscription
from magnetar.broker.topic.tail_cache import TailCache, TailCachePool
from magnetar.cursors import CursorUnavailableError, NonDurableCursor
from magnetar.ledger.position import EARLIEST, Position
from magnetar.sdk.wire import MessageMetadata, encode_payload, parse_topic_name
from tests.unit.broker.memory_log import ManualClock, MemoryLog
from tests.unit.broker.memory_parts import (
    MemoryTransactionLog,
    memory_transactions,
)
from tests.waiting import settle

NAME = parse_topic_name("persistent://public/default/topic")
SETTINGS = BrokerSettings()
ONE, OTHER = TransactionId(0, 1), TransactionId(0, 2)
FIRST = Position(7, 0)
NOBODY = cast(Consumer, None)


class Saved(NonDurableCursor):
    """A cursor that survives, as far as its subscription can tell."""

    is_durable = True
    deletion_error: CursorUnavailableError | None = None

    async def delete(self) -> None:
        if self.deletion_error is not None:
            raise self.deletion_error


class Owners:
    """Owners of one topic, one after the other, and its two logs."""

    def __init__(self) -> None:
        self.log, self.beside = MemoryLog(), MemoryTransactionLog(100)
        self.log.store(message(None))

    async def load(self, *names: str) -> Topic:
        """The next owner, who finds the cursors of these subscriptions."""
        cache, clock = TailCache(TailCachePool(1 << 20)), ManualClock()
        topic = Topic(NAME, self.log, cache, SETTINGS, clock=clock)

        transactions = memory_transactions(topic, self.beside, clock, *names)
        topic.host(transactions)
        await transactions.restore()
        for name in names:
            await subscribe(topic, name)
        await transactions.enable()
        return topic

    async def beside_a_snapshot(self, topic: Topic, work: Coroutine[object, object, None]) -> None:
        """Have a snapshot taken while what `work` has appended is on its way."""
        self.beside.is_immediate = False
        ending = asyncio.ensure_future(work)
        await settle()
        assert len(self.beside.waiting) == 1
        snapshot = asyncio.ensure_future(transactions_of(topic).write_snapshot())
        await settle()
        assert len(self.beside.waiting) == 2
        self.beside.confirm()
        await asyncio.gather(ending, snapshot)
        self.beside.is_immediate = True


def message(txn: TransactionId | None) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    if txn is not None:
        metadata.txnid_most_bits, metadata.txnid_least_bits = txn
    return encode_payload(metadata.SerializeToString(), b"x")


async def subscribe(topic: Topic, name: str) -> Subscription:
    async def cursor() -> NonDurableCursor:
        return Saved(topic.log, name, initial=EARLIEST)

    await topic.subscriptions.ensure(name, cursor)
    return topic.subscriptions[name]


async def acknowledge(topic: Topic, txn: TransactionId, position: Position = FIRST) -> None:
    subscription = topic.subscriptions["s"]
    await transactions_of(topic).acks.acknowledge(subscription, NOBODY, txn, [Ack(position)], None)


async def acknowledge_through(topic: Topic, txn: TransactionId, position: Position) -> None:
    subscription = topic.subscriptions["s"]
    assert subscription.context is not None
    subscription.dispatcher = ExclusiveDispatcher(subscription.context)
    await transactions_of(topic).acks.acknowledge(subscription, NOBODY, txn, [], Ack(position))


async def end(topic: Topic, txn: TransactionId, *, commits: bool) -> None:
    await transactions_of(topic).acks.end("s", txn, commits=commits, low_watermark=-1)


def is_held(topic: Topic, position: Position = FIRST) -> bool:
    pending = topic.subscriptions["s"].pending_acks
    return pending is not None and pending.holds(position)


async def test_what_is_aborted_beside_a_snapshot_is_given_back_by_the_next_owner() -> None:
    owners = Owners()
    topic = await owners.load("s")
    await acknowledge(topic, ONE)
    await owners.beside_a_snapshot(topic, end(topic, ONE, commits=False))
    assert not is_held(topic)
    assert not is_held(await owners.load("s"))


async def test_what_is_committed_beside_a_snapshot_is_in_nobodys_way_at_the_next_owner() -> None:
    owners = Owners()
    topic = await owners.load("s")
    await acknowledge_through(topic, ONE, FIRST)
    await owners.beside_a_snapshot(topic, end(topic, ONE, commits=True))
    owners.log.store(message(None))
    again = await owners.load("s")
    again.subscriptions["s"].cursor.ack_many([FIRST])  # As the commit has saved it.
    await acknowledge_through(again, OTHER, Position(7, 1))
    assert is_held(again, Position(7, 1))


async def test_a_transaction_that_is_being_committed_takes_no_more_acknowledgements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The commit would not apply it, although the client was told that it is stored."""
    topic = await Owners().load("s")
    await acknowledge(topic, ONE)
    may_save = asyncio.Event()

    async def persist() -> None:
        await may_save.wait()

    monkeypatch.setattr(topic.subscriptions["s"].cursor, "persist", persist)
    committing = asyncio.ensure_future(end(topic, ONE, commits=True))
    await settle()
    with pytest.raises(InvalidTransactionStatusError):
        await acknowledge(topic, ONE, Position(7, 1))
    may_save.set()
    await committing
    assert topic.subscriptions["s"].cursor.is_acked(FIRST)


async def test_a_terminated_topics_commit_beside_a_snapshot_is_known_to_the_next_owner() -> None:
    owners = Owners()
    topic = await owners.load()
    owners.log.store(message(ONE))
    buffer = transactions_of(topic).buffer.state
    buffer.on_entry(ONE, Position(7, 1))
    await owners.log.terminate()
    ending = transactions_of(topic).buffer.end(ONE, commits=True, low_watermark=-1)
    await owners.beside_a_snapshot(topic, ending)
    assert topic.visibility.last == Position(7, 1)
    assert (await owners.load()).visibility.last == Position(7, 1)


async def test_a_later_subscription_of_a_deleted_ones_name_holds_nothing_back() -> None:
    owners = Owners()
    topic = await owners.load("s")
    await acknowledge(topic, ONE)
    deletion = topic.subscriptions.delete(topic.subscriptions["s"], is_forced=False)
    await owners.beside_a_snapshot(topic, deletion)
    assert not is_held(await owners.load("s"))


async def test_what_a_deleted_subscription_held_is_dropped_though_its_owner_died() -> None:
    owners = Owners()
    await acknowledge(await owners.load("s"), ONE)
    await owners.load()  # The cursor is gone, and nothing says so in the log.
    assert not is_held(await owners.load("s"))


@pytest.mark.parametrize("commits", [True, False])
async def test_a_subscription_that_cannot_be_deleted_keeps_what_transactions_hold(
    commits: bool,
) -> None:
    owners = Owners()
    topic = await owners.load("s")
    subscription = topic.subscriptions["s"]
    await acknowledge(topic, ONE)
    cursor = subscription.cursor
    assert isinstance(cursor, Saved)
    cursor.deletion_error = CursorUnavailableError("the metadata store is away")
    with pytest.raises(BrokerPersistenceError, match="metadata store is away"):
        await topic.subscriptions.delete(subscription, is_forced=False)
    assert is_held(topic)
    await end(topic, ONE, commits=commits)
    assert not is_held(topic)
    assert cursor.is_acked(FIRST) is commits


async def test_a_subscription_that_is_being_deleted_takes_no_acknowledgements() -> None:
    owners = Owners()
    topic = await owners.load("s")
    subscription = topic.subscriptions["s"]
    await acknowledge(topic, ONE)
    owners.beside.is_immediate = False
    deletion = asyncio.ensure_future(topic.subscriptions.delete(subscription, is_forced=False))
    await settle()
    assert len(owners.beside.waiting) == 1
    owners.log.store(message(None))
    with pytest.raises(ServiceNotReadyError, match="is being deleted"):
        await acknowledge(topic, OTHER, Position(7, 1))
    await end(topic, ONE, commits=True)  # There is nothing left to end.
    owners.beside.confirm()
    await deletion
    assert transactions_of(topic).acks.pending == {}
