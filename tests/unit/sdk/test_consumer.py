"""Calls that wait for messages: woken in turn, and forgotten when they give up."""

import asyncio

import pytest

from magnetar.sdk.consumer import Waiters
from tests.waiting import settle


@pytest.mark.parametrize("is_woken_first", [True, False])
async def test_a_call_that_gives_up_is_forgotten(is_woken_first: bool) -> None:
    waiters = Waiters()
    calls = [asyncio.create_task(waiters.wait()) for _ in range(3)]
    await settle()
    if is_woken_first:
        waiters.wake()
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert not waiters


async def test_a_wake_up_that_meets_a_call_giving_up_is_for_the_next_in_line() -> None:
    waiters = Waiters()
    first, second, third = (asyncio.create_task(waiters.wait()) for _ in range(3))
    await settle()
    waiters.wake()
    first.cancel()
    await second
    assert not third.done()
    waiters.wake_all()
    await third
    assert not waiters
