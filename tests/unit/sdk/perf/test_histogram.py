"""Latencies in buckets."""

import random

import pytest

from magnetar.sdk.perf.result import LatencyHistogram


def test_small_values_are_exact() -> None:
    histogram = LatencyHistogram()
    for value in range(1, 1001):
        histogram.record(value)
    assert histogram.quantile_us(0.5) == 500
    assert histogram.quantile_us(0.99) == 990
    assert histogram.quantile_us(1.0) == 1000
    assert histogram.summary_ms() == {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}


def test_large_values_are_off_by_a_thousandth_at_most() -> None:
    numbers = random.Random(0)
    values = sorted(numbers.randrange(1, 1 << 35) for _ in range(2_000))
    histogram = LatencyHistogram()
    for value in values:
        histogram.record(value)
    for quantile in (0.1, 0.5, 0.9, 0.99, 0.999):
        exact = values[round(quantile * len(values)) - 1]
        assert exact <= histogram.quantile_us(quantile) <= exact * 1.001


def test_counts_and_sums_of_two_are_one() -> None:
    one, other = LatencyHistogram(), LatencyHistogram()
    one.record(10, 99)
    other.record(5_000)
    one.merge(other)
    assert (one.count, one.max_us) == (100, 5_000)
    assert (one.quantile_us(0.99), one.quantile_us(1.0)) == (10, 5_000)


@pytest.mark.parametrize("value", [-5, 1 << 50])
def test_values_out_of_range_count_at_the_edge(value: int) -> None:
    histogram = LatencyHistogram()
    histogram.record(value)
    assert histogram.count == 1
    assert 0 <= histogram.max_us < 1 << 40


def test_nothing_recorded_is_zero() -> None:
    assert LatencyHistogram().quantile_us(0.5) == 0
