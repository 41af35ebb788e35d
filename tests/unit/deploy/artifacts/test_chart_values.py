"""The values of the Helm chart: each is described, checked, and used."""

import json
import re
from collections.abc import Iterator
from typing import Any

from magnetar.deploy.logs import LogLevel
from magnetar.deploy.options import parse_quorum
from tests.artifacts import CHART, COMPONENTS, read_yaml, stop_bound_s

VALUES = read_yaml(CHART / "values.yaml")
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
TEMPLATES = {
    path.relative_to(CHART).as_posix(): path.read_text()
    for path in sorted((CHART / "templates").rglob("*.*"))
}


def schema_nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, inner in node.get("properties", {}).items():
        yield f"{path}{name}", inner
        yield from schema_nodes(inner, f"{path}{name}.")


def value_paths(values: dict[str, Any], path: str = "") -> Iterator[str]:
    """All of them, down to where the schema leaves the contents open."""
    nodes = dict(schema_nodes(SCHEMA))
    for name, inner in values.items():
        yield f"{path}{name}"
        if isinstance(inner, dict) and "properties" in nodes.get(f"{path}{name}", {}):
            yield from value_paths(inner, f"{path}{name}.")


def test_each_value_is_described_and_no_other_is_taken() -> None:
    for path, node in schema_nodes(SCHEMA):
        assert node["description"].endswith("."), path
        if node["type"] == "object" and "properties" in node:
            assert node["additionalProperties"] is False, path
    assert SCHEMA["additionalProperties"] is False


def test_the_schema_and_the_values_have_the_same_names() -> None:
    # `global` is Helm's own; a component's table is there only when something is set in it.
    ours = {
        path
        for path, _ in schema_nodes(SCHEMA)
        if path != "global" and not path.startswith("settings.")
    }
    there = {path for path in value_paths(VALUES) if not path.startswith("settings.")}
    assert there == ours


def test_every_value_is_used_by_a_template() -> None:
    text = "\n".join(TEMPLATES.values())
    leaves = {
        path.rpartition(".")[2]
        for path in value_paths(VALUES)
        if not path.startswith("settings.")  # read all at once
    }
    unused = [name for name in sorted(leaves) if not re.search(rf"\.{name}\b", text)]
    assert unused == []


def test_the_tables_of_settings_are_those_of_the_product() -> None:
    assert set(SCHEMA["properties"]["settings"]["properties"]) == set(COMPONENTS)
    for table, fields in VALUES["settings"].items():
        for name in fields:
            assert name in COMPONENTS[table].model_fields, f"{table}.{name}"


def test_log_levels_are_those_of_the_product() -> None:
    assert set(SCHEMA["properties"]["logLevel"]["enum"]) == {each.value for each in LogLevel}


def test_there_is_a_spare_bookie_for_each_ensemble() -> None:
    assert parse_quorum(VALUES["broker"]["quorum"]).ensemble < VALUES["bookie"]["replicas"]
    assert VALUES["zookeeper"]["replicas"] % 2 == 1


def test_pods_have_time_for_an_orderly_end() -> None:
    for server in ("bookie", "broker", "autorecovery"):
        before = VALUES[server].get("preStopSeconds", 0)
        granted = VALUES[server]["terminationGracePeriodSeconds"]
        assert granted > before + stop_bound_s(server), server


def test_copies_are_not_made_while_a_bookie_restarts() -> None:
    """RULE 3.1: the delay is longer than the restart of one bookie."""
    restart_s = stop_bound_s("bookie") + 30  # minReadySeconds
    assert VALUES["settings"]["auditor"]["lost_bookie_recovery_delay_s"] > 3 * restart_s


def test_the_version_is_that_of_the_product() -> None:
    chart = read_yaml(CHART / "Chart.yaml")
    pyproject = (CHART.parents[2] / "pyproject.toml").read_text()
    assert f'\nversion = "{chart["appVersion"]}"\n' in pyproject


def test_values_for_a_single_node_change_only_what_there_is() -> None:
    single = read_yaml(CHART / "values-single-node.yaml")
    assert set(value_paths(single)) <= set(value_paths(VALUES))


def test_rules_and_dashboards_are_those_of_this_repository() -> None:
    deploy = CHART.parents[1]
    assert (CHART / "files" / "rules").resolve() == deploy / "prometheus" / "rules"
    assert (CHART / "files" / "dashboards").resolve() == deploy / "grafana" / "dashboards"
    assert (CHART / "files" / "backup.sh").resolve() == deploy / "zookeeper" / "backup.sh"
