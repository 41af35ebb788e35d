"""What goes wrong in the drill itself ends it, and is not taken for a good result."""

import asyncio

import pytest

from tests.chaos.scalable.drill import beside


class _BrokenError(Exception):
    pass


async def _for_ever(ended: list[str], name: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(name)


async def _breaks() -> None:
    raise _BrokenError


async def test_a_task_of_the_drill_that_fails_ends_the_drill_at_once() -> None:
    ended: list[str] = []
    with pytest.raises(ExceptionGroup) as caught:
        await beside(_for_ever(ended, "scenes"), _for_ever(ended, "other"), _breaks())
    assert caught.group_contains(_BrokenError, depth=1)
    assert sorted(ended) == ["other", "scenes"]


async def test_a_task_that_fails_while_it_is_cancelled_fails_the_drill() -> None:
    started = asyncio.Event()

    async def fails_at_its_end() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            raise _BrokenError

    async def scenes() -> None:
        await started.wait()

    with pytest.raises(ExceptionGroup):
        await beside(scenes(), fails_at_its_end())


async def test_tasks_that_go_on_are_cancelled_when_all_scenes_are_over() -> None:
    ended: list[str] = []

    async def scenes() -> None:
        await asyncio.sleep(0)

    await beside(scenes(), _for_ever(ended, "other"))
    assert ended == ["other"]
