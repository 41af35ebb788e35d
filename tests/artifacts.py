"""Shared by tests of the files in deploy/: where the files lie, and what the product really has.

Each variable, option, port and metric that a file of deploy/ names must exist. Nothing else would
notice one that does not: a server ignores variables that it does not know.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
import yaml
from pydantic import BaseModel
from typer.core import TyperGroup

from magnetar.bookie.settings import BookieSettings
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.deploy.cli import app
from magnetar.deploy.config import component_settings
from magnetar.ledger.autorecovery.settings import AuditorSettings
from magnetar.ledger.autorecovery.worker_settings import WorkerSettings
from magnetar.ledger.link_settings import LinkSettings
from magnetar.ledger.metadata.settings import MetadataSettings
from magnetar.ledger.settings import LedgerSettings
from tests.processes import ROOT

DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
COMPOSE_STANDALONE = DEPLOY / "compose" / "standalone.yaml"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
CHART = DEPLOY / "helm" / "magnetar"
SYSTEMD = DEPLOY / "systemd"
RULES = DEPLOY / "prometheus" / "rules" / "magnetar.yaml"
ALERT_TESTS = sorted((DEPLOY / "prometheus" / "tests").glob("*.yaml"))
DASHBOARDS = DEPLOY / "grafana" / "dashboards"
OPERATIONS = ROOT / "docs" / "operations"

Command = Any
"""A command of click, of which typer has its own copy."""

SERVERS = ("bookie", "broker", "autorecovery")
COMPONENTS: Mapping[str, type[BaseModel]] = {
    "metadata": MetadataSettings,
    "ledger": LedgerSettings,
    "bookie": BookieSettings,
    "broker": BrokerSettings,
    "auditor": AuditorSettings,
    "worker": WorkerSettings,
}
"""Settings classes, by their names in files and variables."""

METRICS_PAGE = ROOT / "docs" / "metrics.md"


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def commands() -> dict[str, Command]:
    """Return every command of `magnetar`, by its words: "broker", "admin recovery status"."""
    return dict(_commands(typer.main.get_command(app), ()))


def _commands(command: Command, words: tuple[str, ...]) -> Iterator[tuple[str, Command]]:
    if words:
        yield " ".join(words), command
    if not isinstance(command, TyperGroup):
        return
    # Groups of policies make their commands on request.
    context = typer.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None, name
        yield from _commands(inner, (*words, name))


def options_of(command: Command) -> set[str]:
    """Return the options of a command, short and long."""
    return {option for each in command.params for option in (*each.opts, *each.secondary_opts)}


def command_variables(command: Command) -> set[str]:
    """Return the environment variables of a command's options."""
    found: set[str] = set()
    for each in command.params:
        names = each.envvar or ()
        found |= {names} if isinstance(names, str) else set(names)
    return found


def component_variables() -> dict[str, tuple[str, str]]:
    """Return MAGNETAR_<COMPONENT>_<FIELD> of every component, with component and field."""
    return {
        f"MAGNETAR_{component}_{field}".upper(): (component, field)
        for component, model in COMPONENTS.items()
        for field in model.model_fields
    }


