"""What a command adds to a transaction is bounded, and takes no long turn of the event loop."""

import asyncio
from collections.abc import Sequence

import pytest

from magnetar.broker.features.transactions.coordinators import Coordinators
from magnetar.broker.features.transactions.ids import TransactionId
from magnetar.broker.protocol.login import Login
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness


class Joined:
    """A coordinator that notes what joins."""

    def __init__(self) -> None:
        self.topics: list[str] = []
        self.subscriptions: list[tuple[str, str]] = []

    def owner_of(self, _txn: TransactionId) -> str:
        return ""

    async def join(
        self,
        _txn: TransactionId,
        topics: Sequence[str] = (),
        subscriptions: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.topics += topics
        self.subscriptions += subscriptions


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Joined:
    joined = Joined()

    async def get(_self: Coordinators, _number: int) -> Joined:
        return joined

    monkeypatch.setattr(Coordinators, "get", get)
    return joined


def add_topics(client: Client, names: Sequence[str]) -> None:
    command = pb.CommandAddPartitionToTxn(request_id=3, partitions=names)
    client.send(BaseCommand.ADD_PARTITION_TO_TXN, addPartitionToTxn=command)


def add_subscriptions(client: Client, names: Sequence[str]) -> None:
    several = [pb.Subscription(topic=name, subscription="s") for name in names]
    command = pb.CommandAddSubscriptionToTxn(request_id=3, subscription=several)
    client.send(BaseCommand.ADD_SUBSCRIPTION_TO_TXN, addSubscriptionToTxn=command)


async def test_more_than_a_transaction_may_have_is_refused_unread(joined: Joined) -> None:
    client = Harness(transaction_participants_max=2).client()
    bad = "://"  # which a look at the names would refuse
    add_topics(client, [bad] * 3)
    topics = (await client.next()).addPartitionToTxnResponse
    add_subscriptions(client, [bad] * 3)
    subscriptions = (await client.next()).addSubscriptionToTxnResponse
    assert topics.error == subscriptions.error == pb.ServerError.NotAllowedError
    add_topics(client, ["a", "b"])
    assert not (await client.next()).addPartitionToTxnResponse.HasField("error")
    assert joined.topics == ["a", "b"]


async def test_many_names_are_checked_in_several_turns(
    monkeypatch: pytest.MonkeyPatch, joined: Joined
) -> None:
    checks = 0

    async def check(_self: Login, *_: object) -> None:
        nonlocal checks
        checks += 1

    monkeypatch.setattr(Login, "check", check)
    client = Harness().client()
    names = [f"topic-{number}" for number in range(1000)]
    for add in (add_topics, add_subscriptions):
        checks = before = 0
        add(client, names)
        while before < len(names):
            await asyncio.sleep(0)
            assert checks - before <= 100
            before = checks
        await client.next()
    assert joined.topics == names
    assert joined.subscriptions == [(name, "s") for name in names]
