"""Looking again goes on, whatever a look meets, and says what that was."""

import asyncio
import logging
import random

import pytest

from magnetar.sdk.errors import BrokerUnavailableError
from magnetar.sdk.following import Follower

HOUR_S = 3600.0


class Looks:
    """Fails as often as there are errors, then tells that it looked."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.done = asyncio.Event()
        self.count = 0

    async def look(self) -> None:
        self.count += 1
        if self.errors:
            raise self.errors.pop(0)
        self.done.set()


def follower(looks: Looks, *, interval_s: float = HOUR_S) -> Follower:
    return Follower(
        looks.look,
        interval_s=interval_s,
        pause_min_s=0.001,
        random=random.Random(1),
        name="topics of p.*",
    )


@pytest.mark.parametrize(
    ("error", "level"),
    [(KeyError("no such topic"), logging.WARNING), (BrokerUnavailableError("gone"), logging.INFO)],
)
async def test_a_look_that_fails_is_told_and_done_again(
    error: Exception, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "magnetar.sdk")
    looks = Looks(error, error, error)
    following = follower(looks)
    following.start()
    following.look_soon()
    async with asyncio.timeout(60):
        await looks.done.wait()
    await following.close()
    assert looks.count == 4
    told = [record for record in caplog.records if "look_failed" in record.getMessage()]
    assert len(told) == 3
    assert all("topics of p.*" in record.getMessage() for record in told)
    assert all(str(error) in record.getMessage() for record in told)
    assert {record.levelno for record in told} == {level}


async def test_it_looks_from_time_to_time_without_news() -> None:
    looks = Looks()
    following = follower(looks, interval_s=0.001)
    following.start()
    async with asyncio.timeout(60):
        await looks.done.wait()
    await following.close()


async def test_pauses_grow_no_longer_than_the_time_between_two_looks() -> None:
    looks = Looks(*(OSError(f"{at}") for at in range(12)))
    following = follower(looks, interval_s=0.002)
    following.start()
    async with asyncio.timeout(60):
        await looks.done.wait()
    await following.close()
    assert looks.count == 13


async def test_news_end_a_pause() -> None:
    """Pauses would grow to more than the test's own patience here."""
    looks = Looks(*(OSError(f"{at}") for at in range(20)))

    async def with_news() -> None:
        if looks.errors:
            following.look_soon()
        await looks.look()

    following = Follower(
        with_news, interval_s=HOUR_S, pause_min_s=0.001, random=random.Random(1), name="t"
    )
    following.start()
    following.look_soon()
    async with asyncio.timeout(60):
        await looks.done.wait()
    await following.close()
