"""The topic as a host: its parts, and the features that it asks and tells in order."""

import asyncio

import pytest

from magnetar.broker.base.errors import BrokerPersistenceError, NotAllowedError
from magnetar.broker.policies.model import (
    BacklogQuota,
    DelayedDelivery,
    DispatchRate,
    Policies,
    PublishRate,
    QuotaType,
    SubscribeRate,
)
from magnetar.broker.topic import Feature, PublishBatch, PublishRows
from magnetar.ledger.errors import LedgerError, LogClosedError, LogUnavailableError
from magnetar.sdk.wire import BaseCommand
from tests.unit.broker.memory_log import MemoryLog
from tests.unit.broker.topic.alone import Alone, MemoryPeer, publish
from tests.waiting import settle


async def test_a_topic_has_at_most_twenty_parts() -> None:
    assert len(vars(Alone().topic)) <= 20


_RATE = DispatchRate(messages=1, bytes=1)
_ALL_LIMITS = Policies(
    message_ttl_s=1,
    subscription_expiration_minutes=1,
    backlog_quotas={QuotaType.SIZE: BacklogQuota(bytes=1), QuotaType.AGE: BacklogQuota(seconds=1)},
    publish_rate=PublishRate(messages=1, bytes=1),
    dispatch_rate=DispatchRate(messages=1, bytes=1, relative=True),
    subscription_dispatch_rate=_RATE,
    subscription_dispatch_rates={"s": _RATE},
    subscribe_rate=SubscribeRate(per_consumer=1),
    max_producers=1,
    max_consumers=1,
    max_consumers_per_subscription=1,
    max_subscriptions=1,
    max_unacked_per_consumer=1,
    max_unacked_per_subscription=1,
    max_message_bytes=1,
    delayed_delivery=DelayedDelivery(active=True, max_delay_ms=1),
    compaction_threshold_bytes=1,
    encryption_required=True,
)


async def test_a_topic_is_made_under_policies_that_limit_it_from_the_beginning() -> None:
    world = Alone(policies=_ALL_LIMITS)
    assert world.topic.policies == _ALL_LIMITS
    assert world.topic.line.rate.is_limited
    subscription, _ = await world.subscribe(MemoryPeer(), permits=1)
    assert len(world.topic.dispatch_rates.limiters_of(subscription.name)) == 2


class _Noting(Feature):
    """Puts something into every row."""

    def __init__(self, name: str, happened: list[str]) -> None:
        self.name = name
        self.happened = happened

    def rows(self) -> PublishRows:
        return PublishRows(gates=(self,), on_handed=(self.handed,), listeners=(self,))

    def accept(self, batch: PublishBatch) -> list[PublishBatch] | None:
        self.happened.append(f"{self.name} accepts {batch.sequence_ids}")
        return None

    def handed(self, batch: PublishBatch) -> None:
        self.happened.append(f"{self.name} hands over {batch.sequence_ids}")

    def stored(self, batch: PublishBatch, ledger_id: int, first_entry_id: int) -> None:
        self.happened.append(f"{self.name} stores {batch.sequence_ids}")

    def failed(self, batch: PublishBatch, error: LedgerError) -> None:
        self.happened.append(f"{self.name} fails {batch.sequence_ids}")


class _Splitting(_Noting):
    """Takes the first message of a batch for a duplicate."""

    def accept(self, batch: PublishBatch) -> list[PublishBatch] | None:
        super().accept(batch)
        if len(batch.payloads) == 1:
            return None
        parts = [batch.part(0, 1), batch.part(1, len(batch.payloads))]
        parts[0].is_duplicate = True
        return parts


async def test_features_are_asked_and_told_in_the_order_in_which_they_are_hosted() -> None:
    happened: list[str] = []
    world = Alone(_Noting("one", happened), _Noting("two", happened))
    producer = await world.produce(MemoryPeer())
    publish(producer, 0)
    await settle()
    world.log.is_immediate = False
    publish(producer, 1)
    world.log.fail(LogUnavailableError("the bookies are away"))
    assert happened == [
        "one accepts [0]",
        "two accepts [0]",
        "one hands over [0]",
        "two hands over [0]",
        "one stores [0]",
        "two stores [0]",
        "one accepts [1]",
        "two accepts [1]",
        "one hands over [1]",
        "two hands over [1]",
        "one fails [1]",
        "two fails [1]",
    ]


