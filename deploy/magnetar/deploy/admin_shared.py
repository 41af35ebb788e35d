"""Shared parts of the `magnetar admin` commands: client, names, questions."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from magnetar.deploy.errors import SettingsError

if TYPE_CHECKING:
    from magnetar.deploy.admin_client import AdminClient

DEFAULT_ADMIN_URL = "http://127.0.0.1:8080"

_ADMIN_URL_HELP = "HTTP address of one broker or, separated by commas, several."

AdminUrlOption = Annotated[
    str,
    typer.Option("--admin-url", envvar="MAGNETAR_ADMIN_URL", metavar="URL", help=_ADMIN_URL_HELP),
]
"""Addresses of brokers, for commands in which `--url` means something else."""
UrlOption = Annotated[
    str,
    typer.Option(
        "--admin-url", "--url", envvar="MAGNETAR_ADMIN_URL", metavar="URL", help=_ADMIN_URL_HELP
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
TopicArgument = Annotated[
    str, typer.Argument(help="Topic: a short name, or persistent://tenant/namespace/name.")
]
NamespaceArgument = Annotated[str, typer.Argument(help="Namespace, as tenant/namespace.")]


def broker_client(url: str) -> "AdminClient":
    """Return a client of the brokers at these addresses. Imported only now, to keep help pages
    fast.

    Raises:
        SettingsError: a bad address.
    """
    from magnetar.deploy import admin_client

    return admin_client.AdminClient(url)


def path_of_topic(topic: str) -> str:
    """Return the HTTP path of a topic, by its name on the command line.

    Raises:
        SettingsError: a bad name.
    """
    from magnetar.deploy.admin_client import topic_argument, topic_path

    return f"/admin/v2/{topic_path(topic_argument(topic))}"


def path_of_namespace(namespace: str) -> str:
    """Return the HTTP path of a namespace, by its name on the command line.

    Raises:
        SettingsError: a bad name.
    """
    from magnetar.deploy.admin_client import namespace_argument

    return f"/admin/v2/namespaces/{namespace_argument(namespace)}"


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation before messages are lost or clients are interrupted.

    Raises:
        SettingsError: stdin is no terminal, and `yes` is not given.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise SettingsError(f"{question} No terminal to ask on: give --yes")
    typer.confirm(question, abort=True)
