"""Compare Magnetar and its peers under one load, one after another in one run: `make bench-peers`.

Loads at full speed: 1 KB messages unbatched with 1000 in flight; 100 B messages in batches of 1000
(for a client without batches: one by one, with 10 000 in flight); 1 KB with one in flight, for the
latency of a single publish; and reading the messages of the first load back from the start. Loads
at a moderate rate measure the latency of a publish and of a delivery, from the moment at which the
message was due: one topic at 5,000/s and at 20,000/s, and 1,000 topics at 5/s and at 20/s each, on
fresh topics and from the first message on. Each topic has a consumer that acknowledges.

Every system starts empty. Each round runs all systems, and each figure is the median of its rounds.
A system whose program is compiled while it runs is warmed up first. All clients are Python programs
on the same machine as the servers: `magnetar perf` and `rates_load.py` for systems with Pulsar's
protocol, nats-py for NATS. Processor time is that of all servers of a system. Written bytes are
counted by the block device, from the start of the load to a sync after it. Memory is the
proportional set size (Pss) after all loads.

JSON goes to stdout, a Markdown table to stderr. A load that a system does not complete is shown as
failed, with the reason below the table. A system that cannot run here is left out, with a line that
says why.

usage: python -m tests.bench.peers [--quick] [--only WORD] [--rounds N] [--dir DIR]
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import uvloop
from nats.errors import Error as NatsError

from tests.bench import ceiling, nats_peer, pulsar_peer
from tests.bench import load as load_process
from tests.bench.figures import Latency, Rate, describe_machine
from tests.bench.nats_peer import NatsCluster
from tests.bench.pulsar_lite_peer import PulsarLite
from tests.bench.pulsar_peer import ApachePulsar
from tests.cluster import ProcessCluster
from tests.processes import cpu_s_of, descendants_of, pss_bytes_of
from tests.standalone import Standalone

T = TypeVar("T")

_SECONDS_MAX = 20.0
_IN_FLIGHT = 1000
_IN_FLIGHT_SMALL = 10_000
_BATCH = 1000
_SECTOR_BYTES = 512
"""Unit of `/proc/diskstats`, whatever the device's own sector size is."""


@dataclass(frozen=True, slots=True)
class Effort:
    rounds: int
    messages: int
    small_messages: int
    single_messages: int
    steady_s: float
    """Duration in seconds of each load at a moderate rate."""
    sustained_s: float
    """Duration in seconds of the heaviest load at a moderate rate."""
    warm_share: float = 1.0
    """Share of the warm-up messages to send, for systems that need a warm-up."""


FULL = Effort(
    rounds=3,
    messages=100_000,
    small_messages=2_000_000,
    single_messages=3000,
    steady_s=10.0,
    sustained_s=30.0,
)
QUICK = Effort(
    rounds=1,
    messages=10_000,
    small_messages=200_000,
    single_messages=300,
    steady_s=2.0,
    sustained_s=2.0,
    warm_share=0.1,
)


@dataclass(frozen=True, slots=True)
class SteadyLoad:
    """A load at a moderate rate: each message is due at its moment."""

    name: str
    topics: int
    msgs_per_s: float
    """Rate of each topic."""
    clients: int = 1
    is_sustained: bool = False


STEADY = (
    SteadyLoad("5,000/s", topics=1, msgs_per_s=5_000),
    SteadyLoad("20,000/s", topics=1, msgs_per_s=20_000),
    SteadyLoad("1,000 fresh topics x 5/s", topics=1_000, msgs_per_s=5, clients=10),
    SteadyLoad(
        "1,000 fresh topics x 20/s", topics=1_000, msgs_per_s=20, clients=10, is_sustained=True
    ),
)


@dataclass(frozen=True, slots=True)
class Steady:
    """Results of a system at a moderate rate."""

    published: int
    publish_ms: Latency
    end_to_end_ms: Latency
    cpu_us: float
    """Processor time of all servers per message."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a message for the servers at full speed."""

    cpu_us: float
    disk_kb: float


