"""The commands of auto-recovery: its server, and what operators ask and tell it."""

import sys
from typing import Annotated

import typer

from magnetar.deploy.logs import LogFormat, LogLevel, configure_logging
from magnetar.deploy.options import (
    ConfigOption,
    Listen,
    LogFormatOption,
    LogLevelOption,
    sources_of,
)

MetadataOption = Annotated[
    str,
    typer.Option(
        "--metadata",
        envvar="MAGNETAR_ADMIN_METADATA",
        metavar="URL",
        help="zk://host:port[,host:port]/path or embedded:PATH.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

recovery = typer.Typer(
    no_args_is_help=True,
    help="Show and control re-replication. Connects to the metadata store.",
)


def add_autorecovery(app: typer.Typer, *, epilog: str) -> None:
    """Register `magnetar autorecovery`."""
    app.command(rich_help_panel="Servers", epilog=epilog)(autorecovery)


def autorecovery(
    context: typer.Context,
    metadata: Annotated[
        str,
        typer.Option(
            envvar="MAGNETAR_AUTORECOVERY_METADATA",
            metavar="URL",
            help="zk://host:port[,host:port]/path or embedded:PATH.",
        ),
    ],
    host: Annotated[
        str,
        typer.Option(
            envvar="MAGNETAR_AUTORECOVERY_HOST", help="Address that the HTTP port listens on."
        ),
    ] = "127.0.0.1",
    advertised_host: Annotated[
        str,
        typer.Option(
            envvar="MAGNETAR_AUTORECOVERY_ADVERTISED_HOST",
            help="Host in the ready line and in the default name; default: HOST, or this "
            "machine's name for 0.0.0.0.",
        ),
    ] = "",
    name: Annotated[
        str,
        typer.Option(
            "--id",
            envvar="MAGNETAR_AUTORECOVERY_ID",
            help="Id in locks and as the auditor; default: HOST:PID.",
        ),
    ] = "",
    metrics_port: Annotated[
        int | None,
        typer.Option(
            envvar="MAGNETAR_AUTORECOVERY_METRICS_PORT",
            min=0,
            max=65535,
            help="HTTP port of /metrics and /health; 0: any free. Default: no HTTP server.",
        ),
    ] = None,
    config: ConfigOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.AUTO,
) -> None:
    """Restore the missing copies of lost bookies.

    Runs a worker, and stands for election as the auditor; one or more of these per cluster. Prints
    one line when it works: ready autorecovery://ID, and http://HOST:PORT if it has a metrics port.
    SIGTERM gives back what is under way and ends with status 0.
    """
    del config  # read by its callback
    configure_logging(log_level, log_format, stream=sys.stderr)
    from magnetar.deploy.autorecovery_server import AutoRecoveryServer, AutoRecoveryServerSettings
    from magnetar.deploy.freed_memory import keep_freed_memory
    from magnetar.deploy.process import run_server

    keep_freed_memory()
    settings = AutoRecoveryServerSettings(
        metadata_url=metadata,
        listen=Listen(host, advertised_host),
        name=name,
        metrics_port=metrics_port,
    )
    sources = sources_of(context)
    run_server(lambda: AutoRecoveryServer(settings, sources))


@recovery.command()
def status(metadata: MetadataOption, as_json: JsonOption = False) -> None:
    """Print how many ledgers lack copies, since when, and which workers repair them."""
    _configure_logging()
    from magnetar.deploy import recovery_tools

    recovery_tools.run(metadata, lambda tools: tools.show_status(as_json=as_json))


@recovery.command("list")
def list_(
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
            min=0, help="New delay; longer than a restart takes. Default: print the delay."
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


def _configure_logging() -> None:
    configure_logging(LogLevel.WARNING, LogFormat.AUTO, stream=sys.stderr)
