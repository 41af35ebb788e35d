"""The gate between trimming and cursors that find their place: never both at once (rule 5.2)."""

import asyncio

from magnetar.broker.topic.trim_gate import TrimGate
from tests.waiting import settle


class _Gate:
    def __init__(self) -> None:
        self.gate = TrimGate()
        self.inside: list[str] = []
        self.release: dict[str, asyncio.Event] = {}
        self.tasks: list[asyncio.Task[None]] = []

    def enter(self, name: str) -> asyncio.Task[None]:
        """As a trimming if the name says so."""
        released = self.release[name] = asyncio.Event()

        async def go() -> None:
            side = self.gate.trimming() if name.startswith("trim") else self.gate.placing()
            async with side:
                self.inside.append(name)
                await released.wait()
                self.inside.remove(name)

        task = asyncio.get_running_loop().create_task(go())
        self.tasks.append(task)
        return task


async def test_those_who_place_cursors_go_through_together() -> None:
    at = _Gate()
    at.enter("a")
    at.enter("b")
    await settle()
    assert at.inside == ["a", "b"]


async def test_trimming_waits_until_nobody_places_a_cursor() -> None:
    at = _Gate()
    for name in ("a", "b", "trim"):
        at.enter(name)
    await settle()
    at.release["a"].set()
    await settle()
    assert at.inside == ["b"]
    at.release["b"].set()
    await settle()
    assert at.inside == ["trim"]


async def test_who_places_a_cursor_waits_for_the_end_of_a_trimming() -> None:
    at = _Gate()
    for name in ("trim-1", "a", "trim-2"):
        at.enter(name)
    await settle()
    assert at.inside == ["trim-1"]
    at.release["trim-1"].set()
    await settle()
    assert at.inside == ["a"]
    at.release["a"].set()
    await settle()
    assert at.inside == ["trim-2"]


async def test_one_that_gives_up_while_it_waits_leaves_nobody_locked_out() -> None:
    at = _Gate()
    at.enter("trim-1")
    await settle()
    gives_up = at.enter("a")
    at.enter("b")
    await settle()
    gives_up.cancel()
    at.release["trim-1"].set()
    await settle()
    assert at.inside == ["b"]