def check_environment(server: str, environment: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the environment of one server: unknown names, bad values."""
    known_to_command = command_variables(commands()[server])
    fields = component_variables()
    wrong = [
        f"{server}: {name} does not exist"
        for name in environment
        if name.startswith("MAGNETAR_") and name not in known_to_command and name not in fields
    ]
    for component, model in COMPONENTS.items():
        of_options = known_to_command - set(fields)
        values = {name: text for name, text in environment.items() if name not in of_options}
        options = {"data_directory": "/data"} if component == "bookie" else {}
        component_settings(
            model, component, tables={}, environment=values, options=options
        )  # raises SettingsError
    return wrong


def metrics_on_the_page() -> set[str]:
    """Return the metrics that docs/metrics.md lists, with the names that Prometheus stores."""
    found = set()
    for line in METRICS_PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) < 4:
            continue
        for name in re.findall(
            r"`((?:magnetar|process|pulsar|bookie|bookkeeper|auditor|replication)_\w+)`", cells[1]
        ):
            found |= stored_names(name, is_histogram=cells[2].startswith("histogram"))
    return found


def stored_names(name: str, *, is_histogram: bool) -> set[str]:
    """Return the names of a metric's series."""
    if is_histogram:
        return {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    return {name}


_PROMETHEUS_OWN = {"up", "ALERTS"}
_WORDS = {"by", "on", "and", "or", "unless", "offset", "bool", "ignoring", "without"}
_WORDS |= {"group_left", "group_right", "vector"}

ZOOKEEPER_METRICS = {
    "avg_latency",
    "outstanding_requests",
    "znode_count",
    "approximate_data_size",
    "watch_count",
    "ephemerals_count",
    "election_time_count",
}
"""ZooKeeper's metric names that the files use; an integration test finds them in a real server."""


def metrics_in_query(query: str) -> set[str]:
    """Return the metric names in PromQL, without those that Prometheus makes by itself."""
    query = re.sub(r"\{[^{}]*\}", "", query)  # matchers
    query = re.sub(r"\b(by|on|without|ignoring) *\([^()]*\)", "", query)
    query = re.sub(r"\[[^\]]*\]|\"[^\"]*\"", "", query)  # ranges, strings
    names = set(re.findall(r"\b([a-zA-Z_:][\w:]*)\b(?! *\()", query))
    return {name for name in names if name not in _WORDS | _PROMETHEUS_OWN}


def alerts() -> list[dict[str, Any]]:
    """Return every alert of the rules."""
    return [rule for group in read_yaml(RULES)["groups"] for rule in group["rules"]]


def dashboard_queries() -> dict[str, list[str]]:
    """Return the queries of each dashboard, by the name of its file."""
    found: dict[str, list[str]] = {}
    for path in sorted(DASHBOARDS.glob("*.json")):
        page = json.loads(path.read_text())
        found[path.name] = [
            target["expr"] for panel in page["panels"] for target in panel.get("targets", [])
        ]
    return found


def environment_file(path: Path) -> dict[str, str]:
    """Parse a file of variables as systemd reads it."""
    found = {}
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, value = line.partition("=")
            found[name] = "".join(shlex.split(value))
    return found


def zookeeper_settings(text: str) -> dict[str, str]:
    """Parse the lines of a zoo.cfg."""
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def seconds(duration: str) -> float:
    """Parse a duration as Compose and Prometheus write it: 90s, 2m, 1m30s."""
    units = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
    parts = re.findall(r"(\d+)(ms|[smhd])", duration)
    assert "".join(a + b for a, b in parts) == duration, duration
    return sum(int(number) * units[unit] for number, unit in parts)


def stop_bound_s(server: str) -> float:
    """Return the longest time, in seconds, that a server takes to end after SIGTERM, by its
    settings."""
    if server == "broker":
        broker = BrokerSettings()
        # It may exceed its timeout by this much.
        return broker.shutdown_timeout_ms / 1000 + 5
    if server == "bookie":
        bookie = BookieSettings(data_directory=Path("/data"))
        return bookie.stop_timeout_s
    return 30.0


def servers_secret(server: str, environment: Mapping[str, str]) -> tuple[str, LinkSettings]:
    """Return the file of the bookies' secret for a server with this environment, and its link
    settings. Check that a bookie demands proof of the secret from strangers."""
    uses = component_settings(LedgerSettings, "ledger", tables={}, environment=environment)
    if server != "bookie":
        return uses.shared_secret_file, uses
    serves = component_settings(
        BookieSettings,
        "bookie",
        tables={},
        environment=environment,
        options={"data_directory": "/data"},
    )
    assert serves.asks_for_proof or serves.insecure, "it would not start"
    assert serves.shared_secret_file == uses.shared_secret_file
    return serves.shared_secret_file, serves
