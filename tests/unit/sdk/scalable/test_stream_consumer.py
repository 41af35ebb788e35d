"""When a segment that goes to another consumer has nothing more to wait for."""

import itertools
from collections.abc import Iterable
from typing import cast

import pytest

from magnetar.sdk.acknowledger import Acknowledgeable
from magnetar.sdk.consuming.topic_consumer import TopicConsumer
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.scalable.stream_consumer import StreamAcknowledger, StreamMembers

TOPIC = "persistent://public/default/segment"
IDS = [MessageId(7, 0, -1), MessageId(7, 1, 0), MessageId(7, 1, 1)]


class Acknowledged:
    """An acknowledger that accepts everything."""

    def add(self, _: Acknowledgeable) -> None: ...

    def add_many(self, _: Iterable[Acknowledgeable]) -> None: ...

    def add_cumulative(self, _: Acknowledgeable) -> None: ...


class Segment:
    """A segment of which these ids were taken."""

    topic = TOPIC

    def __init__(self) -> None:
        self.last_taken = IDS[-1]
        self._acknowledger = Acknowledged()


def acknowledger() -> tuple[StreamAcknowledger, StreamMembers, TopicConsumer]:
    segment = cast(TopicConsumer, Segment())
    members = StreamMembers()
    members.by_topic[TOPIC] = segment
    return StreamAcknowledger(members, watches_timeouts=False), members, segment


@pytest.mark.parametrize("order", list(itertools.permutations(IDS)))
def test_a_segment_is_done_whatever_the_order_of_its_acknowledgements(
    order: tuple[MessageId, ...],
) -> None:
    one_by_one, members, segment = acknowledger()
    assert not members.is_done(segment)
    for each in order:
        one_by_one.add(each)
    assert members.is_done(segment)

    together, members, segment = acknowledger()
    together.add_many(order)
    assert members.is_done(segment)


def test_a_segment_is_not_done_before_its_last_message_is_acknowledged() -> None:
    one_by_one, members, segment = acknowledger()
    one_by_one.add(IDS[1])
    one_by_one.add(IDS[0])
    assert not members.is_done(segment)
