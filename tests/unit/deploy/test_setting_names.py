"""Every setting that an operator can write down keeps its name, its default and its bounds.

`setting_names.json` holds them all. `python -m tests.unit.deploy.test_setting_names` writes it
again after a setting was added; the diff of the file is what operators will see.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from typer.main import get_command

from magnetar.bookie.settings import BookieSettings
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.deploy.cli import app
from magnetar.deploy.options import SERVERS
from magnetar.ledger.autorecovery.settings import AuditorSettings
from magnetar.ledger.autorecovery.worker_settings import WorkerSettings
from magnetar.ledger.metadata.settings import MetadataSettings
from magnetar.ledger.settings import LedgerSettings

RECORDED = Path(__file__).with_name("setting_names.json")
COMPONENTS: dict[str, type[BaseModel]] = {
    "auditor": AuditorSettings,
    "bookie": BookieSettings,
    "broker": BrokerSettings,
    "ledger": LedgerSettings,
    "metadata": MetadataSettings,
    "worker": WorkerSettings,
}
"""By their table in the settings file; a variable is MAGNETAR_<TABLE>_<KEY>."""


def names() -> dict[str, str]:
    """`table.key`, or the variable of a command's option: default and bounds."""
    found: dict[str, str] = {}
    for table, model in COMPONENTS.items():
        for key, field in model.model_fields.items():
            bounds = ", ".join(sorted(map(repr, field.metadata)))
            default = "required" if field.is_required() else repr(field.get_default())
            found[f"{table}.{key}"] = f"{default} [{bounds}]" if bounds else default
    found.update(_options(get_command(app), ""))
    return dict(sorted(found.items()))


def _options(command: Any, path: str) -> Iterator[tuple[str, str]]:
    """Options with a variable, and those of servers, which are keys of their tables. Any: typer
    does not export the classes."""
    for parameter in command.params:
        variables = parameter.envvar or ()
        variables = [variables] if isinstance(variables, str) else list(variables)
        if variables or path in SERVERS:
            key = f"{path} --{parameter.name}" if path else f"--{parameter.name}"
            default = "computed" if callable(parameter.default) else repr(parameter.default)
            yield key, f"{default} {' '.join(variables)}".rstrip()
    for name, each in getattr(command, "commands", {}).items():
        yield from _options(each, f"{path} {name}".strip())


def test_no_setting_changes_its_name_its_default_or_its_bounds() -> None:
    recorded = json.loads(RECORDED.read_text())
    assert names() == recorded, "see the text of this module"


@pytest.mark.parametrize("table", COMPONENTS)
def test_a_table_has_keys_only_one_level_deep(table: str) -> None:
    for name, field in COMPONENTS[table].model_fields.items():
        is_section = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        assert not is_section, f"{table}.{name} would be a table within a table"


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(names(), indent=1, ensure_ascii=False) + "\n")
