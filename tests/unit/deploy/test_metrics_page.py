"""docs/metrics.md lists every metric of a bookie, and none that is gone."""

from magnetar.bookie.metrics import BookieMetrics
from magnetar.ledger.metric_fields import metrics_in
from tests.metrics_page import PAGE, table, table_on


def test_the_page_lists_what_is_exported() -> None:
    assert table_on(PAGE.read_text()) == table(), "run python -m tests.metrics_page"


def test_names_end_in_their_unit_and_leave_total_to_the_export() -> None:
    for each in metrics_in(BookieMetrics()):
        assert not each.name.endswith(("_total", "_ms", "_seconds", "_mb")), each.name
        assert each.declared.text.endswith("."), each.name
