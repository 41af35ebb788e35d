"""The histogram behind the publish latency."""

from magnetar.broker.base.latency import BOUNDS_S, LatencyHistogram


def test_buckets_hold_what_is_at_or_below_their_bound() -> None:
    histogram = LatencyHistogram()
    histogram.observe(0.001)
    histogram.observe(0.0011, times=3)
    histogram.observe(60.0)
    buckets = dict(histogram.cumulative())
    assert buckets["0.0005"] == 0
    assert buckets["0.001"] == 1
    assert buckets["0.002"] == 4
    assert buckets[str(BOUNDS_S[-1])] == 4
    assert buckets["+Inf"] == 5
    assert abs(histogram.total - 60.0043) < 1e-9
