"""Loading topics once, for all requests that wait, and ahead of their use."""

import asyncio
from typing import Any, cast

import pytest

from magnetar.broker.base.errors import NotAllowedError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.ownership import SoleOwner
from magnetar.broker.policies.model import Policies
from magnetar.broker.policies.registry import PolicyRegistry
from magnetar.broker.topic import Topic
from magnetar.broker.topics.loading import TopicLoader
from magnetar.broker.topics.table import TopicTable
from magnetar.ledger.system import SystemClock
from magnetar.sdk.wire import TopicName, parse_topic_name
from tests.unit.broker.memory_log import HeldTenure, MemoryLog
from tests.unit.broker.memory_parts import MemoryPolicies
from tests.unit.broker.topic.alone import Alone
from tests.waiting import settle

TOPIC = parse_topic_name("persistent://public/default/topic")
_LOOKS_MAX = 1_000
"""More looks than a test needs."""


class BoundedTable(TopicTable):
    """A loop that never yields holds up every time limit, so too many looks fail."""

    looks = 0

    def usable(self, name: TopicName) -> Topic | None:
        self.looks += 1
        assert self.looks <= _LOOKS_MAX, "a request looks for the same topic again and again"
        return super().usable(name)


class Opener:
    """Opens a topic in memory when the test says so, or fails."""

    def __init__(self) -> None:
        self.opened = 0
        self.caught_up = 0
        self.error: Exception | None = None
        self.may_open: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(
        self, _name: TopicName, _tenure: HeldTenure, _policies: Policies, *, must_exist: bool
    ) -> tuple[Topic, MemoryLog]:
        self.opened += 1
        await self.may_open
        if self.error is not None:
            raise self.error
        world = Alone()
        return world.topic, world.log

    async def catch_up(self, _topic: Topic, _log: MemoryLog) -> None:
        self.caught_up += 1


class Free:
    """No topic is being deleted, and every topic may be created."""

    def held(self, _name: TopicName) -> None:
        return None

    async def check(self, _name: TopicName, *, may_create: bool) -> bool:
        return not may_create


class Scene:
    def __init__(self) -> None:
        settings = BrokerSettings()
        self.table, self.opener = BoundedTable(), Opener()
        self.loader = TopicLoader(
            settings,
            self.table,
            cast(Any, self.opener),
            cast(Any, Free()),
            cast(Any, Free()),
            cast(PolicyRegistry, MemoryPolicies(settings)),
            SoleOwner(lambda: ""),
            clock=SystemClock(),
        )

    def get(self) -> asyncio.Task[Topic]:
        return asyncio.create_task(self.loader.get(TOPIC, may_create=True))

    def open_ahead(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.loader.open_ahead(TOPIC))


async def test_requests_that_come_while_a_topic_is_loaded_get_the_same_one() -> None:
    scene = Scene()
    first, second = scene.get(), scene.get()
    await settle()
    scene.opener.may_open.set_result(None)
    assert await first is await second
    assert (scene.opener.opened, scene.loader.loads) == (1, 1)
    assert not scene.table.loading


async def test_a_request_that_is_cancelled_does_not_end_the_load_for_others() -> None:
    scene = Scene()
    cancelled, other = scene.get(), scene.get()
    await settle()
    cancelled.cancel()
    await settle()
    scene.opener.may_open.set_result(None)
    assert (await other).name == TOPIC
    assert cancelled.cancelled()


async def test_a_failed_load_fails_every_request_that_waits_and_the_next_one_loads_again() -> None:
    scene = Scene()
    waiting = [scene.get(), scene.get()]
    await settle()
    scene.opener.error = NotAllowedError("a partitioned topic has the name")
    scene.opener.may_open.set_result(None)
    for each in waiting:
        with pytest.raises(NotAllowedError, match="a partitioned topic"):
            await each
    assert (scene.opener.opened, scene.loader.failed_loads) == (1, 1)
    scene.opener.error = None
    assert (await scene.get()).name == TOPIC


async def test_a_request_brings_forward_a_topic_that_was_opened_ahead() -> None:
    scene = Scene()
    ahead = scene.open_ahead()
    scene.opener.may_open.set_result(None)
    await ahead
    assert scene.table.usable(TOPIC) is None
    assert (await scene.get()).name == TOPIC
    assert (scene.opener.opened, scene.opener.caught_up) == (1, 1)


@pytest.mark.parametrize("turns", range(4))
async def test_a_request_gets_a_topic_whose_load_ahead_ends_in_the_same_turn(turns: int) -> None:
    """Such a request meets a load that is done, but not forgotten yet."""
    scene = Scene()
    ahead = scene.open_ahead()
    await settle()
    scene.opener.may_open.set_result(None)
    await settle(turns)
    request = scene.get()
    assert (await request).name == TOPIC
    await ahead
    assert (scene.opener.opened, scene.opener.caught_up) == (1, 1)
    assert scene.table.usable(TOPIC) is await request
