"""Layouts of topics: segments, ranges, and what a newer one means to a client."""

import pytest

from magnetar.broker.features.scalable.layout import (
    RING,
    Change,
    Layout,
    change,
    synthetic_layout,
)
from magnetar.sdk.wire import TopicName

_TOPIC = TopicName.parse("persistent://public/default/t")


def test_a_topic_without_partitions_has_one_segment_of_its_own_name_at_epoch_0() -> None:
    layout = synthetic_layout(_TOPIC, 0)
    (segment,) = layout.segments
    assert (layout.epoch, segment.id, segment.topic) == (0, 0, str(_TOPIC))
    assert (segment.hash_start, segment.hash_end) == (0, 65535)


def test_each_partition_is_a_segment_whose_id_is_its_index() -> None:
    layout = synthetic_layout(_TOPIC, 3)
    assert [each.id for each in layout.segments] == [0, 1, 2]
    assert [each.topic for each in layout.segments] == [f"{_TOPIC}-partition-{n}" for n in range(3)]
    assert [(each.hash_start, each.hash_end) for each in layout.segments] == [
        (0, 21844),
        (21845, 43689),
        (43690, 65535),
    ]


@pytest.mark.parametrize("partitions", [1, 2, 3, 7, 1000, RING - 1, RING])
def test_the_segments_tile_the_ring(partitions: int) -> None:
    end = -1
    for segment in synthetic_layout(_TOPIC, partitions).segments:
        assert segment.hash_start == end + 1
        assert segment.hash_end >= segment.hash_start
        end = segment.hash_end
    assert end == RING - 1


def test_more_partitions_than_hashes_have_one_hash_each_and_share_the_last() -> None:
    segments = synthetic_layout(_TOPIC, RING + 2).segments
    assert [(each.hash_start, each.hash_end) for each in segments[-4:]] == [
        (RING - 2, RING - 2),
        (RING - 1, RING - 1),
        (RING - 1, RING - 1),
        (RING - 1, RING - 1),
    ]


def test_the_epoch_grows_with_the_partitions_also_from_none_to_one() -> None:
    epochs = [synthetic_layout(_TOPIC, partitions).epoch for partitions in (0, 1, 2, 8)]
    assert epochs == sorted(set(epochs))


@pytest.mark.parametrize(
    ("told", "now", "what"),
    [
        (0, 0, Change.NONE),
        (4, 4, Change.NONE),
        (0, 1, Change.GROWN),
        (4, 5, Change.GROWN),
        (4, 0, Change.GONE),
        (4, 3, Change.REPLACED),
    ],
)
def test_a_client_is_told_of_growth_alone(told: int, now: int, what: Change) -> None:
    assert change(synthetic_layout(_TOPIC, told), synthetic_layout(_TOPIC, now)) is what


def test_a_deletion_that_may_still_fail_changes_nothing() -> None:
    ending = synthetic_layout(_TOPIC, 4, is_ending=True)
    assert change(synthetic_layout(_TOPIC, 4), ending) is Change.NONE


def test_a_topic_that_no_source_knows_any_more_is_gone() -> None:
    assert change(Layout(7, ()), None) is Change.GONE


@pytest.mark.parametrize(
    ("told", "now", "what"),
    [
        (Layout(2, (), born_ms=5), Layout(2, (), born_ms=5), Change.NONE),
        (Layout(2, (), born_ms=5), Layout(3, (), born_ms=5), Change.GROWN),
        (Layout(2, (), born_ms=5), Layout(2, (), born_ms=6), Change.REPLACED),
        (Layout(2, (), born_ms=5), Layout(9, (), born_ms=6), Change.REPLACED),
        (Layout(2, (), born_ms=5), synthetic_layout(_TOPIC, 0), Change.GONE),
        (Layout(2, (), born_ms=5), synthetic_layout(_TOPIC, 4), Change.REPLACED),
        (synthetic_layout(_TOPIC, 0), Layout(1, (), born_ms=5), Change.GROWN),
        (synthetic_layout(_TOPIC, 4), Layout(5, (), born_ms=5), Change.GROWN),
        (synthetic_layout(_TOPIC, 4), Layout(4, (), born_ms=5), Change.REPLACED),
        (synthetic_layout(_TOPIC, 4), Layout(1, (), born_ms=5), Change.REPLACED),
    ],
)
def test_a_topic_that_was_created_again_is_another_one(
    told: Layout, now: Layout, what: Change
) -> None:
    assert change(told, now) is what
