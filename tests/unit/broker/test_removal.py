"""Requests to delete one topic: how they meet each other."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from magnetar.broker.base.errors import BrokerMetadataError, ConflictError, TopicNotFoundError
from magnetar.broker.policies.records import Check
from magnetar.broker.topic import Topic
from magnetar.broker.topics.deletion import TopicDeletion
from magnetar.broker.topics.removal import TopicRemoval
from magnetar.broker.topics.table import TopicTable
from magnetar.sdk.wire import TopicName, parse_topic_name
from tests.unit.broker.memory_log import HeldTenure
from tests.waiting import settle

TOPIC = parse_topic_name("persistent://public/default/topic")


class Owner:
    """Owns every topic."""

    async def acquire(self, topic: TopicName, *, timeout_s: float) -> HeldTenure:
        return HeldTenure()


class Stored:
    """The stored data of one topic, whose deletion ends when the test says so."""

    def __init__(self) -> None:
        self.marks = 0
        self.error: Exception | None = None
        self.may_end = asyncio.Event()
        self.forget: object = None

    async def check_unused(self, name: TopicName) -> None: ...

    async def mark(self, name: TopicName, check: Check | None) -> None:
        if check is not None:
            await check()
        self.marks += 1

    async def finish(self, name: TopicName, may_own: Callable[[], bool]) -> None:
        await self.may_end.wait()
        error, self.error = self.error, None
        if error is not None:
            raise error


class Ends:
    def __init__(self) -> None:
        self.dropped: list[TopicName] = []

    def drop(self, names: Sequence[TopicName], reason: str, *, is_ours: bool = False) -> None:
        self.dropped += names


async def _no(_: TopicName) -> bool:
    return False


class Scene:
    def __init__(self) -> None:
        self.stored, self.ends, self.table = Stored(), Ends(), TopicTable()
        self.removal = TopicRemoval(
            self.table,
            cast(Any, self.ends),
            cast(TopicDeletion, self.stored),
            cast(Any, None),
            cast(Any, Owner()),
            is_scalable=_no,
            acquire_timeout_s=1.0,
        )

    def delete(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.removal.delete(TOPIC, is_forced=True))


async def test_a_request_that_waited_for_another_deletion_deletes_nothing_more() -> None:
    """A client may have created the topic anew in between."""
    scene = Scene()
    first = scene.delete()
    await settle()
    second = scene.delete()
    await settle()
    scene.stored.may_end.set()
    await first
    with pytest.raises(TopicNotFoundError, match="by another request"):
        await second
    assert scene.stored.marks == 1


async def test_a_request_that_waited_for_a_deletion_that_failed_completes_it() -> None:
    scene = Scene()
    scene.stored.error = BrokerMetadataError("the metadata store is away")
    first = scene.delete()
    await settle()
    second = scene.delete()
    await settle()
    scene.stored.may_end.set()
    with pytest.raises(BrokerMetadataError):
        await first
    await second
    assert scene.stored.marks == 2


async def test_clients_of_a_topic_that_is_not_to_be_deleted_any_more_stay_connected() -> None:
    scene = Scene()
    scene.table.served[TOPIC] = cast(Topic, None)

    async def still() -> None:
        raise ConflictError("it was created anew")

    with pytest.raises(ConflictError):
        await scene.removal.delete(TOPIC, is_forced=True, still=still)
    assert (scene.ends.dropped, scene.stored.marks) == ([], 0)
    assert scene.removal.held(TOPIC) is None
