"""Layouts of topics: what is accepted, which segment takes a key, which layout is the newer one."""

import pytest

from magnetar.sdk.errors import LayoutError
from magnetar.sdk.scalable import layout as layouts
from magnetar.sdk.scalable.layout import Layout
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.sdk.scalable.layouts import BEFORE, HIGH, LOW, NAME, SPLIT, partition, segment


def test_the_upper_half_of_a_keys_hash_chooses_the_segment() -> None:
    # Murmur3 of `k1` is fdc6602a, that of `a` 3c2569b2.
    parts = [
        segment(0, 0, 0x3C24),
        segment(1, 0x3C25, 0x3C25),
        segment(2, 0x3C26, 0xFDC5),
        segment(3, 0xFDC6, 0xFFFF),
    ]
    layout = Layout(1, parts)
    assert layout.segment_of(b"a").id == 1
    assert layout.segment_of(b"k1").id == 3
    assert layout.segment_of(b"").id == 0


def test_partitions_are_chosen_by_modulo_as_by_clients_of_version_4() -> None:
    layout = Layout(2, [partition(each) for each in range(3)])
    assert [layout.segment_of(each).id for each in (b"k1", b"key-0", b"a", b"")] == [2, 2, 2, 0]


def test_ranges_decide_once_a_partitioned_topic_has_been_migrated() -> None:
    old = [partition(each, is_sealed=True) for each in range(2)]
    layout = Layout(3, [*old, segment(2, 0, 0x7FFF), segment(3, 0x8000, 0xFFFF)])
    assert (layout.segment_of(LOW).id, layout.segment_of(HIGH).id) == (2, 3)
    assert not layout.by_modulo


@pytest.mark.parametrize(
    "segments",
    [
        [],
        [segment(0, is_sealed=True)],
        [segment(0, 0, 0x7FFF)],
        [segment(0, 1)],
        [segment(0, 0, 0x7FFF), segment(1, 0x8001)],
        [segment(0, 0, 0x8000), segment(1, 0x8000)],
        [segment(0), segment(0)],
        [partition(0), partition(2)],
    ],
)
def test_segments_that_do_not_have_each_hash_once_are_refused(
    segments: list[layouts.Segment],
) -> None:
    with pytest.raises(LayoutError):
        Layout(1, segments)


def test_a_layout_is_read_from_what_brokers_send() -> None:
    dag = pb.ScalableTopicDAG(
        epoch=7,
        segments=[
            pb.SegmentInfoProto(
                segment_id=0,
                hash_start=0,
                hash_end=0xFFFF,
                state=pb.SEALED,
                child_ids=[4],
                created_at_epoch=0,
                created_at_ms=5,
                legacy_topic_name="persistent://public/default/t",
            ),
            pb.SegmentInfoProto(
                segment_id=4,
                hash_start=0,
                hash_end=0xFFFF,
                state=pb.ACTIVE,
                parent_ids=[0],
                created_at_epoch=7,
                created_at_ms=9,
                entry_bucket_splits=[9, 700],
            ),
        ],
        controller_broker_url="pulsar://b:1",
    )
    layout = Layout.from_dag(NAME, dag)
    old, new = layout.segments
    assert (layout.epoch, layout.controller_url) == (7, "pulsar://b:1")
    assert (old.is_sealed, old.is_legacy, str(old.topic)) == (True, True, str(NAME.whole))
    assert (new.parents, new.bucket_splits, layout.is_active(4)) == ((0,), (9, 700), True)
    assert str(new.topic) == "segment://public/default/t/0000-ffff-4"


@pytest.mark.parametrize(
    "fields",
    [
        {"hash_start": 5, "hash_end": 4},
        {"hash_start": 0, "hash_end": 0xFFFF, "entry_bucket_splits": [0]},
        {"hash_start": 0, "hash_end": 0xFFFF, "entry_bucket_splits": [7, 7]},
        {"hash_start": 0, "hash_end": 0xFFFF, "entry_bucket_splits": [0x10000]},
        {"hash_start": 0, "hash_end": 0x10000},
        {"hash_start": 0, "hash_end": 0xFFFF, "legacy_topic_name": "a//b"},
    ],
)
def test_a_segment_that_cannot_be_is_refused(fields: dict[str, object]) -> None:
    info = pb.SegmentInfoProto(
        segment_id=0,
        state=pb.ACTIVE,
        created_at_epoch=0,
        created_at_ms=0,
        **fields,  # type: ignore[arg-type]  # Those of the message.
    )
    with pytest.raises(LayoutError):
        Layout.from_dag(NAME, pb.ScalableTopicDAG(epoch=1, segments=[info]))


def test_more_segments_than_the_bound_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    info = pb.SegmentInfoProto(
        segment_id=0,
        hash_start=0,
        hash_end=0xFFFF,
        state=pb.ACTIVE,
        created_at_epoch=0,
        created_at_ms=0,
    )
    monkeypatch.setattr(layouts, "SEGMENTS_MAX", 1)
    assert Layout.from_dag(NAME, pb.ScalableTopicDAG(epoch=1, segments=[info])).active
    with pytest.raises(LayoutError, match="accepts 1"):
        Layout.from_dag(NAME, pb.ScalableTopicDAG(epoch=1, segments=[info, info]))


def test_only_a_newer_layout_replaces_another() -> None:
    assert SPLIT.replaces(BEFORE)
    assert not BEFORE.replaces(SPLIT)
    assert not Layout(2, SPLIT.segments).replaces(SPLIT)


def test_the_layout_of_a_topic_that_was_created_again_replaces_the_old_one() -> None:
    again = Layout(1, [segment(0, created_ms=9)])
    assert again.replaces(SPLIT)
    pruned = Layout(9, [segment(5)])
    assert BEFORE.replaces(pruned)
    assert not pruned.replaces(Layout(9, [segment(3)]))
