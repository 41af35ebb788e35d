"""What `Client.producer` and its like give."""

import asyncio
from types import TracebackType
from typing import Self

import pytest

from magnetar.sdk import opening
from magnetar.sdk.opening import DONE, Opening, warned


class Made:
    def __init__(self) -> None:
        self.left_with: list[type[BaseException] | None] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.left_with.append(kind)


async def make(made: Made) -> Made:
    await asyncio.sleep(0)
    return made


async def test_it_can_be_awaited() -> None:
    made = Made()
    assert await Opening(make(made)) is made
    async with await Opening(make(made)) as entered:
        assert entered is made
    assert made.left_with == [None]


async def test_it_can_be_entered_and_closes_what_was_made() -> None:
    made = Made()
    async with Opening(make(made)) as entered:
        assert entered is made
    with pytest.raises(ValueError, match="inside"):
        async with Opening(make(made)):
            raise ValueError("inside")
    assert made.left_with == [None, ValueError]


async def test_it_is_a_coroutine_to_tasks() -> None:
    made = Made()
    assert await asyncio.create_task(Opening(make(made))) is made
    (gathered,) = await asyncio.gather(Opening(make(made)))
    assert gathered is made
    async with asyncio.TaskGroup() as group:
        task = group.create_task(Opening(make(made)))
    assert task.result() is made


async def test_a_task_of_it_can_be_cancelled() -> None:
    async def never() -> Made:
        await asyncio.Event().wait()
        return Made()

    task = asyncio.create_task(Opening(never()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_work_that_takes_long_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "WARNING_AFTER_S", 0.0)
    heard = asyncio.Event()
    warnings: list[str] = []

    def warn() -> None:
        warnings.append("long")
        heard.set()

    async def work() -> str:
        await heard.wait()
        return "done"

    assert await warned(work, warn) == "done"
    assert warnings == ["long"]


async def test_work_that_is_done_is_not_warned_of() -> None:
    async def work() -> None: ...

    await warned(work, lambda: pytest.fail("nothing took long"))


async def test_what_is_done_may_be_awaited_and_may_be_left_alone() -> None:
    for _ in range(2):
        await DONE
    await asyncio.gather(asyncio.ensure_future(DONE))
