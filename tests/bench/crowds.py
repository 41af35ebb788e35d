"""How long one client holds the event loop when thousands of members join or leave something at
once.

A broker runs in this process, on a loop and thread of its own, with a probe on it. Clients speak
the binary protocol from another thread. `cpu_max` is the processor time of the loop's thread in its
longest turn, which hardly depends on other work of the machine.

usage: python -m tests.bench.crowds [--members N] [--only SCENE]
"""

import argparse
import asyncio
import gc
import json
import sys
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from magnetar.testing import Broker
from tests.bench.loop_probe import Lateness, Probe
from tests.http_calls import ask
from tests.integration.broker.wire_client import WireClient
from tests.waiting import until

_MEMBERS = 10_000
_AT_ONCE = 500
_SETTLE_S = 1.0
_WATCHERS_PER_CONNECTION = 100
_TOPICS_WATCHED = 20
_SHARE_OF_UNKNOWN = 4
"""Divisor of the members: the cost of these acknowledgements grows with the product of both
counts."""
_NO_PING_MS = 3_600_000
_TRANSACTION_MS_MIN = 10_000
_TRANSACTION_MS_EACH = 5
"""Timeout per member, in ms: all transactions begin before the first one times out."""
_TOPIC = "persistent://public/default/crowd-"
_TYPES = {
    "shared": pb.CommandSubscribe.Shared,
    "failover": pb.CommandSubscribe.Failover,
    "key_shared": pb.CommandSubscribe.Key_Shared,
}


SETTINGS = {
    "max_consumers_per_subscription": 0,
    "connections_per_address_max": 0,
    "keep_alive_interval_ms": _NO_PING_MS,
    "unacked_per_consumer_max": 0,
    "unacked_per_subscription_max": 0,
}
"""Settings of the broker."""


