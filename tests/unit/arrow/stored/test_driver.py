"""Where a query begins and ends: by its options, topic by topic."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, cast

import pytest

from magnetar.arrow.stored.driver import SourceDriver
from magnetar.arrow.stored.errors import OffsetError
from magnetar.arrow.stored.offsets import BEFORE_FIRST
from magnetar.arrow.stored.scalable_states import ScalableStates
from magnetar.arrow.stored.segment_order import SegmentOrder
from magnetar.arrow.stored.source_options import SourceOptions
from magnetar.arrow.stored.topic_states import LedgerState, TopicState, TopicStates
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.scalable.layout import Layout, Segment
from magnetar.sdk.scalable.names import LayoutName

BASE = "persistent://public/default/"
PLAIN, FIRST, SECOND = (f"{BASE}{name}" for name in ("a", "b-partition-0", "b-partition-1"))
END = MessageId(3, 99)


def state(name: str, **more: object) -> TopicState:
    made = TopicState(name, -1, (LedgerState(3, 100, 1_000),), END)
    return TopicState(
        made.name,
        made.partition,
        made.ledgers,
        made.end,
        cast(dict[str, MessageId], more.get("mark_deletes", {})),
        is_there=bool(more.get("is_there", True)),
    )


class Times:
    """Publish times are entry ids."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[str], int]] = []

    def first_since(self, states: Mapping[str, TopicState], time_ms: int) -> dict[str, MessageId]:
        self.asked.append((sorted(states), time_ms))
        return {name: MessageId(3, time_ms - 1) for name in states}


def driver(times: Times | None = None, **options: str) -> SourceDriver:
    given = {"service.url": "pulsar://b:1", "admin.url": "http://b:2", "topics": "a,b", **options}
    made = SourceDriver(SourceOptions.read(given, is_stream=False))
    made._states = cast(TopicStates, times or Times())
    return made


STATES = {name: state(name) for name in (PLAIN, FIRST, SECOND)}


def test_each_topic_begins_at_its_time_and_one_without_at_its_first_message() -> None:
    times = Times()
    found = driver(times, startingTime='{"a": 50}').starts(STATES)
    assert found == {PLAIN: MessageId(3, 49), FIRST: BEFORE_FIRST, SECOND: BEFORE_FIRST}
    assert times.asked == [([PLAIN], 50)]


def test_the_time_of_a_topic_is_that_of_its_partitions_but_of_those_that_have_their_own() -> None:
    times = Times()
    found = driver(times, startingTime='{"b": 50, "b-partition-1": 60, "a": 50}').starts(STATES)
    assert found == {PLAIN: MessageId(3, 49), FIRST: MessageId(3, 49), SECOND: MessageId(3, 59)}
    assert times.asked == [([PLAIN, FIRST], 50), ([SECOND], 60)], "topics of one time together"


def test_a_time_of_the_end_is_included() -> None:
    found = driver(endingTime='{"a": 50}').ends(STATES)
    assert found == {PLAIN: MessageId(3, 50), FIRST: END, SECOND: END}


def test_a_time_of_another_topic_is_refused() -> None:
    with pytest.raises(OffsetError, match=r"option startingTime: .*/c is not among the topics"):
        driver(startingTime='{"c": 50}').starts(STATES)


def test_a_query_begins_behind_what_a_subscription_has_acknowledged() -> None:
    states = {
        PLAIN: state(PLAIN, mark_deletes={"s": MessageId(3, 4), "t": MessageId(3, 7)}),
        FIRST: state(FIRST, mark_deletes={"s": MessageId(3, -1)}),
        SECOND: state(SECOND, is_there=False),
    }
    assert driver(startingSubscription="s").starts(states) == {
        PLAIN: MessageId(3, 4),
        FIRST: MessageId(3, -1),
        SECOND: BEFORE_FIRST,
    }
    with pytest.raises(OffsetError, match=f"{FIRST} has no subscription t: begin by"):
        driver(startingSubscription="t").starts(states)


# Scalable topics

WHOLE = LayoutName.parse("topic://public/default/t")
RING_END = 0xFFFF


def segment(number: int, start: int, end: int, *parents: int, is_sealed: bool = False) -> Segment:
    name = WHOLE.whole.segment(number, start=start, end=end)
    return Segment(number, start, end, name, is_sealed=is_sealed, parents=parents)


PARENT = segment(0, 0, RING_END, is_sealed=True)
CHILDREN = segment(1, 0, 0x7FFF, 0), segment(2, 0x8000, RING_END, 0)
SEGMENTS = [str(each.topic) for each in (PARENT, *CHILDREN)]


def scalable_driver(**options: str) -> SourceDriver:
    made = driver(None, topics=str(WHOLE), **options)

    class Known:
        orders: ClassVar = {
            str(WHOLE): SegmentOrder(WHOLE, Layout(2, [PARENT, *CHILDREN])),
        }

    made._scalable = cast(ScalableStates, Known())
    return made


def test_the_time_of_a_scalable_topic_is_that_of_its_segments() -> None:
    states = {name: state(name) for name in SEGMENTS}
    found = scalable_driver(startingTime=json.dumps({str(WHOLE): 50})).starts(states)
    assert found == dict.fromkeys(SEGMENTS, MessageId(3, 49))


def test_a_segment_that_ended_before_a_subscription_came_counts_as_read() -> None:
    parent, first, second = SEGMENTS
    states = {
        parent: replace(state(parent, mark_deletes={}), has_ended=True),
        first: state(first, mark_deletes={"s": MessageId(3, 4)}),
        second: replace(state(second), mark_deletes=None, ledgers=(), end=BEFORE_FIRST),
    }
    assert scalable_driver(startingSubscription="s").starts(states) == {
        parent: END,
        first: MessageId(3, 4),
        second: BEFORE_FIRST,
    }
    states[first] = state(first, mark_deletes={})
    with pytest.raises(OffsetError, match=f"{first} has no subscription s"):
        scalable_driver(startingSubscription="s").starts(states)


def test_a_stream_refuses_a_place_in_a_segment_that_it_reads_later_from_its_beginning() -> None:
    parent, first, second = SEGMENTS
    states = {
        parent: replace(state(parent, mark_deletes={"s": MessageId(3, 4)}), has_ended=True),
        first: state(first, mark_deletes={"s": MessageId(3, 7)}),
        second: state(second, mark_deletes={"s": MessageId(3, -1)}),
    }
    with pytest.raises(
        OffsetError, match=f"startingSubscription: {first} is to be read behind 3:7"
    ):
        scalable_driver(startingSubscription="s").beginning(states)
    with pytest.raises(OffsetError, match=f"startingTime: {second} is to be read behind 3:49"):
        scalable_driver(startingTime=json.dumps({second: 50})).beginning(states)
    states[first] = state(first, mark_deletes={"s": MessageId(3, -1)})
    found = scalable_driver(startingSubscription="s").beginning(states)
    assert found.starts == {parent: MessageId(3, 4)}
    assert found.waiting == {first, second}
