"""Subscriptions that go are freed when they go, and not at a full collection minutes later."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator

import pytest

from magnetar.broker.topic.subscription import Subscription
from magnetar.sdk.client import Client
from magnetar.sdk.settings import ConsumerSettings, SubscriptionType
from magnetar.testing import Broker
from tests.http_calls import ask
from tests.waiting import until

NAME = "persistent://public/default/steady"
PATH = "/admin/v2/persistent/public/default/steady/subscription/"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Client]:
    async with Client(broker.service_url) as opened:
        await (await opened.producer(NAME)).send(b"one")
        yield opened


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def subscriptions() -> int:
    return sum(type(each) is Subscription for each in gc.get_objects())


@pytest.mark.parametrize("kind", list(SubscriptionType))
async def test_a_subscription_that_had_a_consumer_is_freed(
    broker: Broker, client: Client, kind: SubscriptionType
) -> None:
    before = subscriptions()
    consumer = await client.consumer(NAME, "s", ConsumerSettings(subscription_type=kind))
    await client.producer(NAME)
    assert subscriptions() == before + 1
    await consumer.unsubscribe()
    del consumer
    await until(lambda: subscriptions() == before, "it is freed")


async def test_a_subscription_made_and_deleted_over_http_is_freed(
    broker: Broker, client: Client
) -> None:
    before = subscriptions()
    port = int(broker.admin_url.rpartition(":")[2])
    for method in ("PUT", "DELETE"):
        assert (await ask(port, method, f"{PATH}h", b"")).is_ok
    await asyncio.sleep(0)
    await until(lambda: subscriptions() == before, "it is freed")


async def test_a_reader_that_goes_leaves_nothing(broker: Broker, client: Client) -> None:
    before = subscriptions()
    async with Client(broker.service_url) as other:
        reader = await other.reader(NAME)
        await reader.has_message_available()
    await until(lambda: subscriptions() == before, "it is freed")
