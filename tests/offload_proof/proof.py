"""What happens in which order: publish, move, read in every way, restart, read again, delete.

Three bookies, two brokers and ZooKeeper run as processes. All closed ledgers go to the store, and
the bookies forget them: their metadata is gone, and the bookies' own indexes, which a tool lists
while everything is stopped, have none of them. Then each way of reading must get what was
published, at the same positions, byte for byte.
"""

import bisect
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pulsar

from tests.http_calls import follow, topic_path
from tests.integration.pulsar_client.support import connect, publish, read_next
from tests.offload_proof.content import Seen, difference, digest_of, payloads
from tests.offload_proof.stores import STORES, Store
from tests.offload_proof.ways import Read, by_official_client, by_spark, by_websocket
from tests.processes import magnetar_command, magnetar_environment, pss_bytes_of
from tests.real_cluster import RealCluster
from tests.waiting import wait_until

MESSAGE_BYTES = 4_096
TOPICS = 4
"""Every other one is published in batches."""
_LEDGERS_PER_TOPIC = 4
_CHUNK = 5_000
_CHUNKS_MIN = 2 * _LEDGERS_PER_TOPIC
"""A ledger that is full takes what is under way: less of it than a ledger holds."""
_OTHER = "persistent://public/default/other"
"""A topic with a ledger that stays on bookies: a bookie believes no list without any ledger."""
_BROKERS = ("broker-1", "broker-2")
_BOOKIES = ("bookie-1", "bookie-2", "bookie-3")
_NAMESPACE = "namespaces/public/default"
_SEEKS_PER_TOPIC = 8
_TIMEOUT_S = 1_800.0
_LAG_MS = 3_600_000
_SAMPLE_S = 0.1


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    bytes: int
    store: str
    """A word of `STORES`."""

    @property
    def messages(self) -> int:
        """Of each topic."""
        return max(2 * _CHUNKS_MIN, self.bytes // MESSAGE_BYTES // TOPICS)

    @property
    def ledger_bytes(self) -> int:
        """With so many bytes a ledger is full."""
        return max(1, self.messages * MESSAGE_BYTES // _LEDGERS_PER_TOPIC)


@dataclass(slots=True)
class _Story:
    """What has happened so far."""

    bytes: int
    began_s: float = field(default_factory=time.monotonic)
    problems: list[str] = field(default_factory=list)
    steps: dict[str, dict[str, float]] = field(default_factory=dict)

    def timed(self, name: str, seconds: float, **more: float) -> None:
        rate = round(self.bytes / 1e6 / seconds, 1)
        self.steps[name] = {"seconds": round(seconds, 2), "mb_per_s": rate, **more}
        now_s = time.monotonic() - self.began_s
        sys.stderr.write(f"{now_s:7.1f} s  {name}: {self.steps[name]}\n")
        sys.stderr.flush()


def run(plan: Plan, directory: Path) -> dict[str, Any]:
    """Carry out a plan; the result says what was seen, and whether it is `ok`."""
    directory.mkdir(parents=True, exist_ok=True)
    store = STORES[plan.store](directory)
    story = _Story(plan.messages * TOPICS * MESSAGE_BYTES)
    try:
        with RealCluster(
            directory / "cluster",
            bookies=len(_BOOKIES),
            brokers=len(_BROKERS),
            quorum="3,3,2",
            environment=_environment(plan, store),
        ) as cluster:
            counts = _Proof(plan, directory, cluster, store, story).play()
    finally:
        store.stop()
    return {
        "ok": not story.problems,
        "store": plan.store,
        "bytes": story.bytes,
        "messages": plan.messages * TOPICS,
        **counts,
        "steps": story.steps,
        "problems": story.problems[:10],
    }


def _environment(plan: Plan, store: Store) -> dict[str, str]:
    brokers = {
        "LEDGER_BYTES_MAX": str(plan.ledger_bytes),
        "LEDGER_AGE_MIN_S": "0",
        "RETENTION_MINUTES": "-1",
        "RETENTION_MIB": "-1",
        "RETENTION_CHECK_INTERVAL_S": "0.5",
        "UNSUBSCRIBED_RETENTION": "false",
        "OBJECT_STORES": json.dumps([store.settings]),
        "OFFLOAD_STORE": "main",
        "OFFLOAD_CHECK_INTERVAL_S": "0.2",
        "OFFLOAD_BYTES_PER_S_MAX": "0",
        "OBJECT_BYTES_MIN": "0",
        "OBJECT_SWEEP_INTERVAL_S": "0.5",
        "OBJECT_GRACE_S": "1",
        "TAIL_CACHE_BYTES_MAX": "0",
    }
    bookies = {"GC_INTERVAL_S": "1", "GC_VANISH_PATIENCE_S": "0"}
    return {
        **{f"MAGNETAR_BROKER_{name}": value for name, value in brokers.items()},
        **{f"MAGNETAR_BOOKIE_{name}": value for name, value in bookies.items()},
        **store.environment,
    }


class _Memory:
    """The largest proportional set size of each broker while a block runs."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.bytes_max = 0

    def __enter__(self) -> "_Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            self.bytes_max = max(self.bytes_max, *map(pss_bytes_of, self._pids))


class _Proof:
    def __init__(
        self, plan: Plan, directory: Path, cluster: RealCluster, store: Store, story: _Story
    ) -> None:
        self._plan, self._directory, self._cluster = plan, directory, cluster
        self._store, self._story = store, story
        self._topics = [f"persistent://public/default/proof-{number}" for number in range(TOPICS)]
        self._counts = dict.fromkeys(self._topics, plan.messages)
        self._ids: dict[str, list[pulsar.MessageId]] = {}
        self._expected: dict[str, list[Seen]] = {}
        self._published_ms: dict[str, list[int]] = {}

    def play(self) -> dict[str, int]:
        """All of it; returns what was counted."""
        self._ask("POST", f"{_NAMESPACE}/inactiveTopicPolicies", _TOPICS_STAY)
        self._publish()
        self._move()
        ledgers = [each["ledgerId"] for each in self._closed()]
        objects = len(self._store.keys())
        self._check(objects == len(ledgers), f"{objects} objects of {len(ledgers)} ledgers")
        self._see_that_metadata_is_gone(ledgers)
        self._read_in_every_way()
        self._seek()
        self._restart(ledgers)
        self._read("official client, after a restart of everything", self._by_official_client)
        self._delete(ledgers)
        return {"ledgers": len(ledgers), "objects": objects}

    def _check(self, holds: bool, problem: str) -> None:
        if not holds:
            self._story.problems.append(problem)

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        return follow(self._cluster.http_url("broker-1"), method, path, body).ok()

    # Publishing and moving

    def _publish(self) -> None:
        seconds = 0.0
        client = connect(self._cluster.service_url)
        for number, topic in enumerate(self._topics):
            producer = client.create_producer(
                topic,
                batching_enabled=number % 2 == 0,
                batching_max_messages=100,
                batching_max_allowed_size_in_bytes=1 << 19,
                block_if_queue_full=True,
            )
            ids = self._ids[topic] = []
            seen = self._expected[topic] = []
            each = payloads(number, count=self._plan.messages, size=MESSAGE_BYTES)
            while chunk := list(islice(each, min(_CHUNK, self._plan.messages // _CHUNKS_MIN))):
                began_s = time.monotonic()
                got = publish(producer, chunk)
                seconds += time.monotonic() - began_s
                ids += got
                self._wait_for_next_ledger(topic, len(ids) * MESSAGE_BYTES)
                seen += [_seen(place, data) for place, data in zip(got, chunk, strict=True)]
            producer.close()
            self._ask("PUT", f"{topic_path(topic)}/unload")  # which closes its last ledger
            self._ask("GET", f"{topic_path(topic)}/internalStats")
        client.create_producer(_OTHER).send(b"stays")
        client.close()
        self._story.timed("published", seconds)
        batches = sum(each.batch_index > 0 for seen in self._expected.values() for each in seen)
        self._check(batches > 0, "nothing was published in batches")

    def _wait_for_next_ledger(self, topic: str, published_bytes: int) -> None:
        """A full ledger takes what comes until the next one is there, which a busy machine makes
        late: all of it might go into one."""

        def has_room() -> bool:
            *closed, _ = self._ledgers_of(topic)
            open_bytes = published_bytes - sum(int(each["size"]) for each in closed)
            return open_bytes < self._plan.ledger_bytes

        wait_until(has_room, "the next ledger", within_s=120)

    def _ledgers_of(self, topic: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]]
        found = self._ask("GET", f"{topic_path(topic)}/internalStats")["ledgers"]
        return found

    def _move(self) -> None:
        began_s = time.monotonic()
        self._set_lag(_LAG_MS)
        self._wait_for("copied")
        self._story.timed("copied to the store", time.monotonic() - began_s)
        began_s = time.monotonic()
        self._set_lag(0)
        self._wait_for("only")
        self._story.timed("read back, and deleted", time.monotonic() - began_s)

    def _set_lag(self, lag_ms: int) -> None:
        policies = {
            "managedLedgerOffloadThresholdInBytes": 0,
            "managedLedgerOffloadDeletionLagInMillis": lag_ms,
        }
        self._ask("POST", f"{_NAMESPACE}/offloadPolicies", policies)

    def _wait_for(self, state: str) -> None:
        wait_until(
            lambda: {each.get("object", {}).get("state") for each in self._closed()} == {state},
            f"all ledgers to be {state}",
            within_s=_TIMEOUT_S,
        )

    def _closed(self) -> list[dict[str, Any]]:
        """The ledgers that have entries, of all topics: the last one of each is empty."""
        return [
            each for topic in self._topics for each in self._ledgers_of(topic) if each["entries"]
        ]

    # That bookies have none of them

    def _see_that_metadata_is_gone(self, ledgers: list[int]) -> None:
        def left() -> set[int]:
            lines = _tool("ledger", "list", "--metadata", self._cluster.metadata_url, "--json")
            return {json.loads(line)["ledger_id"] for line in lines} & set(ledgers)

        wait_until(lambda: not left(), "the ledgers' metadata to be gone", within_s=_TIMEOUT_S)
        for name in _BOOKIES:
            self._wait_for_collection(name, len(ledgers))

    def _wait_for_collection(self, bookie: str, count: int) -> None:
        wait_until(
            lambda: self._deleted_by(bookie) >= count,
            f"the garbage collection of {bookie}",
            within_s=_TIMEOUT_S,
        )

    def _deleted_by(self, bookie: str) -> int:
        text = follow(self._cluster.http_url(bookie), "GET", "/metrics").text
        found = [line for line in text.splitlines() if line.startswith(_DELETED) and line[0] != "#"]
        return int(float(found[0].split()[-1])) if found else 0

    def _restart(self, ledgers: list[int]) -> None:
        """Stop everything in order, look into the bookies' indexes, and start everything."""
        began_s = time.monotonic()
        for name in reversed(self._cluster.names):
            status = self._cluster.terminate(name)
            self._check(status == 0, f"{name} ended with {status}")
        for name in _BOOKIES:
            data = self._cluster.server(name).data
            lines = _tool("bookie-tool", "ledgers", "--data", str(data), "--json")
            kept = {json.loads(line)["ledger_id"] for line in lines}
            self._check(not kept & set(ledgers), f"{name} still has {kept & set(ledgers)}")
        self._cluster.start_all()
        self._story.timed("restarted", time.monotonic() - began_s)

    # Reading

    def _by_official_client(self) -> Read:
        return by_official_client(self._cluster.service_url, self._counts)

    def _read_in_every_way(self) -> None:
        first = self._read("official client", self._by_official_client)
        self._published_ms = first.published_ms
        port = self._cluster.server("broker-1").ports["http"]
        self._read("WebSocket", lambda: by_websocket(port, self._counts))
        options = {
            "service.url": self._cluster.service_url,
            "admin.url": ",".join(map(self._cluster.http_url, _BROKERS)),
            "metadata.url": self._cluster.metadata_url,
        }
        environment: Mapping[str, str] = self._store.environment
        self._read("Spark", lambda: by_spark(options, self._topics, self._directory, environment))

    def _read(self, name: str, way: Callable[[], Read]) -> Read:
        began_s = time.monotonic()
        with _Memory([self._cluster.process(each).pid for each in _BROKERS]) as memory:
            read = way()
        seconds = time.monotonic() - began_s if read.seconds is None else read.seconds
        self._story.timed(name, seconds, broker_pss_mb=round(memory.bytes_max / 1e6, 1))
        for topic in self._topics:
            wrong = difference(self._expected[topic], read.seen[topic])
            self._check(not wrong, f"{name}, {topic}: {wrong}")
        return read

    def _seek(self) -> None:
        began_s = time.monotonic()
        client = connect(self._cluster.service_url)
        for topic in self._topics:
            reader = client.create_reader(topic, pulsar.MessageId.earliest)
            last = self._plan.messages - 1
            for step in range(_SEEKS_PER_TOPIC):
                number = step * (last - 1) // (_SEEKS_PER_TOPIC - 1)
                reader.seek(self._ids[topic][number])
                self._came(reader, topic, number + 1, f"seek to message {number}")
                at_ms = self._published_ms[topic][number]
                reader.seek(at_ms)
                first = bisect.bisect_left(self._published_ms[topic], at_ms)
                self._came(reader, topic, first, f"seek to {at_ms} ms, of message {number}")
            reader.close()
        client.close()
        seconds = time.monotonic() - began_s
        self._story.steps["seeks"] = {
            "seconds": round(seconds, 2),
            "seeks": 2 * _SEEKS_PER_TOPIC * TOPICS,
        }

    def _came(self, reader: pulsar.Reader, topic: str, number: int, what: str) -> None:
        message = read_next(reader)
        got = _seen(message.message_id(), message.data())
        wanted = self._expected[topic][number]
        self._check(got == wanted, f"{topic}, {what}: {got} came and not {wanted}")

    # Retention

    def _delete(self, ledgers: list[int]) -> None:
        """What retention does not keep leaves the topics, and its objects the store. The newest
        ledger of a topic always stays, so each gets a further one."""
        client = connect(self._cluster.service_url)
        for topic in (*self._topics, _OTHER):
            client.create_producer(topic).send(b"later")
        client.close()
        began_s = time.monotonic()
        nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        self._ask("POST", f"{_NAMESPACE}/retention", nothing)

        def is_trimmed() -> bool:
            return not {each["ledgerId"] for each in self._closed()} & set(ledgers)

        wait_until(is_trimmed, "retention to trim the topics", within_s=120)
        wait_until(lambda: not self._store.keys(), "the objects to be deleted", within_s=120)
        self._story.timed("trimmed and swept", time.monotonic() - began_s)


_TOPICS_STAY = {
    "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
    "maxInactiveDurationSeconds": 86_400,
    "deleteWhileInactive": False,
}
_DELETED = "magnetar_bookie_gc_deleted_ledgers_total"


def _seen(place: pulsar.MessageId, data: bytes) -> Seen:
    return Seen(place.ledger_id(), place.entry_id(), place.batch_index(), digest_of(data))


def _tool(*arguments: str) -> list[str]:
    """The lines that a command of `magnetar` prints."""
    done = subprocess.run(
        magnetar_command(*arguments),
        env=magnetar_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{arguments}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout.splitlines()
