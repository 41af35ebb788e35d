"""Options that several commands share, and the settings file of `--config`."""

import difflib
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from magnetar.deploy.config import Table, command_defaults, component_settings, read_config_file
from magnetar.deploy.errors import SettingsError
from magnetar.deploy.logs import LogFormat, LogLevel

if TYPE_CHECKING:
    from pydantic import BaseModel

M = TypeVar("M", bound="BaseModel")

DEFAULT_URL = "pulsar://127.0.0.1:6650"

_WILDCARDS = frozenset({"0.0.0.0", "::"})
_TABLES = "magnetar.tables"


@dataclass(frozen=True, slots=True)
class Quorum:
    """Ensemble size, write quorum and ack quorum of the ledgers that a broker creates."""

    ensemble: int
    write: int
    ack: int

    def __str__(self) -> str:
        return f"{self.ensemble},{self.write},{self.ack}"


@dataclass(frozen=True, slots=True)
class Listen:
    """Address that a server listens on, and the host it advertises; empty: derived from `host`."""

    host: str
    advertised_host: str = ""

    @property
    def told_host(self) -> str:
        """Host for clients, which cannot connect to a wildcard address."""
        if self.advertised_host:
            return self.advertised_host
        return socket.gethostname() if self.host in _WILDCARDS else self.host

    def url(self, scheme: str, port: int) -> str:
        """Return a URL for the `ready` line."""
        return f"{scheme}://{host_in_url(self.told_host)}:{port}"


def host_in_url(host: str) -> str:
    """Return a host as it stands before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def parse_data(text: str) -> Path:
    """Parse the data directory of a server.

    Raises:
        SettingsError: the text is empty, as from an unset variable. The server would otherwise
            fill the caller's current directory with files.
    """
    if not text:
        raise SettingsError("--data is empty: name the directory; --data . is the one you are in")
    return Path(text)


def parse_quorum(text: str) -> Quorum:
    """Parse `E,Qw,Qa`.

    Raises:
        SettingsError: not three numbers with E >= Qw >= Qa >= 1.
    """
    parts = text.split(",")
    if len(parts) == 3 and all(part.strip().isdecimal() for part in parts):
        ensemble, write, ack = map(int, parts)
        if ensemble >= write >= ack >= 1:
            return Quorum(ensemble, write, ack)
    raise SettingsError(
        f"bad --quorum {text!r}: give E,Qw,Qa with E >= Qw >= Qa >= 1, for example 3,3,2"
    )


def text_of(option: str, text: str) -> str:
    """Return a text of the command line that must be UTF-8.

    Raises:
        SettingsError: the text is not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        shown = os.fsencode(text).decode(errors="replace")
        raise SettingsError(f"bad {option} {shown!r}: not UTF-8") from error
    return text


def parse_properties(texts: Iterable[str]) -> dict[str, str]:
    """Parse NAME=VALUE pairs.

    Raises:
        SettingsError: a pair has no `=` or no name, or is not UTF-8.
    """
    properties = {}
    for text in texts:
        name, equals, value = text_of("--property", text).partition("=")
        if not equals or not name:
            raise SettingsError(f"bad --property {text!r}: give NAME=VALUE")
        properties[name] = value
    return properties


def default_quorum(bookies: int) -> Quorum:
    """Return the default quorum: up to three copies, two of them synced before the answer. The loss
    of one bookie then loses nothing."""
    copies = min(bookies, 3)
    return Quorum(copies, copies, min(copies, 2))


