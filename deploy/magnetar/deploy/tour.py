"""The tour of `make run`: sends real flight records through a broker in this process and back.

It publishes a few thousand departures from New York City, keyed by carrier, and consumes them. It
checks that each carrier's flights came back once, unchanged and in order, and prints what it
measured. The publisher, the consumer and the whole broker share one event loop here, so the figures
are a greeting, not a benchmark: `make bench` measures.
"""

import gzip
import sys
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from magnetar.deploy.broker_server import broker_settings
from magnetar.deploy.cli import run_app
from magnetar.deploy.errors import DeployError
from magnetar.deploy.logs import LogFormat, LogLevel, configure_logging
from magnetar.deploy.options import Listen, Sources, default_quorum, parse_data
from magnetar.deploy.process import Server, run_server
from magnetar.deploy.standalone import Standalone, bookies_in
from magnetar.sdk.client import Client
from magnetar.sdk.consumer import Consumer
from magnetar.sdk.errors import SdkError
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.producer import Producer

TOPIC = "persistent://public/default/flights"
_SUBSCRIPTION = "tour"
_ONE_BY_ONE = 200
_CHUNK = 500
_STEP = 50
_CARRIER_COLUMN = 9


@dataclass(frozen=True, slots=True)
class Flight:
    """One departure: its airline's two-letter code, and the unchanged CSV line."""

    carrier: str
    line: bytes


@dataclass(frozen=True, slots=True)
class Published:
    """Measurements of the publishing half."""

    latencies_ms: Sequence[float]
    rest: int
    rest_seconds: float


def read_flights() -> list[Flight]:
    """Return all records of `tour_data/flights.csv.gz`, in file order, without the header line."""
    packed = files("magnetar.deploy").joinpath("tour_data", "flights.csv.gz").read_bytes()
    lines = gzip.decompress(packed).splitlines()
    return [Flight(line.split(b",")[_CARRIER_COLUMN].decode(), line) for line in lines[1:]]


class FlightOrder:
    """Checks that each carrier's flights arrive once, unchanged and in the order of publishing."""

    def __init__(self, flights: Sequence[Flight]) -> None:
        self._expected: dict[str, deque[bytes]] = defaultdict(deque)
        for flight in flights:
            self._expected[flight.carrier].append(flight.line)
        self.carriers = len(self._expected)

    def on_received(self, carrier: str | None, line: bytes) -> None:
        """Check a received flight.

        Raises:
            DeployError: the flight is not the carrier's next one.
        """
        waiting = self._expected.get(carrier or "")
        if not waiting or waiting.popleft() != line:
            raise DeployError(f"carrier {carrier}: a flight came back out of order: {line!r}")


app = typer.Typer(
    name="tour",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def tour(
    data: Annotated[Path, typer.Option(parser=parse_data, metavar="PATH", help="Data directory.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Pulsar port; 0: any free.")] = 6650,
    http_port: Annotated[int, typer.Option(min=0, max=65535, help="HTTP port; 0: any.")] = 8080,
    exit_after_tour: Annotated[
        bool, typer.Option("--exit-after-tour", help="End with status 0 instead of staying up.")
    ] = False,
) -> None:
    """Start a broker on 127.0.0.1, publish and consume real flight records, and stay up."""
    configure_logging(LogLevel.WARNING, LogFormat.AUTO, stream=sys.stderr)
    bookies = bookies_in(data)
    sources = Sources()
    settings = broker_settings(
        sources,
        listen=Listen("127.0.0.1"),
        port=port,
        http_port=http_port,
        quorum=default_quorum(bookies),
    )

    async def then(server: Server) -> bool:
        try:
            await take_tour(Console(), *server.addresses())
        except SdkError as error:
            raise DeployError(f"the tour failed: {error}") from error
        if not exit_after_tour:
            sys.stdout.write("\nThe broker stays up. Ctrl-C ends it; its data is kept.\n")
            sys.stdout.flush()
        return not exit_after_tour

    run_server(lambda: Standalone(data, settings, sources, bookies=bookies), then=then)


async def take_tour(console: Console, pulsar_url: str, http_url: str) -> None:
    """Publish, consume, check, and print the figures.

    Raises:
        DeployError: a flight came back changed, or in another order.
    """
    flights = read_flights()
    console.print(
        f"\n[bold]A tour:[/bold] {len(flights)} departures from New York City, keyed by carrier, "
        f"through {TOPIC} and back.\n"
    )
    order = FlightOrder(flights)
    async with Client(pulsar_url) as client:
        consumer = await client.consumer(TOPIC, _SUBSCRIPTION)
        # An interrupted tour has left its subscription, and old flights in its backlog.
        await consumer.seek(MessageId.LATEST)
        producer = await client.producer(TOPIC)
        with _progress(console) as progress:
            published = await _publish(producer, flights, progress)
            consume_seconds = await _consume(consumer, len(flights), order, progress)
        await producer.close()
        await consumer.unsubscribe()
    console.print(_figures(published, len(flights), consume_seconds, order.carriers))
    console.print(_where(pulsar_url, http_url))


async def _publish(producer: Producer, flights: Sequence[Flight], progress: Progress) -> Published:
    """Publish the first few flights one at a time, for their latency; the rest at full speed."""
    task = progress.add_task("publish", total=len(flights))
    latencies_ms = []
    for flight in flights[:_ONE_BY_ONE]:
        started_s = time.perf_counter()
        await producer.send(flight.line, key=flight.carrier)
        latencies_ms.append((time.perf_counter() - started_s) * 1000)
        progress.advance(task)
    rest = flights[_ONE_BY_ONE:]
    started_s = time.perf_counter()
    for at in range(0, len(rest), _CHUNK):
        chunk = rest[at : at + _CHUNK]
        for flight in chunk:
            producer.send_nowait(flight.line, key=flight.carrier)
        await producer.flush()
        progress.advance(task, len(chunk))
    return Published(latencies_ms, len(rest), time.perf_counter() - started_s)


async def _consume(consumer: Consumer, count: int, order: FlightOrder, progress: Progress) -> float:
    task = progress.add_task("consume", total=count)
    started_s = time.perf_counter()
    for number in range(1, count + 1):
        message = await consumer.receive()
        order.on_received(message.key, message.data)
        consumer.acknowledge(message)
        if number % _STEP == 0:
            progress.advance(task, _STEP)
    return time.perf_counter() - started_s


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def _figures(published: Published, count: int, consume_seconds: float, carriers: int) -> Table:
    ordered = sorted(published.latencies_ms)
    p50, p99 = (ordered[int(len(ordered) * share)] for share in (0.5, 0.99))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_row("one at a time, synced", f"p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    table.add_row("publish, batched", f"{published.rest / published.rest_seconds:,.0f} messages/s")
    table.add_row("consume", f"{count / consume_seconds:,.0f} messages/s")
    table.add_row("order", f"each of {carriers} carriers' flights came back once, in order")
    return table


def _where(pulsar_url: str, http_url: str) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), title_justify="left")
    table.add_row("")
    table.add_row("clients", pulsar_url)
    table.add_row("health", f"{http_url}/health")
    table.add_row("metrics", f"{http_url}/metrics")
    table.add_row("console", f"{http_url}/")
    return table


if __name__ == "__main__":
    run_app(app)
