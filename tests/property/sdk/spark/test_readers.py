"""Streaming queries of scalable topics, against a model of brokers and of Spark.

Whatever is split, merged, trimmed and pruned, whenever the query is restarted, each message comes
once, and of each key everything in a parent before anything in a child.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from magnetar.arrow.stored.column_names import TOPIC as TOPIC_COLUMN
from magnetar.arrow.stored.column_names import VALUE
from magnetar.arrow.stored.driver import SourceDriver
from magnetar.arrow.stored.scalable_states import ScalableStates
from magnetar.arrow.stored.source_options import IDLE_RELEASE_MS, Selection, SourceOptions
from magnetar.arrow.stored.topic_schema import BrokerSchemas
from magnetar.arrow.stored.topic_states import TopicStates
from magnetar.sdk.spark.errors import DataLossError
from magnetar.sdk.spark.partitions import slices_of
from magnetar.sdk.spark.stream_reader import StreamReader
from tests.property.sdk.spark.segment_model import (
    KEYS,
    SUBSCRIPTION,
    TOPIC,
    WHOLE,
    ModelAdmin,
    ModelTopic,
)

SCHEMA = StructType([StructField(VALUE, BinaryType()), StructField(TOPIC_COLUMN, StringType())])


class _Clock:
    """Passes only while somebody waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return int(self.now_s * 1000)

    def pause(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class _Query:
    """A query, and Spark's part: what is planned, and how much of that is done."""

    topic: ModelTopic
    options: dict[str, str]
    planned: list[dict[str, Any]] = field(default_factory=list)
    done: int = 0
    layouts: list[dict[str, Any]] = field(default_factory=list)
    """As they were before each change."""
    read: list[list[tuple[str, int, int]]] = field(default_factory=list)
    """Of each micro-batch its messages: segment, key, number."""

    def __post_init__(self) -> None:
        self.admin = ModelAdmin(self.topic)
        self.restart()

    def restart(self) -> None:
        """Begin a new process, which knows what is in the checkpoint."""
        given = {
            "service.url": "pulsar://h:1",
            "admin.url": "http://h:1",
            "topic": TOPIC,
            "subscriptionName": SUBSCRIPTION,
            **self.options,
        }
        options = SourceOptions.read(given, is_stream=True)
        driver = SourceDriver(options)
        driver._admin, driver.schemas = self.admin, BrokerSchemas(self.admin)
        driver._states = TopicStates(self.admin, options.selection)
        self.clock = clock = _Clock()
        driver._scalable = ScalableStates(
            self.admin, Selection((WHOLE,)), allows_loss=False, clock=clock, pause=clock.pause
        )
        self.reader = StreamReader(options, SCHEMA)
        self.reader._driver = driver
        self.reader._clock, self.reader._new_at_s = clock, clock.monotonic_s()

    def plan(self) -> bool:
        """Look for the next micro-batch, if the last one is done; whether there is one."""
        if self.done < len(self.planned):
            return True
        start = self.planned[-1] if self.planned else self._begun()
        end = _logged(self.reader.latestOffset(start, self.reader.getDefaultReadLimit()))
        if end == start and self.planned:
            return False
        self.planned.append(end)
        if self.done:
            self.reader.commit(self.planned[self.done - 1])
        return True

    def run(self) -> None:
        """Run the micro-batch that is planned; it may have been run before."""
        if self.done == len(self.planned):
            return
        start = self.planned[self.done - 1] if self.done else self._begun()
        found = []
        for partition in self.reader.partitions(start, self.planned[self.done]):
            for each in slices_of(partition):
                segment = self.topic.named(each.topic)
                assert segment is not None, "what is planned is there"
                ledgers = {ledger.id: ledger.entries for ledger in segment.ledgers}
                for part in each.parts:
                    for key, number in ledgers[part.ledger_id][part.first : part.last + 1]:
                        found.append((each.topic, key, number))
        if self.done == len(self.read):
            self.read.append(found)
        assert self.read[self.done] == found, "a micro-batch that is run again is the same"

    def finish(self) -> None:
        """What was run is done."""
        self.done = len(self.read)

    def drain(self) -> None:
        """Read all that is there; the brokers have the newest layout by then."""
        self.admin.stale = []
        while self.plan():
            self.run()
            self.finish()

    def _begun(self) -> dict[str, Any]:
        return _logged(self.reader.initialOffset())


def _logged(offset: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


def _assert_in_order(query: _Query, *, from_numbers: dict[int, int]) -> None:
    """Of each key, all numbers came once and in order, in no micro-batch out of two segments."""
    found: dict[int, list[int]] = {key: [] for key in KEYS}
    for batch in query.read:
        segments: dict[int, str] = {}
        for segment, key, number in batch:
            assert segments.setdefault(key, segment) == segment, "parent and child share a batch"
            found[key].append(number)
    expected = {
        key: list(range(from_numbers.get(key, 0), sent)) for key, sent in query.topic.sent.items()
    }
    assert found == expected


def _change(query: _Query, what: str, at: int) -> None:
    topic = query.topic
    if what == "publish":
        for step in range(1 + at % 7):
            topic.publish(KEYS[(at + step * step) % len(KEYS)])
    elif what == "burst":
        for key in KEYS:
            topic.publish(key)
    elif what in ("split", "merge", "roll"):
        query.layouts.append(topic.record())
        getattr(topic, what)(at)
    elif what == "lag":
        query.admin.stale = query.layouts[at % len(query.layouts) :][:1] if query.layouts else []
    elif what in ("trim", "prune"):
        getattr(topic, what)()
    elif what == "restart":
        query.restart()
    elif what == "plan":
        query.plan()
    elif what == "run":
        query.run()
    else:
        query.plan()
        query.run()
        query.finish()


ACTIONS = ("publish", "burst", "split", "merge", "roll", "trim", "prune", "restart", "lag")
STEPS = st.lists(
    st.tuples(st.sampled_from((*ACTIONS, "plan", "run", "batch", "batch")), st.integers(0, 99)),
    max_size=40,
)


@given(before=STEPS, steps=STEPS, limit=st.sampled_from([None, 1, 3, 10]))
def test_each_message_comes_once_and_parents_come_before_children(
    before: list[tuple[str, int]], steps: list[tuple[str, int]], limit: int | None
) -> None:
    topic = ModelTopic()
    options = {"startingOffsets": "earliest"}
    if limit is not None:
        options["maxEntriesPerTrigger"] = str(limit)
    query = _Query(topic, options)
    for what, at in before:
        if what in ("publish", "burst", "split", "merge", "roll"):
            _change(query, what, at)
    query.plan()
    for what, at in steps:
        _change(query, what, at)
    query.drain()

    _assert_in_order(query, from_numbers={})
    assert set(query.planned[-1]["topics"]) == {each.name for each in topic.active}
    assert "endedSegments" not in query.planned[-1]


@given(before=STEPS, steps=STEPS)
def test_a_query_from_the_latest_message_on_reads_all_that_follows(
    before: list[tuple[str, int]], steps: list[tuple[str, int]]
) -> None:
    """Planned once before anything follows: until then, a restart begins at a later end."""
    topic = ModelTopic()
    query = _Query(topic, {"startingOffsets": "latest"})
    for what, at in before:
        if what in ("publish", "burst", "split", "merge", "roll"):
            _change(query, what, at)
    query.plan()
    query.run()
    query.finish()
    sent = dict(topic.sent)
    for what, at in steps:
        _change(query, what, at)
    query.drain()
    _assert_in_order(query, from_numbers=sent)


@given(steps=STEPS)
def test_nothing_is_held_of_a_query_that_has_read_everything(steps: list[tuple[str, int]]) -> None:
    """Sealed segments can go then, and a query goes on without them."""
    query = _Query(ModelTopic(), {"startingOffsets": "earliest"})
    query.plan()
    for what, at in steps:
        _change(query, what, at)
    query.drain()
    query.clock.now_s += IDLE_RELEASE_MS / 1000
    query.drain()
    for _ in range(query.topic.next_id):
        query.topic.prune()
    assert all(not each.is_sealed for each in query.topic.segments.values())

    query.restart()
    for key in KEYS:
        query.topic.publish(key)
    query.drain()
    _assert_in_order(query, from_numbers={})


def test_a_segment_that_was_read_is_released_when_its_children_are_begun() -> None:
    """At the next look that finds nothing, or by the next commit, also of another process."""
    query = _Query(ModelTopic(), {"startingOffsets": "earliest"})
    (parent,) = query.topic.active
    query.topic.publish(KEYS[0])
    query.drain()
    query.topic.split(0)
    query.topic.publish(KEYS[0])
    query.drain()
    assert parent.is_drained()
    query.restart()
    query.topic.publish(KEYS[0])
    query.drain()
    assert parent.is_drained()


def test_what_is_in_children_counts_for_the_minimum_that_their_parent_cannot_reach() -> None:
    options = {"startingOffsets": "earliest", "minEntriesPerTrigger": "20", "maxTriggerDelay": "1h"}
    query = _Query(ModelTopic(), options)
    query.topic.publish(KEYS[0])
    query.drain()
    query.topic.publish(KEYS[0])
    query.drain()
    assert len(query.read[-1]) == 1, "one more is put off"
    query.topic.split(0)
    for _ in range(30):
        query.topic.publish(KEYS[0])
    query.drain()
    assert sum(map(len, query.read)) == 32
    _assert_in_order(query, from_numbers={})


def test_a_query_that_waits_for_a_minimum_is_not_idle() -> None:
    options = {"startingOffsets": "earliest", "minEntriesPerTrigger": "20", "maxTriggerDelay": "1h"}
    query = _Query(ModelTopic(), options)
    query.topic.publish(KEYS[0])
    query.drain()
    (segment,) = query.topic.active
    query.topic.publish(KEYS[0])
    query.drain()
    stands_at = dict(segment.cursors)
    query.clock.now_s += 2 * IDLE_RELEASE_MS / 1000
    query.drain()
    assert segment.cursors == stands_at


def test_the_lag_knows_that_a_segment_which_is_left_was_read() -> None:
    query = _Query(ModelTopic(), {"startingOffsets": "earliest"})
    for _ in range(5):
        query.topic.publish(KEYS[0])
    query.drain()
    query.topic.split(0)
    query.topic.publish(KEYS[0])
    found = []
    while query.plan():
        found.append(query.reader.reportLatestOffset())
        query.run()
        query.finish()
    assert found
    assert [report["behindInAll"]["entries"] for report in found if report] == [0] * len(found)


@pytest.mark.parametrize("stops", ["before", "after"])
def test_a_query_that_was_stopped_over_a_split_goes_on_when_the_parent_is_gone(stops: str) -> None:
    """A query had read all of the parent, and its subscription is on the children."""
    query = _Query(ModelTopic(), {"startingOffsets": "earliest"})
    query.topic.publish(KEYS[0])
    query.drain()
    query.clock.now_s += IDLE_RELEASE_MS / 1000
    query.drain()
    if stops == "after":
        query.topic.split(0)
        query.drain()
    query.topic.split(0)
    query.topic.publish(KEYS[0])
    query.topic.prune()
    query.topic.prune()
    query.restart()
    query.drain()
    _assert_in_order(query, from_numbers={})


@pytest.mark.parametrize("how", ["expired", "subscription deleted", "child trimmed"])
def test_a_segment_that_went_before_it_was_read_is_a_loss(how: str) -> None:
    query = _Query(ModelTopic(), {"startingOffsets": "earliest", "maxEntriesPerTrigger": "1"})
    for _ in range(3):
        query.topic.publish(KEYS[0])
    query.plan()
    query.run()
    query.finish()
    (parent,) = query.topic.active
    query.topic.split(0)
    child = query.topic.active[0]
    query.topic.publish(KEYS[0])
    if how == "expired":
        parent.cursors[SUBSCRIPTION] = parent.last
        query.topic.prune()
    elif how == "subscription deleted":
        for each in query.topic.segments.values():
            each.cursors.clear()
        query.topic.prune()
    else:
        query.topic.roll(0)
        query.topic.publish(KEYS[0])
        child.cursors.clear()
        query.topic.trim()
        assert child.removed_through >= 0
    query.restart()
    with pytest.raises(DataLossError, match="failOnDataLoss"):
        query.drain()


def test_a_topic_that_was_created_again_is_not_read_as_if_it_were_the_same() -> None:
    query = _Query(ModelTopic(), {"startingOffsets": "earliest"})
    for _ in range(3):
        query.topic.publish(KEYS[0])
        query.topic.split(0)
        query.drain()
    query.topic = query.admin._topic = ModelTopic()
    query.restart()
    with pytest.raises(DataLossError, match="deleted and created again"):
        query.drain()
