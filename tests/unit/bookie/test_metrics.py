from magnetar.bookie.metrics import BookieMetrics, Histogram


def test_a_histogram_counts_up_to_and_including_each_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 3.0):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 1]
    assert (histogram.count, histogram.total) == (4, 6.0)


def test_failures_are_counted_by_status() -> None:
    metrics = BookieMetrics()
    for status in (2, 2, 8):
        metrics.count_failure(status)
    assert metrics.failures == {2: 2, 8: 1}
