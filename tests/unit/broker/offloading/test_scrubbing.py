"""When a broker scrubs the objects of a topic: one topic at a time, and again after a failure."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from magnetar.broker.base.settings.objects import ObjectSettings
from magnetar.broker.features.offloading import OffloadSurroundings, Scrubbing
from magnetar.broker.topic import TopicPort
from magnetar.ledger.errors import ObjectStoreUnavailableError
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.offloading.log_offload import LogOffload
from magnetar.ledger.offloading.log_scrub import LogScrub
from magnetar.ledger.offloading.object_scrubber import ObjectScrubber
from magnetar.ledger.offloading.offloader import Offloader
from magnetar.ledger.offloading.scrub_plan import Verdict
from tests.unit.ledger.offloading.scrubbed_log import HandClock, ScrubbedLog

DAY_S = 24 * 60 * 60
AWAY = ObjectStoreUnavailableError("503")


class World:
    """A broker whose topics have logs with one object each."""

    def __init__(self, root: Path) -> None:
        self.clock = HandClock()
        self.clock.now_s = 2.0 * DAY_S
        self.log = ScrubbedLog(root)
        self.scrubber = ObjectScrubber(self.log, bytes_per_s_max=0, clock=self.clock)
        self.topic = SimpleNamespace(name="t", is_leaving=False)

    def scrubbing(self, *, days: float = 1) -> Scrubbing:
        settings = ObjectSettings(object_scrub_days=days, offload_retry_s=1, offload_retry_s_max=3)
        around = OffloadSurroundings(cast(Offloader, None), self.scrubber, {}, settings, self.clock)
        log = cast(ManagedLog, self.log)
        return Scrubbing(cast(TopicPort, self.topic), log, around, cast(LogOffload, self))

    @property
    def verdicts(self) -> tuple[int, int]:
        return self.scrubber.counts.whole, self.scrubber.counts.unreachable


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def look(scrubbing: Scrubbing) -> None:
    assert scrubbing.look() is None
    await scrubbing.stopped()


async def test_objects_are_read_when_they_are_due_and_what_is_lost_is_shown(world: World) -> None:
    ledger = await world.log.add(1)
    scrubbing = world.scrubbing()
    await look(scrubbing)
    await look(scrubbing)
    assert world.verdicts == (1, 0)
    world.log.rot(ledger, 500)
    world.clock.now_s += DAY_S
    await look(scrubbing)
    assert scrubbing.findings[1].verdict is Verdict.DAMAGED
    assert world.scrubber.lost == {"/log": 1}
    scrubbing.close()
    assert world.scrubber.lost == {}


async def test_nothing_is_read_without_a_period_or_a_store_or_while_the_topic_leaves(
    world: World,
) -> None:
    await world.log.add(1)
    await look(world.scrubbing(days=0))
    none = Scrubbing(cast(TopicPort, world.topic), cast(ManagedLog, world.log), None, None)
    await look(none)
    assert none.findings == {}
    world.topic.is_leaving = True
    await look(world.scrubbing())
    assert world.verdicts == (0, 0)


async def test_one_topic_at_a_time_is_scrubbed_also_after_one_was_closed_at_once(
    world: World,
) -> None:
    await world.log.add(1)
    first, second = world.scrubbing(), world.scrubbing()
    assert first.look() is None
    assert world.scrubber.is_busy
    await look(second)
    assert not second.is_working
    first.close()  # its task has not run at all
    await first.stopped()
    assert second.is_working
    await second.stopped()
    await asyncio.sleep(0)
    assert not world.scrubber.is_busy
    assert world.verdicts == (1, 0)


async def test_where_reading_takes_longer_than_the_period_every_topic_has_its_turn(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[str] = []

    async def run(scrub: LogScrub) -> None:
        turns.append(names[scrub])
        await asyncio.sleep(0)

    monkeypatch.setattr(LogScrub, "run", run)
    monkeypatch.setattr(LogScrub, "is_due", True)
    topics = [world.scrubbing() for _ in range(3)]
    names = {each._scrub: name for each, name in zip(topics, "abc", strict=True)}
    while len(turns) < 9:
        for each in topics:
            assert each.look() is None
        await asyncio.sleep(0)
    assert turns[:9] == [*"abcabcabc"]
    topics[1].close()
    count = len(turns)
    while len(turns) < count + 6:
        topics[0].look()
        topics[2].look()
        await asyncio.sleep(0)
    assert "b" not in turns[count + 1 :]
    for each in topics:
        each.close()
        await each.stopped()


async def test_what_cannot_be_reached_is_tried_again_after_a_pause_that_doubles(
    world: World,
) -> None:
    world.log.fail(await world.log.add(1), *[AWAY] * 4)
    scrubbing = world.scrubbing()
    for number, pause_s in enumerate((1, 2, 3, 3), start=1):
        await look(scrubbing)
        assert world.verdicts == (0, number)
        world.clock.now_s += pause_s - 0.5
        await look(scrubbing)
        assert world.verdicts == (0, number)
        world.clock.now_s += 0.5
    await look(scrubbing)
    assert world.verdicts == (1, 4)
