"""What the next owner of a topic knows of its transactions, whatever was on its way meanwhile."""

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from magnetar.broker.base.errors import BrokerPersistenceError, ServiceNotReadyError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features.retention import trimming
from magnetar.broker.features.transactions.buffer_state import BufferState
from magnetar.broker.features.transactions.errors import InvalidTransactionStatusError
from magnetar.broker.features.transactions.ids import TransactionId
from magnetar.broker.features.transactions.pending_acks import Ack
from magnetar.broker.features.transactions.topic_transactions import state_of, transactions_of
from magnetar.broker.topic import Topic
from magnetar.broker.topic.consumer import Consumer
from magnetar.broker.topic.dispatch.exclusive import ExclusiveDispatcher
from magnetar.broker.topic.subscription import Subscription
from magnetar.broker.topic.tail_cache import TailCache, TailCachePool
from magnetar.cursors import CursorUnavailableError, NonDurableCursor
from magnetar.ledger.errors import LogUnavailableError
from magnetar.ledger.position import EARLIEST, Position
from magnetar.sdk.wire import BaseCommand, MessageMetadata, encode_payload, parse_topic_name
from tests.unit.broker.harness import Client, Harness, consuming, entry, position_in, send_frame
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

    def publish(self, topic: Topic, *txns: TransactionId | None) -> None:
        """Store a message of each transaction, and have it noted."""
        for txn in txns:
            self.log.store(message(txn))
            if txn is not None:
                buffer_of(topic).on_entry(txn, self.log.last_confirmed)

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


def buffer_of(topic: Topic) -> BufferState:
    found = state_of(topic)
    assert found is not None
    return found


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


@pytest.mark.parametrize("commits", [True, False])
async def test_a_transaction_whose_marker_was_trimmed_hides_nothing_from_the_next_owner(
    commits: bool,
) -> None:
    """The last snapshot has the transaction open, as an owner without `before_trim` left it."""
    owners = Owners()
    topic = await owners.load()
    owners.publish(topic, ONE)
    await transactions_of(topic).write_snapshot()
    await transactions_of(topic).buffer.end(ONE, commits=commits, low_watermark=-1)
    owners.log.roll(8)
    owners.log.store(message(None))
    owners.log.trim()
    assert (await owners.load()).visibility.last == Position(8, 0)


async def test_an_open_transaction_hides_what_is_left_of_it_after_a_trim() -> None:
    """One has a message in the ledger that goes, and one behind it; the other has none left."""
    owners = Owners()
    topic = await owners.load()
    owners.publish(topic, ONE, OTHER)
    await transactions_of(topic).write_snapshot()
    owners.log.roll(8)
    owners.publish(topic, None, ONE, None)
    owners.log.trim()
    topic = await owners.load()
    assert topic.visibility.last == Position(8, 0)
    owners.publish(topic, OTHER)
    await transactions_of(topic).buffer.end(ONE, commits=False, low_watermark=-1)
    assert topic.visibility.last == Position(8, 2)
    assert Position(8, 1) in buffer_of(topic).aborted
    await transactions_of(topic).buffer.end(OTHER, commits=True, low_watermark=-1)
    assert topic.visibility.last == topic.log.last_confirmed


async def test_an_acknowledgement_is_held_though_its_transaction_has_no_message_left() -> None:
    owners = Owners()
    topic = await owners.load("s")
    owners.publish(topic, ONE)
    owners.log.roll(8)
    owners.publish(topic, None)
    await acknowledge(topic, ONE, Position(8, 0))
    await transactions_of(topic).write_snapshot()
    owners.log.trim()
    topic = await owners.load("s")
    assert is_held(topic, Position(8, 0))
    await end(topic, ONE, commits=True)
    assert topic.subscriptions["s"].cursor.is_acked(Position(8, 0))


async def test_what_ended_in_a_trimmed_ledger_is_known_to_the_next_owner() -> None:
    """A late message of such a transaction would otherwise hide all that follows it."""
    owners = Owners()
    topic = await owners.load()
    owners.publish(topic, ONE)
    await transactions_of(topic).buffer.end(ONE, commits=True, low_watermark=-1)
    owners.log.roll(8)
    owners.log.store(message(None))
    assert await trimming.trim(topic) == 1
    assert ONE in buffer_of(await owners.load()).ended


async def test_no_snapshot_is_written_for_a_trim_of_what_the_last_one_covers() -> None:
    owners = Owners()
    topic = await owners.load()
    owners.publish(topic, ONE)
    await transactions_of(topic).buffer.end(ONE, commits=True, low_watermark=-1)
    await transactions_of(topic).write_snapshot()
    before = owners.beside.last_confirmed
    owners.log.roll(8)
    owners.log.store(message(None))
    assert await trimming.trim(topic) == 1
    assert owners.beside.last_confirmed == before


async def test_ledgers_stay_while_the_ends_in_them_cannot_be_stored() -> None:
    owners = Owners()
    topic = await owners.load()
    owners.publish(topic, ONE)
    await transactions_of(topic).buffer.end(ONE, commits=True, low_watermark=-1)
    owners.log.roll(8)
    owners.log.store(message(None))
    owners.beside.is_immediate = False
    trim = asyncio.ensure_future(trimming.trim(topic))
    await settle()
    owners.beside.fail(LogUnavailableError("no bookies"))
    with pytest.raises(LogUnavailableError):
        await trim
    assert list(owners.log.entries) == [7, 8]


