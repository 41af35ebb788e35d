"""The `magnetar` command.

Commands import what they need when they run, so that `magnetar --help` and the small tools start at
once. Each option can also be given in the environment and in the file of `--config`; `--help` names
the variables. An error that ends a command is one line on stderr and the exit status of its class
(errors.py).
"""

import sys
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Annotated

import typer

from magnetar.deploy.cli_admin import admin
from magnetar.deploy.cli_backup import add_backup
from magnetar.deploy.cli_bookie_tool import bookie_tool
from magnetar.deploy.cli_cluster import add_cluster
from magnetar.deploy.cli_migrate import add_migrate
from magnetar.deploy.cli_perf import perf
from magnetar.deploy.cli_pipeline import pipeline
from magnetar.deploy.cli_storage import ledger
from magnetar.deploy.cli_tools import add_tools
from magnetar.deploy.errors import DeployError
from magnetar.deploy.logs import LogFormat, LogLevel, configure_logging
from magnetar.deploy.options import (
    ConfigOption,
    Listen,
    LogFormatOption,
    LogLevelOption,
    default_quorum,
    parse_data,
    parse_quorum,
    sources_of,
)
from magnetar.deploy.standard_error import tolerate_lost_lines

_EPILOG = (
    "Exit status: 0 done; 1 unexpected failure; 2 bad option or setting; 3 port taken; "
    "4 data directory locked; 5 cookie of another bookie or cluster; 6 metadata store unreachable; "
    "7 data directory unusable; 8 broker unreachable; "
    "9 a required program is missing; 10 unreadable metadata; 11 damaged files found; "
    "12 source and target of a migration differ; 13 broker refused; 14 not found; 15 not allowed; "
    "16 too few messages came in time."
)
_HOST_HELP = "Address to listen on."
_BROKER_HOST_HELP = (
    "Address to listen on. A non-loopback address needs authentication, or --insecure."
)
_BOOKIE_HOST_HELP = (
    "Address to listen on. A non-loopback address needs a shared secret or TLS, or --insecure."
)
_ADVERTISED_HELP = (
    "Host that clients connect to; default: HOST, or this machine's name if HOST is 0.0.0.0."
)

app = typer.Typer(
    name="magnetar",
    help="A message broker on a replicated ledger store, for Apache Pulsar clients.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


WITH_CONTEXT = frozenset(
    {
        *("produce", "consume", "read", "doctor", "admin", "perf", "pipeline", "ledger"),
        *("backup", "restore"),
    }
)
"""Commands that take addresses and credentials from a context: tools of one cluster, not
servers."""


@app.callback(invoke_without_command=True)
def _root(
    call: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)
    ] = False,
    context: Annotated[
        str,
        typer.Option(
            "--context",
            envvar="MAGNETAR_CONTEXT",
            metavar="NAME",
            help="Context of this command: see `magnetar context`. Default: the one in use.",
        ),
    ] = "",
) -> None:
    if version:
        sys.stdout.write(f"magnetar {package_version('magnetar')}\n")
        raise typer.Exit
    if call.invoked_subcommand in WITH_CONTEXT:
        from magnetar.deploy.contexts import use_context

        use_context(context)


add_tools(app)
add_cluster(app)
app.add_typer(admin, name="admin", rich_help_panel="Daily tools")
app.add_typer(perf, name="perf", rich_help_panel="Daily tools")
app.add_typer(pipeline, name="pipeline", rich_help_panel="Daily tools")
app.add_typer(ledger, name="ledger", rich_help_panel="Daily tools")
app.add_typer(bookie_tool, name="bookie-tool", rich_help_panel="Daily tools")
add_backup(app)
add_migrate(app)


