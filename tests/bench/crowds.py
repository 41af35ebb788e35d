"""How long one client holds the event loop: thousands of members of one thing come, and go at once.

A broker runs in this process, on a loop and thread of its own, with a probe on it; clients speak
the binary protocol from another thread. `cpu_max` is what the loop's thread computed in its longest
turn, which hardly depends on what else the machine does.

usage: python -m tests.bench.crowds [--members N]
"""

import argparse
import asyncio
import gc
import json
import sys
import threading
from collections.abc import Callable
from typing import Any

from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from magnetar.testing import Broker
from tests.bench.loop_probe import Lateness, Probe
from tests.integration.broker.wire_client import WireClient

_MEMBERS = 10_000
_AT_ONCE = 500
_SETTLE_S = 1.0
_TOPIC = "persistent://public/default/crowd-"
_TYPES = {
    "shared": pb.CommandSubscribe.Shared,
    "failover": pb.CommandSubscribe.Failover,
    "key_shared": pb.CommandSubscribe.Key_Shared,
}


class Crowds:
    """The measurements, one after the other."""

    def __init__(self, broker: Broker, probe: Probe, members: int) -> None:
        self._broker = broker
        self._probe = probe
        self._members = members
        self.figures: dict[str, dict[str, float]] = {}

    async def consumers(self, name: str) -> None:
        """They come in groups, and go with their connection."""
        client = await self._client()

        def subscribe(number: int) -> None:
            request = pb.CommandSubscribe(
                topic=_TOPIC + name,
                subscription="crowd",
                subType=_TYPES[name],
                consumer_id=number,
                request_id=number,
                consumer_name=f"member-{number}",
            )
            if name == "key_shared":
                request.keySharedMeta.keySharedMode = pb.AUTO_SPLIT
            client.send(BaseCommand.SUBSCRIBE, subscribe=request)

        await self._come_and_go(name, client, subscribe, BaseCommand.SUCCESS)

    async def producers(self) -> None:
        client = await self._client()

        def produce(number: int) -> None:
            request = pb.CommandProducer(
                topic=f"{_TOPIC}producers", producer_id=number, request_id=number
            )
            client.send(BaseCommand.PRODUCER, producer=request)

        await self._come_and_go("producers", client, produce, BaseCommand.PRODUCER_SUCCESS)

    async def _come_and_go(
        self, name: str, client: WireClient, join: Callable[[int], None], answer: Any
    ) -> None:
        self._take()
        for first in range(0, self._members, _AT_ONCE):
            group = range(first, min(first + _AT_ONCE, self._members))
            for number in group:
                join(number)
            answers = 0
            while answers < len(group):
                answers += (await client.next()).type == answer
        self._note(f"{name} come")
        await client.close()
        await asyncio.sleep(_SETTLE_S)
        self._note(f"{name} go")

    async def _client(self) -> WireClient:
        port = int(self._broker.service_url.rpartition(":")[2])
        return await WireClient.open(port)

    def _note(self, what: str) -> None:
        seen = self._take().lateness_ms
        self.figures[what] = {
            "turn_cpu_ms_max": round(seen["cpu_max"], 1),
            "turn_ms_max": round(seen["max"], 1),
        }
        sys.stderr.write(f"{what}: {self.figures[what]}\n")

    def _take(self) -> Lateness:
        seen: Lateness = _on(self._broker, self._probe.take)
        return seen


def _on(broker: Broker, call: Callable[[], Any]) -> Any:
    """What a call on the broker's own loop gives."""
    loop = broker._loop
    assert loop is not None
    done = threading.Event()
    given: list[Any] = []

    def run() -> None:
        given.append(call())
        done.set()

    loop.call_soon_threadsafe(run)
    done.wait()
    return given[0]


def _started() -> Probe:
    probe = Probe()
    probe.start()
    return probe


async def measure(broker: Broker, members: int) -> dict[str, dict[str, float]]:
    crowds = Crowds(broker, _on(broker, _started), members)
    for name in _TYPES:
        await crowds.consumers(name)
    await crowds.producers()
    return crowds.figures


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="crowds", description=__doc__)
    parser.add_argument("--members", type=int, default=_MEMBERS)
    options = parser.parse_args(arguments)
    # A full collection would walk the client's objects too; a server plans its own.
    gc.disable()
    with Broker(settings={"broker": {"max_consumers_per_subscription": 0}}) as broker:
        figures = asyncio.run(measure(broker, options.members))
    longest = max(each["turn_cpu_ms_max"] for each in figures.values())
    found = {"members": options.members, "longest_turn_cpu_ms": longest, "turns": figures}
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