@dataclass(frozen=True, slots=True)
class Sources:
    """Sources of component settings: the tables of the settings file, and the environment."""

    tables: Mapping[str, Table] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    option_variables: Set[str] = frozenset()
    """Environment variables that set options of commands. If empty, unknown variables bring no
    warning."""
    _told: set[str] = field(default_factory=set)

    def component(
        self, model: type[M], name: str, options: Mapping[str, object] | None = None
    ) -> M:
        """Return the settings of one component. `options`, from the command line, override the
        sources."""
        if self.option_variables:
            fields = {f"MAGNETAR_{name}_{each}".upper() for each in model.model_fields}
            self.tell_unknown(name, fields)
        self._tell_overridden(name, options or {})
        return component_settings(
            model, name, tables=self.tables, environment=self.environment, options=options
        )

    def _tell_overridden(self, owner: str, options: Mapping[str, object]) -> None:
        """Warn of settings of a component that an option of the command overrides: they have no
        effect. No error, because one file may serve several commands."""
        import structlog

        log = structlog.get_logger(__name__)
        table = self.tables.get(owner, {})
        for name, value in options.items():
            setting = f"{owner}.{name}"
            if name in table and table[name] != value and setting not in self._told:
                self._told.add(setting)
                option = f"--{name.replace('_', '-')}"
                log.warning(
                    "setting_without_effect",
                    setting=setting,
                    used=str(value),
                    reason=f"the command overrides it: give {option} if it has that option, or set "
                    "it in the command's own table",
                )

    def tell_unknown(self, owner: str, variables: Set[str] = frozenset()) -> None:
        """Warn of variables that name a component or command but are neither in `variables` nor
        options.

        Misspelt variables have no effect. No error, because container platforms add variables of
        their own.
        """
        import structlog

        log = structlog.get_logger(__name__)
        known = self.option_variables | variables
        prefix = f"MAGNETAR_{owner}_".upper()
        for variable in sorted(self.environment.keys() - known - self._told):
            if not variable.startswith(prefix):
                continue
            self._told.add(variable)
            similar = difflib.get_close_matches(variable, known, n=1)
            log.warning("environment_variable_unknown", variable=variable, similar=similar)


def sources_of(context: typer.Context) -> Sources:
    """Return the sources for a command that declared `ConfigOption`."""
    tables: dict[str, Table] = context.meta.get(_TABLES, {})
    sources = Sources(
        tables, option_variables=frozenset(_option_variables(context.find_root().command))
    )
    command = context.command.name or ""
    if command not in _COMPONENTS:
        sources.tell_unknown(command)
    return sources


def _option_variables(command: Any) -> Iterator[str]:
    """Yield the variables of a command, or of all commands in a group. Any: typer does not export
    its classes."""
    for parameter in command.params:
        variables = parameter.envvar
        yield from [variables] if isinstance(variables, str) else variables or ()
    for each in getattr(command, "commands", {}).values():
        yield from _option_variables(each)


def _on_config(context: typer.Context, value: Path | None) -> Path | None:
    if value is None or context.resilient_parsing:
        return value
    tables = read_config_file(value)
    for name in tables:
        if name not in _COMPONENTS | SERVERS:
            raise SettingsError(
                f"unknown table [{name}] in {value}; known tables: "
                f"{', '.join(sorted(_COMPONENTS | SERVERS))}"
            )
    command = context.command.name or ""
    defaults = command_defaults(tables, command)
    known = {parameter.name for parameter in context.command.params}
    # A component's table may have a command's name: its other keys then belong to the component.
    if command not in _COMPONENTS:
        for key in defaults:
            if key not in known:
                raise SettingsError(f"unknown key {key!r} in table [{command}] of {value}")
    context.default_map = {key: value for key, value in defaults.items() if key in known}
    rest = {key: value for key, value in defaults.items() if key not in known}
    context.meta[_TABLES] = {**tables, command: rest}
    return value


_COMPONENTS = frozenset({"metadata", "ledger", "bookie", "broker", "auditor", "worker"})
SERVERS = frozenset(
    {"standalone", "bookie", "broker", "zookeeper", "cluster", "autorecovery", "restore"}
)
"""Commands that may have a table in the settings file: servers, and the one tool that needs the
brokers' settings. One file may serve all of them."""


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="MAGNETAR_CONFIG",
        callback=_on_config,
        is_eager=True,
        help="TOML file with settings; one table per command and component.",
    ),
]
LogLevelOption = Annotated[
    LogLevel,
    typer.Option("--log-level", envvar="MAGNETAR_LOG_LEVEL", help="Lowest severity to log."),
]
LogFormatOption = Annotated[
    LogFormat,
    typer.Option(
        "--log-format",
        envvar="MAGNETAR_LOG_FORMAT",
        help="auto: human-readable on a terminal, else JSON.",
    ),
]
UrlOption = Annotated[
    str, typer.Option("--url", envvar="MAGNETAR_URL", help="Service URL of a broker.")
]
