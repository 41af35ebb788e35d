"""Sessions on several topics that are given up while they are opened."""

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.security.identity import NOBODY
from magnetar.broker.topic.publish_limits import PublishBudget
from magnetar.broker.websocket.access import Rights
from magnetar.broker.websocket.consuming import ConsumerSession, ReaderSession
from magnetar.broker.websocket.endpoint import (
    ConsumerParameters,
    ProducerParameters,
    ReaderParameters,
    parse_target,
)
from magnetar.broker.websocket.producing import ProducerSession
from magnetar.broker.websocket.session import Links, Session
from magnetar.ledger.system import SystemClock
from magnetar.sdk.consumer import Consumer
from magnetar.sdk.errors import SdkError
from magnetar.sdk.producer import Producer
from magnetar.sdk.wire import TopicName
from magnetar.sdk.wire.batches import BATCH_MESSAGES_MAX
from tests.unit.broker.harness import Harness
from tests.waiting import settle


class SlowLinks:
    """A topic of two partitions: the first is there at once, the second never is, or is refused."""

    def __init__(self, refusal: SdkError | None = None) -> None:
        self.refusal = refusal
        self.budget = PublishBudget(100)
        self.made, self.is_used = AsyncMock(), False

    def client_for(self, _: TopicName) -> "SlowLinks":
        return self

    async def topics_of(self, topic: TopicName) -> list[TopicName]:
        return [topic.partition(index) for index in range(2)]

    async def producer(self, topic: str, *_: Any, **__: Any) -> Any:
        return await self._make(topic, AsyncMock(spec=Producer))

    async def consumer(self, topic: str, *_: Any) -> Any:
        return await self._make(topic, AsyncMock(spec=Consumer))

    async def reader(self, topic: str, *_: Any) -> Any:
        consumer = await self._make(topic, AsyncMock(spec=Consumer))
        return SimpleNamespace(consumer=consumer)

    async def _make(self, topic: str, made: Any) -> Any:
        if topic.endswith("-partition-1"):
            if self.refusal is not None:
                raise self.refusal
            await asyncio.Event().wait()
        self.made, self.is_used = made, True
        return made


def _session(path: str, links: SlowLinks) -> Session:
    endpoint = parse_target(path)
    query, clock, shared = endpoint.query, SystemClock(), cast(Links, links)
    rights = Rights(NOBODY, Harness().services.authorizer, "client:1")
    settings = BrokerSettings()
    if "/consumer/" in path:
        consumer = ConsumerParameters.of(query, queue_max=10)
        return ConsumerSession(endpoint, consumer, rights, shared, settings, clock=clock)
    if "/reader/" in path:
        reader = ReaderParameters.of(query, queue_max=10)
        return ReaderSession(endpoint.topic, reader, rights, shared, settings, clock=clock)
    producer = ProducerParameters.of(query)
    return ProducerSession(
        endpoint.topic, producer, rights, shared, settings, clock=clock, first_partition=0
    )


PATHS = [
    "/ws/v2/producer/persistent/public/default/topic",
    "/ws/v2/reader/persistent/public/default/topic",
    "/ws/v2/consumer/persistent/public/default/topic/s",
]


@pytest.mark.parametrize("path", PATHS)
async def test_a_session_that_is_given_up_while_it_is_opened_keeps_nothing(path: str) -> None:
    links = SlowLinks()
    session = _session(path, links)
    opening = asyncio.ensure_future(cast(Awaitable[None], session.open()))
    await settle()
    opening.cancel()
    await settle()
    assert opening.cancelled()
    await session.close()
    links.made.close.assert_awaited_once()


@pytest.mark.parametrize("path", PATHS)
async def test_a_refused_session_that_is_given_up_keeps_nothing_at_any_step(path: str) -> None:
    for turns in range(20):
        links = SlowLinks(SdkError("refused"))
        session = _session(path, links)
        opening = asyncio.ensure_future(cast(Awaitable[None], session.open()))
        await settle(turns)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await session.close()
        if links.is_used:
            links.made.close.assert_awaited()


def test_a_producer_makes_no_batches_that_consumers_refuse() -> None:
    query = {"batchingEnabled": "true", "batchingMaxMessages": str(BATCH_MESSAGES_MAX + 1)}
    assert ProducerParameters.of(query).batch_messages_max == BATCH_MESSAGES_MAX
