"""Commands for stored ledgers: ledger, admin recovery and admin bookies.

They use the metadata store; the commands that make copies use bookies as well.
"""

import sys
from typing import Annotated

import typer

from magnetar.deploy.admin_shared import JsonOption, YesOption
from magnetar.deploy.errors import SettingsError
from magnetar.deploy.logs import LogFormat, LogLevel, configure_logging

ledger = typer.Typer(no_args_is_help=True, help="Inspect ledgers, and delete orphaned ones.")
recovery = typer.Typer(
    no_args_is_help=True,
    help="Show and control re-replication. Connects to the metadata store.",
)
bookies = typer.Typer(
    no_args_is_help=True,
    help="List bookies, recover lost ones, decommission stopped ones. Connects to the metadata "
    "store and the bookies.",
)

MetadataOption = Annotated[
    str,
    typer.Option(
        "--metadata",
        envvar="MAGNETAR_ADMIN_METADATA",
        metavar="URL",
        help="Metadata store: zk://host:port[,host:port]/path or embedded:PATH.",
    ),
]
LedgerMetadataOption = Annotated[
    str,
    typer.Option(
        "--metadata",
        envvar="MAGNETAR_LEDGER_METADATA",
        metavar="URL",
        help="Metadata store: zk://host:port[,host:port]/path or embedded:PATH.",
    ),
]
JsonLinesOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


@ledger.command("list")
def list_ledgers(metadata: LedgerMetadataOption, as_json: JsonLinesOption = False) -> None:
    """Print all ledgers, ordered by id."""
    _configure_logging()
    from magnetar.deploy import ledger_tools

    ledger_tools.run(metadata, lambda tools: tools.list_ledgers(as_json=as_json))


@ledger.command()
def show(
    ledger_id: Annotated[int, typer.Argument(help="Id of the ledger.")],
    metadata: LedgerMetadataOption,
    as_json: JsonLinesOption = False,
) -> None:
    """Print one ledger: its quorums, state, end and fragments."""
    _configure_logging()
    from magnetar.deploy import ledger_tools

    ledger_tools.run(metadata, lambda tools: tools.show_ledger(ledger_id, as_json=as_json))


@ledger.command()
def orphans(
    metadata: LedgerMetadataOption,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the orphans; without it they are only listed.")
    ] = False,
    grace_hours: Annotated[
        float, typer.Option(min=1, help="Keep ledgers younger than this many hours.")
    ] = 72,
    as_json: JsonLinesOption = False,
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
    metadata: LedgerMetadataOption,
    turn_on: Annotated[
        bool,
        typer.Option(
            "--turn-on",
            help="Give new ledgers passwords; cannot be undone. Refused while a bookie is down or "
            "runs an older release.",
        ),
    ] = False,
) -> None:
    """Print whether new ledgers have passwords, which readers must present.

    A new cluster has passwords. A cluster that an older release created has none until --turn-on.
    Turn them on when bookies, auto-recovery, brokers, tools and Spark jobs all run this release:
    older releases cannot open a ledger that has a password. This cannot be undone. Existing ledgers
    stay readable without a password.
    """
    _configure_logging()
    from magnetar.deploy import bookies_tools

    bookies_tools.run(metadata, lambda tools: tools.ledger_passwords(turns_on=turn_on))


@recovery.command()
def status(metadata: MetadataOption, as_json: JsonOption = False) -> None:
    """Print how many ledgers lack copies, since when, and which workers repair them."""
    _configure_logging()
    from magnetar.deploy import recovery_tools

    recovery_tools.run(metadata, lambda tools: tools.show_status(as_json=as_json))


@recovery.command("list")
def list_items(
    metadata: MetadataOption,
    missing: Annotated[
        str,
        typer.Option(
            "--missing", metavar="BOOKIE", help="Only ledgers that lack the copy of this bookie."
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Print each ledger that lacks copies: bookies, bytes, since when, worker."""
    _configure_logging()
    from magnetar.deploy import recovery_tools

    recovery_tools.run(
        metadata, lambda tools: tools.list_items(lacking=missing or None, as_json=as_json)
    )


@recovery.command()
def auditor(metadata: MetadataOption) -> None:
    """Print the id of the auditor process."""
    _configure_logging()
    from magnetar.deploy import recovery_tools

    recovery_tools.run(metadata, lambda tools: tools.show_auditor())


@recovery.command("trigger-audit")
def trigger_audit(metadata: MetadataOption) -> None:
    """Audit all ledgers for lost bookies now, without the delay."""
    _configure_logging()
    from magnetar.deploy import recovery_tools

    recovery_tools.run(metadata, lambda tools: tools.trigger_audit())


@recovery.command()
def delay(
    metadata: MetadataOption,
    seconds: Annotated[
        float | None,
        typer.Argument(
            min=0,
            help="New delay in seconds; longer than a restart takes. Default: print the delay.",
        ),
    ] = None,
    unset: Annotated[
        bool, typer.Option("--unset", help="Use the delay of the auditor's settings again.")
    ] = False,
) -> None:
    """Show or set how long a bookie may be away before it counts as lost.

    Setting the current value again starts an audit at once.
    """
    _configure_logging()
    from magnetar.deploy import recovery_tools

    if seconds is None and not unset:
        recovery_tools.run(metadata, lambda tools: tools.show_delay())
    else:
        recovery_tools.run(metadata, lambda tools: tools.set_delay(None if unset else seconds))


@recovery.command()
def enable(metadata: MetadataOption) -> None:
    """Enable re-replication."""
    _configure_logging()
    from magnetar.deploy import recovery_tools

    recovery_tools.run(metadata, lambda tools: tools.enable())


@recovery.command()
def disable(metadata: MetadataOption) -> None:
    """Disable re-replication in the whole cluster. Workers finish their current ledgers."""
    _configure_logging()
    from magnetar.deploy import recovery_tools

    recovery_tools.run(metadata, lambda tools: tools.disable())


@bookies.command("list")
def list_bookies(metadata: MetadataOption, as_json: JsonOption = False) -> None:
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
    """Re-replicate the ledgers of lost bookies from this process, without the auditor.

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
