"""The commands about bookies as members of the cluster: admin bookies."""

import sys
from typing import Annotated

import typer

from magnetar.deploy.cli_recovery import JsonOption, MetadataOption
from magnetar.deploy.errors import SettingsError
from magnetar.deploy.logs import LogFormat, LogLevel, configure_logging

bookies = typer.Typer(
    no_args_is_help=True,
    help="List bookies, recover lost ones, decommission stopped ones. Connects to the metadata "
    "store and the bookies.",
)

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@bookies.command("list")
def list_(metadata: MetadataOption, as_json: JsonOption = False) -> None:
    """Print each bookie: writable, readonly, or lost (has a cookie, is not registered)."""
    _configure_logging()
    from magnetar.deploy import bookies_tools

    bookies_tools.run(metadata, lambda tools: tools.list_bookies(as_json=as_json))


@bookies.command()
def recover(
    metadata: MetadataOption,
    ids: Annotated[list[str], typer.Argument(metavar="BOOKIE...", help="Ids of lost bookies.")],
    ledger: Annotated[
        int | None, typer.Option("--ledger", min=0, help="Only this ledger; default: all.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the ledgers that refer to these bookies.")
    ] = False,
    skip_open: Annotated[
        bool,
        typer.Option(
            "--skip-open",
            help="Skip open ledgers. Without it they are fenced and closed first, and their "
            "writers continue in new ledgers.",
        ),
    ] = False,
    delete_cookies: Annotated[
        bool,
        typer.Option(
            "--delete-cookies",
            help="Remove the cookies of these bookies when no ledger needs them. Never start "
            "their ids again with empty disks.",
        ),
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Restore the copies of lost bookies from this process, without the auditor.

    Refused for registered bookies. Workers may run at the same time.
    """
    _configure_logging()
    if delete_cookies and (ledger is not None or skip_open or dry_run):
        raise SettingsError(
            "--delete-cookies needs all ledgers recovered: give it without --ledger, --skip-open "
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
    bookie_id: Annotated[str, typer.Argument(metavar="BOOKIE", help="Id of a stopped bookie.")],
    yes: YesOption = False,
) -> None:
    """Wait until no ledger needs a stopped bookie, then remove its cookie.

    Auto-recovery must run: it makes the copies. Refused while the bookie is registered.
    Safe to interrupt and to run again. Never start this id again with empty disks.
    """
    _configure_logging()
    if not yes:
        typer.confirm(f"Remove bookie {bookie_id} from the cluster for good?", abort=True, err=True)
    from magnetar.deploy import bookies_tools

    bookies_tools.run(metadata, lambda tools: tools.decommission(bookie_id))


def _configure_logging() -> None:
    configure_logging(LogLevel.WARNING, LogFormat.AUTO, stream=sys.stderr)
