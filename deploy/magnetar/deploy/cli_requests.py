"""Commands that each send one request to the HTTP interface, generated from the rows of a table.

A row gives the command's name, its request, and the question to confirm before something is lost.
The answer is printed for people, or unchanged with `--json`.
"""

import inspect
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

import typer

from magnetar.deploy.admin_shared import (
    DEFAULT_ADMIN_URL,
    AdminUrlOption,
    JsonOption,
    UrlOption,
    YesOption,
    broker_client,
    confirm,
)
from magnetar.deploy.cli_tools import FormatOption, RawOption, shown_by
from magnetar.deploy.cli_tools import JsonOption as MessageJsonOption
from magnetar.deploy.errors import SettingsError
from magnetar.deploy.options import parse_properties
from magnetar.deploy.printing import print_json, print_pairs, say
from magnetar.deploy.quantities import duration_ms, moment_ms, parse_duration_ms

if TYPE_CHECKING:
    from magnetar.deploy.admin_client import AdminClient

Kind = Literal["text", "number", "flag", "switch", "pairs", "names", "json"]
"""Kind of an option's value. `flag`: sent only if given. `switch`: has a --no-NAME form as well."""

_HELP = {
    "topic": "A short name, or persistent://tenant/namespace/name.",
    "namespace": "As tenant/namespace.",
    "subscription": "Name of the subscription.",
    "cluster": "Name of the cluster.",
    "role": "Name of the role.",
    "consumer": "Name of the consumer, as `magnetar admin topics stats` prints it.",
    "producer": "Name of the producer, as `magnetar admin topics stats` prints it.",
    "key": "Name of the property.",
    "number": "Counted from 1, the oldest.",
    "seconds": "A duration, as 90s, 15m or 3d; or a number of seconds.",
    "timestamp": "A time: 1h (ago), 2026-11-26T23:00, or ms since 1970.",
}
_TYPES: Mapping[Kind, Any] = {
    "text": str,
    "number": int,
    "flag": bool,
    "switch": bool | None,
    "pairs": list[str] | None,
    "names": str,
    "json": str,
}


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a command, and where in the request its value goes."""

    name: str
    """Name on the command line, without dashes."""
    help: str
    kind: Kind = "text"
    default: Any = ""
    query: str = ""
    """Name of the option in the request's query; empty: the option is not sent there."""
    field: str = ""
    """Name of the option in the JSON object of the body. `.`: the value is the whole body."""
    is_required: bool = False
    also: str = ""
    """Another spelling of the option, such as the one in Pulsar's tool."""

    @property
    def spellings(self) -> Sequence[str]:
        """Spellings of the option in typer's form."""
        own = f"--{self.name}/--no-{self.name}" if self.kind == "switch" else f"--{self.name}"
        return (own, f"--{self.also}") if self.also else (own,)


@dataclass(frozen=True, slots=True)
class Command:
    """One command."""

    name: str
    help: str
    method: str
    path: str
    """HTTP path with {name} for each argument; {topic} and {namespace} become several segments."""
    options: tuple[Option, ...] = ()
    asks: str = ""
    """Question to confirm first, with {name} for each argument; empty: none."""
    shows: bool = False
    """Whether the command prints the answer."""
    shows_messages: bool = False
    """Whether the answer is an entry, whose messages the command prints as `magnetar read` does."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Default values of the arguments that may be left out."""
    body: Callable[[Mapping[str, Any]], object] | None = None
    """Makes the body out of all values, where fields do not suffice."""
    in_body: Mapping[str, str] = field(default_factory=dict)
    """Arguments that are not in the path, and the field of the body that each is sent in."""
    merges: bool = False
    """Whether the fields change what a GET of the same path returns: options not given keep their
    values."""

    @property
    def arguments(self) -> Sequence[str]:
        in_path = [part[1:-1] for part in self.path.split("/") if part.startswith("{")]
        return [*in_path, *self.in_body]


def add(app: typer.Typer, commands: Iterable[Command]) -> None:
    """Put commands into a group."""
    for command in commands:
        app.command(command.name, help=command.help)(_function(command))


