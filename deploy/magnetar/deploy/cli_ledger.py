"""The commands that look into ledgers: ledger list, show, orphans and passwords."""

import sys
from typing import Annotated

import typer

from magnetar.deploy.logs import LogFormat, LogLevel, configure_logging

ledger = typer.Typer(
    no_args_is_help=True, help="Look into ledgers, and sweep up those left behind."
)

MetadataOption = Annotated[
    str,
    typer.Option(
        "--metadata",
        envvar="MAGNETAR_LEDGER_METADATA",
        metavar="URL",
        help="zk://host:port[,host:port]/path or embedded:PATH.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]


@ledger.command("list")
def list_(metadata: MetadataOption, as_json: JsonOption = False) -> None:
    """Print every ledger, in the order of their ids."""
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
        bool, typer.Option("--delete", help="Delete them; without it they are only listed.")
    ] = False,
    grace_hours: Annotated[float, typer.Option(min=1, help="Younger ledgers are left alone.")] = 72,
    as_json: JsonOption = False,
) -> None:
    """Find ledgers that neither a log nor a cursor names any more.

    Whatever is in doubt is kept, and listed as undecided with the reason. With --delete an orphan
    that is still open is sealed first; the next run deletes it, if it is an orphan then, too.
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
            help="From now on. Refused while a bookie is of an older release, or away.",
        ),
    ] = False,
) -> None:
    """Print whether new ledgers have passwords, which every reader has to show.

    They have in a cluster that was begun with them. One that was begun by an older release has none
    until it is told: when bookies, auto-recovery, brokers, tools and Spark jobs are all of this
    release. Older ones open no ledger that has one, and it cannot be undone. Ledgers that are there
    stay as they are, and readable.
    """
    _configure_logging()
    from magnetar.deploy import bookies_tools

    bookies_tools.run(metadata, lambda tools: tools.ledger_passwords(turns_on=turn_on))


def _configure_logging() -> None:
    configure_logging(LogLevel.WARNING, LogFormat.AUTO, stream=sys.stderr)
