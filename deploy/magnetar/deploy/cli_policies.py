"""The policy commands: get, set and remove for each policy of `policy_rows.py`.

For example `magnetar admin namespaces set-retention NAMESPACE --time 3d --size 10G` and `magnetar
admin topicPolicies get-max-producers TOPIC`. Names are those of Pulsar's tool. Options with units
give the value of a policy that has parts. Other values are one argument: with a unit, or as the
JSON of Pulsar's HTTP interface. Each command is made when it is used.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from magnetar.deploy.admin_shared import (
    DEFAULT_ADMIN_URL,
    UrlOption,
    broker_client,
    path_of_namespace,
    path_of_topic,
)
from magnetar.deploy.errors import SettingsError
from magnetar.deploy.policy_rows import (
    BACKLOG_QUOTA,
    Kind,
    Row,
    names_of,
    part_of,
    value_help,
    value_of,
)
from magnetar.deploy.printing import say

_VERBS = ("get", "set", "remove")
_QUOTA_TYPE = "destination_storage"

_Applied = Annotated[
    bool,
    typer.Option(
        "--applied",
        help="Print the effective value: the namespace's or broker's if the topic has none.",
    ),
]
_QuotaType = Annotated[
    str,
    typer.Option(
        "--type", help="Type of quota: destination_storage (bytes) or message_age (seconds)."
    ),
]
_Namespace = Annotated[str, typer.Argument(metavar="NAMESPACE", help="As tenant/namespace.")]
_Topic = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="A short name, or persistent://tenant/namespace/name."),
]


class PolicyGroup(TyperGroup):
    """A group that also has the policy commands of its `kind`. Its help names each policy once, not
    once for each verb."""

    kind: Kind = "namespace"
    _is_in_help = False

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        if self._is_in_help:
            return own
        return [*own, *(f"{verb}-{name}" for name in names_of(self.kind) for verb in _VERBS)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        verb, _, name = cmd_name.partition("-")
        if found is not None or verb not in _VERBS:
            return found
        rows = names_of(self.kind)
        return _command(self.kind, verb, name, rows[name]) if name in rows else None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.epilog = (
            "Policies: get-NAME, set-NAME and remove-NAME, where NAME is one of "
            f"{', '.join(sorted(names_of(self.kind)))}. For example: set-retention --help."
        )
        self._is_in_help = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._is_in_help = False


class TopicPolicyGroup(PolicyGroup):
    """A group that also has the policy commands of topics."""

    kind = "topic"


def _command(kind: Kind, verb: str, name: str, row: Row) -> Any:
    """Make the command of one policy, when it is used or listed."""
    words = {"get": "Print", "set": "Set", "remove": "Remove"}[verb]
    app = typer.Typer(add_completion=False)
    app.command(f"{verb}-{name}", help=f"{words} the {name.replace('-', ' ')} of a {kind}.")(
        _function(kind, verb, row)
    )
    command = get_command(app)
    command.name = f"{verb}-{name}"
    return command


def _function(kind: Kind, verb: str, row: Row) -> Callable[..., None]:
    def run(**values: Any) -> None:
        _run(kind, verb, row, values)

    parameters: list[tuple[str, Any, Any]] = [
        ("target", _Namespace if kind == "namespace" else _Topic, inspect.Parameter.empty)
    ]
    parameters += _parameters_of(kind, verb, row)
    parameters.append(("url", UrlOption, DEFAULT_ADMIN_URL))
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # typer reads it
        [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
            )
            for name, annotation, default in parameters
        ]
    )
    run.__annotations__ = {name: annotation for name, annotation, _ in parameters}
    return run


def _parameters_of(kind: Kind, verb: str, row: Row) -> list[tuple[str, Any, Any]]:
    """Return the parameters of a command between its target and the address of a broker."""
    found: list[tuple[str, Any, Any]] = []
    if verb == "get":
        if kind == "topic":
            found.append(("applied", _Applied, False))
        return found
    if verb == "set":
        argument = typer.Argument(metavar="VALUE", help=_value_help(row))
        given = Annotated[str, argument]
        found.append(("value", given, "" if row.parts else inspect.Parameter.empty))
        for part in row.parts:
            option = typer.Option(
                f"--{part.name}", metavar=part.metavar, help=part.help, show_default=False
            )
            found.append((_python_name(part.name), Annotated[str, option], ""))
    if row is BACKLOG_QUOTA:
        found.append(("quota_type", _QuotaType, _QUOTA_TYPE))
    return found


def _value_help(row: Row) -> str:
    if row.parts:
        return "JSON, as in Pulsar's HTTP interface, instead of the options."
    text = value_help(row)
    return f"{text[0].upper()}{text[1:]}."


def _python_name(name: str) -> str:
    return f"part_{name.replace('-', '_')}"


def _run(kind: Kind, verb: str, row: Row, values: Mapping[str, Any]) -> None:
    path = (path_of_namespace if kind == "namespace" else path_of_topic)(values["target"])
    if row is BACKLOG_QUOTA:
        path += "/backlogQuotaMap" if verb == "get" else "/backlogQuota"
    else:
        path += f"/{row.path(kind)}"
    body = _body(row, values) if verb == "set" else None
    client = broker_client(values["url"])
    query = {"backlogQuotaType": values["quota_type"]} if "quota_type" in values else {}
    if verb == "get":
        found = client.get(path, {"applied": "true"} if values.get("applied") else {})
        say("not set" if found == "" else json.dumps(found))
    elif verb == "remove":
        client.change("DELETE", path, query)
    elif kind == "topic" and row.topic_query:
        client.change("POST", path, {row.topic_query: str(body)})
    else:
        method = row.namespace_verb if kind == "namespace" else "POST"
        client.change(method, path, query, body)


def _body(row: Row, values: Mapping[str, Any]) -> object:
    """Return the value to set.

    Raises:
        SettingsError: the value is missing, given twice, or of another form.
    """
    texts = {part: values[_python_name(part.name)] for part in row.parts}
    given = {part: text for part, text in texts.items() if text}
    if values["value"]:
        if given:
            raise SettingsError("give the value either as JSON or by options, not both")
        return value_of(row, values["value"])
    if not given:
        names = ", ".join(f"--{part.name}" for part in row.parts)
        raise SettingsError(f"no value: give {names}, or JSON")
    missing = [part.name for part in row.parts if part not in given and part.default is None]
    if missing:
        raise SettingsError(f"--{missing[0]} is missing: this policy is set as a whole")
    return {
        part.field: part_of(part, given[part]) if part in given else part.default
        for part in row.parts
    }
