"""Compare Magnetar and its peers under one load, one after another in one run: `make bench-peers`.

Loads at full speed: 1 KB messages unbatched with 1000 in flight; 100 B messages in batches of 1000
(for a client that has no batches: one by one, with 10 000 in flight); 1 KB with one in flight, for
the latency of a single publish; and reading the first of them all back from the start. Loads at a
moderate rate, for the latency of a publish, counted from the moment at which its message was due:
one topic at 5,000/s, and 1,000 fresh topics at 5/s each, from the first message on, each with a
consumer that acknowledges.

Every system starts empty; the rounds go round all systems, and each figure is the median of its
rounds. A system whose program is compiled as it runs is warmed up first. All clients are Python
ones on the same machine as the servers: `magnetar perf` and `rates_load.py` for whatever speaks
Pulsar's protocol, nats-py for NATS.

JSON goes to stdout, a Markdown table to stderr. A load that a system does not get through is
shown as failed, with the reason below the table; a system that cannot be run here is left out, with
a line that says why.

usage: python -m tests.bench.peers [--quick] [--only WORD] [--dir DIR]
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import uvloop
from nats.errors import Error as NatsError

from tests.bench import ceiling, load, nats_peer, pulsar_peer
from tests.bench.figures import Latency, Rate, describe_machine
from tests.bench.nats_peer import NatsCluster
from tests.bench.pulsar_lite_peer import PulsarLite
from tests.bench.pulsar_peer import ApachePulsar
from tests.cluster import ProcessCluster
from tests.standalone import Standalone

_SECONDS_MAX = 20.0
_IN_FLIGHT = 1000
_IN_FLIGHT_SMALL = 10_000
_BATCH = 1000
_STEADY_MSGS_PER_S = 5_000
_TOPICS = 1_000
_TOPIC_MSGS_PER_S = 5
_TOPIC_CLIENTS = 10


@dataclass(frozen=True, slots=True)
class Effort:
    rounds: int
    messages: int
    small_messages: int
    single_messages: int
    steady_s: float
    """Of each load at a moderate rate."""
    warm_share: float = 1.0
    """Of the messages by which a system is warmed up that needs it."""


FULL = Effort(
    rounds=3, messages=100_000, small_messages=2_000_000, single_messages=3000, steady_s=10.0
)
QUICK = Effort(
    rounds=1,
    messages=10_000,
    small_messages=200_000,
    single_messages=300,
    steady_s=2.0,
    warm_share=0.1,
)


class System(Protocol):
    """A running system under load."""

    def publish(self, topic: str, *, messages: int) -> Rate: ...

    def publish_small(self, topic: str, *, messages: int) -> Rate: ...

    def publish_single(self, topic: str, *, messages: int) -> Rate: ...

    def consume(self, topic: str, *, messages: int) -> Rate: ...

    def steady(self, topic: str, *, seconds: float) -> Rate | None:
        """One topic at a moderate rate; None: there is no such load for it."""
        ...

    def many_topics(self, topic: str, *, seconds: float) -> Rate | None:
        """Many fresh topics at a moderate rate; None: there is no such load for it."""
        ...

    def resident_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Peer:
    """A system, and what it promises when it says that a message is stored."""

    name: str
    copies: str
    synced: str
    open: Callable[[Path], AbstractContextManager[System]]
    small_load: str = "in batches of 1000"
    warm_messages: int = 0
    """Messages that warm the system up before anything is measured."""
    why_missing: Callable[[], str] = lambda: ""
    """Why it cannot be run on this machine; empty: it can."""


@dataclass(frozen=True, slots=True)
class Round:
    """What one system did in one round; None where it failed, with the reason."""

    publish: Rate | None
    publish_small: Rate | None
    publish_single: Rate | None
    consume: Rate | None
    steady: Rate | None
    many_topics: Rate | None
    resident_mb: float
    failures: dict[str, str]


class IncompleteError(Exception):
    """Reading ended before all messages had come."""


@dataclass(frozen=True, slots=True)
class PulsarSystem:
    """Whatever speaks Pulsar's binary protocol."""

    url: str
    port: int
    resident: Callable[[], int]

    def publish(self, topic: str, *, messages: int) -> Rate:
        return load.produce(
            self.url,
            topic,
            messages=messages,
            size=1024,
            in_flight=_IN_FLIGHT,
            seconds_max=_SECONDS_MAX,
        )

    def publish_small(self, topic: str, *, messages: int) -> Rate:
        return load.produce(
            self.url,
            topic,
            messages=messages,
            size=100,
            batch=_BATCH,
            seconds_max=_SECONDS_MAX,
        )

    def publish_single(self, topic: str, *, messages: int) -> Rate:
        return load.produce(
            self.url, topic, messages=messages, size=1024, in_flight=1, seconds_max=_SECONDS_MAX
        )

    def consume(self, topic: str, *, messages: int) -> Rate:
        # The queue that clients have by default: pulsar-lite stalls with a larger one.
        return load.consume(
            self.url, topic, messages=messages, receiver_queue=1000, ack="cumulative"
        )

    def steady(self, topic: str, *, seconds: float) -> Rate:
        return self._at_rate(topic, 1, _STEADY_MSGS_PER_S, 1, seconds)

    def many_topics(self, topic: str, *, seconds: float) -> Rate:
        return self._at_rate(topic, _TOPICS, _TOPIC_MSGS_PER_S, _TOPIC_CLIENTS, seconds)

    def _at_rate(
        self, topic: str, topics: int, msgs_per_s: int, clients: int, seconds: float
    ) -> Rate:
        found = load.run("rates_load", self.port, topics, clients, msgs_per_s, 0, seconds, topic)
        per_s = found["published"] / found["seconds"]
        latency = Latency(**found["latency_ms"])
        return Rate(found["published"], found["seconds"], per_s, per_s * 1024 / 1e6, latency)

    def resident_bytes(self) -> int:
        return self.resident()


