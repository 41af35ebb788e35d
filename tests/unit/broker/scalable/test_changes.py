"""Records of scalable topics: what holds of them, and what splits and merges make of them."""

from typing import Any

import pytest

from magnetar.broker.base.errors import (
    ConflictError,
    NotAllowedError,
    NotThereError,
    TopicNotFoundError,
    UnreadableRecordError,
)
from magnetar.broker.features.scalable import changes
from magnetar.broker.features.scalable.layout import ENTRY_BUCKETS_MAX, RING
from magnetar.broker.features.scalable.record import ScalableTopicRecord, SegmentState, fault_of
from magnetar.broker.policies.model import decode
from magnetar.ledger.metadata.store import VALUE_BYTES_MAX
from magnetar.sdk.wire import TopicName

TOPIC = TopicName.parse("persistent://public/default/t")
_PATH = "/topics/public/default/t"


def new(segments: int = 1) -> ScalableTopicRecord:
    return changes.new_topic(segments, now_ms=10, segments_max=64)


def split(
    record: ScalableTopicRecord, segment_id: int, *, at: int | None = None, segments_max: int = 64
) -> ScalableTopicRecord:
    """A split from its begin to its end."""
    begun = changes.begin_split(
        TOPIC, record, segment_id, now_ms=20, segments_max=segments_max, at=at
    )
    return finish(begun)


def merge(record: ScalableTopicRecord, one: int, other: int) -> ScalableTopicRecord:
    return finish(changes.begin_merge(TOPIC, record, one, other, now_ms=20))


def finish(record: ScalableTopicRecord) -> ScalableTopicRecord:
    assert record.change is not None
    done = changes.commit(record, record.change, now_ms=30)
    assert done is not None
    return done


def ranges(record: ScalableTopicRecord) -> list[tuple[int, int, int]]:
    """Id, first and last hash of each active segment."""
    return [(each.id, each.hash_start, each.hash_end) for each in record.active]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64])