class System(Protocol):
    """A running system under load."""

    def publish(self, topic: str, *, messages: int) -> Rate: ...

    def publish_small(self, topic: str, *, messages: int) -> Rate: ...

    def publish_single(self, topic: str, *, messages: int) -> Rate: ...

    def consume(self, topic: str, *, messages: int) -> Rate: ...

    def steady(self, name: str, load: SteadyLoad, *, seconds: float) -> Steady | None:
        """Run a moderate rate on topics with this name prefix; None if the system has no such
        load."""
        ...

    def pids(self) -> Sequence[int]:
        """Return the process ids of its servers."""
        ...


@dataclass(frozen=True, slots=True)
class Peer:
    """A system, and its guarantee for a message that it reports as stored."""

    name: str
    copies: str
    synced: str
    open: Callable[[Path], AbstractContextManager[System]]
    small_load: str = "in batches of 1000"
    warm_messages: int = 0
    """Number of messages that warm the system up before anything is measured."""
    why_missing: Callable[[], str] = lambda: ""
    """Returns why the system cannot run on this machine; empty: it can."""


@dataclass(frozen=True, slots=True)
class Round:
    """Results of one system in one round; None where a load failed, with the reason in
    `failures`."""

    publish: Rate | None
    publish_cost: Cost | None
    publish_small: Rate | None
    publish_single: Rate | None
    consume: Rate | None
    steady: dict[str, Steady | None]
    """Results by the names of the loads."""
    memory_mb: float
    failures: dict[str, str]


Rounds = Sequence[Round]


class IncompleteError(Exception):
    """The read ended before all messages had come."""


@dataclass(frozen=True, slots=True)
class PulsarSystem:
    """A system that speaks Pulsar's binary protocol."""

    url: str
    port: int
    pids: Callable[[], Sequence[int]]

    def publish(self, topic: str, *, messages: int) -> Rate:
        return load_process.produce(
            self.url,
            topic,
            messages=messages,
            size=1024,
            in_flight=_IN_FLIGHT,
            seconds_max=_SECONDS_MAX,
        )

    def publish_small(self, topic: str, *, messages: int) -> Rate:
        return load_process.produce(
            self.url,
            topic,
            messages=messages,
            size=100,
            batch=_BATCH,
            seconds_max=_SECONDS_MAX,
        )

    def publish_single(self, topic: str, *, messages: int) -> Rate:
        return load_process.produce(
            self.url, topic, messages=messages, size=1024, in_flight=1, seconds_max=_SECONDS_MAX
        )

    def consume(self, topic: str, *, messages: int) -> Rate:
        # The default queue of clients: pulsar-lite stalls with a larger one.
        return load_process.consume(
            self.url, topic, messages=messages, receiver_queue=1000, ack="cumulative"
        )

    def steady(self, name: str, load: SteadyLoad, *, seconds: float) -> Steady:
        found = load_process.run(
            *("rates_load", self.port, load.topics, load.clients, load.msgs_per_s),
            *(0, seconds, name, *self.pids()),
        )
        return Steady(
            found["published"],
            Latency(**found["latency_ms"]),
            Latency(**found["end_to_end_ms"]),
            round(sum(found["cpu_s"]) / max(1, found["published"]) * 1e6, 1),
        )


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

    def steady(self, name: str, load: SteadyLoad, *, seconds: float) -> None:
        return None

    def pids(self) -> Sequence[int]:
        return self.cluster.pids

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


def _tree_of(pid: int) -> list[int]:
    return [pid, *descendants_of(pid)]


@contextmanager
def _standalone(directory: Path, *arguments: str) -> Iterator[System]:
    with Standalone(directory, arguments=arguments) as server:
        yield PulsarSystem(server.url, server.port, partial(_tree_of, server.process.pid))


@contextmanager
def _three_in_one(directory: Path) -> Iterator[System]:
    with _standalone(directory, "--bookies", "3", "--quorum", "3,3,2") as system:
        yield system


@contextmanager
def _replicated(directory: Path) -> Iterator[System]:
    with ProcessCluster(directory) as cluster:
        yield PulsarSystem(
            cluster.url, cluster.port, lambda: [each.pid for each in cluster.servers]
        )


