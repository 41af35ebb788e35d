"""Pages are Prometheus' text format: its own parser reads them."""

from prometheus_client.parser import text_string_to_metric_families

from magnetar.broker.http.metrics.text import (
    LINES_AT_ONCE,
    Named,
    Table,
    counter,
    gauge,
    histogram,
    labels_of,
    portions,
)
from magnetar.ledger.metric_fields import Kind


def test_samples_of_a_metric_are_together_with_its_kind_and_text() -> None:
    table = Table((counter("a_total", "All a.", len), gauge("b", "Now\\b.\nMore.", len)))
    for topic in ("t1", "t2"):
        table.rows.append((labels_of({"topic": topic}), (1, 2.5)))
    first, second = text_string_to_metric_families("".join(portions(table)))
    assert (first.name, first.type, first.documentation) == ("a", "counter", "All a.")
    assert [sample.labels["topic"] for sample in first.samples] == ["t1", "t2"]
    assert (second.type, second.documentation) == ("gauge", "Now\\b.\nMore.")
    assert [sample.value for sample in second.samples] == [2.5, 2.5]


def test_any_text_can_be_a_label() -> None:
    text = 'a"b\\c\nd€'
    page = "".join(portions(Table([gauge("a", "A.", len)], [(labels_of({"name": text}), [1])])))
    (family,) = text_string_to_metric_families(page)
    assert family.samples[0].labels == {"name": text}


def test_a_row_may_lack_a_metric_and_a_metric_without_samples_is_left_out() -> None:
    table = Table(
        [gauge("a", "A.", len), gauge("b", "B.", len)], [("", (None, 1)), ('{x="1"}', (None, None))]
    )
    assert "".join(portions(table)) == "# HELP b B.\n# TYPE b gauge\nb 1.0\n"


def test_a_long_table_comes_in_portions_of_bounded_size() -> None:
    rows = [(labels_of({"n": str(number)}), (1.0,)) for number in range(LINES_AT_ONCE * 3)]
    parts = list(portions(Table([gauge("a", "A.", len)], [*rows])))
    assert len(parts) == 4
    assert max(part.count("\n") for part in parts) <= LINES_AT_ONCE
    (family,) = text_string_to_metric_families("".join(parts))
    assert len(family.samples) == len(rows)


def test_a_histogram_has_buckets_sum_and_count() -> None:
    metric = Named("h_seconds", Kind.HISTOGRAM, "How long.")
    page = histogram(metric, [("0.1", 1), ("+Inf", 3)], 4.5, labels_of({"cluster": "c"}))
    (family,) = text_string_to_metric_families(page)
    assert family.type == "histogram"
    assert {(s.name, s.labels.get("le"), s.value) for s in family.samples} == {
        ("h_seconds_bucket", "0.1", 1.0),
        ("h_seconds_bucket", "+Inf", 3.0),
        ("h_seconds_sum", None, 4.5),
        ("h_seconds_count", None, 3.0),
    }
    assert all(sample.labels["cluster"] == "c" for sample in family.samples)