@dataclass(frozen=True, slots=True)
class NatsSystem:
    """JetStream, by nats-py."""

    cluster: NatsCluster

    def publish(self, topic: str, *, messages: int) -> Rate:
        return self._publish(topic, messages=messages, size=1024, in_flight=_IN_FLIGHT)

    def publish_small(self, topic: str, *, messages: int) -> Rate:
        return self._publish(topic, messages=messages // 10, size=100, in_flight=_IN_FLIGHT_SMALL)

    def publish_single(self, topic: str, *, messages: int) -> Rate:
        urls = self.cluster.urls
        uvloop.run(nats_peer.create_stream(urls, topic))
        return uvloop.run(
            nats_peer.publish_one_by_one(
                urls, topic, messages=messages, size=1024, seconds_max=_SECONDS_MAX
            )
        )

    def consume(self, topic: str, *, messages: int) -> Rate:
        return uvloop.run(nats_peer.consume(self.cluster.urls, topic, messages=messages, size=1024))

    def steady(self, topic: str, *, seconds: float) -> None:
        return None

    def many_topics(self, topic: str, *, seconds: float) -> None:
        return None

    def resident_bytes(self) -> int:
        return self.cluster.resident_bytes()

    def _publish(self, topic: str, *, messages: int, size: int, in_flight: int) -> Rate:
        urls = self.cluster.urls
        uvloop.run(nats_peer.create_stream(urls, topic))
        return uvloop.run(
            nats_peer.publish(
                urls,
                topic,
                messages=messages,
                size=size,
                in_flight=in_flight,
                seconds_max=_SECONDS_MAX,
            )
        )


@contextmanager
def _standalone(directory: Path, *arguments: str) -> Iterator[System]:
    with Standalone(directory, arguments=arguments) as server:
        yield PulsarSystem(server.url, server.port, server.process.resident_bytes)


@contextmanager
def _three_in_one(directory: Path) -> Iterator[System]:
    with _standalone(directory, "--bookies", "3", "--quorum", "3,3,2") as system:
        yield system


@contextmanager
def _replicated(directory: Path) -> Iterator[System]:
    with ProcessCluster(directory) as cluster:
        yield PulsarSystem(cluster.url, cluster.port, cluster.resident_bytes)


@contextmanager
def _pulsar_lite(directory: Path) -> Iterator[System]:
    server = PulsarLite(directory)
    try:
        server.wait_ready()
        yield PulsarSystem(server.url, server.port, server.resident_bytes)
    finally:
        server.stop()


@contextmanager
def _apache_pulsar(directory: Path, *, bookies: int) -> Iterator[System]:
    server = ApachePulsar(directory, bookies=bookies)
    try:
        server.wait_ready()
        yield PulsarSystem(server.url, server.port, server.resident_bytes)
    finally:
        server.stop()


@contextmanager
def _nats(directory: Path) -> Iterator[System]:
    cluster = NatsCluster(directory)
    try:
        cluster.wait_ready()
        yield NatsSystem(cluster)
    finally:
        cluster.stop()


PEERS = (
    Peer("Magnetar standalone", copies="1", synced="yes", open=_standalone),
    Peer(
        "Magnetar standalone, 3 bookies, 3,3,2",
        copies="3, 2 before the answer",
        synced="yes",
        open=_three_in_one,
    ),
    Peer(
        "Magnetar, processes, 3 bookies, 3,3,2",
        copies="3, 2 before the answer",
        synced="yes",
        open=_replicated,
    ),
    Peer(
        f"Apache Pulsar {pulsar_peer.VERSION}, 1 bookie",
        copies="1",
        synced="yes (`journalSyncData`)",
        open=partial(_apache_pulsar, bookies=1),
        warm_messages=pulsar_peer.WARM_MESSAGES,
        why_missing=pulsar_peer.why_missing,
    ),
    Peer(
        f"Apache Pulsar {pulsar_peer.VERSION}, 3 bookies, 3,3,2",
        copies="3, 2 before the answer",
        synced="yes (`journalSyncData`)",
        open=partial(_apache_pulsar, bookies=3),
        warm_messages=pulsar_peer.WARM_MESSAGES,
        why_missing=pulsar_peer.why_missing,
    ),
    Peer("pulsar-lite 0.2", copies="1", synced="no", open=_pulsar_lite),
    Peer(
        "NATS JetStream, 3 servers, R3",
        copies="3, 2 before the answer",
        synced="yes (`sync_interval: always`)",
        open=_nats,
        small_load="one by one, 10 000 in flight: nats-py has no batches",
    ),
)


def _run_round(peer: Peer, directory: Path, effort: Effort) -> Round:
    failures: dict[str, str] = {}

    def attempt(name: str, run: Callable[[], Rate | None]) -> Rate | None:
        try:
            return run()
        except (load.LoadFailedError, IncompleteError, TimeoutError, NatsError) as error:
            failures[name] = f"{type(error).__name__}: {error}"
            return None

    with peer.open(directory) as system:
        warm_messages = round(peer.warm_messages * effort.warm_share)
        while warm_messages > 0:
            warmed = system.publish("warm", messages=min(warm_messages, effort.messages))
            warm_messages -= max(1, warmed.messages)
        publish = attempt("publish", lambda: system.publish("large", messages=effort.messages))
        published = publish.messages if publish else 0

        def consume() -> Rate:
            rate = system.consume("large", messages=published)
            if rate.messages < published:
                raise IncompleteError(f"{rate.messages} of {published} messages came")
            return rate

        return Round(
            publish=publish,
            consume=attempt("consume", consume) if published else None,
            publish_small=attempt(
                "publish_small",
                lambda: system.publish_small("small", messages=effort.small_messages),
            ),
            publish_single=attempt(
                "publish_single",
                lambda: system.publish_single("single", messages=effort.single_messages),
            ),
            steady=attempt("steady", lambda: system.steady("steady", seconds=effort.steady_s)),
            many_topics=attempt(
                "many_topics", lambda: system.many_topics("many", seconds=effort.steady_s)
            ),
            resident_mb=round(system.resident_bytes() / 1e6, 1),
            failures=failures,
        )


def _median(values: Sequence[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return statistics.median(known) if known else None


def _rate(rates: Sequence[Rate | None]) -> str:
    value = _median([rate.msgs_per_s if rate else None for rate in rates])
    return "failed" if value is None else f"{value:,.0f}"


def _latency(rates: Sequence[Rate | None], *, with_p999: bool = False) -> str:
    known = [rate.latency_ms for rate in rates if rate and rate.latency_ms]
    if not known:
        return "-"
    p50 = statistics.median(each.p50 for each in known)
    p99 = statistics.median(each.p99 for each in known)
    if not with_p999:
        return f"{p50:.2f} / {p99:.2f}"
    return f"{p50:.2f} / {p99:.2f} / {statistics.median(each.p999 for each in known):.2f}"


def table(results: Mapping[str, Sequence[Round]]) -> str:
    """One line per system, medians of its rounds."""
    lines = [
        "| | copies | synced | 1 KB, 1000 in flight, msg/s | p50 / p99 ms | 100 B batched, msg/s "
        "| 1 KB, one in flight, p50 / p99 ms | catch-up read, msg/s "
        "| 5,000/s, p50 / p99 / p99.9 ms | 1,000 fresh topics at 5/s, p50 / p99 / p99.9 ms "
        "| servers' memory, MB |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    notes = []
    for peer in PEERS:
        rounds = results.get(peer.name)
        if not rounds:
            continue
        small = _rate([each.publish_small for each in rounds])
        if not peer.small_load.startswith("in batches"):
            small += " (1)"
            notes.append(f"(1) {peer.small_load}.")
        publish = [each.publish for each in rounds]
        lines.append(
            f"| {peer.name} | {peer.copies} | {peer.synced} | {_rate(publish)} "
            f"| {_latency(publish)} | {small} "
            f"| {_latency([each.publish_single for each in rounds])} "
            f"| {_rate([each.consume for each in rounds])} "
            f"| {_latency([each.steady for each in rounds], with_p999=True)} "
            f"| {_latency([each.many_topics for each in rounds], with_p999=True)} "
            f"| {statistics.median(each.resident_mb for each in rounds):.0f} |"
        )
        for each in rounds:
            notes += [f"{peer.name}, {what}: {why}" for what, why in each.failures.items()]
    return "\n".join([*lines, "", *notes])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one round, rough figures")
    parser.add_argument("--only", metavar="WORD", help="systems whose name holds the word")
    parser.add_argument("--dir", type=Path, help="parent of the data folder (default: temporary)")
    arguments = parser.parse_args()
    effort = QUICK if arguments.quick else FULL
    machine = describe_machine()
    results: dict[str, list[Round]] = {}
    ceilings: list[float] = []
    chosen: list[Peer] = []
    for peer in PEERS:
        if arguments.only is None or arguments.only.lower() in peer.name.lower():
            if reason := peer.why_missing():
                sys.stderr.write(f"{peer.name} is left out: {reason}\n")
            else:
                chosen.append(peer)
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        for number in range(effort.rounds):
            ceilings.append(ceiling.measure(directory=Path(folder)).entries_per_s)
            for position, peer in enumerate(chosen):
                sys.stderr.write(f"round {number + 1} of {effort.rounds}: {peer.name}\n")
                directory = Path(folder) / f"{number}-{position}"
                results.setdefault(peer.name, []).append(_run_round(peer, directory, effort))
                shutil.rmtree(directory)
    sys.stderr.write(
        f"\n{machine.cpu}, {machine.cores} cores, {machine.memory_gb} GB, {machine.system}, Python "
        f"{machine.python}; the yardstick (three synced copies, the bare work, 1 KB, 1000 in "
        f"flight): {statistics.median(ceilings):,.0f}/s\n\n{table(results)}\n"
    )
    sys.stdout.write(
        json.dumps(
            {
                "machine": asdict(machine),
                "quick": arguments.quick,
                "ceiling_entries_per_s": ceilings,
                "systems": {
                    peer.name: {
                        "copies": peer.copies,
                        "synced": peer.synced,
                        "small_load": peer.small_load,
                        "rounds": [asdict(each) for each in results[peer.name]],
                    }
                    for peer in PEERS
                    if peer.name in results
                },
            },
            indent=1,
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