def _function(command: Command) -> Callable[..., None]:
    def run(**values: Any) -> None:
        _run(command, values)

    parameters = [
        inspect.Parameter(
            _python_name(name),
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            annotation=Annotated[str, typer.Argument(help=_HELP.get(name), metavar=name.upper())],
            default=command.defaults.get(name, inspect.Parameter.empty),
        )
        for name in command.arguments
    ]
    options: list[tuple[str, Any, Any]] = [
        (
            each.name,
            Annotated[_TYPES[each.kind], typer.Option(*each.spellings, help=each.help)],
            inspect.Parameter.empty if each.is_required else _default(each),
        )
        for each in command.options
    ]
    if command.asks:
        options.append(("yes", YesOption, False))
    if command.shows:
        options.append(("as_json", JsonOption, False))
    if command.shows_messages:
        options.append(("as_json", MessageJsonOption, False))
        options.append(("raw", RawOption, False))
        options.append(("text_format", FormatOption, ""))
    is_url_taken = any(each.also == "url" for each in command.options)
    options.append(("url", AdminUrlOption if is_url_taken else UrlOption, DEFAULT_ADMIN_URL))
    parameters += [
        inspect.Parameter(
            _python_name(name),
            inspect.Parameter.KEYWORD_ONLY,
            annotation=annotation,
            default=default,
        )
        for name, annotation, default in options
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _default(option: Option) -> Any:
    if option.kind in ("pairs", "switch"):
        return None
    if option.kind == "flag":
        return bool(option.default)
    return option.default if option.default != "" or option.kind != "number" else 0


def _python_name(name: str) -> str:
    return name.replace("-", "_")


def _run(command: Command, values: Mapping[str, Any]) -> None:
    values = {name: _checked(name, value) for name, value in values.items()}
    path = _path_of(command, values)
    query, whole = {}, None
    fields = {name: values[_python_name(each)] for each, name in command.in_body.items()}
    for option in command.options:
        value = _value_of(option, values[_python_name(option.name)])
        if value is None:
            continue
        if option.query:
            query[option.query] = str(value).lower() if option.kind == "flag" else str(value)
        elif option.field == ".":
            whole = value
        elif option.field:
            fields[option.field] = value
    body = command.body(values) if command.body is not None else fields or whole
    if command.asks:
        shown = {name: _for_people(name, value) for name, value in values.items()}
        confirm(command.asks.format(**shown), yes=values["yes"])
    client = broker_client(values["url"])
    if command.shows_messages:
        _show_messages(client, path, query, values)
        return
    if command.merges:
        body = {**client.get(path), **fields}
    found = client.ask(command.method, path, query, body)
    if command.shows:
        show(found, as_json=values["as_json"])


def _show_messages(
    client: "AdminClient", path: str, query: dict[str, str], values: Mapping[str, Any]
) -> None:
    from magnetar.deploy.admin_client import topic_argument
    from magnetar.deploy.peeking import show_entry

    shown = shown_by(
        as_json=values["as_json"], raw=values["raw"], text_format=values["text_format"]
    )
    show_entry(topic_argument(values["topic"]), client.fetch(path, query), shown)


def _checked(name: str, value: Any) -> Any:
    """Return an argument as brokers take it: seconds, or ms since 1970; others unchanged.

    Raises:
        SettingsError: the value is not a duration, or not a time.
    """
    if name == "seconds":
        return int(value) if value.isdecimal() else duration_ms("SECONDS", value) // 1000
    if name == "timestamp":
        now_ms = int(time.time() * 1000)
        ago_ms = parse_duration_ms(value)
        if ago_ms is not None and value != "0":
            return max(0, now_ms - ago_ms)
        return moment_ms("TIMESTAMP", value, now_ms=now_ms)
    return value


def _for_people(name: str, value: Any) -> Any:
    if name == "seconds":
        return f"{value} s"
    if name == "timestamp":
        return datetime.fromtimestamp(value / 1000).astimezone().isoformat(timespec="seconds")
    return value


def _path_of(command: Command, values: Mapping[str, Any]) -> str:
    from magnetar.deploy import admin_client

    parts = []
    for part in command.path.split("/"):
        if part == "{topic}":
            parts.append(admin_client.topic_path(admin_client.topic_argument(values["topic"])))
        elif part == "{namespace}":
            parts.append(admin_client.namespace_argument(values["namespace"]))
        elif part.startswith("{"):
            parts.append(quote(str(values[_python_name(part[1:-1])]), safe=""))
        else:
            parts.append(part)
    return "/".join(parts)


def _value_of(option: Option, value: Any) -> Any:
    """Return the value to send; None: send nothing.

    Raises:
        SettingsError: the value has another form.
    """
    if option.kind == "names":
        names = [each.strip() for each in value.split(",") if each.strip()]
        return names if names or option.is_required else None
    if option.kind == "pairs":
        return parse_properties(value) if value else None
    if option.kind == "json":
        return _json(option, value) if value else None
    if option.kind == "flag":
        return True if value else None
    if option.kind == "switch":
        return value
    return None if value == _default(option) and not option.is_required else value


def _json(option: Option, value: str) -> object:
    try:
        return json.loads(value)
    except ValueError as error:
        raise SettingsError(f"bad --{option.name} {value!r}: give JSON") from error


def show(found: Any, *, as_json: bool) -> None:
    """Print an answer as JSON, or as text for people."""
    if as_json:
        print_json(found)
    elif isinstance(found, dict):
        print_pairs({name: _text(value) for name, value in found.items()})
    elif isinstance(found, list) and found and all(isinstance(each, dict) for each in found):
        _show_table(found)
    elif isinstance(found, list):
        for each in found:
            say(_text(each))
    else:
        say(_text(found) if found != "" else "not set")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _show_table(rows: Sequence[Mapping[str, Any]]) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, *([_text(row.get(name, "")) for name in columns] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        say("  ".join(cells).rstrip())
