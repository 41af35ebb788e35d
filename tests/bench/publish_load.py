"""A producer that costs next to nothing, so that the speed of broker and bookies is measured.

It speaks the protocol over a connection of its own. All frames of a run are made before the clock
starts, checksums included, as tools that load HTTP servers do. A client on the same two cores would
otherwise take a quarter of what is measured. Receipts are checked frame by frame: they must come in
order, and none may be missing.

usage: python -m tests.bench.publish_load PORT TOPIC MESSAGES BYTES IN_FLIGHT
"""

import asyncio
import json
import sys
import time
from array import array
from collections import deque
from dataclasses import asdict

import uvloop

from magnetar.sdk.wire.hot_commands import SendEncoder, publish_time_field
from tests.bench.figures import Latency
from tests.bench.lean_client import RECEIPT, LeanClient, varint_at

_SEND_ERROR = b"\x08\x08"
"""First bytes of the command of a SEND_ERROR."""


class _Producer(LeanClient):
    """Keeps so many messages in flight until all have their receipts."""

    def __init__(self) -> None:
        super().__init__()
        self._frames = memoryview(b"")
        self._ends = array("q")
        """Positions in the frames where each frame ends; the first value is the start of the first
        frame."""
        self._in_flight = 0
        self._sent = 0
        self._confirmed = 0
        self._groups: deque[tuple[int, float]] = deque()
        """Groups of messages written at once: total sent by then, and when."""
        self.latencies_s: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def prepare(self, name: str, messages: int, size: int) -> None:
        """Make the frames; message n has the sequence id n."""
        encoder, body, published_at = SendEncoder(0, name), b"x" * size, publish_time_field(1)
        frames, ends = bytearray(), self._ends
        ends.append(0)
        for number in range(messages):
            frames += encoder.encode_prefix(body, sequence_id=number, publish_time=published_at)
            frames += body
            ends.append(len(frames))
        self._frames = memoryview(bytes(frames))

    def start(self, in_flight: int) -> None:
        self._in_flight = in_flight
        self._send(in_flight)

    def on_frame(self, buffer: bytearray, at: int) -> None:
        if buffer[at : at + 3] == RECEIPT:
            # 08 07 3a SIZE 08 PRODUCER 10 SEQUENCE: sizes and producer have one byte.
            sequence_id, _ = varint_at(buffer, at + 7)
            if sequence_id != self._confirmed:
                self._fail(f"the receipt of message {sequence_id} came")
            self._confirmed += 1
        elif buffer[at : at + 2] == _SEND_ERROR:
            self._fail("the broker refused a message")
        else:
            super().on_frame(buffer, at)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection ended: {exc}")

    def _fail(self, why: str) -> None:
        if not self.done.done():
            self.done.set_exception(RuntimeError(f"{why} after {self._confirmed} receipts"))

    def after_read(self) -> None:
        confirmed, groups, now_s = self._confirmed, self._groups, time.perf_counter()
        counted = len(self.latencies_s)
        while counted < confirmed:
            until, sent_at_s = groups[0]
            in_group = min(confirmed, until) - counted
            self.latencies_s.extend([now_s - sent_at_s] * in_group)
            counted += in_group
            if counted == until:
                groups.popleft()
        if confirmed == len(self._ends) - 1:
            if not self.done.done():
                self.done.set_result(None)
        elif confirmed + self._in_flight > self._sent:
            self._send(confirmed + self._in_flight - self._sent)

    def _send(self, count: int) -> None:
        first, self._sent = self._sent, min(self._sent + count, len(self._ends) - 1)
        if self._sent > first:
            self._groups.append((self._sent, time.perf_counter()))
            self.transport.write(self._frames[self._ends[first] : self._ends[self._sent]])


async def _publish(
    port: int, topic: str, messages: int, size: int, in_flight: int
) -> dict[str, object]:
    client = await _Producer.connect(port)
    await client.subscribe(topic, "keeper")  # unused, it keeps the messages until the end
    client.prepare(await client.create_producer(topic), messages, size)
    started_s, client_s = time.perf_counter(), time.process_time()
    client.start(in_flight)
    async with asyncio.timeout(300):
        await client.done
    seconds = time.perf_counter() - started_s
    client_s = time.process_time() - client_s
    client.transport.close()
    return {
        "msgs_per_s": messages / seconds,
        "latency_ms": asdict(Latency.of(client.latencies_s)),
        "client_cpu_us": round(client_s / messages * 1e6, 1),
    }


def main() -> None:
    port, topic, messages, size, in_flight = sys.argv[1:]
    found = uvloop.run(_publish(int(port), topic, int(messages), int(size), int(in_flight)))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