@app.command(rich_help_panel="Servers", epilog=_EPILOG)
def standalone(
    context: typer.Context,
    data: Annotated[
        Path,
        typer.Option(
            envvar="MAGNETAR_STANDALONE_DATA",
            parser=parse_data,
            metavar="PATH",
            help="Data directory.",
        ),
    ],
    host: Annotated[
        str, typer.Option(envvar="MAGNETAR_STANDALONE_HOST", help=_BROKER_HOST_HELP)
    ] = "127.0.0.1",
    advertised_host: Annotated[
        str, typer.Option(envvar="MAGNETAR_STANDALONE_ADVERTISED_HOST", help=_ADVERTISED_HELP)
    ] = "",
    port: Annotated[
        int,
        typer.Option(
            envvar="MAGNETAR_STANDALONE_PORT", min=0, max=65535, help="Pulsar port; 0: any free."
        ),
    ] = 6650,
    http_port: Annotated[
        int,
        typer.Option(
            envvar="MAGNETAR_STANDALONE_HTTP_PORT", min=0, max=65535, help="HTTP port; 0: any free."
        ),
    ] = 8080,
    bookies: Annotated[
        int,
        typer.Option(
            envvar="MAGNETAR_STANDALONE_BOOKIES",
            min=0,
            max=32,
            help="Number of bookies in this process; 0: as many as --data holds, or 1 if it is "
            "new.",
        ),
    ] = 0,
    quorum: Annotated[
        str,
        typer.Option(
            envvar="MAGNETAR_STANDALONE_QUORUM",
            metavar="E,Qw,Qa",
            help="Ensemble size, write quorum, ack quorum: bookies per ledger, copies per entry, "
            "synced copies before a publish is confirmed.",
        ),
    ] = "",
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            envvar="MAGNETAR_STANDALONE_INSECURE",
            help="Allow a non-loopback address without authentication, a shared secret or TLS.",
        ),
    ] = False,
    config: ConfigOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.AUTO,
) -> None:
    """Run embedded metadata, bookies and broker in one process.

    Prints one line when it serves: ready pulsar://HOST:PORT http://HOST:PORT. SIGTERM drains and
    ends with status 0.
    """
    del config  # read by its callback
    configure_logging(log_level, log_format, stream=sys.stderr)
    from magnetar.deploy.broker_server import broker_settings
    from magnetar.deploy.process import run_server
    from magnetar.deploy.standalone import Standalone, bookies_in

    count = bookies or bookies_in(data)
    sources = sources_of(context)
    settings = broker_settings(
        sources,
        listen=Listen(host, advertised_host),
        port=port,
        http_port=http_port,
        quorum=parse_quorum(quorum) if quorum else default_quorum(count),
        insecure=insecure,
    )
    run_server(lambda: Standalone(data, settings, sources, bookies=count))


@app.command(rich_help_panel="Servers", epilog=_EPILOG)
def bookie(
    context: typer.Context,
    metadata: Annotated[
        str,
        typer.Option(
            envvar="MAGNETAR_BOOKIE_METADATA",
            metavar="URL",
            help="Metadata store: zk://host:port[,host:port]/path or embedded:PATH.",
        ),
    ],
    data: Annotated[
        Path,
        typer.Option(
            envvar="MAGNETAR_BOOKIE_DATA",
            parser=parse_data,
            metavar="PATH",
            help="Data directory: journal and entry logs.",
        ),
    ],
    host: Annotated[
        str, typer.Option(envvar="MAGNETAR_BOOKIE_HOST", help=_BOOKIE_HOST_HELP)
    ] = "127.0.0.1",
    advertised_host: Annotated[
        str, typer.Option(envvar="MAGNETAR_BOOKIE_ADVERTISED_HOST", help=_ADVERTISED_HELP)
    ] = "",
    port: Annotated[
        int,
        typer.Option(
            envvar="MAGNETAR_BOOKIE_PORT", min=0, max=65535, help="Bookie port; 0: any free."
        ),
    ] = 3181,
    bookie_id: Annotated[
        str,
        typer.Option(
            "--id",
            envvar="MAGNETAR_BOOKIE_ID",
            help="Bookie id, permanent; default: HOST:PORT.",
        ),
    ] = "",
    rack: Annotated[
        str,
        typer.Option(
            envvar="MAGNETAR_BOOKIE_RACK",
            help="Rack or power feed of this bookie: copies are spread over racks; default: "
            "unknown.",
        ),
    ] = "",
    zone: Annotated[
        str,
        typer.Option(
            envvar="MAGNETAR_BOOKIE_ZONE",
            help="Data centre or availability zone of this bookie; default: unknown.",
        ),
    ] = "",
    metrics_port: Annotated[
        int | None,
        typer.Option(
            envvar="MAGNETAR_BOOKIE_METRICS_PORT",
            min=0,
            max=65535,
            help="HTTP port of /metrics and /health; 0: any free. Default: no HTTP server.",
        ),
    ] = None,
    autorecovery: Annotated[
        bool,
        typer.Option(
            "--autorecovery",
            envvar="MAGNETAR_BOOKIE_AUTORECOVERY",
            help="Run auto-recovery in this process, too: see `magnetar autorecovery`.",
        ),
    ] = False,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            envvar="MAGNETAR_BOOKIE_INSECURE",
            help="Allow a non-loopback address without authentication, a shared secret or TLS.",
        ),
    ] = False,
    config: ConfigOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.AUTO,
) -> None:
    """Run one storage server.

    Prints one line when it serves: ready bookie://HOST:PORT, and http://HOST:PORT with
    --metrics-port. SIGTERM drains and ends with status 0.
    """
    del config
    configure_logging(log_level, log_format, stream=sys.stderr)
    from magnetar.deploy.bookie_server import BookieServer, bookie_settings
    from magnetar.deploy.process import run_server

    sources = sources_of(context)
    settings = bookie_settings(
        sources,
        data=data,
        listen=Listen(host, advertised_host),
        port=port,
        bookie_id=bookie_id,
        rack=rack,
        zone=zone,
        insecure=insecure,
    )
    run_server(
        lambda: BookieServer(
            settings,
            sources,
            metadata_url=metadata,
            metrics_port=metrics_port,
            autorecovery=autorecovery,
        )
    )


