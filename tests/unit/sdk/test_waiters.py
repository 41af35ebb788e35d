"""Calls of a consumer that wait for messages: woken in turn, and forgotten when they give up."""

import asyncio

from magnetar.sdk.consumer import Waiters
from tests.waiting import settle


async def gives_up(call: "asyncio.Task[None]") -> None:
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


async def test_calls_that_give_up_are_forgotten() -> None:
    waiters = Waiters()
    for _ in range(3):
        calls = [asyncio.create_task(waiters.wait()) for _ in range(5)]
        await settle()
        for call in calls[::2] + calls[1::2]:
            await gives_up(call)
        assert not waiters


async def test_a_call_that_gives_up_leaves_the_others_in_their_turns() -> None:
    waiters = Waiters()
    first, second, third = (asyncio.create_task(waiters.wait()) for _ in range(3))
    await settle()
    await gives_up(second)
    waiters.wake()
    await settle()
    assert first.done()
    assert not third.done()
    waiters.wake()
    await third


async def test_a_call_that_gives_up_when_it_was_woken_wakes_the_next() -> None:
    waiters = Waiters()
    first, second = (asyncio.create_task(waiters.wait()) for _ in range(2))
    await settle()
    waiters.wake()
    await gives_up(first)
    await second


async def test_a_call_that_is_woken_when_it_gave_up_leaves_it_to_the_next() -> None:
    waiters = Waiters()
    first, second = (asyncio.create_task(waiters.wait()) for _ in range(2))
    await settle()
    first.cancel()
    waiters.wake()
    await second
    assert first.cancelled()
    assert not waiters
