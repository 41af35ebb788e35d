"""Where logs stand in the metadata, and which names are refused."""

import pytest

from magnetar.broker.base import naming
from magnetar.broker.base.errors import InvalidTopicNameError, ProducerBusyError


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("t", "/managed-ledgers/public/default/persistent/t"),
        ("persistent://a/b/c d", "/managed-ledgers/a/b/persistent/c+d"),
        ("a/b/ünïcode~*", "/managed-ledgers/a/b/persistent/%C3%BCn%C3%AFcode%7E*"),
    ],
)
def test_paths_of_logs(name: str, path: str) -> None:
    topic = naming.topic_of(name)
    assert naming.log_path(topic) == path
    node = path.rsplit("/", 1)[1]
    assert naming.topic_at(topic.namespace_name, node) == str(topic)
    assert path.startswith(naming.topics_path(topic.namespace_name))


@pytest.mark.parametrize("name", ["", "a/b", "a/b/c/d", "persistent://a/b/ ", "x://a/b/c"])
def test_names_of_no_known_shape(name: str) -> None:
    with pytest.raises(InvalidTopicNameError):
        naming.topic_of(name)


def test_non_persistent_topics_have_names_of_their_own() -> None:
    assert not naming.topic_of("non-persistent://public/default/t").is_persistent


@pytest.mark.parametrize(
    "name", ["", " ", "pulsar.dedup", "pulsar.repl.east", "x" * 1025, "a\0b", "a\nb"]
)
def test_refused_subscription_names(name: str) -> None:
    with pytest.raises(ProducerBusyError):
        naming.check_subscription(name)


def test_accepted_subscription_names() -> None:
    for name in ("s", "reader-0123456789", "a/b c", "x" * 1024):
        naming.check_subscription(name)


def test_a_scalable_topic_has_a_record_and_its_segments_have_logs() -> None:
    topic = naming.whole_topic_of("topic://a/b/c d")
    assert str(topic) == "persistent://a/b/c d"
    assert naming.scalable_topic_path(topic) == "/topics/a/b/c+d"
    assert naming.scalable_topic_at("a/b", "c+d") == naming.resolved_name(topic)
    segment = topic.segment(1, start=0, end=0x7FFF)
    assert naming.log_path(segment) == "/managed-ledgers/a/b/segment/c+d%2F0000-7fff-1"
    assert naming.log_path(segment).startswith(naming.segments_path("a/b"))


def test_a_segment_is_no_whole_topic() -> None:
    with pytest.raises(InvalidTopicNameError, match="use topic://a/b/c"):
        naming.whole_topic_of("segment://a/b/c/0000-ffff-0")
