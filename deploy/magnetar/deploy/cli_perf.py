"""Commands that measure: perf produce, perf consume, perf ledger."""

import gc
import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from magnetar.deploy.errors import BrokerRefusedError, NothingCameError, SettingsError
from magnetar.deploy.logs import LogFormat, LogLevel, configure_logging
from magnetar.deploy.options import DEFAULT_URL, UrlOption, parse_quorum

if TYPE_CHECKING:
    from magnetar.sdk.perf import PerfResult

perf = typer.Typer(
    no_args_is_help=True,
    help="Measure throughput and latency; --json prints one JSON object at the end.",
)

MessagesOption = Annotated[int, typer.Option("--messages", "-n", min=1, help="Number of entries.")]
SizeOption = Annotated[int, typer.Option("--size", "-s", min=0, help="Payload bytes per message.")]
InFlightOption = Annotated[
    int,
    typer.Option("--in-flight", min=1, help="Most unconfirmed entries; 1 measures latency."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
ProgressOption = Annotated[
    bool | None,
    typer.Option(
        "--progress/--no-progress",
        help="Print the rate of each second on stderr. Default: if stderr is a terminal.",
    ),
]


TopicArgument = Annotated[str, typer.Argument(help="Topic; created if it does not exist.")]
SecondsOption = Annotated[
    float, typer.Option(min=0, help="Stop after this many seconds; 0: no limit.")
]

IdleOption = Annotated[
    float,
    typer.Option(
        "--idle-seconds", min=0.01, help="Stop after this many seconds without a message."
    ),
]
FromLatestOption = Annotated[
    bool,
    typer.Option("--from-latest", help="Start a new subscription at the end of the topic."),
]


def _spare_pauses() -> None:
    """Exempt the objects made at the start of the program from full collections. A pause of 30 ms
    in the client would count as the broker's."""
    gc.collect()
    gc.freeze()


@perf.command()
def produce(
    topic: TopicArgument = "perf",
    messages: Annotated[
        int,
        typer.Option(
            "--messages",
            "-n",
            min=0,
            help="Number of messages; 0: 100,000, or as many as --seconds allows.",
        ),
    ] = 0,
    seconds: SecondsOption = 0,
    size: SizeOption = 1024,
    in_flight: Annotated[
        int,
        typer.Option(
            "--in-flight",
            min=0,
            help="Most unconfirmed messages; 1 measures latency; 0: 1,000, or 100 batches.",
        ),
    ] = 0,
    batch: Annotated[
        int, typer.Option("--batch", min=0, help="Messages per batch; 0: no batches.")
    ] = 0,
    rate: Annotated[
        float, typer.Option(min=0, help="Messages per second; 0: as fast as receipts allow.")
    ] = 0,
    compression: Annotated[str, typer.Option(help="none, lz4, zlib, zstd or snappy.")] = "none",
    progress: ProgressOption = None,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Measure publishing; latency is from the send call to the receipt."""
    from magnetar.deploy import tools
    from magnetar.deploy.credentials import ClientCredentials
    from magnetar.sdk.perf import ProduceOptions
    from magnetar.sdk.perf import produce as run_load
    from magnetar.sdk.wire.compression import Compression

    options = ProduceOptions(
        url=url,
        client=ClientCredentials.of_environment().client_settings(),
        topic=topic,
        messages=messages or None,
        seconds=seconds or None,
        size=size,
        in_flight=in_flight or None,
        batch_size=batch,
        rate=rate or None,
        compression=tools.choose(Compression, "--compression", compression),
    )
    on_progress = _progress(progress)
    _spare_pauses()
    _show_result(tools.run(run_load(options, on_progress=on_progress)), as_json=as_json)


@perf.command()
def consume(
    topic: TopicArgument = "perf",
    subscription: Annotated[
        str,
        typer.Option("--subscription", "-s", help="Subscription; created if it does not exist."),
    ] = "perf",
    kind: Annotated[
        str, typer.Option("--type", "-t", help="exclusive, failover, shared or key_shared.")
    ] = "exclusive",
    consumers: Annotated[
        int, typer.Option(min=1, help="Number of consumers, each on its own connection.")
    ] = 1,
    messages: Annotated[
        int,
        typer.Option("--messages", "-n", min=0, help="Stop after this many messages; 0: no limit."),
    ] = 0,
    seconds: SecondsOption = 0,
    idle_seconds: IdleOption = 5.0,
    ack: Annotated[str, typer.Option(help="individual, cumulative or none.")] = "individual",
    receiver_queue: Annotated[
        int, typer.Option("--receiver-queue", min=1, help="Receiver queue size per consumer.")
    ] = 20_000,
    decode: Annotated[
        bool, typer.Option("--decode", help="Decode batches into messages, as an application does.")
    ] = False,
    from_latest: FromLatestOption = False,
    progress: ProgressOption = None,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Measure consuming; latency is from the publish time to arrival. For older messages it is
    their age."""
    from magnetar.deploy import tools
    from magnetar.deploy.credentials import ClientCredentials
    from magnetar.sdk.perf import AckMode, ConsumeOptions
    from magnetar.sdk.perf import consume as run_load
    from magnetar.sdk.settings import SubscriptionType

    try:
        options = ConsumeOptions(
            url=url,
            client=ClientCredentials.of_environment().client_settings(),
            topic=topic,
            subscription=subscription,
            subscription_type=tools.choose(SubscriptionType, "--type", kind),
            consumers=consumers,
            messages=messages or None,
            seconds=seconds or None,
            idle_s=idle_seconds,
            ack=tools.choose(AckMode, "--ack", ack),
            receiver_queue=receiver_queue,
            decode=decode,
            from_latest=from_latest,
        )
    except ValueError as error:
        raise SettingsError(str(error)) from error
    _spare_pauses()
    result = tools.run(run_load(options, on_progress=_progress(progress)))
    if not result.messages:
        waited_s = min(seconds or idle_seconds, idle_seconds)
        raise NothingCameError(
            f"nothing came from {topic} within {waited_s:g} s. Is somebody publishing? A "
            "subscription that is there goes on where it stopped: give another --subscription"
        )
    _show_result(result, as_json=as_json)


@perf.command()
def ledger(
    metadata: Annotated[
        str,
        typer.Option(
            metavar="URL",
            envvar="MAGNETAR_PERF_LEDGER_METADATA",
            help="Metadata store: zk://host:port[,host:port]/path or embedded:PATH.",
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
    """Measure one ledger writer, directly on the bookies of a cluster."""
    configure_logging(LogLevel.WARNING, LogFormat.AUTO, stream=sys.stderr)
    import asyncio

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
            raise BrokerRefusedError(f"the bookies refused the load: {error}") from error
    _show_figures(result, as_json=as_json)


def _progress(wanted: bool | None) -> Callable[[int], None] | None:
    if not (sys.stderr.isatty() if wanted is None else wanted):
        return None
    from magnetar.deploy.perf_progress import PerfProgress

    return PerfProgress(write=sys.stderr.write, now_s=time.monotonic).on_progress


def _show_result(result: "PerfResult", *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(f"{result.to_json()}\n")
        return
    sys.stdout.write(f"{result.to_text()}\n")
    histogram = result.histogram_text()
    if histogram:
        sys.stdout.write(f"{histogram}\n")


def _show_figures(result: dict[str, object], *, as_json: bool) -> None:
    """Print a measurement as JSON, or as `name value` lines; each part of a value gets its own
    line."""
    if as_json:
        sys.stdout.write(json.dumps(result) + "\n")
        return
    for name, value in result.items():
        parts = value.items() if isinstance(value, dict) else [("", value)]
        for part, figure in parts:
            sys.stdout.write(f"{f'{name} {part}'.strip():<20} {figure}\n")
