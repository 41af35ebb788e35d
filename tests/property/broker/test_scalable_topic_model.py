"""Layouts of a scalable topic through any sequence of changes, against a model of the ring.

The model is an owner for each of some hashes. Whatever happens: a hash has one active segment, a
segment that was sealed stays sealed, ids are used once, epochs grow by one with each change, and a
record that is stored can be read.
"""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.base.errors import ConflictError, NotAllowedError, NotThereError
from magnetar.broker.features.scalable import changes
from magnetar.broker.features.scalable.layout import RING
from magnetar.broker.features.scalable.record import (
    PendingChange,
    ScalableTopicRecord,
    fault_of,
)
from magnetar.broker.policies.model import decode
from magnetar.sdk.wire import TopicName

_TOPIC = TopicName.parse("persistent://public/default/t")
_SEGMENTS_MAX = 6
_HASHES = (0, 1, 0x3FFF, 0x4000, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF)
_IDS = st.integers(0, 12)
_STEPS = st.one_of(
    st.tuples(st.just("split"), _IDS, st.none() | st.integers(0, RING - 1)),
    st.tuples(st.just("merge"), _IDS, _IDS),
    st.tuples(st.just("commit"), st.just(0), st.just(0)),
    st.tuples(st.just("late commit"), st.just(0), st.just(0)),
)


class _World:
    def __init__(self, segments: int) -> None:
        self.record: ScalableTopicRecord = changes.new_topic(
            segments, now_ms=1, segments_max=_SEGMENTS_MAX
        )
        self.ids = {each.id for each in self.record.segments}
        """Of all segments that were ever named."""
        self.sealed: set[int] = set()
        self.stale: PendingChange | None = None
        """A change that has come to its end."""

    def happens(self, step: str, first: int, second: int | None) -> None:
        before = self.record
        if step == "commit":
            self._commit()
        elif step == "late commit":
            if self.stale is not None and self.stale != before.change:
                assert changes.commit(before, self.stale, now_ms=3) == before
        else:
            try:
                self._begin(step, first, second)
            except (NotAllowedError, NotThereError, ConflictError):
                assert self.record == before

    def _begin(self, step: str, first: int, second: int | None) -> None:
        before = self.record
        if step == "split":
            self.record = changes.begin_split(
                _TOPIC, before, first, now_ms=2, segments_max=_SEGMENTS_MAX, at=second
            )
        else:
            assert second is not None
            self.record = changes.begin_merge(_TOPIC, before, first, second, now_ms=2)
        assert before.change is None
        assert self.record.change is not None
        assert self.record.layout_of(_TOPIC) == before.layout_of(_TOPIC)
        new = {each.id for each in self.record.change.children}
        assert not new & self.ids, "an id is used once"
        self.ids |= new

    def _commit(self) -> None:
        before = self.record
        if before.change is None:
            return
        self.stale = before.change
        after = changes.commit(before, before.change, now_ms=3)
        assert after is not None
        self.record = after
        assert after.epoch == before.epoch + 1
        owners = {hash_: _owner(before, hash_) for hash_ in _HASHES}
        for hash_ in _HASHES:
            now = _owner(after, hash_)
            if owners[hash_] in before.change.parents:
                assert now in {each.id for each in before.change.children}
            else:
                assert now == owners[hash_], "nobody else's keys move"

    def check(self) -> None:
        record = self.record
        assert fault_of(record) == ""
        assert decode(ScalableTopicRecord, "/path", record.encode()) == record
        assert len(record.active) <= _SEGMENTS_MAX
        for hash_ in _HASHES:
            _owner(record, hash_)
        sealed = {each.id for each in record.segments if each.is_sealed}
        assert self.sealed <= sealed, "what is sealed stays sealed"
        self.sealed = sealed


def _owner(record: ScalableTopicRecord, hash_: int) -> int:
    """The one active segment of a hash."""
    (owner,) = [each.id for each in record.active if hash_ in each.hashes]
    return owner


@given(st.integers(1, 4), st.lists(_STEPS, max_size=40))
def test_every_hash_has_one_active_segment_whatever_happens(
    segments: int, steps: list[tuple[str, int, int | None]]
) -> None:
    world = _World(segments)
    world.check()
    for step in steps:
        world.happens(*step)
        world.check()
