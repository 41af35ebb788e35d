"""Bounds on the rate of dispatch, of a topic and of its subscriptions."""

import asyncio
from typing import Any

import pytest

from magnetar.broker.base.token_bucket import TokenBucket
from magnetar.broker.policies.model import DEFAULTS, DispatchRate
from magnetar.broker.topic.dispatch.reasons import Reason
from magnetar.broker.topic.dispatch.throttle import RateLimiter
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness, batch, entry
from tests.waiting import settle

_TYPES = pb.CommandSubscribe


class _Time:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_bucket_holds_one_period_and_fills_with_time() -> None:
    time = _Time()
    bucket = TokenBucket(time, per_period=10, period_s=2)
    assert bucket.available() == 10
    bucket.spend(10)
    assert bucket.available() == 0
    assert bucket.wait_s() == pytest.approx(0.2)
    time.now_s += 0.2
    assert bucket.available() == 1
    time.now_s += 60
    assert bucket.available() == 10


def test_a_debt_is_paid_first() -> None:
    time = _Time()
    bucket = TokenBucket(time, per_period=10, period_s=1)
    bucket.spend(25)
    assert bucket.available() == 0
    assert bucket.wait_s() == pytest.approx(1.6)


def test_messages_and_bytes_are_bounded_each() -> None:
    time = _Time()
    limiter = RateLimiter(time)
    assert not limiter.is_active
    limiter.set_rate(DispatchRate(messages=10, bytes=1000))
    assert limiter.room() == (10, 1000)
    limiter.spend(1, 1500)
    assert limiter.room() == (9, 0)
    assert limiter.wait_s() == pytest.approx(0.501)
    assert (limiter.message_stops, limiter.byte_stops) == (0, 1)


def test_the_same_rate_again_gives_no_tokens() -> None:
    limiter = RateLimiter(_Time())
    limiter.set_rate(DispatchRate(messages=10))
    limiter.spend(10, 0)
    limiter.set_rate(DispatchRate(messages=10))
    assert limiter.room()[0] == 0
    limiter.set_rate(DispatchRate())
    assert not limiter.is_active


def test_a_relative_rate_adds_what_the_topic_is_published_to() -> None:
    time, published = _Time(), [0, 0]
    limiter = RateLimiter(time, lambda: (published[0], published[1]))
    limiter.set_rate(DispatchRate(messages=10, bytes=1000, relative=True))
    assert limiter.room() == (10, 1000)
    limiter.spend(10, 1000)
    published[:] = [40, 4000]
    time.now_s += 0.5
    assert limiter.room() == (5, 500), "the rate of publishing is looked at once per second"
    limiter.spend(5, 500)
    time.now_s += 0.5
    assert limiter.room() == (5, 500)
    limiter.spend(5, 500)
    time.now_s += 0.5  # 40 messages in the second before, and 10 of its own
    assert limiter.room() == (25, 2500)
    limiter.spend(25, 2500)
    time.now_s += 0.5  # nothing was published meanwhile
    assert limiter.room() == (10, 1000)
    limiter.spend(10, 1000)
    time.now_s += 0.5
    assert limiter.room() == (5, 500)


async def _consume(harness: Harness, sub_type: Any, **fields: Any) -> Client:
    client = harness.client()
    answer = await client.subscribe(subType=sub_type, **fields)
    assert answer.type == BaseCommand.SUCCESS
    client.flow(1000)
    return client


async def _count(client: Client) -> int:
    await settle()
    return sum(command.type == BaseCommand.MESSAGE for command, _ in client.received())


def _use(harness: Harness, **policies: Any) -> None:
    harness.topic.apply_policies(_with(**policies))


def _with(**policies: Any) -> Any:
    return DEFAULTS.with_values(**policies)


def _hold_time(harness: Harness) -> _Time:
    """The clock of the topic's rates stands still until the test moves it."""
    time = _Time()
    rates = harness.topic.dispatch_rates
    rates._now_s = time
    rates.topic._now_s = time
    for limiter in rates._subscriptions.values():
        limiter._now_s = time
    return time


