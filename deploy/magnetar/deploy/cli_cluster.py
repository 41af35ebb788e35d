"""`magnetar cluster`: a whole cluster as processes on one host."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from magnetar.deploy.cluster_plan import Kind, Restart
from magnetar.deploy.config import read_config_file
from magnetar.deploy.logs import LogFormat, LogLevel, configure_logging
from magnetar.deploy.options import (
    ConfigOption,
    LogFormatOption,
    LogLevelOption,
    parse_data,
    parse_quorum,
)

_EPILOG = (
    "DIR/cluster.json lists the running servers with process ids and ports; DIR/logs has their "
    "logs. The next start uses the same counts and ports. Servers read their settings from the "
    "environment and the --config file, as when started one by one. Exit status: 0 all servers "
    "stopped in order; otherwise the status of the server that failed to start."
)
_PORT_HELP = (
    "0: any free ports, as last time if free. Default: as last time, or {} and the following, if "
    "free."
)


def add_cluster(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Servers", epilog=_EPILOG)(cluster)


def cluster(
    data: Annotated[
        Path,
        typer.Option(
            envvar="MAGNETAR_CLUSTER_DATA",
            parser=parse_data,
            metavar="PATH",
            help="Data directory.",
        ),
    ],
    bookies: Annotated[
        int | None,
        typer.Option(
            envvar="MAGNETAR_CLUSTER_BOOKIES",
            min=1,
            max=32,
            help="Number of bookies; default: as last time, else 3.",
        ),
    ] = None,
    brokers: Annotated[
        int | None,
        typer.Option(
            envvar="MAGNETAR_CLUSTER_BROKERS",
            min=0,
            max=32,
            help="Number of brokers; default: as last time, else 2.",
        ),
    ] = None,
    zookeepers: Annotated[
        int | None,
        typer.Option(
            envvar="MAGNETAR_CLUSTER_ZOOKEEPERS",
            min=1,
            max=7,
            help="Number of ZooKeeper servers, odd; default: as last time, else 1.",
        ),
    ] = None,
    zookeeper: Annotated[
        str,
        typer.Option(
            envvar="MAGNETAR_CLUSTER_ZOOKEEPER",
            metavar="URL",
            help="Use an existing ensemble: zk://host:port[,host:port]/path; default: run "
            "ZooKeeper servers here.",
        ),
    ] = "",
    autorecovery: Annotated[
        int | None,
        typer.Option(
            envvar="MAGNETAR_CLUSTER_AUTORECOVERY",
            min=0,
            max=32,
            help="Number of auto-recovery servers; default: as last time, else 1.",
        ),
    ] = None,
    quorum: Annotated[
        str,
        typer.Option(
            envvar="MAGNETAR_CLUSTER_QUORUM",
            metavar="E,Qw,Qa",
            help="Ensemble size, write quorum, ack quorum: bookies per ledger, copies per entry, "
            "synced copies before a publish is confirmed; default: 3,3,2, or less with fewer "
            "bookies.",
        ),
    ] = "",
    host: Annotated[
        str,
        typer.Option(envvar="MAGNETAR_CLUSTER_HOST", help="Address that all servers listen on."),
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            envvar="MAGNETAR_CLUSTER_PORT",
            min=0,
            max=65_000,
            help="Pulsar port of the first broker. " + _PORT_HELP.format(6650),
        ),
    ] = None,
    http_port: Annotated[
        int | None,
        typer.Option(
            envvar="MAGNETAR_CLUSTER_HTTP_PORT",
            min=0,
            max=65_000,
            help="HTTP port of the first broker. " + _PORT_HELP.format(8080),
        ),
    ] = None,
    bookie_port: Annotated[
        int | None,
        typer.Option(
            envvar="MAGNETAR_CLUSTER_BOOKIE_PORT",
            min=0,
            max=65_000,
            help="Port of the first bookie. " + _PORT_HELP.format(3181),
        ),
    ] = None,
    zookeeper_port: Annotated[
        int | None,
        typer.Option(
            envvar="MAGNETAR_CLUSTER_ZOOKEEPER_PORT",
            min=0,
            max=65_000,
            help="Client port of the first ZooKeeper server. " + _PORT_HELP.format(2181),
        ),
    ] = None,
    restart: Annotated[
        Restart,
        typer.Option(
            envvar="MAGNETAR_CLUSTER_RESTART",
            help="Whether to restart a server that failed or was killed. A server stopped with "
            "SIGTERM stays down.",
        ),
    ] = Restart.ON_FAILURE,
    log_file_bytes_max: Annotated[
        int,
        typer.Option(
            envvar="MAGNETAR_CLUSTER_LOG_FILE_BYTES_MAX",
            min=0,
            help="Rotate a log in DIR/logs to NAME.log.1 when it is larger, in bytes; 0: never.",
        ),
    ] = 32 << 20,
    log_files_max: Annotated[
        int,
        typer.Option(
            envvar="MAGNETAR_CLUSTER_LOG_FILES_MAX",
            min=0,
            max=1000,
            help="Number of rotated logs kept per server.",
        ),
    ] = 4,
    config: ConfigOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.AUTO,
) -> None:
    """Run ZooKeeper, bookies, brokers and auto-recovery as processes on one host.

    Prints one line when the cluster serves: ready zk://…, and the URLs of each broker. It serves
    with a majority of the ZooKeeper servers, the bookies of an ensemble and one broker; servers
    that failed to start are retried. SIGTERM stops all servers in order and ends with status 0.
    kill -9 of this process ends all servers, too.
    """
    configure_logging(log_level, log_format, stream=sys.stderr)
    from magnetar.deploy.cluster import Cluster, ClusterSettings
    from magnetar.deploy.process import run_server

    settings = ClusterSettings(
        data=data,
        bookies=bookies,
        brokers=brokers,
        zookeepers=zookeepers,
        autorecovery=autorecovery,
        zookeeper_url=zookeeper,
        quorum=parse_quorum(quorum) if quorum else None,
        host=host,
        first_ports=_first_ports(port, http_port, bookie_port, zookeeper_port),
        restart=restart,
        log_file_bytes_max=log_file_bytes_max,
        log_files_max=log_files_max,
        environment=_environment(config, log_level),
        tables={} if config is None else read_config_file(config),
    )
    run_server(lambda: Cluster(settings))


def _first_ports(
    port: int | None, http_port: int | None, bookie_port: int | None, zookeeper_port: int | None
) -> dict[tuple[Kind, str], int]:
    given = {
        (Kind.BROKER, "native"): port,
        (Kind.BROKER, "http"): http_port,
        (Kind.BOOKIE, "native"): bookie_port,
        (Kind.ZOOKEEPER, "native"): zookeeper_port,
    }
    return {key: value for key, value in given.items() if value is not None}


def _environment(config: Path | None, log_level: LogLevel) -> dict[str, str]:
    """Return the environment of the servers: with the settings file, and this command's log
    level."""
    import os

    environment = {**os.environ, "MAGNETAR_LOG_LEVEL": log_level.value}
    if config is not None:
        environment["MAGNETAR_CONFIG"] = str(config.resolve())
    return environment
