"""New durable subscriptions of a segment while it is being sealed."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.broker.base.errors import ServiceNotReadyError
from magnetar.broker.features.scalable import SegmentSealing
from magnetar.broker.topic.feature import TopicPort
from magnetar.ledger.position import Position
from tests.waiting import settle


class _Scene:
    def __init__(self, *, terminated: Position | None = None) -> None:
        self.is_sealed = False
        self.questions = 0
        topic: Any = SimpleNamespace(name="segment", log=SimpleNamespace(terminated=terminated))
        self.sealing = SegmentSealing(cast(TopicPort, topic), self._ask, is_part=True)

    async def _ask(self) -> bool:
        self.questions += 1
        return self.is_sealed

    async def place(self) -> None:
        async with self.sealing.placing():
            pass


async def test_subscriptions_of_an_active_segment_are_made_without_a_question() -> None:
    scene = _Scene()
    await scene.place()
    assert scene.questions == 0


@pytest.mark.parametrize("terminated", [None, Position(1, 5)])
async def test_from_the_seal_on_they_wait_until_the_record_has_it(
    terminated: Position | None,
) -> None:
    """Whether this broker seals the segment, or has taken over one that was sealed before."""
    scene = _Scene(terminated=terminated)
    if terminated is None:
        scene.sealing.begin()
    with pytest.raises(ServiceNotReadyError, match="being sealed"):
        await scene.place()
    scene.is_sealed = True
    await scene.place()
    await scene.place()
    assert scene.questions == 2


async def test_those_that_are_being_made_at_the_seal_are_waited_for() -> None:
    scene = _Scene()
    placing = scene.sealing.placing()
    await placing.__aenter__()
    scene.sealing.begin()
    waiting = asyncio.ensure_future(scene.sealing.wait_placed())
    await settle()
    assert not waiting.done()
    await placing.__aexit__(None, None, None)
    await waiting