def test_a_new_topic_has_segments_of_one_width_that_tile_the_ring(count: int) -> None:
    record = new(count)
    assert (record.epoch, record.next_segment_id, len(record.segments)) == (1, count, count)
    widths = {end - start + 1 for _, start, end in ranges(record)[:-1]}
    assert widths <= {RING // count}
    assert fault_of(record) == ""


@pytest.mark.parametrize("count", [0, -1, 65])
def test_a_number_of_segments_that_cannot_be_is_refused(count: int) -> None:
    with pytest.raises(NotAllowedError, match="scalable_segments_max"):
        new(count)


def test_a_split_halves_a_segment_and_seals_it_at_the_next_epoch() -> None:
    record = split(new(), 0)
    assert ranges(record) == [(1, 0, 0x7FFF), (2, 0x8000, 0xFFFF)]
    parent = record.find(0)
    assert parent is not None
    assert (parent.state, parent.children) == (SegmentState.SEALED, (1, 2))
    assert (parent.sealed_epoch, parent.sealed_ms, record.epoch) == (2, 30, 2)
    assert {each.parents for each in record.active} == {(0,)}
    assert {(each.created_epoch, each.created_ms) for each in record.active} == {(2, 30)}


def test_a_split_may_name_the_first_hash_of_the_second_half() -> None:
    assert ranges(split(new(), 0, at=1)) == [(1, 0, 0), (2, 1, 0xFFFF)]
    assert ranges(split(new(), 0, at=0xFFFF)) == [(1, 0, 0xFFFE), (2, 0xFFFF, 0xFFFF)]


@pytest.mark.parametrize("at", [-1, 0, RING])
def test_a_split_outside_of_the_segment_is_refused(at: int) -> None:
    with pytest.raises(NotAllowedError, match=f"cannot be split at {at}"):
        split(new(), 0, at=at)


def test_a_segment_of_one_hash_cannot_be_split() -> None:
    record = split(new(), 0, at=1)
    with pytest.raises(NotAllowedError):
        split(record, 1)


def test_splits_stop_at_the_limit_of_active_segments() -> None:
    record = split(new(), 0, segments_max=2)
    with pytest.raises(NotAllowedError, match="scalable_segments_max"):
        split(record, 1, segments_max=2)


@pytest.mark.parametrize("spare_bytes", [0, -1])
def test_no_change_begins_whose_record_the_store_might_refuse_at_the_commit(
    spare_bytes: int,
) -> None:
    """The parents would be sealed by then."""

    def with_filler(size: int) -> ScalableTopicRecord:
        return changes.new_topic(1, now_ms=10, segments_max=64, properties={"k": "x" * size})

    size = changes.RECORD_BYTES_MAX - len(split(with_filler(0), 0).encode()) + spare_bytes + 1
    if spare_bytes < 0:
        done = split(with_filler(size), 0)
        assert len(done.encode()) == changes.RECORD_BYTES_MAX < VALUE_BYTES_MAX
    else:
        with pytest.raises(NotAllowedError, match="has 1 segments"):
            split(with_filler(size), 0)


def test_a_merge_makes_one_of_two_whatever_their_order() -> None:
    record = merge(split(new(), 0), 2, 1)
    assert ranges(record) == [(3, 0, 0xFFFF)]
    (child,) = record.active
    assert (child.parents, record.epoch) == ((1, 2), 3)


def test_only_segments_that_lie_side_by_side_are_merged() -> None:
    record = new(3)
    for pair in ((0, 2), (1, 1)):
        with pytest.raises(NotAllowedError, match="side by side"):
            merge(record, *pair)


def test_a_sealed_segment_is_not_changed_again_and_its_children_are_named() -> None:
    record = split(new(), 0)
    with pytest.raises(NotAllowedError, match="its children are 1, 2"):
        split(record, 0)
    with pytest.raises(NotAllowedError):
        merge(record, 0, 1)


def test_a_segment_that_is_not_there_is_not_found() -> None:
    with pytest.raises(NotThereError, match="no segment 7"):
        split(new(), 7)


def test_one_change_at_a_time() -> None:
    begun = changes.begin_split(TOPIC, new(2), 0, now_ms=20, segments_max=64)
    with pytest.raises(ConflictError, match=r"a split of 0 .* is under way"):
        changes.begin_merge(TOPIC, begun, 0, 1, now_ms=20)


def test_a_change_that_has_begun_changes_neither_layout_nor_epoch() -> None:
    before = new(2)
    begun = changes.begin_split(TOPIC, before, 0, now_ms=20, segments_max=64)
    assert begun.layout_of(TOPIC) == before.layout_of(TOPIC)
    assert begun.next_segment_id == 4


def test_a_commit_is_done_once_and_only_of_the_change_that_is_under_way() -> None:
    begun = changes.begin_split(TOPIC, new(), 0, now_ms=20, segments_max=64)
    assert begun.change is not None
    done = finish(begun)
    assert changes.commit(done, begun.change, now_ms=40) == done
    later = changes.begin_split(TOPIC, done, 1, now_ms=50, segments_max=64)
    assert changes.commit(later, begun.change, now_ms=60) == later
    assert changes.commit(None, begun.change, now_ms=60) is None


def test_nothing_of_a_topic_that_is_being_deleted_is_changed() -> None:
    begun = changes.begin_split(TOPIC, new(), 0, now_ms=20, segments_max=64)
    assert begun.change is not None
    deleted = changes.mark_deleted(TOPIC, begun)
    assert changes.commit(deleted, begun.change, now_ms=30) == deleted
    with pytest.raises(TopicNotFoundError, match="being deleted"):
        split(deleted, 0)


def test_a_topic_that_is_not_there_is_not_found() -> None:
    with pytest.raises(TopicNotFoundError):
        changes.begin_split(TOPIC, None, 0, now_ms=1, segments_max=64)
    with pytest.raises(TopicNotFoundError):
        changes.mark_deleted(TOPIC, None)


def test_the_layout_has_sealed_segments_with_their_kin() -> None:
    layout = split(new(), 0).layout_of(TOPIC)
    assert (layout.epoch, layout.born_ms, layout.is_synthetic) == (2, 10, False)
    parent, first, second = layout.segments
    assert (parent.is_sealed, parent.children, parent.sealed_epoch) == (True, (1, 2), 2)
    assert (first.is_sealed, first.parents, first.created_epoch) == (False, (0,), 2)
    assert first.topic == "segment://public/default/t/0000-7fff-1"
    assert second.topic == "segment://public/default/t/8000-ffff-2"
    assert not any(each.is_legacy for each in layout.segments)


def test_a_record_is_read_as_it_was_written() -> None:
    begun = changes.begin_merge(TOPIC, split(new(), 0), 1, 2, now_ms=40)
    assert decode(ScalableTopicRecord, _PATH, begun.encode()) == begun


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"segments": ()}, "do not tile the ring"),
        ({"next_segment_id": 2}, "not below 2"),
        ({"epoch": 1}, "was sealed at 2"),
    ],
)
def test_a_record_of_which_something_does_not_hold_is_refused(
    change: dict[str, Any], fault: str
) -> None:
    broken = split(new(), 0).model_copy(update=change)
    assert fault in fault_of(broken)
    with pytest.raises(UnreadableRecordError, match=fault):
        decode(ScalableTopicRecord, _PATH, broken.encode())


