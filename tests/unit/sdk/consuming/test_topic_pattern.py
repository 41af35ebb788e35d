"""Patterns: the namespace is literal, the rest is matched against whole names."""

import re

import pytest

from magnetar.sdk.consuming.topic_source import TopicPattern
from magnetar.sdk.wire.errors import TopicNameError

NAMES = [
    "persistent://public/default/orders-1",
    "persistent://public/default/orders-2-partition-1",
    "persistent://public/default/orders-2-partition-0",
    "persistent://public/default/my-orders-1",
    "non-persistent://public/default/orders-3",
    "nonsense",
]


@pytest.mark.parametrize(
    "text", ["orders-.*", "public/default/orders-.*", "persistent://public/default/orders-.*"]
)
def test_partitions_are_matched_by_the_name_of_their_topic(text: str) -> None:
    pattern = TopicPattern.parse(re.compile(text))
    assert pattern.namespace == "public/default"
    assert [str(each) for each in pattern.matching(NAMES)] == [NAMES[0], NAMES[2], NAMES[1]]


def test_topics_that_keep_nothing_are_asked_for_by_their_domain() -> None:
    pattern = TopicPattern.parse(re.compile("non-persistent://public/default/.*"))
    assert [str(each) for each in pattern.matching(NAMES)] == [NAMES[4]]
    assert pattern.watched == "public/default/.*"


def test_flags_hold() -> None:
    pattern = TopicPattern.parse(re.compile("ORDERS-1", re.IGNORECASE))
    assert len(pattern.matching(NAMES)) == 1


@pytest.mark.parametrize("text", ["persistent://public/x", "http://a/b/c", "a.*/b/c", "a/b/"])
def test_other_shapes_are_refused(text: str) -> None:
    with pytest.raises(TopicNameError, match=re.escape(repr(text))):
        TopicPattern.parse(re.compile(text))
