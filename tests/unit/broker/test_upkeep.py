"""The broker's ticker: every topic once per interval, spread out, and nobody held up by another."""

import asyncio
from collections.abc import Coroutine
from typing import cast

import pytest

from magnetar.broker.topic import Topic
from magnetar.broker.topics.upkeep import Upkeep
from magnetar.ledger.errors import MetadataUnavailableError
from tests.unit.broker.memory_log import HeldTenure
from tests.waiting import settle


class _Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def boot_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return int(self.now_s * 1000)


class _Topic:
    """As much of a topic as the ticker looks at."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_closed = False
        self.is_draining = False
        self.tenure = HeldTenure()

    @property
    def is_leaving(self) -> bool:
        return self.is_closed or self.is_draining


class _World:
    def __init__(self, topics: int) -> None:
        self.clock = _Clock()
        self.topics = [_Topic(str(each)) for each in range(topics)]
        self.upkeep = Upkeep(self.clock, lambda: cast(list[Topic], list(self.topics)))
        self.seen: list[str] = []

    def look(self, topic: Topic) -> None:
        self.seen.append(str(topic.name))

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.upkeep.tick()
            self.clock.now_s += 1


def test_each_topic_is_looked_at_once_per_interval_and_not_all_at_once() -> None:
    world = _World(100)
    world.upkeep.register("look", 10, world.look)
    world.upkeep.tick()
    assert len(world.seen) == 10
    world.clock.now_s += 1
    world.pass_time(9)
    assert sorted(world.seen, key=int) == [str(each) for each in range(100)]
    world.pass_time(10)
    assert len(world.seen) == 200


def test_a_single_topic_is_not_kept_waiting_for_the_end_of_the_interval() -> None:
    world = _World(1)
    world.upkeep.register("look", 300, world.look)
    world.upkeep.tick()
    assert world.seen == ["0"]
    world.pass_time(300)
    assert len(world.seen) == 1
    world.pass_time(1)
    assert len(world.seen) == 2


def test_topics_that_are_closed_or_no_longer_ours_are_left_alone() -> None:
    world = _World(3)
    world.topics[0].is_closed = True
    world.topics[1].tenure.is_held = False
    world.upkeep.register("look", 1, world.look)
    world.upkeep.tick()
    assert world.seen == ["2"]


def test_a_job_without_an_interval_never_runs() -> None:
    world = _World(1)
    world.upkeep.register("look", 0, world.look)
    world.pass_time(5)
    assert world.seen == []


async def test_slow_work_is_not_begun_twice_and_holds_up_no_other_topic_or_job() -> None:
    world = _World(2)
    gate = asyncio.Event()
    began: list[str] = []

    def look(topic: Topic) -> Coroutine[object, object, None]:
        async def work() -> None:
            began.append(str(topic.name))
            await gate.wait()

        return work()

    world.upkeep.register("slow", 1, look)
    world.upkeep.register("other", 1, world.look)
    for _ in range(3):
        world.upkeep.tick()
        await settle()
        world.clock.now_s += 1
    assert began == ["0", "1"]
    assert len(world.seen) == 6
    gate.set()
    await settle()
    world.upkeep.tick()
    await settle()
    assert began == ["0", "1", "0", "1"]


async def test_no_more_than_a_few_works_of_a_job_run_at_a_time() -> None:
    world = _World(100)
    gate = asyncio.Event()
    running = 0
    most = 0

    def look(topic: Topic) -> Coroutine[object, object, None]:
        async def work() -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await gate.wait()
            running -= 1
            world.seen.append(str(topic.name))

        return work()

    world.upkeep.register("slow", 1, look)
    world.upkeep.tick()
    await settle()
    assert most == 16
    gate.set()
    for _ in range(10):
        await settle()
        world.clock.now_s += 0.01
        world.upkeep.tick()
    assert len(world.seen) == 100
    assert most == 16


@pytest.mark.parametrize("error", [MetadataUnavailableError("away"), RuntimeError("a bug")])
async def test_a_work_that_fails_is_counted_and_tried_again(error: Exception) -> None:
    world = _World(1)

    async def work() -> None:
        raise error

    world.upkeep.register("fails", 1, lambda _: work())
    for _ in range(2):
        world.upkeep.tick()
        await settle()
        world.clock.now_s += 1
    assert world.upkeep.failures == 2


async def test_stopping_breaks_off_what_is_under_way() -> None:
    world = _World(1)
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    world.upkeep.register("hangs", 1, lambda _: work())
    world.upkeep.start()
    await settle()
    await world.upkeep.stop()
    assert ended == ["ended"]


def test_a_job_that_would_begin_nothing_now_is_not_named() -> None:
    world = _World(0)
    is_busy = True
    world.upkeep.register("one", 1, world.look)
    world.upkeep.register("other", 1, world.look, is_busy=lambda: is_busy)
    assert world.upkeep.jobs == ["one"]
    is_busy = False
    assert world.upkeep.jobs == ["one", "other"]
