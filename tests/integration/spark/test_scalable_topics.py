"""Scalable topics: each message once, and in the order of its key, whatever is split and merged."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from magnetar.arrow import read as read_arrow
from magnetar.sdk import Client, ProducerSettings
from magnetar.sdk.scalable.checkpoint import Checkpoint
from magnetar.sdk.spark.errors import DataLossError, OffsetError, OptionError, TopicNotFoundError
from tests.http_calls import HasHttp, admin
from tests.integration.sdk.scalable.scene import KEYS, Layouts, path_of
from tests.integration.spark.driven import Checkpoint as SparkCheckpoint
from tests.integration.spark.driven import DrivenQuery
from tests.integration.spark.streams import Collected, run
from tests.integration.spark.support import load, options_for
from tests.standalone import Standalone
from tests.waiting import wait_until

Change = Callable[[Layouts], Any]
CHANGES: tuple[Change, ...] = (
    lambda layouts: layouts.split(0),
    lambda layouts: layouts.split(1),
    lambda layouts: layouts.merge(0),
    lambda layouts: layouts.several(),
)
SETTINGS = {"SCALABLE_AUTO_SCALE": "false", "SCALABLE_AUTO_SCALE_INTERVAL_S": "0.2"}


@pytest.fixture(scope="module")
def pruning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A server that looks often which segments can go."""
    directory = tmp_path_factory.mktemp("spark-pruning") / "data"
    with Standalone(directory, settings=SETTINGS) as standalone:
        yield standalone
        assert standalone.terminate() == 0
        standalone.assert_log_clean()


@pytest.fixture
def scalable(topic: str) -> str:
    """A scalable topic of its own for each test; a producer creates it."""
    return topic.replace("persistent://", "topic://")


class Sent:
    """Publishes numbered messages of all keys; each value says its key and number."""

    def __init__(self, server: Standalone, topic: str) -> None:
        self._server, self._topic = server, topic
        self.counts: Counter[str] = Counter()

    def publish(self, rounds: int = 3) -> None:
        asyncio.run(self._publish(rounds))

    def change(self, change: Change) -> None:
        asyncio.run(change(Layouts(self._server, self._topic)))

    async def _publish(self, rounds: int) -> None:
        small = ProducerSettings(batch_messages_max=4)
        async with (
            Client(self._server.url) as client,
            client.producer(self._topic, small) as to,
        ):
            sends = []
            for _ in range(rounds):
                for key in KEYS:
                    sends.append(to.send(f"{key}:{self.counts[key]}".encode(), key=key))
                    self.counts[key] += 1
            await asyncio.gather(*sends)

    def assert_exact(self, values: Iterable[bytes]) -> None:
        """All messages came once, and those of each key in order."""
        assert by_key(values) == {key: list(range(count)) for key, count in self.counts.items()}

    def go_on_in(self, topic: str) -> None:
        """Publish to a topic of another name from now on."""
        self._topic = topic


