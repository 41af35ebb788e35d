"""Calls that are made together go to the worker together, and each gets its own answer."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pytest

from magnetar.bookie.engine.read_lanes import CallBatches
from tests.ledger_storage import turn_loop

T = TypeVar("T")


class CountingWorker:
    """Runs what it is given at once, or when it is told to."""

    def __init__(self) -> None:
        self.submitted = 0
        self.held: list[Callable[[], None]] | None = None

    def submit(
        self, call: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        self.submitted += 1
        if self.held is None:
            done(call(), None)
        else:
            self.held.append(lambda: done(call(), None))

    async def run(self, call: Callable[[], T]) -> T:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing runs."""


async def test_calls_of_one_turn_travel_together_in_their_order() -> None:
    worker, batches = CountingWorker(), CallBatches(10)
    made: list[int] = []

    def call(number: int) -> int:
        made.append(number)
        return -number

    answers = await asyncio.gather(
        *[batches.run(worker, partial(call, number)) for number in range(25)]
    )
    assert answers == [-number for number in range(25)]
    assert made == list(range(25))
    assert worker.submitted == 3


async def test_an_error_concerns_its_own_call_only() -> None:
    worker, batches = CountingWorker(), CallBatches(10)

    def fail() -> int:
        raise ValueError("no")

    answers = await asyncio.gather(
        batches.run(worker, lambda: 1),
        batches.run(worker, fail),
        batches.run(worker, lambda: 3),
        return_exceptions=True,
    )
    assert answers[0] == 1
    assert isinstance(answers[1], ValueError)
    assert answers[2] == 3


async def test_who_is_cancelled_does_not_take_the_others_with_him() -> None:
    worker, batches = CountingWorker(), CallBatches(10)
    worker.held = []
    first = asyncio.create_task(batches.run(worker, lambda: 1))
    second = asyncio.create_task(batches.run(worker, lambda: 2))
    await turn_loop()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    worker.held[0]()
    assert await second == 2
    assert worker.submitted == 1
