"""`magnetar migrate`: moves the content of an Apache Pulsar cluster, or of another Magnetar."""

import sys
from pathlib import Path
from typing import Annotated

import typer

_EPILOG = (
    "Credentials come from the environment: MAGNETAR_FROM_TOKEN for the source, MAGNETAR_TO_TOKEN "
    "for the target, MAGNETAR_TOKEN for both; BASIC, TLS_TRUST, TLS_CERTIFICATE and TLS_KEY in the "
    "place of TOKEN work alike. "
    "The role must be a super user on both sides. Exit status: 0 done, nothing differs; 12 "
    "something differs; 2 bad option; 4 another migration runs; 8 a cluster does not answer, or "
    "refuses."
)


def migrate(
    source: Annotated[
        str,
        typer.Option("--from", metavar="URL", help="Source: pulsar://host:port of its brokers."),
    ] = "",
    source_admin: Annotated[
        str,
        typer.Option(
            "--from-admin", metavar="URL", help="Source: http://host:port of its brokers."
        ),
    ] = "",
    target: Annotated[
        str,
        typer.Option("--to", metavar="URL", help="Target: pulsar://host:port of Magnetar."),
    ] = "",
    target_admin: Annotated[
        str, typer.Option("--to-admin", metavar="URL", help="Target: http://host:port.")
    ] = "",
    namespaces: Annotated[
        str,
        typer.Option(
            "--namespaces",
            metavar="TENANT/NAMESPACE,…",
            help="Only these namespaces; default: all but the cluster's own.",
        ),
    ] = "",
    state: Annotated[
        Path,
        typer.Option(
            "--state",
            metavar="DIR",
            help="State directory: the options of the migration and its progress. Give it again "
            "to continue; the URLs can then be left out.",
        ),
    ] = Path("magnetar-migration"),
    cut_over: Annotated[
        bool,
        typer.Option(
            "--cut-over",
            help="Finish: wait until no client is connected to the source, copy the rest, move "
            "subscriptions and policies, then compare. A running migration with this state "
            "directory does it.",
        ),
    ] = False,
) -> None:
    """Move tenants, namespaces, topics, messages, schemas and subscriptions to Magnetar.

    Copies messages, and follows the source until --cut-over is given. It can be killed and started
    again at any time: each message is copied once, in order.
    """
    from magnetar.deploy.migration import running

    sys.exit(
        running.run(
            source=source,
            source_admin=source_admin,
            target=target,
            target_admin=target_admin,
            namespaces=namespaces,
            state=state,
            is_cut_over=cut_over,
        )
    )


def add_migrate(app: typer.Typer) -> None:
    """Add the command."""
    app.command("migrate", rich_help_panel="Daily tools", epilog=_EPILOG)(migrate)
