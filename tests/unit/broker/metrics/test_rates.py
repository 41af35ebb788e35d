"""Rates are the growth of counters over time, whatever comes, goes and begins again."""

import asyncio

from magnetar.broker.http.metrics.sampler import Rates, Sampler
from magnetar.broker.topic import Topic
from magnetar.broker.topic.tail_cache import TailCachePool
from magnetar.broker.topics.services import Counters
from magnetar.ledger.system import SystemClock


def _round(rates: Rates[str], elapsed_s: float, **counters: tuple[float, ...]) -> None:
    rates.begin(elapsed_s)
    for key, values in counters.items():
        rates.add(key, values)
    rates.finish()


def test_a_rate_is_the_growth_over_the_time_between_two_rounds() -> None:
    rates: Rates[str] = Rates(2)
    _round(rates, 0.0, a=(10, 1000))
    assert rates.of("a") == (0, 0), "nobody knows how long it took to get there"
    _round(rates, 5.0, a=(20, 1000))
    assert rates.of("a") == (2, 0)
    _round(rates, 5.0, a=(20, 1000))
    assert rates.of("a") == (0, 0)


def test_what_is_new_or_begins_again_counts_from_zero() -> None:
    rates: Rates[str] = Rates(1)
    _round(rates, 0.0, a=(10,))
    _round(rates, 2.0, a=(4,), b=(6,))
    assert rates.of("a") == (2,)
    assert rates.of("b") == (3,)


def test_what_is_gone_or_only_zeros_is_not_remembered() -> None:
    rates: Rates[str] = Rates(1)
    _round(rates, 0.0, a=(10,), b=(0,))
    _round(rates, 1.0, b=(0,))
    assert rates._before == {}
    assert rates.of("a") == (0,)
    _round(rates, 1.0, a=(11,))
    assert rates.of("a") == (11,)


async def test_an_unexpected_error_does_not_end_the_samples() -> None:
    samples: asyncio.Queue[None] = asyncio.Queue()

    def topics() -> list[Topic]:
        samples.put_nowait(None)
        raise KeyError("a defect")

    sampler = Sampler(
        topics,
        TailCachePool(0),
        Counters(),
        clock=SystemClock(),
        interval_s=0.0,
        with_consumers=False,
    )
    sampler.start()
    async with asyncio.timeout(10.0):
        for _ in range(3):
            await samples.get()
    await sampler.stop()
