from dataclasses import dataclass

from magnetar.bookie.metrics import BookieMetrics
from magnetar.ledger.metric_fields import (
    Histogram,
    Kind,
    counter,
    counter_s,
    gauge_by,
    group,
    histogram,
    metrics_in,
)


@dataclass(slots=True)
class PartMetrics:
    rounds: int = counter("Rounds.")
    busy_s: float = counter_s("Time at work.")


@dataclass(slots=True)
class Sample:
    part: PartMetrics = group(PartMetrics)
    usage: dict[str, float] = gauge_by("directory", "Share in use.")
    took_s: Histogram = histogram("Time.", (0.1, 1.0))
    not_a_metric: int = 7


def test_a_histogram_counts_into_the_bucket_whose_bound_is_not_below_the_value() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 3.0):
        histogram.observe(value)
    histogram.observe(0.2, times=2)
    assert histogram.counts == [2, 3, 1]
    assert histogram.count == 6
    assert abs(histogram.total - 4.05) < 1e-9


def test_failures_are_counted_by_status() -> None:
    metrics = BookieMetrics()
    for status in ("FENCED", "FENCED", "IO_ERROR"):
        metrics.count_failure(status)
    assert metrics.failures == {"FENCED": 2, "IO_ERROR": 1}


def test_fields_say_what_they_are_and_groups_come_before_the_names_in_them() -> None:
    sample = Sample()
    sample.part.rounds += 3
    sample.usage["/data"] = 0.5
    found = {each.name: each for each in metrics_in(sample)}
    assert list(found) == ["part_rounds", "part_busy_s", "usage", "took_s"]
    assert found["part_rounds"].value == 3
    assert found["part_rounds"].declared.kind is Kind.COUNTER
    assert found["usage"].declared.label == "directory"
    assert found["took_s"].value is sample.took_s
    assert sample.took_s.bounds == (0.1, 1.0)


def test_two_bookies_count_for_themselves() -> None:
    one, other = BookieMetrics(), BookieMetrics()
    one.count_failure("FENCED")
    one.journal_commit_s.observe(1.0)
    assert not other.failures
    assert not other.journal_commit_s.count


def test_the_names_of_all_metrics_differ() -> None:
    names = [each.name for each in metrics_in(BookieMetrics())]
    assert len(names) == len(set(names))