@app.command(rich_help_panel="Servers", epilog=_EPILOG)
def broker(
    context: typer.Context,
    metadata: Annotated[
        str,
        typer.Option(
            envvar="MAGNETAR_BROKER_METADATA",
            metavar="URL",
            help="Metadata store: zk://host:port[,host:port]/path or embedded:PATH.",
        ),
    ],
    host: Annotated[
        str, typer.Option(envvar="MAGNETAR_BROKER_HOST", help=_BROKER_HOST_HELP)
    ] = "127.0.0.1",
    advertised_host: Annotated[
        str, typer.Option(envvar="MAGNETAR_BROKER_ADVERTISED_HOST", help=_ADVERTISED_HELP)
    ] = "",
    port: Annotated[
        int,
        typer.Option(
            envvar="MAGNETAR_BROKER_PORT", min=0, max=65535, help="Pulsar port; 0: any free."
        ),
    ] = 6650,
    http_port: Annotated[
        int,
        typer.Option(
            envvar="MAGNETAR_BROKER_HTTP_PORT", min=0, max=65535, help="HTTP port; 0: any free."
        ),
    ] = 8080,
    quorum: Annotated[
        str,
        typer.Option(
            envvar="MAGNETAR_BROKER_QUORUM",
            metavar="E,Qw,Qa",
            help="Ensemble size, write quorum, ack quorum: bookies per ledger, copies per entry, "
            "synced copies before a publish is confirmed.",
        ),
    ] = "3,3,2",
    name: Annotated[
        str,
        typer.Option(
            envvar="MAGNETAR_BROKER_NAME",
            help="Broker name, unique in the cluster; default: HOST:PORT.",
        ),
    ] = "",
    advertised_listeners: Annotated[
        str,
        typer.Option(
            envvar="MAGNETAR_BROKER_ADVERTISED_LISTENERS",
            metavar="NAME:URL,...",
            help="Advertised listeners: addresses in several networks, which clients choose by "
            "name, as inside:pulsar://10.0.0.1:6650. Other clients get the first.",
        ),
    ] = "",
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            envvar="MAGNETAR_BROKER_INSECURE",
            help="Allow a non-loopback address without authentication, a shared secret or TLS.",
        ),
    ] = False,
    config: ConfigOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.AUTO,
) -> None:
    """Run one broker.

    Brokers with the same metadata store share its topics. Prints one line when it serves: ready
    pulsar://HOST:PORT http://HOST:PORT. SIGTERM hands its topics over and ends with status 0.
    """
    del config
    configure_logging(log_level, log_format, stream=sys.stderr)
    from magnetar.deploy.broker_server import BrokerServer, broker_settings
    from magnetar.deploy.process import run_server

    sources = sources_of(context)
    settings = broker_settings(
        sources,
        listen=Listen(host, advertised_host),
        port=port,
        http_port=http_port,
        quorum=parse_quorum(quorum),
        name=name,
        advertised_listeners=advertised_listeners,
        insecure=insecure,
    )
    run_server(lambda: BrokerServer(settings, sources, metadata_url=metadata))


