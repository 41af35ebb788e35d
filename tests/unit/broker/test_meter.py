"""Rates of the last minute, from counters."""

import pytest

from magnetar.broker.base.meter import Meter
from tests.unit.broker.harness import Harness
from tests.waiting import settle


def test_before_the_first_sample_a_rate_is_zero_or_counts_from_the_start() -> None:
    assert Meter().per_s(5_000, 10, 20) == (0.0, 0.0)
    assert Meter(0, 0, since_ms=3_000).per_s(5_000, 10, 20) == (5.0, 10.0)


def test_a_rate_counts_from_the_sample_before_the_last_one() -> None:
    meter = Meter()
    meter.sample(0, 100)
    assert meter.per_s(10_000, 150) == (5.0,)
    meter.sample(30_000, 200)
    assert meter.per_s(50_000, 300) == (4.0,)  # since the first sample
    meter.sample(60_000, 200)
    assert meter.per_s(60_000, 200) == (0.0,)


def test_two_questions_at_once_are_no_division_by_zero() -> None:
    meter = Meter()
    meter.sample(1_000, 1)
    assert meter.per_s(1_000, 1) == (0.0,)


def test_a_wall_clock_that_was_set_back_makes_no_rate_of_millions() -> None:
    meter = Meter()
    meter.sample(3_600_000, 100)
    assert meter.per_s(30_000, 3_100) == (0.0,)
    meter.sample(60_000, 6_100)
    meter.sample(120_000, 12_100)
    assert meter.per_s(120_000, 12_100) == (100.0,)


async def test_a_topic_its_producers_and_consumers_are_sampled() -> None:
    harness = Harness()
    client = harness.client()
    await client.produce()
    await client.subscribe()
    topic = harness.topic
    now_ms = topic.clock.wall_ms()
    topic.sample(now_ms)
    topic.sample(now_ms)
    client.flow(10)
    client.publish(0, 1, 2, 3)
    await settle()
    (producer,) = topic.producers.values()
    (consumer,) = topic.subscriptions["s"].consumers
    assert topic.line.rates(now_ms + 2_000)[0] == pytest.approx(2)
    assert producer.rates(now_ms + 2_000)[0] == pytest.approx(2)
    assert consumer.rates(now_ms + 2_000)[0] == pytest.approx(2)