class Crowds:
    """The measurements, one after the other."""

    def __init__(self, broker: Broker, probe: Probe, members: int) -> None:
        self._broker = broker
        self._probe = probe
        self._members = members
        self.figures: dict[str, dict[str, float]] = {}

    async def consumers(self, name: str) -> None:
        """Measure consumers: they subscribe in groups, and leave with their connection."""
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

    async def watchers(self) -> None:
        """Measure watchers of one namespace, on as many connections as needed, while topics are
        created."""
        per_connection = min(self._members, _WATCHERS_PER_CONNECTION)
        clients = [await self._client() for _ in range(self._members // per_connection)]
        self._take()
        for client in clients:
            for number in range(per_connection):
                request = pb.CommandWatchTopicList(
                    request_id=number,
                    watcher_id=number,
                    namespace="public/default",
                    topics_pattern="persistent://public/default/watched-.*",
                )
                client.send(BaseCommand.WATCH_TOPIC_LIST, watchTopicList=request)
            for _ in range(per_connection):
                await client.next(BaseCommand.WATCH_TOPIC_LIST_SUCCESS)
        self._note("watchers come")
        other = await self._client()
        for number in range(_TOPICS_WATCHED):
            await other.produce(f"persistent://public/default/watched-{number}", number)
        for client in clients:
            told: dict[int, int] = {}
            while len(told) < per_connection or min(told.values()) < _TOPICS_WATCHED:
                update = (await client.next(BaseCommand.WATCH_TOPIC_UPDATE)).watchTopicUpdate
                told[update.watcher_id] = told.get(update.watcher_id, 0) + len(update.new_topics)
        self._note("watchers are told")
        for client in [*clients, other]:
            await client.close()
        await asyncio.sleep(_SETTLE_S)
        self._note("watchers go")

    async def pending(self, name: str) -> None:
        """Measure messages that one consumer holds without acknowledging.

        They move to another consumer when it leaves, are redelivered there, and are acknowledged in
        one command, twice.
        """
        topic = f"{_TOPIC}pending-{name}"
        client, other = await self._client(), await self._client()
        await client.subscribe(topic, subType=_TYPES[name], consumer_name="a")
        await other.produce(topic)
        for first in range(0, self._members, _AT_ONCE):
            group = range(first, min(first + _AT_ONCE, self._members))
            for number in group:
                other.publish(number, b"body", partition_key=f"key-{number % 1000}")
            for _ in group:
                await other.next(BaseCommand.SEND_RECEIPT)
        client.flow(self._members)
        await client.bodies(self._members)
        self._take()
        await other.subscribe(topic, self._members, subType=_TYPES[name], consumer_name="b")
        await client.close()
        await other.bodies(self._members)
        self._note(f"pending of {name} go to another")
        other.send(
            BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES,
            redeliverUnacknowledgedMessages=pb.CommandRedeliverUnacknowledgedMessages(
                consumer_id=0
            ),
        )
        other.flow(self._members)
        ids: list[pb.MessageIdData] = []
        while len(ids) < self._members:
            ids.append((await other.next(BaseCommand.MESSAGE)).message.message_id)
        self._note(f"pending of {name} come again")
        # Out of order: neighbours would form one range.
        ids = [*ids[::2], *ids[1::2]]
        for what in ("are acknowledged", "are acknowledged again"):
            other.send(
                BaseCommand.ACK,
                ack=pb.CommandAck(
                    consumer_id=0,
                    request_id=1,
                    ack_type=pb.CommandAck.Individual,
                    message_id=ids,
                ),
            )
            await other.next(BaseCommand.ACK_RESPONSE)
            self._note(f"pending of {name} {what}")
        await other.close()

    async def unknown_acknowledgements(self) -> None:
        """Measure one of many consumers acknowledging, in one command, messages that nobody
        holds."""
        client, topic = await self._client(), f"{_TOPIC}unknown"
        members = self._members // _SHARE_OF_UNKNOWN
        for first in range(0, members, _AT_ONCE):
            group = range(first, min(first + _AT_ONCE, members))
            for number in group:
                request = pb.CommandSubscribe(
                    topic=topic,
                    subscription="s",
                    subType=pb.CommandSubscribe.Shared,
                    consumer_id=number,
                    request_id=number,
                )
                client.send(BaseCommand.SUBSCRIBE, subscribe=request)
            for _ in group:
                await client.next(BaseCommand.SUCCESS)
        other = await self._client()
        await other.produce(topic)
        for number in range(members):
            other.publish(number, b"body")
        position = pb.MessageIdData()
        for _ in range(members):
            receipt = await other.next(BaseCommand.SEND_RECEIPT)
            position = receipt.send_receipt.message_id
        self._take()
        ids = [
            pb.MessageIdData(ledgerId=position.ledgerId, entryId=position.entryId - 2 * each)
            for each in range(members // 2)
        ]
        client.send(
            BaseCommand.ACK,
            ack=pb.CommandAck(
                consumer_id=0, request_id=1, ack_type=pb.CommandAck.Individual, message_id=ids
            ),
        )
        await client.next(BaseCommand.ACK_RESPONSE)
        self._note("unknown acknowledgements")
        await client.close()
        await other.close()
        await asyncio.sleep(_SETTLE_S)
        self._take()

    async def transactions(self) -> None:
        """Measure transactions of one coordinator that begin, and end at once by their timeout."""
        client, topic = await self._client(), f"{_TOPIC}transactions"
        await client.produce(topic)
        timeout_ms = _TRANSACTION_MS_MIN + _TRANSACTION_MS_EACH * self._members
        client.send(
            BaseCommand.TC_CLIENT_CONNECT_REQUEST,
            tcClientConnectRequest=pb.CommandTcClientConnectRequest(request_id=1, tc_id=0),
        )
        await client.next(BaseCommand.TC_CLIENT_CONNECT_RESPONSE)
        port = int(self._broker.admin_url.rpartition(":")[2])
        path = "/admin/v3/transactions/coordinatorStats?coordinatorId=0"
        await ask(port, "GET", path)  # the first request builds the interface, in a turn of 0.3 s
        self._take()
        for first in range(0, self._members, _AT_ONCE):
            group = range(first, min(first + _AT_ONCE, self._members))
            for _ in group:
                request = pb.CommandNewTxn(request_id=1, txn_ttl_millis=timeout_ms, tc_id=0)
                client.send(BaseCommand.NEW_TXN, newTxn=request)
            for _ in group:
                answer = (await client.next(BaseCommand.NEW_TXN_RESPONSE)).newTxnResponse
                assert not answer.HasField("error"), answer
                client.send(
                    BaseCommand.ADD_PARTITION_TO_TXN,
                    addPartitionToTxn=pb.CommandAddPartitionToTxn(
                        request_id=1,
                        txnid_most_bits=answer.txnid_most_bits,
                        txnid_least_bits=answer.txnid_least_bits,
                        partitions=[topic],
                    ),
                )
            for _ in group:
                await client.next(BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE)
        self._note("transactions begin")

        async def have_ended() -> bool:
            return not (await ask(port, "GET", path)).json["ongoingTxnSize"]

        await until(have_ended, "all have ended", within_s=timeout_ms / 100)
        self._note("transactions time out")
        await client.close()

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
    """Return the result of a call on the broker's own loop."""
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


async def measure(broker: Broker, members: int, only: str = "") -> dict[str, dict[str, float]]:
    crowds = Crowds(broker, _on(broker, _started), members)
    scenes: dict[str, Callable[[], Awaitable[None]]] = {
        **{name: partial(crowds.consumers, name) for name in _TYPES},
        "producers": crowds.producers,
        "watchers": crowds.watchers,
        **{f"pending-{name}": partial(crowds.pending, name) for name in ("shared", "key_shared")},
        "unknown": crowds.unknown_acknowledgements,
        "transactions": crowds.transactions,
    }
    for name, scene in scenes.items():
        if name.startswith(only):
            await scene()
    return crowds.figures


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="crowds", description=__doc__)
    parser.add_argument("--members", type=int, default=_MEMBERS)
    parser.add_argument("--only", default="", help="what the names of scenes begin with")
    options = parser.parse_args(arguments)
    # A full collection would walk the client's objects too; a server schedules its own.
    gc.disable()
    with Broker(settings={"broker": SETTINGS}) as broker:
        figures = asyncio.run(measure(broker, options.members, options.only))
    longest = max(each["turn_cpu_ms_max"] for each in figures.values())
    found = {"members": options.members, "longest_turn_cpu_ms": longest, "turns": figures}
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
