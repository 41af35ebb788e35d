"""Many subscriptions of one topic, each with a consumer on a connection of its own.

All of them consume the backlog, or what is published meanwhile; nothing is acknowledged.

usage: python -m tests.bench.fanout_load PORT TOPIC MESSAGES SUBSCRIPTIONS PREFIX [publish]
"""

import asyncio
import json
import sys
import time

import uvloop

from magnetar.sdk.wire.hot_commands import encode_flow
from tests.bench.dispatch_load import IN_FLIGHT, QUEUE, SIZE
from tests.bench.lean_client import MESSAGE, LeanClient, publish

_TIMEOUT_S = 300


class _Consumer(LeanClient):
    def __init__(self, messages: int) -> None:
        super().__init__()
        self.left = messages
        self.done = asyncio.Event()
        self._used = 0

    def on_frame(self, buffer: bytearray, at: int) -> None:
        if buffer[at : at + 3] == MESSAGE:
            self._used += 1
        else:
            super().on_frame(buffer, at)

    def after_read(self) -> None:
        used = self._used
        if used >= QUEUE // 2 or used == self.left:
            self._used = 0
            self.left -= used
            self.transport.write(encode_flow(0, used))
            if not self.left:
                self.done.set()


async def _run(
    port: int, topic: str, messages: int, subscriptions: int, prefix: str, *, publishes: bool
) -> float:
    """Return the seconds until every consumer has every message."""
    clients: list[_Consumer] = []
    for number in range(subscriptions):
        client = await _Consumer.connect(port, messages)
        await client.subscribe(topic, f"{prefix}-{number}", kind="Exclusive")
        clients.append(client)
    started_s = time.perf_counter()
    for client in clients:
        client.transport.write(encode_flow(0, QUEUE))
    if publishes:
        await publish(port, topic, messages, size=SIZE, in_flight=IN_FLIGHT)
    async with asyncio.timeout(_TIMEOUT_S):
        for client in clients:
            await client.done.wait()
    seconds = time.perf_counter() - started_s
    for client in clients:
        client.transport.close()
    return seconds


def main() -> None:
    port, topic, messages, subscriptions, prefix = sys.argv[1:6]
    seconds = uvloop.run(
        _run(
            int(port),
            topic,
            int(messages),
            int(subscriptions),
            prefix,
            publishes=sys.argv[6:] == ["publish"],
        )
    )
    sys.stdout.write(json.dumps({"seconds": seconds}) + "\n")


if __name__ == "__main__":
    main()
