"""Topic names and their forms."""

import pytest

from magnetar.sdk.wire import TopicName, TopicNameError


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("orders", "persistent://public/default/orders"),
        ("acme/shop/orders", "persistent://acme/shop/orders"),
        ("non-persistent://a/b/c d", "non-persistent://a/b/c d"),
        ("persistent://a=1/b:2/ünïcode", "persistent://a=1/b:2/ünïcode"),
    ],
)
def test_short_and_full_forms(name: str, full: str) -> None:
    assert str(TopicName.parse(name)) == full


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a/b",
        "a/b/c/d",
        "persistent://a/b",
        "persistent://a/b/c/d",
        "http://a/b/c",
        "persistent://a/b/.",
        "persistent://a/b/..",
        "persistent://../b/c",
        "persistent://a/./c",
        "persistent:///b/c",
        "persistent://ä/b/c",
        "persistent://a/b/ ",
        "persistent://a/b/x\n",
        "x" * 1025,
    ],
)
def test_other_shapes_are_refused(name: str) -> None:
    with pytest.raises(TopicNameError):
        TopicName.parse(name)


def test_bytes_from_bad_utf8_are_refused() -> None:
    with pytest.raises(TopicNameError):
        TopicName.parse(b"\xff")  # type: ignore[arg-type]  # what protobuf hands out for bad UTF-8


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("x-partition-0", 0),
        ("x-partition-12", 12),
        ("x-partition-01", -1),
        ("x-partition-", -1),
        ("-partition-1", -1),
        ("x", -1),
    ],
)
def test_partition_index(name: str, index: int) -> None:
    assert TopicName.parse(name).partition_index == index


def test_partition_and_its_topic_lead_to_each_other() -> None:
    topic = TopicName.parse("t")
    assert topic.partition(3).partitioned == topic
    assert topic.partition(3).partition_index == 3
    assert topic.partitioned is topic


def test_storage_name_is_a_safe_path() -> None:
    topic = TopicName.parse("persistent://t/n/a b%~é*")
    assert topic.storage_name == "t/n/persistent/a+b%25%7E%C3%A9*"


def test_a_segment_belongs_to_the_topic_by_its_persistent_name() -> None:
    whole = TopicName.parse("persistent://a/b/c d")
    segment = whole.segment(12, start=0x10, end=0xABCD)
    assert str(segment) == "segment://a/b/c d/0010-abcd-12"
    assert TopicName.parse(str(segment)) == segment
    assert (segment.is_segment, segment.is_persistent, segment.segment_id) == (True, True, 12)
    assert (segment.partitioned, segment.partition_index) == (whole, -1)
    assert segment.storage_name == "a/b/segment/c+d%2F0010-abcd-12"
    assert (whole.is_segment, whole.segment_id) == (False, -1)


@pytest.mark.parametrize(
    "name",
    [
        "segment://a/b/c",
        "segment://a/b/0000-ffff-0",
        "segment://a/b/c/0000-ffff",
        "segment://a/b/c/0000-ffff-01",
        "segment://a/b/c/0000-FFFF-0",
        "segment://a/b/c/0001-0000-0",
        "segment://a/b/c/000-ffff-0",
        "segment://a/b/c/d/0000-ffff-0",
        "segment://a/b/ /0000-ffff-0",
        "topic://a/b/c",
        "persistent://a/b/c/0000-ffff-0",
    ],
)
def test_other_shapes_are_no_segments(name: str) -> None:
    with pytest.raises(TopicNameError):
        TopicName.parse(name)