async def test_a_trim_waits_for_a_snapshot_that_is_being_written() -> None:
    owners = Owners()
    topic = await owners.load()
    owners.beside.is_immediate = False
    snapshot = asyncio.ensure_future(transactions_of(topic).write_snapshot())
    await settle()
    owners.publish(topic, ONE)
    await transactions_of(topic).buffer.end(ONE, commits=True, low_watermark=-1)
    owners.log.roll(8)
    owners.log.store(message(None))
    trim = asyncio.ensure_future(trimming.trim(topic))
    await settle()
    owners.beside.confirm()  # of a snapshot from before the end
    owners.beside.is_immediate = True
    await asyncio.gather(snapshot, trim)
    assert list(owners.log.entries) == [8]
    assert ONE in buffer_of(await owners.load()).ended


async def test_a_subscriber_gets_what_a_snapshot_a_trim_and_a_reload_leave() -> None:
    harness = Harness(transaction_snapshot_entries=1)
    harness.topics.has_transactions = True
    producer = harness.client()
    await producer.produce(producer_name="p", txn_enabled=True)
    ids: dict[str, Any] = {"txnid_most_bits": ONE.most, "txnid_least_bits": ONE.least}
    producer.send_bytes(send_frame(0, 0, payload=entry(b"in it", **ids), **ids))
    await producer.next(BaseCommand.SEND_RECEIPT)
    transactions = transactions_of(harness.topic)
    await maybe(transactions.look())
    assert transactions.log is not None
    assert len(await transactions.log.read()) == 1, "a snapshot, which has it open"
    await transactions.buffer.end(ONE, commits=True, low_watermark=-1)
    await harness.log.rotate()
    producer.publish(1)
    await producer.next(BaseCommand.SEND_RECEIPT)
    await maybe(trimming.look_at(harness.topic))
    assert harness.log.first_position() == Position(8, 0)
    harness.topics.unload()
    consumer = await consuming(harness)
    ((found, _),) = await consumer.messages(1)
    assert position_in(found) == Position(8, 0)


async def test_a_receipt_for_a_message_that_is_sent_again_says_that_it_is_stored() -> None:
    """Seven is damaged on its way, so its client sends it once more, behind eight."""
    harness, client = await publishing_in_transactions()
    client.send_bytes(in_transaction(7, is_damaged=True) + in_transaction(8))
    assert client.commands() == [BaseCommand.SEND_ERROR, BaseCommand.CLOSE_PRODUCER]
    await client.produce(producer_name="p", txn_enabled=True)
    client.send_bytes(in_transaction(7) + in_transaction(8))
    await settle()
    receipts = [command.send_receipt.sequence_id for command, _ in client.received()]
    assert receipts == [7, 8]
    assert [body[-6:] for body in harness.log.entries[7]] == [b"body-7", b"body-8"]


async def test_late_messages_of_an_ended_transaction_are_refused_and_close_nothing() -> None:
    harness, client = await publishing_in_transactions()
    await transactions_of(harness.topic).buffer.end(ONE, commits=False, low_watermark=-1)
    late = b"".join(in_transaction(each, is_damaged=each == 3) for each in range(20))
    client.send_bytes(late + send_frame(0, 20))
    await settle()
    assert client.commands() == [BaseCommand.SEND_ERROR] * 20 + [BaseCommand.SEND_RECEIPT]


async def test_a_refused_message_of_no_transaction_closes_nothing() -> None:
    _, client = await publishing_in_transactions()
    client.send_bytes(send_frame(0, 7, payload=entry(b"body")[:-1] + b"?") + in_transaction(8))
    await settle()
    assert client.commands() == [BaseCommand.SEND_ERROR, BaseCommand.SEND_RECEIPT]


async def test_a_refused_message_closes_its_producer_before_the_topic_has_a_transaction() -> None:
    """Else eight could be stored once another producer has had the topic prepared."""
    harness = Harness()
    harness.topics.has_transactions = True
    client = harness.client()
    await client.produce(producer_name="p")
    client.send_bytes(in_transaction(7, is_damaged=True))
    assert client.commands() == [BaseCommand.SEND_ERROR, BaseCommand.CLOSE_PRODUCER]


async def publishing_in_transactions() -> tuple[Harness, Client]:
    """A client with a producer of transactions."""
    harness = Harness()
    harness.topics.has_transactions = True
    client = harness.client()
    await client.produce(producer_name="p", txn_enabled=True)
    return harness, client


def in_transaction(sequence_id: int, *, is_damaged: bool = False) -> bytes:
    """A SEND of a message of transaction `ONE`."""
    ids: dict[str, Any] = {"txnid_most_bits": ONE.most, "txnid_least_bits": ONE.least}
    payload = entry(b"body-%d" % sequence_id, sequence_id=sequence_id, **ids)
    if is_damaged:
        payload = payload[:-1] + b"?"
    return send_frame(0, sequence_id, payload=payload, **ids)


async def maybe(work: Coroutine[object, object, None] | None) -> None:
    """Do what is due."""
    if work is not None:
        await work
