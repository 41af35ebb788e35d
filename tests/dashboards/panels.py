"""What a dashboard is made of: panels in rows, and shorthands for their queries."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph, or one number (`is_number`)."""

    title: str
    queries: Sequence[tuple[str, str]]
    """PromQL and the legend of its series."""
    unit: str = "short"
    """A unit of Grafana's: short, s, bytes, Bps, percentunit, ops ..."""
    text: str = ""
    """What it shows and when to worry, on the panel's (i)."""
    is_number: bool = False
    red_above: float | None = None
    red_below: float | None = None


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A page of panels in rows."""

    uid: str
    title: str
    rows: Sequence[tuple[str, Sequence[Panel]]]
    variables: Sequence[tuple[str, str]] = ()
    """Names and the queries of their values; each may be several or all."""


def by_bookie(expression: str) -> str:
    """A rate or gauge of the chosen bookies."""
    return expression.replace("{}", '{bookie=~"$bookie"}')


def by_broker(expression: str) -> str:
    """A rate or gauge of the chosen brokers."""
    return expression.replace("{}", '{instance=~"$broker"}')


def bookie_rate(title: str, metric: str, unit: str, text: str = "") -> Panel:
    return Panel(title, [(by_bookie(f"rate({metric}{{}}[5m])"), "{{bookie}}")], unit, text)


def bookie_p99(title: str, metric: str, text: str = "") -> Panel:
    return Panel(
        title, [(by_bookie(quantile(0.99, "bookie", metric)), "{{bookie}}")], "s", text=text
    )


def quantile(share: float, label: str, metric: str) -> str:
    """A quantile of a histogram over five minutes, by one label."""
    return f"histogram_quantile({share}, sum by ({label}, le) (rate({metric}_bucket{{}}[5m])))"