async def test_what_a_gate_takes_apart_goes_on_through_the_gates_behind_it() -> None:
    happened: list[str] = []
    world, peer = Alone(_Splitting("one", happened), _Noting("two", happened)), MemoryPeer()
    publish(await world.produce(peer), 0, 1, 2)
    await settle()
    assert happened == [
        "one accepts [0, 1, 2]",
        "two accepts [1, 2]",
        "one hands over [1, 2]",
        "two hands over [1, 2]",
        "one stores [1, 2]",
        "two stores [1, 2]",
    ]
    assert [each.send_receipt.sequence_id for each in peer.commands()] == [0, 1, 2]
    assert [len(each.payloads) for each in peer.done] == [1, 2]


async def test_a_topic_without_features_has_empty_rows() -> None:
    line = Alone().topic.line
    assert (line.checks, line.gates) == ((), ())
    with pytest.raises(NotAllowedError, match="does not support transactions"):
        line.takes_transactions()


class _Owner(Feature):
    reserved_as = "the log of something else"


async def test_a_topic_whose_log_is_a_features_own_lets_no_clients_in() -> None:
    topic = Alone(Feature(), _Owner()).topic
    assert topic.is_reserved
    with pytest.raises(NotAllowedError, match="topic is the log of something else"):
        topic.check_open_to_clients()
    assert not Alone(Feature()).topic.is_reserved


async def test_what_is_published_while_the_line_is_held_is_stored_in_order_after_that() -> None:
    world, peer = Alone(), MemoryPeer()
    producer = await world.produce(peer)
    publish(producer, 0)
    world.topic.line.hold()
    publish(producer, 1, 2)
    publish(producer, 3)
    await settle()
    assert _receipts(peer) == [0]
    world.topic.line.release()
    publish(producer, 4)
    await settle()
    assert _receipts(peer) == [1, 2, 3, 4]
    assert len(peer.done) == 4


def _receipts(peer: MemoryPeer) -> list[int]:
    kind = BaseCommand.SEND_RECEIPT
    return [each.send_receipt.sequence_id for each in peer.commands() if each.type == kind]


async def test_what_a_line_holds_when_its_topic_closes_is_never_stored() -> None:
    """The client sends it again, to the next owner."""
    world, peer = Alone(), MemoryPeer()
    producer = await world.produce(peer)
    world.topic.line.hold()
    publish(producer, 0)
    draining = asyncio.create_task(world.topic.drain(timeout_s=0.0))
    await draining
    world.topic.disconnect_all()
    world.topic.line.release()
    await settle()
    assert (_receipts(peer), world.log.entries) == ([], MemoryLog().entries)
    assert [isinstance(each.error, LogClosedError) for each in peer.done] == [True]
    assert peer.closed == [producer]


class _Keeping(Feature):
    """Cannot drop what it keeps of a deleted subscription."""

    def __init__(self) -> None:
        self.may_fail = asyncio.Event()

    async def deleted(self, subscription: str) -> None:
        await self.may_fail.wait()
        raise BrokerPersistenceError(f"what is kept of {subscription} cannot be dropped now")


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_reader_whose_deletion_fails_stays_as_long_as_its_consumer(is_lost: bool) -> None:
    feature = _Keeping()
    world = Alone(feature)
    subscription, consumer = await world.subscribe(MemoryPeer())
    subscriptions = world.topic.subscriptions
    deletion = asyncio.create_task(
        subscriptions.unsubscribe(subscription, consumer, is_forced=False)
    )
    await settle()
    if is_lost:
        subscriptions.left(subscription, consumer)
    feature.may_fail.set()
    with pytest.raises(BrokerPersistenceError):
        await deletion
    assert list(subscriptions) == ([] if is_lost else ["s"])