@pytest.mark.parametrize(
    ("segment_id", "change", "fault"),
    [
        (0, {"children": (1,)}, "do not cover it"),
        (0, {"children": ()}, "epoch of its seal and children must fit"),
        (0, {"sealed_epoch": 1}, "was sealed at 1"),
        (1, {"parents": ()}, "is no child of 0"),
        (1, {"hash_end": 0x7FFE}, "do not tile the ring"),
        (2, {"hash_start": 0x7FFF}, "do not tile the ring"),
    ],
)
def test_a_segment_of_which_something_does_not_hold_is_noticed(
    segment_id: int, change: dict[str, Any], fault: str
) -> None:
    record = split(new(), 0)
    segments = tuple(
        each.model_copy(update=change) if each.id == segment_id else each
        for each in record.segments
    )
    assert fault in fault_of(record.model_copy(update={"segments": segments}))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"parents": (9,)}, "not all active"),
        ({"parents": (0, 0)}, "not all active"),
        ({"children": ()}, "do not cover the same hashes"),
        ({"parents": (0, 1)}, "not as it will be"),
    ],
)
def test_a_change_of_which_something_does_not_hold_is_noticed(
    change: dict[str, Any], fault: str
) -> None:
    begun = changes.begin_split(TOPIC, new(2), 0, now_ms=20, segments_max=64)
    assert begun.change is not None
    broken = begun.change.model_copy(update=change)
    assert fault in fault_of(begun.model_copy(update={"change": broken}))


def test_holds_have_ids_of_their_own_and_end_in_any_order() -> None:
    record = new()
    for number in (1, 2):
        record = changes.begin_hold(TOPIC, record, "s", None, now_ms=5)
        assert record.seeks == number
    ended = changes.end_hold(record, 1, created_ms=record.created_ms)
    assert ended is not None
    assert [each.id for each in ended.holds] == [2]
    again = changes.begin_hold(TOPIC, ended, "s", 0, now_ms=6)
    assert [(each.id, each.segment) for each in again.holds] == [(2, None), (3, 0)]
    assert changes.end_hold(again, 1, created_ms=record.created_ms) == again, "it has ended before"
    assert changes.end_hold(again, 3, created_ms=record.created_ms + 1) == again, "another topic"
    assert changes.end_hold(None, 3, created_ms=1) is None


def test_holds_at_the_limit_are_made_and_one_more_waits_for_room() -> None:
    record = new()
    for number in range(changes.HOLDS_MAX):
        record = changes.begin_hold(TOPIC, record, "s", None, now_ms=number)
    with pytest.raises(ConflictError, match="try again"):
        changes.begin_hold(TOPIC, record, "s", None, now_ms=changes.HOLD_MS_MAX - 1)
    record = changes.begin_hold(TOPIC, record, "s", None, now_ms=changes.HOLD_MS_MAX)
    assert len(record.holds) == changes.HOLDS_MAX, "the oldest made room"
    assert record.holds[0].id == 2


