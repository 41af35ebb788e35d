"""The settings reference of the docs site, made from the settings classes and the commands."""

import re
from collections.abc import Iterator
from typing import Any

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from tests.docs_site.commands_page import commands, default_text, help_text
from tests.unit.deploy.test_setting_names import COMPONENTS

_SERVERS = ("standalone", "broker", "bookie", "autorecovery", "cluster", "zookeeper")
_INTRODUCTION = """# Settings

Each setting of a component is a variable `MAGNETAR_<TABLE>_<KEY>`, as `MAGNETAR_BROKER_TOPICS_MAX`,
and a key of a table of the TOML file that `--config` names, as `topics_max` in `[broker]`. The
environment overrides the file. Each setting of a command is also an option, which overrides both.
A name ends in its unit: `_ms`, `_s`, `_bytes`, `_max`. [Starting a server](../starting.md#settings)
shows the three ways.

This page is made from the settings classes of the release that it belongs to.
"""

_PURPOSES = {
    "auditor": "The auditor of auto-recovery: `magnetar autorecovery`.",
    "bookie": "A bookie: `magnetar bookie`, and the bookies of `magnetar standalone`.",
    "broker": "A broker: `magnetar broker`, and the broker of `magnetar standalone`.",
    "ledger": "The ledger client of brokers and of auto-recovery.",
    "metadata": "The connection of each server to the metadata store.",
    "worker": "The workers of auto-recovery: `magnetar autorecovery`.",
}
_SIGNS: dict[type, tuple[str, str]] = {
    Ge: ("≥", "ge"),
    Gt: (">", "gt"),
    Le: ("≤", "le"),
    Lt: ("<", "lt"),
    MinLen: ("length ≥", "min_length"),
    MaxLen: ("length ≤", "max_length"),
}
"""By kind of bound: how the page writes it, and the attribute that has its value."""


def settings_page() -> str:
    """Return the page: a table for each component, then the options of each server."""
    return "\n".join([_INTRODUCTION, *map(_component, sorted(COMPONENTS)), *_servers()])


def _component(table: str) -> str:
    model = COMPONENTS[table]
    lines = [f"## `[{table}]`", "", _PURPOSES[table], "", "| key | default | bounds | meaning |"]
    lines.append("|---|---|---|---|")
    for key, field in sorted(model.model_fields.items()):
        meaning = cell(field.description or "")
        lines.append(f"| `{key}` | {shown_default(field)} | {bounds(field)} | {meaning} |")
    return "\n".join([*lines, ""])


def shown_default(field: FieldInfo) -> str:
    """Return the default of a setting as a cell of a table."""
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if isinstance(default, SecretStr):
        default = default.get_secret_value()
    if isinstance(default, BaseModel):
        return "see its keys"
    return default_text(default)


def bounds(field: FieldInfo) -> str:
    """Return the bounds of a setting as a cell of a table."""
    found = []
    for each in field.metadata:
        for kind, (sign, name) in _SIGNS.items():
            if isinstance(each, kind):
                found.append(f"{sign} {getattr(each, name)}")
    return ", ".join(found)


def _servers() -> Iterator[str]:
    yield "## Options of commands\n"
    yield "Keys of the table with the command's name, as `port` in `[standalone]`.\n"
    for path, command in commands():
        if path in _SERVERS:
            yield "\n".join([f"### `[{path}]`", "", *option_table(command), ""])


def option_table(command: Any) -> list[str]:
    """Return the lines of a table of a command's options. Any: typer exports no classes."""
    lines = ["| key | variable | default | meaning |", "|---|---|---|---|"]
    for option in command.params:
        variables = option.envvar or ()
        variables = [variables] if isinstance(variables, str) else variables
        if variables and option.name != "config":
            names = ", ".join(f"`{each}`" for each in variables)
            default = "required" if option.required else default_text(option.default)
            key = f"`{option.name}`"
            lines.append(f"| {key} | {names} | {default} | {help_text(option)} |")
    return lines


def cell(text: str) -> str:
    """Return text that may stand in a cell of a Markdown table."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;").strip()