@pytest.mark.parametrize(
    "sub_type", [_TYPES.Exclusive, _TYPES.Shared, _TYPES.Failover, _TYPES.Key_Shared]
)
@pytest.mark.parametrize("policy", ["dispatch_rate", "subscription_dispatch_rate"])
async def test_every_type_of_subscription_keeps_to_the_rate(sub_type: Any, policy: str) -> None:
    harness = Harness(failover_delay_ms=0)
    client = await _consume(harness, sub_type)
    time = _hold_time(harness)
    _use(harness, **{policy: DispatchRate(messages=7, period_s=1)})
    harness.log.store(*(entry() for _ in range(30)))
    subscription = harness.topic.subscriptions["s"]
    subscription.wake()
    assert await _count(client) == 7
    assert subscription.why_idle() is Reason.RATE_LIMIT
    dispatcher = subscription.dispatcher
    assert dispatcher is not None
    limiter = dispatcher.context.limiters[policy != "dispatch_rate"]
    assert limiter.message_stops == 1
    time.now_s += 0.5
    dispatcher._on_rate_timer()
    assert await _count(client) == 3
    _use(harness)
    assert await _count(client) == 20


async def test_bytes_are_bounded_too_and_an_entry_goes_whole() -> None:
    harness = Harness()
    client = await _consume(harness, _TYPES.Exclusive)
    _hold_time(harness)
    size = len(entry(b"x" * 100))
    _use(harness, dispatch_rate=DispatchRate(bytes=2 * size + 1))
    harness.log.store(*(entry(b"x" * 100) for _ in range(10)))
    harness.topic.subscriptions["s"].wake()
    assert await _count(client) == 3


async def test_the_topics_rate_is_shared_by_its_subscriptions() -> None:
    harness = Harness()
    one = await _consume(harness, _TYPES.Exclusive)
    two = await _consume(harness, _TYPES.Exclusive, subscription="t")
    _hold_time(harness)
    _use(harness, dispatch_rate=DispatchRate(messages=10))
    harness.log.store(*(entry() for _ in range(30)))
    for subscription in harness.topic.subscriptions.values():
        subscription.wake()
    assert await _count(one) + await _count(two) == 10


async def test_a_wake_comes_by_itself_when_tokens_return() -> None:
    harness = Harness()
    client = await _consume(harness, _TYPES.Shared)
    _use(harness, dispatch_rate=DispatchRate(messages=50, period_s=1))
    harness.log.store(*(entry() for _ in range(60)))
    harness.topic.subscriptions["s"].wake()
    async with asyncio.timeout(5):
        await client.messages(60)


async def test_unacked_limits_follow_the_policies() -> None:
    harness = Harness()
    client = await _consume(harness, _TYPES.Shared)
    _use(harness, max_unacked_per_consumer=5)
    harness.log.store(*(entry() for _ in range(30)))
    harness.topic.subscriptions["s"].wake()
    assert await _count(client) == 5
    _use(harness, max_unacked_per_consumer=0, max_unacked_per_subscription=12)
    assert await _count(client) == 7
    assert harness.topic.subscriptions["s"].why_idle() is Reason.SUBSCRIPTION_UNACKED
    _use(harness, max_unacked_per_consumer=0, max_unacked_per_subscription=0)
    assert await _count(client) == 18


@pytest.mark.parametrize("sub_type", [_TYPES.Shared, _TYPES.Key_Shared])
async def test_batches_that_wait_for_the_rate_are_never_said_to_be_delivered(sub_type: Any) -> None:
    harness = Harness()
    await _consume(harness, sub_type)
    time = _hold_time(harness)
    _use(harness, dispatch_rate=DispatchRate(messages=20, period_s=1))
    harness.log.store(*(batch(5) for _ in range(12)))
    subscription = harness.topic.subscriptions["s"]
    subscription.wake()
    told = [subscription.why_idle()]
    dispatcher = subscription.dispatcher
    assert dispatcher is not None
    for _ in range(6):
        await asyncio.sleep(0)
        told.append(subscription.why_idle())
    time.now_s += 0.1
    dispatcher._on_rate_timer()
    for _ in range(6):
        told.append(subscription.why_idle())
        await asyncio.sleep(0)
    assert set(told) == {Reason.READING, Reason.RATE_LIMIT, None}
