"""Messages of a producer over splits and merges: which leave, which wait, and in what order."""

from dataclasses import dataclass

from magnetar.sdk.scalable.lanes import SegmentLanes
from magnetar.sdk.scalable.layout import Layout
from tests.unit.sdk.scalable.layouts import BEFORE, HIGH, LOW, MERGED, SPLIT, partition, segment


@dataclass(eq=False)
class _Message:
    order: int
    key: bytes | None
    segment_id: int = -1

    def __repr__(self) -> str:
        return f"{self.order}"


class _Scene:
    """Lanes, and producers of segments that are ready at once."""

    def __init__(self, layout: Layout = BEFORE) -> None:
        self.lanes: SegmentLanes[_Message] = SegmentLanes(layout, lambda _send, _count: 0)
        self.left: list[tuple[int, int]] = []
        """Segments and messages, as they left."""
        self.closed: list[int] = []
        self._order = 0

    def send(self, key: bytes | None) -> _Message:
        self._order += 1
        message = _Message(self._order, key)
        target = self.lanes.put(message)
        if target is not None:
            self.left.append((target.id, message.order))
        self.step()
        return message

    def step(self) -> None:
        while self.lanes.is_due:
            step = self.lanes.step()
            self.closed += step.closed
            for target, sends in step.given:
                self.left += [(target.id, each.order) for each in sends]
            for target in step.opened:
                self.lanes.ready(target.id)

    def change(self, layout: Layout) -> None:
        self.lanes.change(layout)
        self.step()

    def refuse(self, *messages: _Message) -> None:
        for each in messages:
            self.lanes.refused(each)
        self.step()

    def store(self, message: _Message) -> None:
        self.lanes.done(message)
        self.step()


def test_refused_messages_go_to_the_children_in_their_order() -> None:
    scene = _Scene()
    sent = [scene.send(key) for key in (LOW, HIGH, LOW)]
    scene.refuse(*sent)
    waiting = scene.send(LOW)
    assert len(scene.left) == 3, "nothing leaves before the next layout"
    scene.change(SPLIT)
    assert scene.left[3:] == [(1, 1), (1, 3), (1, waiting.order), (2, 2)]
    assert scene.closed == [0]


def test_a_child_waits_for_what_is_in_flight_in_its_parent() -> None:
    scene = _Scene()
    first, second = scene.send(LOW), scene.send(LOW)
    scene.change(SPLIT)
    scene.send(LOW)
    scene.send(HIGH)
    assert len(scene.left) == 2
    scene.store(first)
    assert len(scene.left) == 2
    scene.refuse(second)
    assert scene.left[2:] == [(1, 2), (1, 3), (2, 4)]


def test_messages_stored_in_the_parent_are_not_sent_again() -> None:
    scene = _Scene()
    first = scene.send(LOW)
    scene.change(SPLIT)
    scene.store(first)
    scene.send(LOW)
    assert scene.left == [(0, 1), (1, 2)]


def test_order_holds_over_two_changes_at_once() -> None:
    scene = _Scene()
    first = scene.send(LOW)
    scene.change(SPLIT)
    scene.send(LOW)
    scene.change(MERGED)
    scene.send(LOW)
    scene.refuse(first)
    assert scene.left == [(0, 1), (3, 1), (3, 2), (3, 3)]


def test_a_merged_segment_waits_for_both_its_parents() -> None:
    scene = _Scene(SPLIT)
    low, high = scene.send(LOW), scene.send(HIGH)
    scene.change(MERGED)
    scene.send(LOW)
    scene.refuse(low)
    assert len(scene.left) == 2
    scene.store(high)
    assert scene.left[2:] == [(3, 1), (3, 3)]


def test_a_split_does_not_hold_other_segments() -> None:
    scene = _Scene(SPLIT)
    low = scene.send(LOW)
    layout = Layout(
        3,
        [
            segment(1, 0, 0x7FFF, is_sealed=True),
            SPLIT.by_id[2],
            segment(3, 0, 0x3FFF, parents=[1]),
            segment(4, 0x4000, 0x7FFF, parents=[1]),
        ],
    )
    scene.change(layout)
    scene.send(HIGH)
    assert scene.left == [(1, low.order), (2, 2)]


def test_all_new_segments_wait_for_the_partitions_of_a_migrated_topic() -> None:
    scene = _Scene(Layout(1, [partition(0), partition(1)]))
    low, high = scene.send(LOW), scene.send(HIGH)
    old = [partition(each, is_sealed=True) for each in range(2)]
    scene.change(Layout(3, [*old, segment(2, parents=[0, 1])]))
    scene.send(HIGH)
    scene.refuse(low)
    assert len(scene.left) == 2
    scene.refuse(high)
    assert scene.left[2:] == [(2, 1), (2, 2), (2, 3)]


def test_a_segment_that_cannot_be_opened_fails_what_waits_for_it() -> None:
    scene = _Scene()
    message = _Message(1, LOW)
    assert scene.lanes.put(message) is None
    (opened,) = scene.lanes.step().opened
    assert scene.lanes.not_ready(opened.id, has_ended=False) == [message]
    assert not scene.lanes.has_waiting
    # The next message tries again.
    scene.send(LOW)
    assert scene.left == [(0, 1)]


def test_a_segment_that_has_ended_before_it_is_opened_fails_nothing() -> None:
    scene = _Scene()
    assert scene.lanes.put(_Message(1, LOW)) is None
    (opened,) = scene.lanes.step().opened
    assert scene.lanes.not_ready(opened.id, has_ended=True) == []
    scene.step()
    assert scene.left == []
    scene.change(SPLIT)
    assert scene.left == [(1, 1)]


def test_a_producer_that_is_ready_after_its_segment_was_sealed_is_not_needed() -> None:
    scene = _Scene()
    assert scene.lanes.put(_Message(1, LOW)) is None
    (opened,) = scene.lanes.step().opened
    scene.change(SPLIT)
    assert not scene.lanes.ready(opened.id)
    assert scene.left == [(1, 1)]


def test_messages_that_have_waited_too_long_are_taken_from_the_front() -> None:
    scene = _Scene()
    scene.refuse(*[scene.send(LOW) for _ in range(3)])
    first = scene.lanes.first_waiting()
    assert first is not None
    assert first.order == 1
    taken = scene.lanes.take_waiting(lambda each: each.order < 3)
    assert [(each.order, has_ended) for each, has_ended in taken] == [(1, True), (2, True)]
    scene.change(SPLIT)
    assert scene.left[3:] == [(1, 3)]
