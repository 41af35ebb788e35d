"""Each alert says what is wrong, asks for metrics that exist, and leads to what to do about it."""

import re
from typing import Any

import pytest

from tests.artifacts import (
    ALERT_TESTS,
    OPERATIONS,
    ZOOKEEPER_METRICS,
    alerts,
    metrics_in_query,
    metrics_on_the_page,
    read_yaml,
    seconds,
)

ALARMS = OPERATIONS / "alarms.md"
JOBS = {"magnetar-broker", "magnetar-bookie", "magnetar-autorecovery", "zookeeper"}


def sections() -> dict[str, str]:
    """The sections of the page about alerts, by their title."""
    parts = re.split(r"^### (\w+)\n", ALARMS.read_text(), flags=re.MULTILINE)[1:]
    texts = [text.split("\n## ")[0] for text in parts[1::2]]
    return dict(zip(parts[::2], texts, strict=True))


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: str(alert["alert"]))
def test_an_alert_says_what_and_how_bad_and_where_to_read_on(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in {"page", "ticket"}
    notes = alert["annotations"]
    assert notes["summary"].endswith(".")
    assert notes["description"].endswith(".")
    assert notes["runbook_url"] == f"docs/operations/alarms.md#{alert['alert'].lower()}"
    seconds(alert.get("for", "0m"))
    assert metrics_in_query(alert["expr"]) <= metrics_on_the_page() | ZOOKEEPER_METRICS
    assert set(re.findall(r'job="([\w-]+)"', alert["expr"])) <= JOBS


def test_each_alert_has_a_section_and_each_section_an_alert() -> None:
    assert sorted(sections()) == sorted(alert["alert"] for alert in alerts())


def test_each_section_says_what_it_means_and_what_to_do() -> None:
    for name, text in sections().items():
        assert "**Meaning.**" in text, name
        assert "**Do.**" in text, name


def test_alerts_have_names_of_their_own() -> None:
    names = [alert["alert"] for alert in alerts()]
    assert len(set(names)) == len(names)


def test_a_test_fires_each_alert_and_keeps_it_quiet() -> None:
    cases = [
        case
        for path in ALERT_TESTS
        for group in read_yaml(path)["tests"]
        for case in group["alert_rule_test"]
    ]
    names = sorted(alert["alert"] for alert in alerts())
    assert sorted({case["alertname"] for case in cases if case["exp_alerts"]}) == names
    assert sorted({case["alertname"] for case in cases if not case["exp_alerts"]}) == names
