"""Writes the tables of docs/metrics.md, from the declarations of the metrics.

usage: python -m tests.metrics_page     # writes them into the page
"""

import re
from pathlib import Path

from magnetar.bookie.metrics import BookieMetrics
from magnetar.broker.http.metrics.page import CATALOGUE
from magnetar.deploy.autorecovery_server import PREFIX as RECOVERY_PREFIX
from magnetar.deploy.bookie_metrics import PREFIX as BOOKIE_PREFIX
from magnetar.deploy.bookkeeper_names import OF_BOOKIE, OF_RECOVERY
from magnetar.deploy.declared_metrics import exported_name
from magnetar.ledger.autorecovery.metrics import AutoRecoveryMetrics
from magnetar.ledger.metric_fields import Kind, Metric, metrics_in

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
HOLDERS = {
    "bookie": (BOOKIE_PREFIX, BookieMetrics),
    "recovery": (RECOVERY_PREFIX, AutoRecoveryMetrics),
}
"""Metrics of each table of the page, by its name."""

TABLES = (*HOLDERS, *CATALOGUE, "bookkeeper")


def table(name: str) -> str:
    """Return a table: one line per metric, in the order of declaration."""
    lines = ["| metric | kind | meaning |", "|---|---|---|"]
    if name in CATALOGUE:
        lines += [f"| `{each.name}` | {each.kind} | {each.text} |" for each in CATALOGUE[name]]
    elif name in HOLDERS:
        prefix, holder = HOLDERS[name]
        lines += [_line(prefix, each) for each in metrics_in(holder())]
    else:
        named = [(name, text) for name, text, *_ in (*OF_BOOKIE, *OF_RECOVERY)]
        lines += [f"| `{name}` | untyped | {text} |" for name, text in named]
    return "\n".join(lines) + "\n"


def table_on(page: str, name: str) -> str:
    """Return the table that the page has now."""
    found = _place(name).search(page)
    assert found, f"{PAGE} has lost its markers"
    return found[0]


def _place(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- {name} metrics -->\n).*?(?=<!-- end -->\n)", re.DOTALL)


def _line(prefix: str, metric: Metric) -> str:
    declared = metric.declared
    name = exported_name(prefix, metric.name)
    name += "_total" if declared.kind is Kind.COUNTER else ""
    label = f" by `{declared.label}`" if declared.label else ""
    return f"| `{name}` | {declared.kind.value}{label} | {declared.text} |"


def _write() -> None:
    text = PAGE.read_text()
    for name in TABLES:
        made = table(name)
        text = _place(name).sub(lambda _, made=made: made, text, count=1)  # type: ignore[misc]
    PAGE.write_text(text)


if __name__ == "__main__":
    _write()
