"""The segments that a checkpoint consumer reads, and what its checkpoints say."""

from magnetar.sdk import MessageId
from magnetar.sdk.scalable.checkpoint import Checkpoint, CheckpointKind
from magnetar.sdk.scalable.reading_order import ReadingOrder
from tests.unit.sdk.scalable.layouts import BEFORE, MERGED, SPLIT

_AT = MessageId(7, 3)


def _ids(order: ReadingOrder) -> list[int]:
    return [each.id for each in order.readable]


def _resumed(positions: dict[int, MessageId]) -> ReadingOrder:
    return ReadingOrder(MERGED, Checkpoint(CheckpointKind.POSITIONS, positions))


def test_children_are_read_once_all_parents_are_at_their_ends() -> None:
    order = ReadingOrder(MERGED, Checkpoint.EARLIEST)
    assert _ids(order) == [0]
    order.finish(0)
    assert _ids(order) == [1, 2]
    order.finish(1)
    assert _ids(order) == [2]
    order.finish(2)
    assert _ids(order) == [3]


def test_the_children_of_a_split_come_with_the_layout() -> None:
    order = ReadingOrder(BEFORE, Checkpoint.EARLIEST)
    assert not order.is_sealed(0)
    order.change(SPLIT)
    assert (_ids(order), order.is_sealed(0)) == ([0], True)


def test_latest_begins_in_the_active_segments() -> None:
    order = ReadingOrder(MERGED, Checkpoint.LATEST)
    assert _ids(order) == [3]
    assert order.start_of(3) == MessageId.LATEST
    order.settle(3, _AT)
    positions = order.checkpoint({}).positions
    assert positions[3] == _AT, "what comes from now on is not left out by the checkpoint"
    assert positions[1] == MessageId.LATEST


def test_a_checkpoint_names_what_is_read_and_what_is_finished() -> None:
    order = ReadingOrder(MERGED, Checkpoint.EARLIEST)
    order.finish(0)
    made = order.checkpoint({1: _AT, 2: MessageId.EARLIEST})
    assert dict(made.positions) == {
        0: MessageId.LATEST,
        1: _AT,
        2: MessageId.EARLIEST,
    }
    again = ReadingOrder(MERGED, made)
    assert _ids(again) == [1, 2]
    assert (again.start_of(1), again.start_of(2)) == (_AT, MessageId.EARLIEST)


def test_a_checkpoint_holds_over_splits_and_merges_since() -> None:
    before = ReadingOrder(BEFORE, Checkpoint.EARLIEST).checkpoint({0: _AT})
    order = ReadingOrder(MERGED, before)
    assert (_ids(order), order.start_of(0)) == ([0], _AT)
    order.finish(0)
    assert order.start_of(1) == MessageId.EARLIEST


def test_a_segment_that_is_gone_is_left_out() -> None:
    order = _resumed({9: _AT, 3: _AT, 1: MessageId.LATEST, 2: MessageId.LATEST})
    assert _ids(order) == [3]
    assert 9 not in order.checkpoint({}).positions


def test_the_parents_of_a_segment_that_was_begun_are_not_read_again() -> None:
    """Other clients keep the place of a parent's last message, not its end."""
    order = _resumed({1: _AT, 2: _AT, 3: _AT})
    assert _ids(order) == [3]
