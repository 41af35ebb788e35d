"""Order over splits and merges: whoever comes, goes, drains what, or moves back, in any order.

The model knows all ancestors of each segment, and where the subscription goes back. A segment that
somebody has, has none that is not drained, or that is held; each segment that could be had is had
by exactly one; nothing that is drained is given out.
"""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.base.errors import NotAllowedError, NotThereError
from magnetar.broker.features.scalable import changes
from magnetar.broker.features.scalable.assignment import Assignment, SegmentAssignment
from magnetar.broker.features.scalable.record import ScalableTopicRecord
from magnetar.sdk.wire import TopicName

_TOPIC = TopicName.parse("persistent://public/default/t")
_NAMES = st.sampled_from("abc")
_IDS = st.integers(0, 14)
_EVENTS = st.one_of(
    st.tuples(st.just("register"), _NAMES, st.none()),
    st.tuples(st.just("unregister"), _NAMES, st.none()),
    st.tuples(st.just("split"), _IDS, st.none()),
    st.tuples(st.just("merge"), _IDS, _IDS),
    st.tuples(st.just("drain"), _IDS, st.none()),
    st.tuples(st.just("hold"), st.none() | _IDS, st.none()),
    st.tuples(st.just("release"), _IDS, st.none()),
    st.tuples(st.just("restart"), st.none(), st.none()),
)


class _World:
    def __init__(self) -> None:
        self.record: ScalableTopicRecord = changes.new_topic(2, now_ms=1, segments_max=8)
        self.held: dict[int, int | None] = {}
        self.holds = 0
        self.assignment = self._new()
        self.drained: set[int] = set()
        self.members: dict[str, object] = {}
        self.told: dict[str, Assignment] = {}

    def _new(self) -> SegmentAssignment[object]:
        return SegmentAssignment(self.record.layout_of(_TOPIC), grace_s=10, held=self.held)

    def happens(self, event: str, first: str | int | None, second: int | None) -> None:
        news: list[tuple[object, Assignment]] = []
        if event == "register":
            news = self._register(str(first))
        elif event == "unregister":
            self.told.pop(str(first), None)
            news = self.assignment.unregister(str(first), self.members.pop(str(first), object()))
        elif event == "drain":
            assert first is not None
            possible = [each.id for each in self.assignment.undrained if each.id == first]
            self.drained.update(possible)
            news = self.assignment.drained(possible)
        elif event in ("hold", "release"):
            news = self._hold(first) if event == "hold" else self._release(first)
        elif event == "restart":
            self._restart()
        else:
            news = self._change(event, int(first or 0), second)
        self._tell(news)

    def _hold(self, segment: str | int | None) -> list[tuple[object, Assignment]]:
        """The subscription goes back on a segment, None: on all."""
        assert not isinstance(segment, str)
        self.holds += 1
        self.held[self.holds] = segment
        self.drained = {each for each in self.drained if segment not in (None, each)}
        return self.assignment.change(self.record.layout_of(_TOPIC), self.held)

    def _release(self, number: str | int | None) -> list[tuple[object, Assignment]]:
        """Let go one of the holds that there are."""
        if self.held:
            hold = list(self.held)[int(number or 0) % len(self.held)]
            segment = self.held.pop(hold)
            self.drained = {each for each in self.drained if segment not in (None, each)}
        return self.assignment.change(self.record.layout_of(_TOPIC), self.held)

    def _register(self, name: str) -> list[tuple[object, Assignment]]:
        self.members[name] = object()
        self.told[name], news = self.assignment.register(name, self.members[name])
        return news

    def _change(
        self, event: str, first: int, second: int | None
    ) -> list[tuple[object, Assignment]]:
        try:
            if event == "split":
                begun = changes.begin_split(_TOPIC, self.record, first, now_ms=2, segments_max=8)
            else:
                assert second is not None
                begun = changes.begin_merge(_TOPIC, self.record, first, second, now_ms=2)
        except (NotAllowedError, NotThereError):
            return []
        assert begun.change is not None
        done = changes.commit(begun, begun.change, now_ms=3)
        assert done is not None
        self.record = done
        return self.assignment.change(done.layout_of(_TOPIC), self.held)

    def _restart(self) -> None:
        """Another broker coordinates: it asks what is drained before anybody is told anything, and
        knows what is held."""
        self.assignment = self._new()
        while found := [e.id for e in self.assignment.undrained if e.id in self.drained]:
            self.assignment.drained(found)
        for name in list(self.members):
            self._tell(self._register(name))

    def _tell(self, news: list[tuple[object, Assignment]]) -> None:
        for member, assignment in news:
            (name,) = [name for name, known in self.members.items() if known is member]
            self.told[name] = assignment

    def check(self) -> None:
        had = [each.id for name in self.members for each in self.told[name].segments]
        assert len(had) == len(set(had)), "one consumer at a time has a segment"
        for each in had:
            assert each not in self.drained
            assert self._ancestors(each) <= self.drained, "everything before it is acknowledged"
        if self.members:
            possible = {
                each.id
                for each in self.record.segments
                if each.id not in self.drained and self._ancestors(each.id) <= self.drained
            }
            assert set(had) == possible

    def _ancestors(self, segment_id: int) -> set[int]:
        found = self.record.find(segment_id)
        assert found is not None
        parents = set(found.parents)
        return parents.union(*(self._ancestors(each) for each in parents))


@given(st.lists(_EVENTS, max_size=50))
def test_nobody_has_a_segment_before_its_ancestors_are_drained(
    events: list[tuple[str, str | int | None, int | None]],
) -> None:
    world = _World()
    for event in events:
        world.happens(*event)
        world.check()