@contextmanager
def _pulsar_lite(directory: Path) -> Iterator[System]:
    server = PulsarLite(directory)
    try:
        server.wait_ready()
        yield PulsarSystem(server.url, server.port, partial(_tree_of, server.pid))
    finally:
        server.stop()


@contextmanager
def _apache_pulsar(directory: Path, *, bookies: int) -> Iterator[System]:
    server = ApachePulsar(directory, bookies=bookies)
    try:
        server.wait_ready()
        yield PulsarSystem(server.url, server.port, partial(_tree_of, server.pid))
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

    def attempt(name: str, run: Callable[[], T]) -> T | None:
        try:
            return run()
        except (load_process.LoadFailedError, IncompleteError, TimeoutError, NatsError) as error:
            failures[name] = f"{type(error).__name__}: {error}"
            return None

    with peer.open(directory) as system:
        warm_messages = round(peer.warm_messages * effort.warm_share)
        while warm_messages > 0:
            warmed = system.publish("warm", messages=min(warm_messages, effort.messages))
            warm_messages -= max(1, warmed.messages)
        cpu_s, disk_bytes = _cpu_s(system), _written_bytes(directory)
        publish = attempt("publish", lambda: system.publish("large", messages=effort.messages))
        published = publish.messages if publish else 0
        cpu_s, disk_bytes = _cpu_s(system) - cpu_s, _written_bytes(directory) - disk_bytes

        def consume() -> Rate:
            rate = system.consume("large", messages=published)
            if rate.messages < published:
                raise IncompleteError(f"{rate.messages} of {published} messages came")
            return rate

        def steady(number: int, load: SteadyLoad) -> Steady | None:
            seconds = effort.sustained_s if load.is_sustained else effort.steady_s
            return attempt(
                load.name, lambda: system.steady(f"steady-{number}", load, seconds=seconds)
            )

        return Round(
            publish=publish,
            publish_cost=Cost(
                round(cpu_s / published * 1e6, 1), round(disk_bytes / published / 1024, 2)
            )
            if published
            else None,
            consume=attempt("consume", consume) if published else None,
            publish_small=attempt(
                "publish_small",
                lambda: system.publish_small("small", messages=effort.small_messages),
            ),
            publish_single=attempt(
                "publish_single",
                lambda: system.publish_single("single", messages=effort.single_messages),
            ),
            steady={each.name: steady(number, each) for number, each in enumerate(STEADY)},
            memory_mb=round(sum(map(pss_bytes_of, system.pids())) / 1e6, 1),
            failures=failures,
        )


def _cpu_s(system: System) -> float:
    return sum(map(cpu_s_of, system.pids()))


def _written_bytes(directory: Path) -> int:
    """Return the bytes written so far to the block device of a directory, after a sync; 0 if the
    directory has none."""
    os.sync()
    device = directory.stat().st_dev
    for line in Path("/proc/diskstats").read_text().splitlines():
        fields = line.split()
        if (int(fields[0]), int(fields[1])) == (os.major(device), os.minor(device)):
            return int(fields[9]) * _SECTOR_BYTES
    return 0


Shown = Callable[[Round], float | None]
"""Returns a figure of a round; None if it has none."""


def _median(rounds: Sequence[Round], of: Shown) -> float | None:
    known = [value for each in rounds if (value := of(each)) is not None]
    return statistics.median(known) if known else None


def _row(name: str, *figures: Shown, form: str = ",.0f") -> tuple[str, Callable[[Rounds], str]]:
    """Make a row of the table: medians of figures, beside each other."""

    def cell(rounds: Rounds) -> str:
        found = [_median(rounds, each) for each in figures]
        shown = [format(each, form) for each in found if each is not None]
        return " / ".join(shown) or "-"

    return name, cell


def _speed(of: Callable[[Round], Rate | None]) -> Shown:
    return lambda each: rate.msgs_per_s if (rate := of(each)) is not None else None


