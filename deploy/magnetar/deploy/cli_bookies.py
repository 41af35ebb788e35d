"""The commands about bookies as members of the cluster: admin bookies."""

import sys
from typing import Annotated

import typer

from magnetar.deploy.cli_recovery import JsonOption, MetadataOption
from magnetar.deploy.errors import SettingsError
from magnetar.deploy.logs import LogFormat, LogLevel, configure_logging

bookies = typer.Typer(
    no_args_is_help=True,
    help="See which bookies there are, and take out those that are gone for good. Talks to the "
    "metadata store and the bookies.",
)

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")]


@bookies.command("list")
def list_(metadata: MetadataOption, as_json: JsonOption = False) -> None:
    """Print every bookie: writable, readonly, or lost (it has a cookie and is not registered)."""
    _configure_logging()
    from magnetar.deploy import bookies_tools

    bookies_tools.run(metadata, lambda tools: tools.list_bookies(as_json=as_json))


@bookies.command()
def recover(
    metadata: MetadataOption,
    ids: Annotated[
        list[str], typer.Argument(metavar="BOOKIE...", help="Bookies that are gone for good.")
    ],
    ledger: Annotated[
        int | None, typer.Option("--ledger", min=0, help="Only this ledger; default: all.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the ledgers that name them.")
    ] = False,
    skip_open: Annotated[
        bool,
        typer.Option(
            "--skip-open",
            help="Leave ledgers alone that are not closed; else they are fenced and closed first, "
            "and their writers go on in new ones.",
        ),
    ] = False,
    delete_cookies: Annotated[
        bool,
        typer.Option(
            "--delete-cookies",
            help="When no ledger needs them any more, have the cluster forget them. Their ids "
            "must never come back with empty disks.",
        ),
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Copy what lost bookies held, from here and now, without the auditor.

    Refused for bookies that are registered. Workers may run meanwhile.
    """
    _configure_logging()
    if delete_cookies and (ledger is not None or skip_open or dry_run):
        raise SettingsError(
            "--delete-cookies wants all ledgers recovered: give it without --ledger, --skip-open "
            "and --dry-run"
        )
    if not dry_run and not yes:
        typer.confirm(f"Recover every ledger of {', '.join(ids)}?", abort=True, err=True)
    from magnetar.deploy import bookies_tools

    bookies_tools.run(
        metadata,
        lambda tools: tools.recover(
            ids,
            ledger_id=ledger,
            is_dry_run=dry_run,
            skips_open=skip_open,
            deletes_cookies=delete_cookies,
            as_json=as_json,
        ),
    )


@bookies.command()
def decommission(
    metadata: MetadataOption,
    bookie_id: Annotated[str, typer.Argument(metavar="BOOKIE", help="A bookie that was stopped.")],
    yes: YesOption = False,
) -> None:
    """Wait until no ledger needs a stopped bookie any more, and have the cluster forget it.

    Needs auto-recovery running, which makes the copies. Refused while the bookie is registered.
    Safe to break off, and to run again. The id must never come back with empty disks.
    """
    _configure_logging()
    if not yes:
        typer.confirm(f"Take {bookie_id} out of the cluster for ever?", abort=True, err=True)
    from magnetar.deploy import bookies_tools

    bookies_tools.run(metadata, lambda tools: tools.decommission(bookie_id))


def _configure_logging() -> None:
    configure_logging(LogLevel.WARNING, LogFormat.AUTO, stream=sys.stderr)