@app.command(rich_help_panel="Servers", epilog=_EPILOG)
def zookeeper(
    data: Annotated[
        Path,
        typer.Option(
            envvar="MAGNETAR_ZOOKEEPER_DATA",
            parser=parse_data,
            metavar="PATH",
            help="Data directory: snapshots and transaction log.",
        ),
    ],
    host: Annotated[
        str, typer.Option(envvar="MAGNETAR_ZOOKEEPER_HOST", help=_HOST_HELP)
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            envvar="MAGNETAR_ZOOKEEPER_PORT", min=0, max=65535, help="Client port; 0: any free."
        ),
    ] = 2181,
    server_id: Annotated[
        int,
        typer.Option(
            envvar="MAGNETAR_ZOOKEEPER_SERVER_ID",
            min=1,
            help="Position of this server in --servers, counted from 1.",
        ),
    ] = 1,
    servers: Annotated[
        str,
        typer.Option(
            envvar="MAGNETAR_ZOOKEEPER_SERVERS",
            metavar="HOST:2888:3888:2181,...",
            help="All servers of the ensemble, each with its quorum, election and client port; "
            "--host and --port are then ignored. Default: a single server.",
        ),
    ] = "",
    config: ConfigOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.AUTO,
) -> None:
    """Run a real ZooKeeper server, alone or as one of an ensemble, for development.

    It needs a Java runtime and the `zookeeper` extra, because its jars come with pyspark. Prints
    one line when it serves: ready zk://HOST:PORT/.
    """
    del config
    configure_logging(log_level, log_format, stream=sys.stderr)
    from magnetar.deploy.process import Server, run_server
    from magnetar.deploy.zookeeper import ZooKeeperServer, parse_members

    server = ZooKeeperServer(
        data=data.resolve(),
        host=host,
        port=port,
        server_id=server_id,
        members=parse_members(servers) if servers else (),
    )

    async def watch(_: Server) -> bool:
        status = await server.wait_exit()
        raise DeployError(f"ZooKeeper ended by itself with status {status}")

    run_server(lambda: server, then=watch)


@app.command(rich_help_panel="Servers", epilog=_EPILOG)
def autorecovery(
    context: typer.Context,
    metadata: Annotated[
        str,
        typer.Option(
            envvar="MAGNETAR_AUTORECOVERY_METADATA",
            metavar="URL",
            help="Metadata store: zk://host:port[,host:port]/path or embedded:PATH.",
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
            help="Host in the ready line and in the default id; default: HOST, or this machine's "
            "name if HOST is 0.0.0.0.",
        ),
    ] = "",
    name: Annotated[
        str,
        typer.Option(
            "--id",
            envvar="MAGNETAR_AUTORECOVERY_ID",
            help="Id of this process in locks and in the auditor's election; default: HOST:PID.",
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
    """Re-replicate the ledgers of lost bookies.

    Runs a worker and a candidate for the auditor's election. Run one or more per cluster. Prints
    one line when it works: ready autorecovery://ID, and http://HOST:PORT with --metrics-port.
    SIGTERM releases the ledgers in progress and ends with status 0.
    """
    del config  # read by its callback
    configure_logging(log_level, log_format, stream=sys.stderr)
    from magnetar.deploy.autorecovery_server import AutoRecoveryServer
    from magnetar.deploy.freed_memory import keep_freed_memory
    from magnetar.deploy.process import run_server

    keep_freed_memory()
    sources = sources_of(context)
    run_server(
        lambda: AutoRecoveryServer(
            sources,
            metadata_url=metadata,
            listen=Listen(host, advertised_host),
            name=name,
            metrics_port=metrics_port,
        )
    )


def main() -> None:
    """Entry point of the `magnetar` command."""
    run_app(app)


def run_app(command: typer.Typer) -> None:
    """Run a command line. An error becomes one line and an exit status."""
    tolerate_lost_lines()
    try:
        command()
    except DeployError as error:
        sys.stderr.write(f"magnetar: {error}\n")
        sys.exit(error.exit_status)
    except BrokenPipeError:
        # The reader of the output closed it, as `| head` does.
        sys.stderr.close()
        sys.exit(0)


if __name__ == "__main__":
    main()