def by_key(values: Iterable[bytes]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for value in values:
        key, _, number = value.decode().partition(":")
        found.setdefault(key, []).append(int(number))
    return found


def keep(server: HasHttp, topic: str) -> None:
    """Create a topic, and have a subscription keep all of its messages."""
    admin(server, "PUT", path_of(topic))
    admin(server, "PUT", f"{path_of(topic)}/subscriptions/keep")


def active(server: HasHttp, topic: str) -> set[str]:
    """The names of the segments that take messages."""
    return {name for name, state in segments(server, topic).items() if state == "ACTIVE"}


def segments(server: HasHttp, topic: str) -> dict[str, str]:
    record = admin(server, "GET", path_of(topic))
    return {
        "{}/{:04x}-{:04x}-{}".format(
            topic.replace("topic://", "segment://"),
            each["hashRange"]["start"],
            each["hashRange"]["end"],
            each["segmentId"],
        ): each["state"]
        for each in record["segments"].values()
    }


def go_on(options: dict[str, str], checkpoint: SparkCheckpoint, **how: Any) -> DrivenQuery:
    with DrivenQuery(options, checkpoint) as query:
        return query.run_available(available_now=True, **how)


@pytest.mark.parametrize("mode", ["direct", "broker"])
def test_every_message_once_and_in_order_over_splits_merges_and_restarts(
    server: Standalone, scalable: str, mode: str
) -> None:
    """Each run is a restart; one of them ends in the midst of a micro-batch."""
    options = options_for(
        server,
        topic=scalable,
        startingOffsets="earliest",
        maxEntriesPerTrigger="20",
        subscriptionName="held",
        readMode=mode,
    )
    sent, checkpoint, values = Sent(server, scalable), SparkCheckpoint(), list[bytes]()
    for change in CHANGES:
        sent.publish()
        sent.change(change)
        sent.publish()
        values += go_on(options, checkpoint, fails_in=checkpoint.done + 1).values
        values += go_on(options, checkpoint).values
    sent.assert_exact(values)
    assert set(checkpoint.planned[-1]["topics"]) == active(server, scalable)


def test_a_batch_query_and_arrow_give_what_the_sdk_reads(
    spark: SparkSession, server: Standalone, scalable: str
) -> None:
    keep(server, scalable)
    sent = Sent(server, scalable)
    for change in CHANGES:
        sent.publish()
        sent.change(change)
    sent.publish()

    async def consumed() -> list[bytes]:
        found: list[bytes] = []
        async with (
            Client(server.url) as client,
            client.checkpoint_consumer(scalable, Checkpoint.EARLIEST) as reader,
        ):
            while await reader.has_message_available():
                found.append((await reader.read_next()).data)
        return found

    expected = asyncio.run(consumed())
    sent.assert_exact(expected)
    rows = load(spark, options_for(server, topic=scalable)).select("value", "__topic").collect()
    assert sorted(bytes(row[0]) for row in rows) == sorted(expected)
    assert {row[1] for row in rows} <= set(segments(server, scalable))
    arrow = read_arrow(
        scalable,
        service_url=server.url,
        admin_url=server.http_url,
        metadata_url=server.metadata_url,
        workers=2,
    )
    sent.assert_exact(arrow.read_all().column("value").to_pylist())


def test_a_streaming_query_of_spark_follows_the_layout_and_its_checkpoint(
    spark: SparkSession, server: Standalone, scalable: str, tmp_path: Path
) -> None:
    options = options_for(
        server,
        topic=scalable,
        startingOffsets="earliest",
        maxEntriesPerTrigger="30",
        subscriptionName="held",
    )
    sent, collected = Sent(server, scalable), list[bytes]()
    for change in CHANGES[:3]:
        sent.publish()
        sent.change(change)
        sent.publish()
        collected += run(spark, options, tmp_path, Collected()).values
    sent.assert_exact(collected)
    logged = sorted((tmp_path / "offsets").glob("[0-9]*"), key=lambda each: int(each.name))[-1]
    assert active(server, scalable) <= set(logged.read_text().split('"'))


def test_a_query_goes_on_when_what_it_has_read_was_pruned(
    pruning: Standalone, scalable: str
) -> None:
    """A query was stopped while the segment was split, and nothing came to that since."""
    options = options_for(
        pruning,
        topic=scalable,
        startingOffsets="earliest",
        subscriptionName="held",
        idleReleaseMs="0",
    )
    sent, checkpoint = Sent(pruning, scalable), SparkCheckpoint()
    sent.publish()
    values = go_on(options, checkpoint).values
    sent.change(CHANGES[0])
    sent.publish()
    wait_until(lambda: "SEALED" not in segments(pruning, scalable).values(), within_s=60)

    values += go_on(options, checkpoint).values
    sent.change(CHANGES[2])
    sent.publish()
    values += go_on(options, checkpoint).values
    sent.assert_exact(values)
    wait_until(lambda: "SEALED" not in segments(pruning, scalable).values(), within_s=60)


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "goes on"])
def test_a_segment_that_went_before_it_was_read_is_noticed(
    pruning: Standalone, scalable: str, fails: bool
) -> None:
    options = options_for(
        pruning,
        topic=scalable,
        startingOffsets="earliest",
        maxEntriesPerTrigger="5",
        subscriptionName="held",
        failOnDataLoss=str(fails).lower(),
    )
    sent, checkpoint = Sent(pruning, scalable), SparkCheckpoint()
    sent.publish()
    go_on(options, checkpoint, fails_in=1)
    sent.change(CHANGES[0])
    admin(pruning, "POST", f"{path_of(scalable)}/subscriptions/held/skip-all")
    wait_until(lambda: "SEALED" not in segments(pruning, scalable).values(), within_s=60)
    before = Counter(sent.counts)
    sent.publish()
    checkpoint.planned.pop()
    if fails:
        with pytest.raises(DataLossError, match="the segment was deleted"):
            go_on(options, checkpoint)
    else:
        found = by_key(go_on(options, checkpoint).values)
        assert found == {key: list(range(before[key], before[key] + 3)) for key in KEYS}


