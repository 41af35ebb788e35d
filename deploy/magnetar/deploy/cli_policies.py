"""The commands of policies: one to show, to set and to remove each policy of the broker's table.

`magnetar admin namespaces set-retention NAMESPACE '{"retentionTimeInMinutes": 60, ...}'`,
`magnetar admin topicPolicies get-max-producers TOPIC`. Names are those of Pulsar's tool, values are
the JSON of its HTTP interface. The table is read when such a command is used or listed: it takes
longer to import than the other commands take to run.
"""

import json
import re
import sys
from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup
from typer.main import get_command

from magnetar.deploy.errors import SettingsError

Kind = Literal["namespace", "topic"]

DEFAULT_ADMIN_URL = "http://127.0.0.1:8080"

_VERBS = ("get", "set", "remove")
_QUOTA = "backlog-quota"

_Url = Annotated[
    str,
    typer.Option(
        "--admin-url",
        envvar="MAGNETAR_ADMIN_URL",
        metavar="URL",
        help="HTTP address of one broker or, separated by commas, several.",
    ),
]
_Value = Annotated[str, typer.Argument(help="JSON, as in Pulsar's HTTP interface.")]
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
    """A group that also knows the policies of what `kind` says."""

    kind: Kind = "namespace"

    def list_commands(self, ctx: Any) -> list[str]:
        names = [f"{verb}-{name}" for name in _names(self.kind) for verb in _VERBS]
        return [*super().list_commands(ctx), *names]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        verb, _, name = cmd_name.partition("-")
        if found is not None or verb not in _VERBS:
            return found
        paths = _names(self.kind)
        return _command(self.kind, verb, name, paths[name]) if name in paths else None


class TopicPolicyGroup(PolicyGroup):
    """A group that also knows the policies of topics."""

    kind = "topic"


def _names(kind: Kind) -> dict[str, Any]:
    """The names of commands, and the rows of the table; None for backlog quotas."""
    from magnetar.broker.policies.table import POLICIES

    names = {getattr(policy, kind): policy for policy in POLICIES}
    known: dict[str, Any] = {_kebab(name): policy for name, policy in names.items() if name}
    return {**known, _QUOTA: None}


def _kebab(name: str) -> str:
    """maxProducersPerTopic as max-producers-per-topic, messageTTL as message-ttl."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def _command(kind: Kind, verb: str, name: str, policy: Any) -> Any:
    """The command of one policy, made when it is used or listed."""
    target = _Namespace if kind == "namespace" else _Topic
    words = {"get": "Print", "set": "Set", "remove": "Remove"}[verb]
    app = typer.Typer(add_completion=False)
    function = _function(kind, verb, policy)
    function.__annotations__["target"] = target
    app.command(f"{verb}-{name}", help=f"{words} the {name.replace('-', ' ')} of a {kind}.")(
        function
    )
    command = get_command(app)
    command.name = f"{verb}-{name}"
    return command


def _function(kind: Kind, verb: str, policy: Any) -> Callable[..., None]:
    def get(target: str, url: _Url = DEFAULT_ADMIN_URL) -> None:
        _run(kind, verb, policy, target, url)

    def get_of_topic(target: str, applied: _Applied = False, url: _Url = DEFAULT_ADMIN_URL) -> None:
        _run(kind, verb, policy, target, url, applied=applied)

    def put(target: str, value: _Value, url: _Url = DEFAULT_ADMIN_URL) -> None:
        _run(kind, verb, policy, target, url, value=value)

    def put_quota(
        target: str,
        value: _Value,
        quota_type: _QuotaType = "destination_storage",
        url: _Url = DEFAULT_ADMIN_URL,
    ) -> None:
        _run(kind, verb, policy, target, url, value=value, quota_type=quota_type)

    def remove_quota(
        target: str,
        quota_type: _QuotaType = "destination_storage",
        url: _Url = DEFAULT_ADMIN_URL,
    ) -> None:
        _run(kind, verb, policy, target, url, quota_type=quota_type)

    if verb == "get":
        return get if kind == "namespace" else get_of_topic
    if policy is None:
        return put_quota if verb == "set" else remove_quota
    return put if verb == "set" else get


def _run(
    kind: Kind,
    verb: str,
    policy: Any,
    target: str,
    url: str,
    *,
    value: str = "",
    applied: bool = False,
    quota_type: str = "",
) -> None:
    from magnetar.deploy import admin_client

    if kind == "namespace":
        path = f"/admin/v2/namespaces/{admin_client.namespace_argument(target)}"
    else:
        topic = admin_client.topic_argument(target)
        path = f"/admin/v2/{admin_client.topic_path(topic)}"
    if policy is None:
        path += "/backlogQuotaMap" if verb == "get" else "/backlogQuota"
    else:
        path += f"/{getattr(policy, kind)}"
    client = admin_client.AdminClient(url)
    query = {"backlogQuotaType": quota_type} if quota_type else {}
    if verb == "get":
        found = client.get(path, {"applied": "true"} if applied else {})
        sys.stdout.write("not set\n" if found == "" else f"{json.dumps(found)}\n")
    elif verb == "remove":
        client.change("DELETE", path, query)
    else:
        body = _json(value)
        if policy is not None and kind == "topic" and policy.topic_query:
            client.change("POST", path, {policy.topic_query: str(body)})
        else:
            method = policy.namespace_verb if policy and kind == "namespace" else "POST"
            client.change(method, path, query, body)


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise SettingsError(f"bad value {text!r}: give JSON, as 60, true or {{...}}") from error
