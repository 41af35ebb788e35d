"""Parents before children. Random layouts: tests/property/sdk/spark/test_readers.py."""

from magnetar.arrow.stored.segment_order import SegmentOrder
from magnetar.sdk.scalable.layout import Layout, Segment
from magnetar.sdk.scalable.names import LayoutName

NAME = LayoutName.parse("topic://public/default/t")


def name_of(number: int, start: int = 0, end: int = 0xFFFF) -> str:
    return str(NAME.whole.segment(number, start=start, end=end))


def segment(
    number: int, start: int = 0, end: int = 0xFFFF, *parents: int, is_sealed: bool = False
) -> Segment:
    topic = NAME.whole.segment(number, start=start, end=end)
    return Segment(number, start, end, topic, is_sealed=is_sealed, parents=parents)


LOW, HIGH = (0, 0x7FFF), (0x8000, 0xFFFF)
ROOT, LEFT, RIGHT, MERGED = name_of(0), name_of(1, *LOW), name_of(2, *HIGH), name_of(3)
SPLIT_AND_MERGED = SegmentOrder(
    NAME,
    Layout(
        3,
        [
            segment(0, is_sealed=True),
            segment(1, *LOW, 0, is_sealed=True),
            segment(2, *HIGH, 0, is_sealed=True),
            segment(3, 0, 0xFFFF, 1, 2),
        ],
    ),
)


def test_a_segment_is_begun_when_all_its_parents_were_read_to_their_ends() -> None:
    step = SPLIT_AND_MERGED.step
    assert step([], []) == {ROOT}
    assert step([ROOT], []) == {ROOT}
    assert step([ROOT], [ROOT]) == {LEFT, RIGHT}
    assert step([LEFT, RIGHT], [LEFT]) == {LEFT, RIGHT}
    assert step([LEFT, RIGHT], [LEFT, RIGHT]) == {MERGED}
    assert step([MERGED], []) == {MERGED}


def test_a_segment_that_was_read_is_known_by_what_came_of_it() -> None:
    assert SPLIT_AND_MERGED.passed([MERGED]) == {ROOT, LEFT, RIGHT}
    assert SPLIT_AND_MERGED.unread([LEFT, RIGHT]) == [LEFT, RIGHT, MERGED]
    assert SPLIT_AND_MERGED.unread([]) == [ROOT, LEFT, RIGHT, MERGED]
    assert SPLIT_AND_MERGED.step([LEFT], []) == {LEFT, RIGHT}, "its sibling comes, too"


def test_a_segment_that_ended_without_children_stays() -> None:
    """As when somebody terminates it: that it was read is told by nothing else."""
    order = SegmentOrder(NAME, Layout(1, [segment(0)]))
    assert order.step([ROOT], [ROOT]) == {ROOT}


def test_a_parent_that_is_gone_holds_nothing_back() -> None:
    order = SegmentOrder(NAME, Layout(4, [segment(3, 0, 0xFFFF, 1, 2)]))
    assert order.step([LEFT, RIGHT], []) == {MERGED}
    assert order.heirs(LEFT, order.names) == [MERGED]
    assert order.heirs("persistent://public/default/t-partition-0", order.names) == [MERGED]
    assert SPLIT_AND_MERGED.heirs(LEFT, SPLIT_AND_MERGED.names) == [MERGED]
    assert SPLIT_AND_MERGED.heirs(ROOT, SPLIT_AND_MERGED.names) == [LEFT, RIGHT, MERGED]


def test_a_query_begins_with_the_first_segments_that_have_something_for_it() -> None:
    first = SPLIT_AND_MERGED.first
    assert first([]) == {ROOT}
    assert first([ROOT]) == {LEFT, RIGHT}
    assert first([ROOT, LEFT]) == {LEFT, RIGHT}, "what is done is named while its child waits"
    assert first([ROOT, LEFT, RIGHT]) == {MERGED}
    assert first([], passed=[ROOT, LEFT, RIGHT]) == {MERGED}