def test_holds_leave_room_for_the_commit_of_a_change_however_long_their_names_are() -> None:
    record, long_name = new(), '"' * 1024

    def hold() -> ScalableTopicRecord:
        return changes.begin_hold(TOPIC, record, long_name, None, now_ms=5)

    size_bytes = len(hold().holds[0].model_dump_json().encode())
    for _ in range(changes.HOLDS_BYTES_MAX // (size_bytes + 1)):  # Ids have two digits in the end.
        record = hold()
    with pytest.raises(ConflictError, match="try again"):
        hold()
    assert len(record.encode()) < VALUE_BYTES_MAX - changes.RECORD_BYTES_MAX


def test_nothing_is_held_back_in_a_topic_that_goes() -> None:
    with pytest.raises(TopicNotFoundError):
        changes.begin_hold(TOPIC, None, "s", None, now_ms=1)
    gone = changes.mark_deleted(TOPIC, new())
    with pytest.raises(TopicNotFoundError):
        changes.begin_hold(TOPIC, gone, "s", None, now_ms=1)


def rebucket(record: ScalableTopicRecord, segment_id: int, buckets: int) -> ScalableTopicRecord:
    return finish(changes.begin_rebucket(TOPIC, record, segment_id, buckets, now_ms=20))


def test_a_rebucket_replaces_a_segment_by_one_with_the_same_hashes() -> None:
    record = rebucket(new(), 0, 4)
    assert ranges(record) == [(1, 0, RING - 1)]
    assert [each.entry_buckets for each in record.segments] == [1, 4]
    assert (record.epoch, record.splits, record.merges) == (2, 0, 0)
    segment = record.layout_of(TOPIC).segments[1]
    assert segment.bucket_splits == [16384, 32768, 49152]
    assert segment.bucket_ranges[0] == (0, 16383)
    assert segment.bucket_ranges[-1] == (49152, RING - 1)


def test_splits_divide_entry_buckets_and_merges_add_them() -> None:
    halves = split(rebucket(new(), 0, 5), 1)
    assert [each.entry_buckets for each in halves.active] == [2, 2]
    merged = merge(halves, *(each.id for each in halves.active))
    assert [each.entry_buckets for each in merged.active] == [4]
    most = merge(rebucket(rebucket(new(2), 0, ENTRY_BUCKETS_MAX), 1, ENTRY_BUCKETS_MAX), 2, 3)
    assert [each.entry_buckets for each in most.active] == [ENTRY_BUCKETS_MAX]


@pytest.mark.parametrize(("segments", "each_has"), [(1, 4), (2, 2), (3, 1), (5, 1)])
def test_a_new_topic_divides_its_entry_buckets_among_its_segments(
    segments: int, each_has: int
) -> None:
    record = changes.new_topic(segments, now_ms=10, segments_max=64, entry_buckets=4)
    assert [each.entry_buckets for each in record.active] == [each_has] * segments


def test_a_topic_that_has_grown_and_shrunk_has_as_many_entry_buckets_as_before() -> None:
    record = changes.new_topic(1, now_ms=10, segments_max=64, entry_buckets=4)
    for _ in range(3):
        for each in record.active:
            record = split(record, each.id)
    assert [each.entry_buckets for each in record.active] == [1] * 8
    while len(record.active) > 1:
        first, second = (each.id for each in record.active[:2])
        record = finish(
            changes.begin_merge(TOPIC, record, first, second, now_ms=20, entry_buckets=4)
        )
    assert [each.entry_buckets for each in record.active] == [4]


def test_a_merge_keeps_the_entry_buckets_that_somebody_has_asked_for() -> None:
    record = rebucket(new(2), 0, 8)
    merged = changes.begin_merge(TOPIC, record, 2, 1, now_ms=20, entry_buckets=4)
    assert [each.entry_buckets for each in finish(merged).active] == [9]


def test_without_entry_buckets_a_merge_makes_none() -> None:
    halves = split(new(), 0)
    assert merge(halves, 1, 2).active[0].entry_buckets == 1
    assert split(rebucket(new(), 0, 1 + 1), 1).active[0].entry_buckets == 1


@pytest.mark.parametrize("buckets", [0, 1, ENTRY_BUCKETS_MAX + 1])
def test_a_segment_does_not_get_as_many_entry_buckets_as_it_has_or_cannot_have(
    buckets: int,
) -> None:
    with pytest.raises(NotAllowedError):
        changes.begin_rebucket(TOPIC, new(), 0, buckets, now_ms=20)
    assert rebucket(new(), 0, ENTRY_BUCKETS_MAX).active[0].entry_buckets == ENTRY_BUCKETS_MAX
