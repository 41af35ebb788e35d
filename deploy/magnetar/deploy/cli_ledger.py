"""The commands that look into ledgers: ledger list, show, orphans and passwords."""

import sys
from typing import Annotated

import typer

from magnetar.deploy.logs import LogFormat, LogLevel, configure_logging

ledger = typer.Typer(no_args_is_help=True, help="Inspect ledgers, and delete orphaned ones.")

MetadataOption = Annotated[
    str,
    typer.Option(
        "--metadata",
        envvar="MAGNETAR_LEDGER_METADATA",
        metavar="URL",
        help="zk://host:port[,host:port]/path or embedded:PATH.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


@ledger.command("list")
def list_(metadata: MetadataOption, as_json: JsonOption = False) -> None:
    """Print all ledgers, ordered by id."""
    _configure_logging()
    from magnetar.deploy import ledger_tools

    ledger_tools.run(metadata, lambda tools: tools.list_ledgers(as_json=as_json))


@ledger.command()
def show(
    ledger_id: Annotated[int, typer.Argument(help="Id of the ledger.")],
    metadata: MetadataOption,
    as_json: JsonOption = False,
) -> None:
    """Print one ledger: its quorums, state, end and fragments."""
    _configure_logging()
    from magnetar.deploy import ledger_tools

    ledger_tools.run(metadata, lambda tools: tools.show_ledger(ledger_id, as_json=as_json))


@ledger.command()
def orphans(
    metadata: MetadataOption,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the orphans; without it they are only listed.")
    ] = False,
    grace_hours: Annotated[float, typer.Option(min=1, help="Keep ledgers younger than this.")] = 72,
    as_json: JsonOption = False,
) -> None:
    """Find ledgers that no log and no cursor refers to.

    A ledger in doubt is kept and listed as undecided, with the reason. --delete closes an open
    orphan first; the next run deletes it if it is still an orphan.
    """
    _configure_logging()
    from magnetar.deploy import ledger_tools

    ledger_tools.run(
        metadata,
        lambda tools: tools.sweep_orphans(
            delete=delete, grace_ms=round(grace_hours * 3_600_000), as_json=as_json
        ),
    )


@ledger.command()
def passwords(
    metadata: MetadataOption,
    turn_on: Annotated[
        bool,
        typer.Option(
            "--turn-on",
            help="Give new ledgers passwords, for good. Refused while a bookie is older or away.",
        ),
    ] = False,
) -> None:
    """Print whether new ledgers have passwords, which readers must present.

    A new cluster has passwords. A cluster that an older release began has none until --turn-on.
    Turn them on when bookies, auto-recovery, brokers, tools and Spark jobs all run this release:
    older ones cannot open a ledger that has a password, and there is no way back. Existing ledgers
    stay readable without one.
    """
    _configure_logging()
    from magnetar.deploy import bookies_tools

    bookies_tools.run(metadata, lambda tools: tools.ledger_passwords(turns_on=turn_on))


def _configure_logging() -> None:
    configure_logging(LogLevel.WARNING, LogFormat.AUTO, stream=sys.stderr)
