"""Publishes at two clusters at a steady rate, and consumes what arrives at the other one.

`publish` sends batches to the same topic at both clusters. `delay` sends single messages to a topic
per direction, and consumes them at the other cluster. A delay counts from the moment at which the
message was due. Clients are lean: bodies are made before the clock starts.

usage: python -m tests.bench.replication_load publish PORT PORT TOPIC RATE SECONDS BYTES BATCH
       python -m tests.bench.replication_load delay PORT PORT TOPIC RATE SECONDS BYTES 1
"""

import asyncio
import json
import sys
import time
from dataclasses import asdict

import uvloop

from magnetar.sdk.batch import encode_batch
from magnetar.sdk.wire.hot_commands import SendEncoder, encode_flow, publish_time_field
from tests.bench.figures import Latency
from tests.bench.lean_client import MESSAGE, RECEIPT, LeanClient

_TICK_S = 0.002
_QUEUE = 1_000
_DRAIN_S = 300.0


class _Publisher(LeanClient):
    """Sends entries of one size to one topic, when they are due."""

    def __init__(self, batch: int, size: int) -> None:
        super().__init__()
        self._batch = batch
        message = b"x" * size
        # All batches share one body; nobody reads the numbers in it.
        self._body = encode_batch([message] * batch, [b""] * batch, 0) if batch > 1 else message
        self._encoder: SendEncoder
        self.due_s: list[float] = []
        """Due time of each entry."""
        self.receipts = 0
        self.receipted = asyncio.Event()
        """Set after each read."""

    async def open(self, topic: str) -> None:
        """Create the producer."""
        self._encoder = SendEncoder(0, await self.create_producer(topic))

    def on_frame(self, buffer: bytearray, at: int) -> None:
        if buffer[at : at + 3] == RECEIPT:
            self.receipts += 1
        else:
            super().on_frame(buffer, at)

    def after_read(self) -> None:
        self.receipted.set()

    async def publish(self, entries: int, entries_per_s: float) -> None:
        """Send so many entries, and wait for the receipts of all entries sent so far."""
        began_s, first = time.perf_counter(), len(self.due_s)
        while (sent := len(self.due_s) - first) < entries:
            due = min(entries, 1 + int((time.perf_counter() - began_s) * entries_per_s))
            for number in range(sent, due):
                self._send()
                self.due_s.append(began_s + number / entries_per_s)
            await self.writable.wait()
            await asyncio.sleep(_TICK_S)
        async with asyncio.timeout(_DRAIN_S):
            while self.receipts < len(self.due_s):
                self.receipted.clear()
                await self.receipted.wait()

    def _send(self) -> None:
        body, encoder = self._body, self._encoder
        sequence_id = len(self.due_s) * self._batch
        published_at = publish_time_field(time.time_ns() // 1_000_000)
        if self._batch == 1:
            prefix = encoder.encode_prefix(body, sequence_id=sequence_id, publish_time=published_at)
        else:
            prefix = encoder.encode_batch_prefix(
                body, sequence_id=sequence_id, count=self._batch, publish_time=published_at
            )
        self.transport.write(prefix)
        self.transport.write(body)


class _Consumer(LeanClient):
    """Notes when each entry arrived."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived_s: list[float] = []
        self._used = 0
        self.came = asyncio.Event()
        """Set after each read."""

    async def open(self, topic: str) -> None:
        """Subscribe, and grant the first permits."""
        await self.subscribe(topic, "delay", kind="Exclusive")
        self.transport.write(encode_flow(0, _QUEUE))

    def on_frame(self, buffer: bytearray, at: int) -> None:
        if buffer[at : at + 3] == MESSAGE:
            self.arrived_s.append(time.perf_counter())
            self._used += 1
        else:
            super().on_frame(buffer, at)

    def after_read(self) -> None:
        if self._used >= _QUEUE // 2:
            self.transport.write(encode_flow(0, self._used))
            self._used = 0
        self.came.set()


async def _publish(ports: list[int], topic: str, load: "_Load") -> dict[str, object]:
    publishers = [await _Publisher.connect(port, load.batch, load.size) for port in ports]
    for each in publishers:
        await each.open(topic)
    began_s, client_s = time.perf_counter(), time.process_time()
    await asyncio.gather(*(each.publish(load.entries, load.entries_per_s) for each in publishers))
    seconds = time.perf_counter() - began_s
    for each in publishers:
        each.transport.close()
    return {"seconds": seconds, "client_cpu_s": time.process_time() - client_s}


async def _delay(ports: list[int], topic: str, load: "_Load") -> dict[str, object]:
    publishers: list[_Publisher] = []
    consumers: list[_Consumer] = []
    for number, port in enumerate(ports):
        name = f"{topic}-{number}"
        publishers.append(await _Publisher.connect(port, load.batch, load.size))
        consumers.append(await _Consumer.connect(ports[1 - number]))
        await publishers[-1].open(name)
        await consumers[-1].open(name)
    # The first entries meet topics that are not loaded yet, and replicators that still connect.
    for count in (load.warm_entries, load.entries):
        work = (each.publish(count, load.entries_per_s) for each in publishers)
        await asyncio.gather(*work)
        for publisher, consumer in zip(publishers, consumers, strict=True):
            await _until_arrived(publisher, consumer)
    delays_s = [
        arrived_s - due_s
        for publisher, consumer in zip(publishers, consumers, strict=True)
        for due_s, arrived_s in zip(publisher.due_s, consumer.arrived_s, strict=True)
        if due_s >= publisher.due_s[load.warm_entries]
    ]
    for each in (*publishers, *consumers):
        each.transport.close()
    return {"delay_ms": asdict(Latency.of(delays_s))}


async def _until_arrived(publisher: _Publisher, consumer: _Consumer) -> None:
    async with asyncio.timeout(_DRAIN_S):
        while len(consumer.arrived_s) < len(publisher.due_s):
            consumer.came.clear()
            await consumer.came.wait()


class _Load:
    """Amount and rate of what is sent."""

    def __init__(self, rate: float, seconds: float, size: int, batch: int) -> None:
        self.size, self.batch = size, batch
        self.entries_per_s = rate / batch
        self.entries = round(self.entries_per_s * seconds)
        self.warm_entries = max(1, round(self.entries_per_s))


def main() -> None:
    """Run the command."""
    what, one, other, topic, rate, seconds, size, batch = sys.argv[1:]
    load = _Load(float(rate), float(seconds), int(size), int(batch))
    work = _publish if what == "publish" else _delay
    found = uvloop.run(work([int(one), int(other)], topic, load))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