def test_a_query_begins_at_the_end_at_a_time_or_with_a_segment(
    server: Standalone, scalable: str
) -> None:
    keep(server, scalable)
    sent = Sent(server, scalable)
    sent.publish()
    sent.change(CHANGES[0])
    sent.publish()
    options = options_for(server, topic=scalable)
    begun = admin(server, "GET", f"{path_of(scalable)}/stats")["layout"]["lastOperation"]["at"]
    child = sorted(active(server, scalable))[0]

    later = [int(number) >= 3 for number in range(6)]
    by_time = go_on({**options, "startingTime": str(begun)}, SparkCheckpoint()).values
    assert by_key(by_time) == {key: [at for at in range(6) if later[at]] for key in KEYS}
    by_name = {**options, "startingOffsets": f'{{"{child}": "latest"}}'}
    other = by_key(go_on(by_name, SparkCheckpoint()).values)
    assert other
    assert len(other) < len(KEYS)
    assert set(map(tuple, other.values())) == {(3, 4, 5)}

    checkpoint = SparkCheckpoint()
    latest = {**options, "startingOffsets": f'{{"{scalable}": "latest"}}'}
    assert go_on(latest, checkpoint).values == []
    sent.change(CHANGES[1])
    sent.publish()
    values = go_on(latest, checkpoint).values
    assert by_key(values) == {key: [6, 7, 8] for key in KEYS}


def test_what_cannot_be_is_refused_in_one_line(server: Standalone, scalable: str) -> None:
    keep(server, scalable)
    Sent(server, scalable).publish()
    options = options_for(server, topic=scalable)
    with pytest.raises(TopicNotFoundError, match="-missing does not exist"):
        go_on({**options, "topic": f"{scalable}-missing"}, SparkCheckpoint())
    with pytest.raises(OptionError, match="earliest or latest; give message ids for its segments"):
        go_on({**options, "startingOffsets": f'{{"{scalable}": "3:0"}}'}, SparkCheckpoint())
    with pytest.raises(OffsetError, match="is not among the topics of the query"):
        go_on({**options, "startingOffsets": '{"topic://a/b/c": "latest"}'}, SparkCheckpoint())


def test_patterns_find_scalable_topics_while_a_query_runs(
    server: Standalone, scalable: str
) -> None:
    first, second = Sent(server, f"{scalable}-first"), Sent(server, f"{scalable}-second")
    pattern = f"topic://public/default/{scalable.rpartition('/')[2]}-.*"
    options = options_for(server, topicsPattern=pattern, startingOffsets="latest")
    first.publish()
    with DrivenQuery(options, SparkCheckpoint()) as query:
        assert query.run_available().values == []
        second.publish()
        query.run_available()
    second.assert_exact(query.values)


def test_a_query_of_a_partitioned_topic_goes_on_when_that_was_made_scalable(
    server: Standalone, topic: str, scalable: str
) -> None:
    admin(server, "PUT", f"{topic.replace('://', '/')}/partitions", 3)
    options = options_for(server, topic=topic, startingOffsets="earliest", subscriptionName="held")
    sent, checkpoint = Sent(server, topic), SparkCheckpoint()
    sent.publish()
    values = go_on(options, checkpoint).values
    assert not {"layoutEpochs", "endedSegments"} & checkpoint.planned[-1].keys()
    sent.publish()
    asyncio.run(Layouts(server, scalable).migrate())
    sent.go_on_in(scalable)
    sent.publish()
    values += go_on({**options, "topic": scalable}, checkpoint).values
    sent.assert_exact(values)
    assert set(checkpoint.planned[-1]["topics"]) == active(server, scalable)
