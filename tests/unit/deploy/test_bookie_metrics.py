"""What Prometheus is told of bookies."""

from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest

from magnetar.bookie.metrics import BookieMetrics
from magnetar.deploy.bookie_metrics import BookieCollector
from magnetar.deploy.declared_metrics import LABEL_VALUES_MAX


@dataclass
class Measured:
    bookie_id: str
    metrics: BookieMetrics = field(default_factory=BookieMetrics)


def exported(*bookies: Measured) -> dict[str, float]:
    """Sample (name and labels) to value, as the text format spells them."""
    registry = CollectorRegistry()
    registry.register(BookieCollector(bookies))
    lines = generate_latest(registry).decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


def test_counters_gauges_and_histograms_carry_their_units_and_the_bookie() -> None:
    one, other = Measured("b1"), Measured("b2")
    one.metrics.add_bytes = 700
    one.metrics.journal_queue_bytes = 5
    one.metrics.journal_commit_s.observe(0.002)
    other.metrics.add_bytes = 1
    found = exported(one, other)
    assert found['magnetar_bookie_add_bytes_total{bookie="b1"}'] == 700
    assert found['magnetar_bookie_add_bytes_total{bookie="b2"}'] == 1
    assert found['magnetar_bookie_journal_queue_bytes{bookie="b1"}'] == 5
    commits = "magnetar_bookie_journal_commit_seconds"
    assert found[f'{commits}_bucket{{bookie="b1",le="0.001"}}'] == 0
    assert found[f'{commits}_bucket{{bookie="b1",le="0.0025"}}'] == 1
    assert found[f'{commits}_bucket{{bookie="b1",le="+Inf"}}'] == 1
    assert found[f'{commits}_sum{{bookie="b1"}}'] == 0.002


def test_numbers_by_label_are_series_of_one_metric() -> None:
    one = Measured("b1")
    one.metrics.count_failure("FENCED")
    one.metrics.count_failure("IO_ERROR")
    found = exported(one)
    assert found['magnetar_bookie_failures_total{bookie="b1",status="FENCED"}'] == 1
    assert found['magnetar_bookie_failures_total{bookie="b1",status="IO_ERROR"}'] == 1


def test_the_number_of_series_is_bounded_and_no_count_is_lost() -> None:
    one = Measured("b1")
    for number in range(LABEL_VALUES_MAX):
        one.metrics.count_failure(f"s{number}")
    assert sum("bookie_failures_total" in name for name in exported(one)) == LABEL_VALUES_MAX
    one.metrics.count_failure("one too many")
    found = {
        name: value for name, value in exported(one).items() if "bookie_failures_total" in name
    }
    assert len(found) == LABEL_VALUES_MAX
    assert found['magnetar_bookie_failures_total{bookie="b1",status="other"}'] == 2


def test_gauges_that_nobody_keeps_are_refreshed_before_they_are_read() -> None:
    one = Measured("b1")

    def refresh() -> None:
        one.metrics.connections = 9

    one.metrics.before_export.append(refresh)
    assert exported(one)['magnetar_bookie_connections{bookie="b1"}'] == 9
