"""What a topic remembers of transactions for its subscriptions goes with them."""

import asyncio
from typing import Any, cast

import pytest

from magnetar.broker.base.errors import NotAllowedError, ServiceNotReadyError
from magnetar.broker.features.transactions.acknowledging import TransactionalAcks
from magnetar.broker.features.transactions.ids import TransactionId
from magnetar.broker.features.transactions.pending_acks import Ack, PendingAckState, weight_of
from magnetar.broker.features.transactions.topic_transactions import TopicTransactions
from magnetar.broker.topic import Topic
from magnetar.broker.topic.consumer import Consumer
from magnetar.broker.topic.dispatch.exclusive import ExclusiveDispatcher
from magnetar.broker.topic.subscription import CursorView, HeldBack, Subscription
from magnetar.cursors import NonDurableCursor
from magnetar.ledger.position import EARLIEST, Position
from tests.unit.broker.harness import entry
from tests.unit.broker.memory_log import MemoryLog
from tests.waiting import settle

SUBSCRIPTIONS = 100


class Rewinding(ExclusiveDispatcher):
    """A dispatcher with a consumer that counts how often it goes back."""

    def __init__(self) -> None:
        self.consumers = [cast(Consumer, None)]
        self.rewinds = 0

    def rewind(self) -> None:
        self.rewinds += 1


class OpenSubscription:
    """An open subscription without consumers."""

    def __init__(self, name: str, *, is_durable: bool) -> None:
        self.name = name
        self.is_durable = is_durable
        self.is_open = True
        self.is_closed = False
        self.dispatcher: Rewinding | None = None
        self.pending_acks: HeldBack | None = None
        log = MemoryLog()
        log.store(*(entry() for _ in range(10)))
        self.cursor = NonDurableCursor(log, name, initial=EARLIEST)

    def hold_back(self, held: HeldBack, _view: CursorView) -> None:
        self.pending_acks = held

    def wake(self) -> None:
        pass


class Place:
    """A topic with transactions, and the log beside it."""

    name = "persistent://public/default/topic"
    is_closed = False
    is_owned = True
    is_slow = False
    """What is written to the log is not answered."""

    def __init__(self) -> None:
        self.subscriptions: dict[str, OpenSubscription] = {}
        self.tenure = self
        self.log = self
        self.records: list[dict[str, Any]] = []
        self.done: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        self.acks = TransactionalAcks(
            cast(Topic, self), cast(TopicTransactions, self), pending_acks_max=10
        )

    def holds(self) -> bool:
        return self.is_owned

    async def enable(self) -> None:
        pass

    def append(self, record: dict[str, Any]) -> "Place":
        self.records.append(record)
        self.done = asyncio.get_running_loop().create_future()
        if not self.is_slow:
            self.done.set_result(Position(1, len(self.records)))
        return self

    async def end_on(self, name: str, number: int) -> None:
        await self.acks.end(name, TransactionId(0, number), commits=True, low_watermark=-1)


async def test_subscriptions_that_come_and_go_leave_nothing_behind() -> None:
    place = Place()
    for number in range(SUBSCRIPTIONS):
        name = f"s-{number}"
        place.subscriptions[name] = OpenSubscription(name, is_durable=True)
        await place.end_on(name, number)
        await place.acks.drop(name)
        del place.subscriptions[name]
    assert len(place.acks.pending) == 0
    assert place.acks.ending_count == 0


async def test_readers_are_told_of_no_end_for_they_hold_nothing_back() -> None:
    place = Place()
    for number in range(SUBSCRIPTIONS):
        name = f"reader-{number}"
        place.subscriptions[name] = OpenSubscription(name, is_durable=False)
        await place.end_on(name, number)
        del place.subscriptions[name]
    assert len(place.acks.pending) == 0
    assert place.acks.ending_count == 0
    assert place.records == []


async def test_ends_on_one_subscription_at_the_same_time_are_noted_once() -> None:
    place = Place()
    place.subscriptions["s"] = OpenSubscription("s", is_durable=True)
    await asyncio.gather(*(place.end_on("s", 1) for _ in range(5)))
    assert [each["kind"] for each in place.records] == ["acks_end"]


async def test_who_has_lost_the_topic_says_nothing_of_subscriptions() -> None:
    """One that he does not know may be there, made by the next owner."""
    place = Place()
    place.is_owned = False
    with pytest.raises(ServiceNotReadyError):
        await place.end_on("unknown", 1)


async def test_an_abort_of_what_held_nothing_sends_nothing_again() -> None:
    place = Place()
    subscription = place.subscriptions["s"] = OpenSubscription("s", is_durable=True)
    dispatcher = subscription.dispatcher = Rewinding()
    await place.acks.end("s", TransactionId(0, 1), commits=False, low_watermark=-1)
    assert dispatcher.rewinds == 0
    pending = place.acks.pending["s"]
    pending.add(TransactionId(0, 2), [Ack(Position(7, 3))])
    await place.acks.end("s", TransactionId(0, 2), commits=False, low_watermark=-1)
    assert dispatcher.rewinds == 1


async def test_an_end_whose_coordinator_went_away_meanwhile_is_made_when_it_is_told_again() -> None:
    """Kill -9 of a coordinator ends its connection, and with it what it had asked for."""
    place, txn = Place(), TransactionId(0, 1)
    place.subscriptions["s"] = OpenSubscription("s", is_durable=True)
    pending = place.acks.pending.setdefault("s", PendingAckState())
    pending.add(txn, [Ack(Position(7, 3))])
    place.is_slow = True
    told = asyncio.ensure_future(place.acks.end("s", txn, commits=False, low_watermark=-1))
    await settle()
    assert len(place.records) == 1
    told.cancel()
    await asyncio.gather(told, return_exceptions=True)
    place.done.set_result(Position(1, 1))
    place.is_slow = False
    await place.acks.end("s", txn, commits=False, low_watermark=-1)
    assert not pending.holds(Position(7, 3))
    assert pending.transactions == {}


def test_long_ack_sets_count_towards_the_limit_as_what_they_cost() -> None:
    pending, txn = PendingAckState(), TransactionId(0, 1)
    long = Ack(Position(7, 3), (1,) * 128)
    assert weight_of([long]) == 3
    pending.add(txn, [long, Ack(Position(7, 4)), Ack(Position(7, 5), (1,))])
    assert pending.weight == 3 + 2
    pending.add(txn, [Ack(Position(7, 3), (0,) * 128), Ack(Position(7, 5))])
    assert pending.weight == 3 + 2
    pending.end(txn)
    assert pending.weight == 0


async def test_more_than_the_limit_is_refused() -> None:
    place, txn = Place(), TransactionId(0, 1)
    subscription = place.subscriptions["s"] = OpenSubscription("s", is_durable=True)

    async def hold(entry_id: int, words: int) -> None:
        ack = Ack(Position(7, entry_id), (1,) * words)
        await place.acks.acknowledge(
            cast(Subscription, subscription), cast(Consumer, None), txn, [ack], None
        )

    await hold(0, 64 * 8)
    await hold(1, 0)
    with pytest.raises(NotAllowedError, match="has 10 acknowledgements in transactions"):
        await hold(2, 0)