def _percentiles(of: Callable[[Round], Latency | None], *names: str) -> list[Shown]:
    def one(name: str) -> Shown:
        return lambda each: getattr(found, name) if (found := of(each)) is not None else None

    return [one(name) for name in names]


def _single(each: Round) -> Latency | None:
    return each.publish_single.latency_ms if each.publish_single is not None else None


def _publish_of(name: str) -> Callable[[Round], Latency | None]:
    return lambda each: found.publish_ms if (found := each.steady[name]) is not None else None


def _end_to_end_of(name: str) -> Callable[[Round], Latency | None]:
    return lambda each: found.end_to_end_ms if (found := each.steady[name]) is not None else None


def _cpu_of(name: str) -> Shown:
    return lambda each: found.cpu_us if (found := each.steady[name]) is not None else None


def _rows() -> Iterator[tuple[str, Callable[[Rounds], str]]]:
    yield _row("publish, 1 KB, 1,000 in flight, messages/s", _speed(lambda each: each.publish))
    yield _row("publish, 100 B in batches, messages/s", _speed(lambda each: each.publish_small))
    yield _row("catch-up read, 1 KB, messages/s", _speed(lambda each: each.consume))
    yield _row(
        "publish, 1 KB, one in flight: p50 / p99, ms",
        *_percentiles(_single, "p50", "p99"),
        form=".2f",
    )
    for each in STEADY:
        tail = ("p50", "p99", "p999")
        yield _row(
            f"publish, {each.name}: p50 / p99 / p99.9, ms",
            *_percentiles(_publish_of(each.name), *tail),
            form=".1f",
        )
        yield _row(
            f"end to end, {each.name}: p50 / p99 / p99.9, ms",
            *_percentiles(_end_to_end_of(each.name), *tail),
            form=".1f",
        )
    yield _row(
        "processor time of the servers per message, at full speed, us",
        lambda each: each.publish_cost.cpu_us if each.publish_cost is not None else None,
    )
    for each in STEADY:
        yield _row(
            f"processor time of the servers per message, {each.name}, us", _cpu_of(each.name)
        )
    yield _row(
        "written to disk per message of 1 KB, KB",
        lambda each: each.publish_cost.disk_kb if each.publish_cost is not None else None,
        form=".1f",
    )
    yield _row("memory of the servers after all that, MB", lambda each: each.memory_mb)


def _last_error(why: str) -> str:
    """Shorten a reason that ends with a traceback to its final error; the JSON has the whole
    reason."""
    lines = why.splitlines()
    errors = [at for at, line in enumerate(lines) if "Error" in line and not line.startswith(" ")]
    return " ".join(line.strip() for line in lines[max(errors, default=0) :])


def table(results: Mapping[str, Rounds]) -> str:
    """Return the table: one column per system, with the medians of its rounds."""
    peers = [peer for peer in PEERS if results.get(peer.name)]
    lines = [
        " | ".join(["| ", *(peer.name for peer in peers)]) + " |",
        "|---" + "|--:" * len(peers) + "|",
        " | ".join(["| copies; synced", *(f"{peer.copies}; {peer.synced}" for peer in peers)])
        + " |",
    ]
    for name, cell in _rows():
        lines.append(" | ".join([f"| {name}", *(cell(results[p.name]) for p in peers)]) + " |")
    notes = [
        f"{peer.name}: 100 B {peer.small_load}."
        for peer in peers
        if not peer.small_load.startswith("in batches")
    ]
    for peer in peers:
        failed = {what: why for each in results[peer.name] for what, why in each.failures.items()}
        notes += [f"{peer.name}, {what}: {_last_error(why)}" for what, why in failed.items()]
    return "\n".join([*lines, "", *notes])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one round, rough figures")
    parser.add_argument("--only", metavar="WORD", help="systems whose name holds the word")
    parser.add_argument("--rounds", type=int, help="other than three, or one if quick")
    parser.add_argument("--dir", type=Path, help="parent of the data folder (default: temporary)")
    arguments = parser.parse_args()
    effort = QUICK if arguments.quick else FULL
    if arguments.rounds:
        effort = replace(effort, rounds=arguments.rounds)
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
