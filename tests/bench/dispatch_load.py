"""Consumers that cost next to nothing, in a process of their own, so that the broker is measured.

Each speaks the protocol over its own connection: a queue of 1000 messages, more permits when half
of them are used, individual acknowledgements in groups of a hundred. A MESSAGE is not parsed: the
bytes of its id go into the ACK unchanged.

usage: python -m tests.bench.dispatch_load PORT publish TOPIC MESSAGES KEYS [BYTES]
       python -m tests.bench.dispatch_load PORT consume TOPIC MESSAGES TYPE CONSUMERS SUBSCRIPTION
"""

import asyncio
import json
import sys
import time

import uvloop

from magnetar.sdk.wire.hot_commands import encode_flow, encode_varint
from tests.bench.lean_client import MESSAGE, LeanClient, message_id_at, publish

SIZE = 1024
QUEUE = 1000
ACKS_AT_ONCE = 100
IN_FLIGHT = 1000


class _Consumer(LeanClient):
    def __init__(self, run: "_Run") -> None:
        super().__init__()
        self._run = run
        self._ids: list[bytes] = []
        self._used = 0

    def on_frame(self, buffer: bytearray, at: int) -> None:
        if buffer[at : at + 3] == MESSAGE:
            self._ids.append(b"\x1a" + message_id_at(buffer, at))
        else:
            super().on_frame(buffer, at)

    def after_read(self) -> None:
        ids = self._ids
        if len(ids) >= ACKS_AT_ONCE or self._run.is_near_end:
            self.acknowledge()

    def acknowledge(self) -> None:
        ids, self._ids = self._ids, []
        for first in range(0, len(ids), ACKS_AT_ONCE):
            body = b"\x08\x00\x10\x00" + b"".join(ids[first : first + ACKS_AT_ONCE])
            size = len(body)
            command = b"\x08\x0a\x52" + encode_varint(size) + body
            head = (4 + len(command)).to_bytes(4, "big") + len(command).to_bytes(4, "big")
            self.transport.write(head + command)
        self._used += len(ids)
        if self._used >= QUEUE // 2:
            self.transport.write(encode_flow(0, self._used))
            self._used = 0
        self._run.count(len(ids))


class _Run:
    """All consumers of one subscription, until all messages have come."""

    def __init__(self, messages: int) -> None:
        self._left = messages
        self.done = asyncio.Event()

    @property
    def is_near_end(self) -> bool:
        return self._left < 20 * QUEUE

    def count(self, messages: int) -> None:
        self._left -= messages
        if self._left <= 0:
            self.done.set()


async def consume(
    port: int, topic: str, messages: int, kind: str, consumers: int, subscription: str
) -> float:
    """Return the seconds from the first permit to the last acknowledgement."""
    run = _Run(messages)
    clients: list[_Consumer] = []
    for _ in range(consumers):
        client = await _Consumer.connect(port, run)
        await client.subscribe(topic, subscription, kind=kind)
        clients.append(client)
    started_s = time.perf_counter()
    for client in clients:
        client.transport.write(encode_flow(0, QUEUE))
    async with asyncio.timeout(300):
        await run.done.wait()
    seconds = time.perf_counter() - started_s
    for client in clients:
        client.transport.close()
    return seconds


def main() -> None:
    port, what, topic, messages = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    if what == "publish":
        keys, size = int(sys.argv[5]), int(sys.argv[6]) if sys.argv[6:] else SIZE
        seconds = uvloop.run(
            publish(port, topic, messages, size=size, in_flight=IN_FLIGHT, keys=keys)
        )
    else:
        kind, consumers, subscription = sys.argv[5], int(sys.argv[6]), sys.argv[7]
        seconds = uvloop.run(consume(port, topic, messages, kind, consumers, subscription))
    sys.stdout.write(json.dumps({"seconds": seconds, "client_cpu_s": time.process_time()}) + "\n")


if __name__ == "__main__":
    main()
