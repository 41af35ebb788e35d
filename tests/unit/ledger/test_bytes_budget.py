"""The budget of copies: bytes go to who waited first, also when somebody gives up."""

import asyncio

import pytest

from magnetar.ledger.autorecovery.copier import BytesBudget


async def test_who_gives_up_right_before_its_turn_takes_nothing_and_breaks_nothing() -> None:
    budget = BytesBudget(10)
    await budget.take(10)
    waiting = asyncio.ensure_future(budget.take(5))
    await asyncio.sleep(0)
    waiting.cancel()
    budget.give_back(10)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(1):
        await budget.take(10)


async def test_who_gives_up_while_it_waits_makes_way() -> None:
    budget = BytesBudget(10)
    await budget.take(10)
    first, second = (asyncio.ensure_future(budget.take(size)) for size in (10, 4))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    budget.give_back(4)
    async with asyncio.timeout(1):
        await second
