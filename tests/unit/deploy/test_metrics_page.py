"""docs/metrics.md lists every metric that is declared, and none that is gone."""

import pytest

from magnetar.ledger.metric_fields import metrics_in
from tests.metrics_page import HOLDERS, PAGE, TABLES, table, table_on


@pytest.mark.parametrize("name", TABLES)
def test_the_page_lists_what_is_exported(name: str) -> None:
    assert table_on(PAGE.read_text(), name) == table(name), "run python -m tests.metrics_page"


@pytest.mark.parametrize("name", HOLDERS)
def test_names_end_in_their_unit_and_leave_total_to_the_export(name: str) -> None:
    for each in metrics_in(HOLDERS[name][1]()):
        assert not each.name.endswith(("_total", "_ms", "_seconds", "_mb")), each.name
        assert each.declared.text.endswith("."), each.name
