"""Scalable topics in the options of a read."""

import pytest

from magnetar.arrow.stored.errors import OptionError
from magnetar.arrow.stored.source_options import Selection, SourceOptions

SERVERS = {"service.url": "pulsar://h:1", "admin.url": "http://h:1"}


def selected(**options: str) -> Selection:
    return SourceOptions.read({**SERVERS, **options}, is_stream=False).selection


def test_scalable_topics_are_named_beside_others() -> None:
    found = selected(topics="topic://public/default/a, b, topic://public/default/a")
    assert [str(each) for each in found.topics] == ["persistent://public/default/b"]
    assert found.scalable is not None
    assert [str(each) for each in found.scalable.topics] == ["persistent://public/default/a"]
    assert selected(topic="b").scalable is None


def test_a_pattern_is_of_scalable_topics_if_it_says_so() -> None:
    found = selected(topicsPattern="topic://acme/ns/x-.*")
    assert (found.topics, found.pattern) == ((), "")
    assert found.scalable == Selection(namespace="acme/ns", pattern="x-.*")
    assert selected(topicsPattern="acme/ns/x-.*").scalable is None


@pytest.mark.parametrize("name", ["topic://a/b", "topic://public/default/t-partition-0"])
def test_what_is_no_scalable_topic_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="option topic: "):
        selected(topic=name)


def test_an_object_store_has_no_scalable_topics() -> None:
    given = {"objects": "file:///x", "topic": "topic://public/default/t"}
    with pytest.raises(OptionError, match=r"option objects: .*scalable topic"):
        SourceOptions.read(given, is_stream=False)
