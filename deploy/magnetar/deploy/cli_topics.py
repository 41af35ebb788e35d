"""The commands of `magnetar admin topics` that make topics, and end them."""

import sys
from typing import Annotated

import typer

from magnetar.deploy.errors import SettingsError

DEFAULT_ADMIN_URL = "http://127.0.0.1:8080"

UrlOption = Annotated[
    str,
    typer.Option(
        "--admin-url",
        envvar="MAGNETAR_ADMIN_URL",
        metavar="URL",
        help="HTTP address of one broker or, separated by commas, several.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
TopicArgument = Annotated[
    str, typer.Argument(help="Topic: a short name, or persistent://tenant/namespace/name.")
]


def add_commands(topics: typer.Typer) -> None:
    """Put the commands into `magnetar admin topics`."""
    topics.command("create")(create)
    topics.command("partitions")(partitions)
    topics.command("delete")(delete)
    topics.command("terminate")(terminate)


def create(
    topic: TopicArgument,
    count: Annotated[
        int, typer.Option("--partitions", min=0, help="Number of partitions; 0: not partitioned.")
    ] = 0,
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Create a topic."""
    path = _path_of(topic)
    if count:
        _change(url, "PUT", f"{path}/partitions", body=count)
    else:
        _change(url, "PUT", path)


def partitions(
    topic: TopicArgument,
    grow: Annotated[
        int,
        typer.Option(
            "--grow", metavar="COUNT", min=0, help="Raise the number of partitions to this."
        ),
    ] = 0,
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Print the number of partitions (0: not partitioned), or raise it."""
    from magnetar.deploy.admin_client import AdminClient

    path = f"{_path_of(topic)}/partitions"
    if grow:
        _change(url, "POST", path, body=grow)
    sys.stdout.write(f"{AdminClient(url).get(path)['partitions']}\n")


def delete(
    topic: TopicArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Delete a topic in use: disconnect its clients.")
    ] = False,
    yes: YesOption = False,
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Delete a topic with its messages, and all of its partitions."""
    confirm(f"Delete {topic} and all its messages?", yes=yes)
    path = _path_of(topic)
    if _partitions_of(url, path):
        path += "/partitions"
    _change(url, "DELETE", path, {"force": "true"} if force else {})


def terminate(
    topic: TopicArgument, yes: YesOption = False, url: UrlOption = DEFAULT_ADMIN_URL
) -> None:
    """Terminate a topic: publishes are rejected, consumers can read to its end."""
    confirm(f"Terminate {topic}? That cannot be undone.", yes=yes)
    path = _path_of(topic)
    end = "terminate/partitions" if _partitions_of(url, path) else "terminate"
    _change(url, "POST", f"{path}/{end}")


def _partitions_of(url: str, path: str) -> int:
    from magnetar.deploy.admin_client import AdminClient

    return int(AdminClient(url).get(f"{path}/partitions")["partitions"])


def _path_of(topic: str) -> str:
    from magnetar.deploy import admin_client

    return f"/admin/v2/{admin_client.topic_path(admin_client.topic_argument(topic))}"


def _change(
    url: str, method: str, path: str, query: dict[str, str] | None = None, body: object = None
) -> None:
    from magnetar.deploy.admin_client import AdminClient

    AdminClient(url).change(method, path, query, body)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before messages are lost.

    Raises:
        SettingsError: there is nobody to ask.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise SettingsError(f"{question} No terminal to ask on: give --yes")
    typer.confirm(question, abort=True)
