"""The dashboards are what their description says, and ask for metrics that exist."""

import json

import pytest

from tests.artifacts import (
    DASHBOARDS,
    DEPLOY,
    ZOOKEEPER_METRICS,
    dashboard_queries,
    metrics_in_query,
    metrics_on_the_page,
    read_yaml,
)
from tests.dashboards import DASHBOARDS as DESCRIBED
from tests.dashboards import rendered


def test_there_is_one_for_each_kind_of_server() -> None:
    there = {path.name for path in DASHBOARDS.glob("*.json")}
    assert there == set(DESCRIBED)
    assert {"brokers.json", "bookies.json", "recovery.json"} <= there


@pytest.mark.parametrize("name", sorted(DESCRIBED))
def test_the_file_is_what_is_described(name: str) -> None:
    written = (DASHBOARDS / name).read_text()
    assert written == rendered(DESCRIBED[name]), "run python -m tests.dashboards"


@pytest.mark.parametrize("name", sorted(DESCRIBED))
def test_every_query_names_metrics_that_exist(name: str) -> None:
    for query in dashboard_queries()[name]:
        names = metrics_in_query(query)
        assert names <= metrics_on_the_page() | ZOOKEEPER_METRICS, query


@pytest.mark.parametrize("name", sorted(DESCRIBED))
def test_panels_lie_beside_each_other(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    numbers = set()
    for panel in json.loads((DASHBOARDS / name).read_text())["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        numbers.add(panel["id"])
    assert len(numbers) == len(json.loads((DASHBOARDS / name).read_text())["panels"])


def test_grafana_finds_them_and_the_source() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = read_yaml(provisioning / "datasources" / "prometheus.yaml")["datasources"]
    assert source["type"] == "prometheus"
    (provider,) = read_yaml(provisioning / "dashboards" / "magnetar.yaml")["providers"]
    compose = read_yaml(DEPLOY / "compose" / "compose.yaml")
    mounts = compose["services"]["grafana"]["volumes"]
    assert f"../grafana/dashboards:{provider['options']['path']}:ro" in mounts
