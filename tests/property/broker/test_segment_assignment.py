"""Segments divided among consumers, against what each consumer was told, in any order of events."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.features.scalable.assignment import Assignment, SegmentAssignment
from magnetar.broker.features.scalable.layout import Layout, synthetic_layout
from magnetar.sdk.wire import TopicName

_TOPIC = TopicName.parse("persistent://public/default/t")
_GRACE_S = 10
_NAMES = st.sampled_from("abcde")
_EVENTS = st.one_of(
    st.tuples(st.sampled_from(["register", "unregister", "detach"]), _NAMES),
    st.tuples(st.just("pass"), st.integers(1, _GRACE_S * 2)),
    st.tuples(st.just("partitions"), st.integers(0, 7)),
    st.tuples(st.just("buckets"), st.integers(1, 4)),
)


class _World:
    """Consumers, and what each of them was told last."""

    def __init__(self) -> None:
        self.partitions, self.buckets = 3, 1
        self.layout = self._layout()
        self.assignment: SegmentAssignment[object] = SegmentAssignment(
            self.layout, grace_s=_GRACE_S
        )
        self.now_s = 0.0
        self.members: dict[str, object] = {}
        """Of consumers that are attached."""
        self.until_s: dict[str, float] = {}
        """Of consumers that are detached."""
        self.former: dict[str, object] = {}
        self.told: dict[str, Assignment] = {}

    def happens(self, event: str, argument: str | int) -> None:
        news: list[tuple[object, Assignment]] = []
        if event == "register":
            news = self._register(str(argument))
        elif event == "unregister":
            news = self._unregister(str(argument))
        elif event == "detach":
            self._detach(str(argument))
        elif event == "pass":
            news = self._pass(int(argument))
        else:
            setattr(self, event, int(argument))
            self.layout = self._layout()
            news = self.assignment.change(self.layout)
        for member, assignment in news:
            (name,) = [name for name, known in self.members.items() if known is member]
            self._tell(name, assignment)

    def _layout(self) -> Layout:
        """Every other segment has the entry buckets."""
        layout = synthetic_layout(_TOPIC, self.partitions)
        segments = (
            replace(each, buckets=1 if each.id % 2 else self.buckets) for each in layout.segments
        )
        return replace(layout, segments=tuple(segments))

    def _register(self, name: str) -> list[tuple[object, Assignment]]:
        was_known = name in self.members or name in self.until_s
        self.members[name] = object()
        self.until_s.pop(name, None)
        assignment, news = self.assignment.register(name, self.members[name])
        assert not (was_known and news), "who comes back moves nobody"
        self._tell(name, assignment)
        return news

    def _unregister(self, name: str) -> list[tuple[object, Assignment]]:
        member = self.members.pop(name, None) or self.former.get(name, object())
        if name in self.until_s and member is self.former.get(name):
            del self.until_s[name]
        self.told.pop(name, None)
        return self.assignment.unregister(name, member)

    def _detach(self, name: str) -> None:
        member = self.members.pop(name, None)
        if member is not None:
            self.former[name] = member
            self.until_s[name] = self.now_s + _GRACE_S
            self.assignment.detach(name, member, now_s=self.now_s)

    def _pass(self, seconds: int) -> list[tuple[object, Assignment]]:
        self.now_s += seconds
        self.until_s = {name: at for name, at in self.until_s.items() if at > self.now_s}
        return self.assignment.expire(now_s=self.now_s)

    def _tell(self, name: str, assignment: Assignment) -> None:
        before = self.told.get(name)
        assert before is None or assignment.epoch >= before.epoch, "clients drop a lower epoch"
        self.told[name] = assignment

    def check(self) -> None:
        known = {*self.members, *self.until_s}
        assert len(self.assignment) == len(known)
        had = Counter(each.id for name in self.members for each in self.told[name].segments)
        for each in self.layout.segments:
            assert had[each.id] <= each.buckets, "one consumer at a time has a segment, or a bucket"
        for name in self.members:
            told = self.told[name]
            assert not told.is_shared or len(told.segments) == 1
            if not told.is_shared:
                assert all(had[each.id] == 1 for each in told.segments)
        if not self.until_s and self.members:
            assert sorted(had) == [each.id for each in self.layout.segments]
            room = sum(each.buckets for each in self.layout.segments)
            idle = sum(not self.told[name].segments for name in self.members)
            assert idle == max(0, len(self.members) - room), "nobody waits while there is room"
        expected = min(self.until_s.values(), default=None)
        assert self.assignment.next_expiry_s == expected
        counts = [len(self.told[name].segments) for name in self.members]
        assert not counts or max(counts) - min(counts) <= 1


@given(st.lists(_EVENTS, max_size=40))
def test_every_segment_has_one_consumer_whatever_happens(
    events: list[tuple[str, str | int]],
) -> None:
    world = _World()
    for event, argument in events:
        world.happens(event, argument)
        world.check()
