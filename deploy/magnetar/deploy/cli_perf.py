"""The commands that measure: perf produce, perf consume, perf ledger."""

import asyncio
import json
import sys
from typing import Annotated

import typer

from magnetar.deploy.errors import BrokerUnreachableError
from magnetar.deploy.logs import LogFormat, LogLevel, configure_logging
from magnetar.deploy.options import parse_quorum

perf = typer.Typer(
    no_args_is_help=True, help="Load with latencies; --json gives one JSON object at the end."
)

MessagesOption = Annotated[int, typer.Option("--messages", "-n", min=1, help="How many.")]
SizeOption = Annotated[int, typer.Option("--size", "-s", min=0, help="Payload bytes of each.")]
InFlightOption = Annotated[
    int, typer.Option("--in-flight", min=1, help="Outstanding at most; 1 measures latency.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object, for scripts.")]


@perf.command()
def ledger(
    metadata: Annotated[
        str,
        typer.Option(
            metavar="URL",
            envvar="MAGNETAR_PERF_LEDGER_METADATA",
            help="zk://host:port[,host:port]/path or embedded:PATH.",
        ),
    ],
    messages: MessagesOption = 100_000,
    size: SizeOption = 1024,
    in_flight: InFlightOption = 1000,
    quorum: Annotated[
        str, typer.Option(metavar="E,Qw,Qa", help="Ensemble, write quorum, ack quorum.")
    ] = "3,3,2",
    as_json: JsonOption = False,
) -> None:
    """One ledger writer straight on the bookies of a cluster."""
    configure_logging(LogLevel.WARNING, LogFormat.AUTO, stream=sys.stderr)
    import uvloop

    from magnetar.deploy.explain import explained
    from magnetar.deploy.perf_ledger import LedgerLoad, perf_ledger
    from magnetar.ledger.errors import LedgerError, MetadataError

    chosen = parse_quorum(quorum)
    load = LedgerLoad(
        entries=messages,
        size_bytes=size,
        in_flight=in_flight,
        ensemble_size=chosen.ensemble,
        write_quorum=chosen.write,
        ack_quorum=chosen.ack,
    )
    with (
        explained(metadata_url=metadata),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        try:
            result = runner.run(perf_ledger(metadata, load))
        except MetadataError:
            raise
        except LedgerError as error:
            raise BrokerUnreachableError(f"the bookies could not take it: {error}") from error
    show(result, as_json=as_json)


def show(result: dict[str, object], *, as_json: bool) -> None:
    """Print what was measured: JSON, or `name value` lines."""
    if as_json:
        sys.stdout.write(json.dumps(result) + "\n")
        return
    for name, value in result.items():
        sys.stdout.write(f"{name:<12} {value}\n")
