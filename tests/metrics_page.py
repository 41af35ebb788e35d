"""The tables of docs/metrics.md, from what the bookie's metrics say of themselves.

usage: python -m tests.metrics_page     # writes them into the page
"""

import re
from pathlib import Path

from magnetar.bookie.metrics import BookieMetrics
from magnetar.deploy.bookie_metrics import exported_name
from magnetar.ledger.metric_fields import Kind, Metric, metrics_in

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
_TABLE = re.compile(r"(?<=<!-- bookie metrics -->\n).*?(?=<!-- end -->\n)", re.DOTALL)


def table() -> str:
    """One line per metric, in the order of their declaration."""
    lines = ["| metric | kind | meaning |", "|---|---|---|"]
    lines += [_line(each) for each in metrics_in(BookieMetrics())]
    return "\n".join(lines) + "\n"


def table_on(page: str) -> str:
    """The table that the page has now."""
    found = _TABLE.search(page)
    assert found, f"{PAGE} has lost its markers"
    return found[0]


def _line(metric: Metric) -> str:
    declared = metric.declared
    name = exported_name(metric.name) + ("_total" if declared.kind is Kind.COUNTER else "")
    label = f" by `{declared.label}`" if declared.label else ""
    return f"| `{name}` | {declared.kind.value}{label} | {declared.text} |"


if __name__ == "__main__":
    text = PAGE.read_text()
    PAGE.write_text(_TABLE.sub(lambda _: table(), text))
