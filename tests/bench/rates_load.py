"""Very many topics, each with a producer and a consumer, all at a steady rate.

Each client has as many topics as share a connection. Every topic has its turn in each period; the
turns are spread evenly over the period, to the millisecond. A latency counts from the moment at
which the message was due, up to its receipt and up to its consumer, so that a late client does not
make the broker look better. Consumers acknowledge one by one. The servers' processor time is taken
over the measured time.

usage: python -m tests.bench.rates_load PORT TOPICS CLIENTS MSGS_PER_S WARM_S SECONDS PREFIX PID...
"""

import asyncio
import gc
import json
import math
import sys
import time
from collections import deque
from dataclasses import asdict

import uvloop

from magnetar.sdk.wire.hot_commands import (
    SendEncoder,
    encode_flow,
    encode_varint,
    publish_time_field,
)
from tests.bench.figures import Latency
from tests.bench.lean_client import MESSAGE, RECEIPT, LeanClient, message_id_at, varint_at
from tests.processes import cpu_s_of

_BODY = b"x" * 1024
_QUEUE = 1000
_TICK_S = 0.001
_DRAIN_S = 120.0


class _Topics(LeanClient):
    """The topics of one client: producer and consumer n belong to topic n."""

    def __init__(self, count: int, progress: asyncio.Event) -> None:
        super().__init__()
        self.count = count
        self._progress = progress
        self.encoders: list[SendEncoder] = []
        self.sent = [0] * count
        self.due_s: list[dict[int, float]] = [{} for _ in range(count)]
        """Due times, by sequence id, of messages without a receipt."""
        self.latencies_s: list[float] = []
        self._undelivered_due_s: list[deque[float]] = [deque() for _ in range(count)]
        """Due times of messages that have not been delivered, in the order of their delivery."""
        self.delivered_s: list[float] = []
        self.received = 0
        self._used = [0] * count
        self._acks: list[bytes] = []

    async def open(self, prefix: str) -> None:
        for number in range(self.count):
            topic = f"persistent://public/default/{prefix}-{number}"
            await self.look_up(topic)
            await self.subscribe(topic, "s", kind="Shared", consumer_id=number)
            self.encoders.append(SendEncoder(number, await self.create_producer(topic, number)))
            self.transport.write(encode_flow(number, _QUEUE))

    def publish(self, number: int, due_s: float) -> bytes:
        """Return the frame of the next message of a topic."""
        sequence_id = self.sent[number]
        self.sent[number] += 1
        self.due_s[number][sequence_id] = due_s
        self._undelivered_due_s[number].append(due_s)
        return self.encoders[number].encode_prefix(
            _BODY, sequence_id=sequence_id, publish_time=_TIME
        )

    def on_frame(self, buffer: bytearray, at: int) -> None:
        kind = buffer[at : at + 3]
        if kind == RECEIPT:
            # 08 07 3a SIZE 08 PRODUCER 10 SEQUENCE: the size is one byte.
            number, at = varint_at(buffer, at + 5)
            sequence_id, _ = varint_at(buffer, at + 1)
            self.latencies_s.append(time.perf_counter() - self.due_s[number].pop(sequence_id))
        elif kind == MESSAGE:
            number, _ = varint_at(buffer, at + 5)
            ack = b"\x08" + encode_varint(number) + b"\x10\x00\x1a" + message_id_at(buffer, at)
            command = b"\x08\x0a\x52" + encode_varint(len(ack)) + ack
            size = len(command)
            self._acks.append((4 + size).to_bytes(4, "big") + size.to_bytes(4, "big") + command)
            self.received += 1
            self.delivered_s.append(time.perf_counter() - self._undelivered_due_s[number].popleft())
            self._used[number] += 1
            if self._used[number] == _QUEUE // 2:
                self._used[number] = 0
                self._acks.append(encode_flow(number, _QUEUE // 2))
        else:
            super().on_frame(buffer, at)

    def after_read(self) -> None:
        if self._acks:
            self.transport.write(b"".join(self._acks))
            self._acks.clear()
        self._progress.set()

    @property
    def is_drained(self) -> bool:
        """Whether every message has its receipt and was delivered."""
        return self.received == sum(self.sent) and not any(self.due_s)


_TIME = publish_time_field(1)


class _Schedule:
    """The order of sends: topics take turns, evenly over each period."""

    def __init__(self, clients: list[_Topics], msgs_per_s: float) -> None:
        # Neighbours in time are on different connections, as those of different clients would be.
        longest = max(client.count for client in clients)
        self._turns = [(c, n) for n in range(longest) for c in clients if n < c.count]
        self._step_s = 1 / (msgs_per_s * len(self._turns))
        self._next = 0

    async def run(self, seconds: float) -> None:
        """Send the messages that are due in each tick, at its end."""
        turns, step_s = self._turns, self._step_s
        started_s = time.perf_counter()
        first, total = self._next, round(seconds / step_s)
        while self._next - first < total:
            ticks = int((time.perf_counter() - started_s) / _TICK_S)
            until = min(total, int(ticks * _TICK_S / step_s)) + first
            parts: dict[_Topics, list[bytes]] = {}
            for turn in range(self._next, until):
                client, number = turns[turn % len(turns)]
                frames = parts.setdefault(client, [])
                due_ticks = math.ceil((turn - first + 1) * step_s / _TICK_S)
                frames.append(client.publish(number, started_s + due_ticks * _TICK_S))
                frames.append(_BODY)
            self._next = until
            for client, frames in parts.items():
                client.transport.write(b"".join(frames))
            # Not only until the next tick: the loop's timers round to ms, and a shorter sleep would
            # spin.
            await asyncio.sleep(_TICK_S)


async def _run(port: int, topics: int, clients: int, rate: float) -> dict[str, object]:
    warm_s, seconds, prefix = float(sys.argv[5]), float(sys.argv[6]), sys.argv[7]
    servers = [int(each) for each in sys.argv[8:]]
    progress = asyncio.Event()
    every = [await _Topics.connect(port, topics // clients, progress) for _ in range(clients)]
    await asyncio.gather(*(each.open(f"{prefix}-{at}") for at, each in enumerate(every)))
    # Clients make no cycles, and a pause to search for some would count as the broker's.
    gc.disable()
    schedule = _Schedule(every, rate)
    await schedule.run(warm_s)
    for each in every:
        each.latencies_s.clear()
        each.delivered_s.clear()
    started_s, client_s = time.perf_counter(), time.process_time()
    before_s = [cpu_s_of(pid) for pid in servers]
    received = sum(each.received for each in every)
    await schedule.run(seconds)
    took_s, client_s = time.perf_counter() - started_s, time.process_time() - client_s
    used_s = [cpu_s_of(pid) - before for pid, before in zip(servers, before_s, strict=True)]
    received = sum(each.received for each in every) - received
    published = sum(len(each.latencies_s) for each in every)
    async with asyncio.timeout(_DRAIN_S):
        while not all(each.is_drained for each in every):
            progress.clear()
            await progress.wait()
    latency = Latency.of([latency for each in every for latency in each.latencies_s])
    delivered = Latency.of([latency for each in every for latency in each.delivered_s])
    for each in every:
        each.transport.close()
    return {
        "seconds": took_s,
        "published": published,
        "received": received,
        "latency_ms": asdict(latency),
        "end_to_end_ms": asdict(delivered),
        "client_cpu_s": client_s,
        "cpu_s": used_s,
    }


def main() -> None:
    port, topics, clients, rate = sys.argv[1:5]
    found = uvloop.run(_run(int(port), int(topics), int(clients), float(rate)))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
