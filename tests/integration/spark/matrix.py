"""Every way of choosing topics, of beginning, of running, and of storing messages, against another.

A case is one of each. `PAIRS` are so few cases that every two ways meet in one of them; `ALL` are
all of them. Each case has topics of its own: some messages from before the query begins, at a known
place and time, and some after.
"""

import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar
from pyspark.sql import SparkSession

from tests.http_calls import admin
from tests.integration.spark.streams import Collected, run, start
from tests.integration.spark.support import load, options_for
from tests.standalone import Standalone
from tests.waiting import wait_until

CHOICES = ("topic", "topics", "pattern")
BEGINNINGS = ("earliest", "latest", "ids", "time")
RUNS = ("batch", "stream", "available now")
TOPICS = ("plain", "partitioned")
STORED = ("unbatched", "batched", "compressed", "chunked")

OLD, NEW, LATER = range(12), range(12, 20), range(20, 26)
"""Before the place where queries begin, behind it, and published while they run."""

_PARTITIONS = 2


@dataclass(frozen=True, slots=True)
class Case:
    """One of each."""

    choice: str
    beginning: str
    run: str
    topic: str
    stored: str

    def __str__(self) -> str:
        return f"{self.choice}, {self.beginning}, {self.run}, {self.topic}, {self.stored}"

    def ways(self) -> list[tuple[int, str]]:
        """What the case has of each."""
        chosen = (self.choice, self.beginning, self.run, self.topic, self.stored)
        return list(enumerate(chosen))


ALL = [Case(*each) for each in itertools.product(CHOICES, BEGINNINGS, RUNS, TOPICS, STORED)]


def _pairs() -> list[Case]:
    """Greedily: the case with most pairs that are not there yet."""
    missing = {pair for case in ALL for pair in itertools.combinations(case.ways(), 2)}
    chosen: list[Case] = []
    while missing:
        best = max(ALL, key=lambda case: len(missing & set(itertools.combinations(case.ways(), 2))))
        chosen.append(best)
        missing -= set(itertools.combinations(best.ways(), 2))
    return chosen


PAIRS = _pairs()


class CaseRun:
    """One case on a server."""

    def __init__(
        self, case: Case, server: Standalone, spark: SparkSession, name: str, directory: Path
    ) -> None:
        self._case = case
        self._server = server
        self._spark = spark
        self._directory = directory
        count = 1 if case.choice == "topic" else 2
        self._topics = [f"persistent://public/default/{name}-{index}" for index in range(count)]
        self._boundary: dict[str, pulsar.MessageId] = {}
        self._boundary_ms = 0

    def check(self) -> None:
        """Publish, query, compare."""
        case = self._case
        client = pulsar.Client(self._server.url)
        try:
            if case.topic == "partitioned":
                for topic in self._topics:
                    path = topic.replace("://", "/")
                    admin(self._server, "PUT", f"{path}/partitions", _PARTITIONS)
            self._publish(client, OLD)
            self._boundary_ms = int(time.time() * 1000) + 1
            wait_until(lambda: int(time.time() * 1000) > self._boundary_ms, "a later time")
            self._publish(client, NEW, is_boundary=True)
            if case.run == "batch":
                rows = load(self._spark, self._options()).select("value").collect()
                found = [bytes(row[0]) for row in rows]
                assert sorted(found) == self._expected(self._begins())
            elif case.run == "available now":
                self._available_now(client)
            else:
                self._stream(client)
        finally:
            client.close()

    def _available_now(self, client: pulsar.Client) -> None:
        options = self._options()
        begun = self._begins()
        if begun:
            assert sorted(run(self._spark, options, self._directory).values) == self._expected(
                begun
            )
            self._publish(client, LATER)
        else:
            assert run(self._spark, options, self._directory).values == []
            return
        assert sorted(run(self._spark, options, self._directory).values) == self._expected(
            list(LATER)
        )

    def _stream(self, client: pulsar.Client) -> None:
        collected = Collected()
        options = {**self._options(), "subscriptionName": "held"}
        query = start(self._spark, options, self._directory, collected, available_now=False)
        try:
            wait_until(self._is_held, "the query has begun", within_s=120)
            self._publish(client, LATER)
            expected = self._expected([*self._begins(), *LATER])
            collected.wait_for(len(expected))
        finally:
            query.stop()
        assert sorted(collected.values) == expected

    def _is_held(self) -> bool:
        """Whether the query has begun: it has a place in each topic then."""
        return all(
            "held" in admin(self._server, "GET", f"{each.replace('://', '/')}/subscriptions")
            for each in self._parts()
        )

    def _begins(self) -> list[int]:
        """The numbers that a query reads of what is there when it begins."""
        if self._case.beginning == "earliest":
            return [*OLD, *NEW]
        return [] if self._case.beginning == "latest" else list(NEW)

    def _expected(self, numbers: Sequence[int]) -> list[bytes]:
        return sorted(self._value(topic, number) for topic in self._topics for number in numbers)

    def _value(self, topic: str, number: int) -> bytes:
        text = f"{topic[-1]}:{number}:".encode()
        return text + b"x" * (
            6_000_000 if self._case.stored == "chunked" and number % 10 == 5 else 20
        )

    def _options(self) -> dict[str, str]:
        case = self._case
        if case.choice == "topic":
            chosen = {"topic": self._topics[0]}
        elif case.choice == "topics":
            chosen = {"topics": ", ".join(self._topics)}
        else:
            chosen = {"topicsPattern": f"public/default/{self._topics[0].rpartition('/')[2][:-1]}."}
        begins = {
            "earliest": {"startingOffsets": "earliest"},
            "latest": {"startingOffsets": "latest"},
            "time": {"startingTime": str(self._boundary_ms)},
            "ids": {"startingOffsets": json.dumps(self._ids())},
        }
        return options_for(self._server, **chosen, **begins[case.beginning])

    def _ids(self) -> dict[str, str]:
        """For each topic or partition its first message behind the boundary."""
        return {
            topic: f"{at.ledger_id()}:{at.entry_id()}:-1:{at.batch_index()}"
            for topic, at in self._boundary.items()
        }

    def _parts(self) -> list[str]:
        if self._case.topic == "plain":
            return self._topics
        return [f"{topic}-partition-{n}" for topic in self._topics for n in range(_PARTITIONS)]

    def _publish(
        self, client: pulsar.Client, numbers: Sequence[int], *, is_boundary: bool = False
    ) -> None:
        parts = 1 if self._case.topic == "plain" else _PARTITIONS
        for topic in self._topics:
            for part in range(parts):
                name = topic if parts == 1 else f"{topic}-partition-{part}"
                producer = client.create_producer(name, **self._settings())
                ids: list[pulsar.MessageId] = []

                def on_sent(_: Any, at: pulsar.MessageId, ids: Any = ids) -> None:
                    ids.append(at)

                for number in numbers[part::parts]:
                    producer.send_async(self._value(topic, number), on_sent)
                producer.flush()
                producer.close()
                if is_boundary:
                    self._boundary[name] = ids[0]

    def _settings(self) -> dict[str, Any]:
        stored = self._case.stored
        if stored == "chunked":
            return {"batching_enabled": False, "chunking_enabled": True}
        if stored == "unbatched":
            return {"batching_enabled": False}
        settings: dict[str, Any] = {
            "batching_enabled": True,
            "batching_max_messages": 5,
            "batching_max_publish_delay_ms": 500,
        }
        if stored == "compressed":
            settings["compression_type"] = pulsar.CompressionType.ZSTD
        return settings
