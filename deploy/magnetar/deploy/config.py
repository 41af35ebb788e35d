"""Where settings come from: command line, then environment, then a TOML file, then defaults.

A command's own options (`--port`) can be given as MAGNETAR_<COMMAND>_<OPTION> too, or as keys of
the file's table named after the command:

    [standalone]
    port = 7650

Everything else is a field of one component's settings class: MAGNETAR_<COMPONENT>_<FIELD>, or a key
of the table named after the component ("metadata", "ledger", "bookie", "broker"):

    [bookie]
    journal_group_bytes_max = 1048576

A key of a component's table that is no field is an error, as is a table of another name; other
commands' tables are not read.
"""

import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from magnetar.deploy.errors import SettingsError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

M = TypeVar("M", bound="BaseModel")

Table = Mapping[str, object]

_SECRETS = re.compile("secret|token|password|key|object_stores", re.IGNORECASE)
"""Names of settings whose value must never be printed, even if the name is misspelt."""


def read_config_file(path: Path) -> dict[str, Table]:
    """Read a TOML file into its tables.

    Raises:
        SettingsError: no such file, not TOML, or a key outside of every table.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"the settings file {path} is not TOML: {error}") from error
    tables: dict[str, Table] = {}
    for name, value in content.items():
        if not isinstance(value, dict):
            raise SettingsError(
                f"the settings file {path} has the key {name!r} outside of a table; "
                f"put it under [standalone], [ledger], [bookie] or [broker]"
            )
        tables[name] = value
    return tables


def command_defaults(tables: Mapping[str, Table], command: str) -> dict[str, object]:
    """Return the table of a command as option defaults; `http-port` and `http_port` are equal."""
    return {key.replace("-", "_"): value for key, value in tables.get(command, {}).items()}


def component_settings(
    model: type[M],
    component: str,
    *,
    tables: Mapping[str, Table],
    environment: Mapping[str, str],
    options: Mapping[str, object] | None = None,
    not_fields: frozenset[str] = frozenset(),
) -> M:
    """Build the settings of one component.

    Args:
        model: the component's settings class.
        component: its name in the file and in environment variables.
        options: values from the command line; they win.
        not_fields: keys of the table that belong to the command of the same name.

    Raises:
        SettingsError: a value that the class refuses, or a key it does not know.
    """
    # Imported here: help pages read no settings, and pydantic would delay them.
    from pydantic import ValidationError

    values: dict[str, object] = {
        key: value for key, value in tables.get(component, {}).items() if key not in not_fields
    }
    for field in model.model_fields:
        variable = f"MAGNETAR_{component}_{field}".upper()
        if variable in environment and field not in not_fields:
            values[field] = _from_text(environment[variable])
    values.update(options or {})
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise SettingsError(_one_line(component, error, list(model.model_fields))) from error


def _from_text(text: str) -> object:
    """Parse lists and tables, which are JSON in the environment; pydantic reads all other
    values."""
    if text.startswith(("[", "{")):
        try:
            return json.loads(text)
        except ValueError:
            return text  # pydantic's error says better what it expected
    return text


def _one_line(component: str, error: "ValidationError", known: Sequence[str]) -> str:
    first = error.errors()[0]
    field = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        similar = difflib.get_close_matches(field, known, n=1)
        question = f"; did you mean {similar[0]}?" if similar else ""
        return f"no such setting: {component}.{field}{question}"
    message = first["msg"].removeprefix("Value error, ")
    if not field:  # a relation between fields: the message names them
        return f"bad settings of {component}: {message}"
    if _SECRETS.search(field):
        return f"bad setting {component}.{field}: {message}"
    return f"bad setting {component}.{field}: {message} (got {first['input']!r})"
