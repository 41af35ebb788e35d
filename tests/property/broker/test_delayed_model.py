"""The index of delayed messages against a plain model, whatever is added, stored and due."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.broker.features.delayed.index import Bucket, DelayedIndex
from magnetar.broker.features.delayed.position_set import PositionSet
from magnetar.ledger.position import Position

_POSITIONS = st.builds(Position, st.integers(0, 2), st.integers(0, 40))
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), _POSITIONS, st.integers(1, 100)),
        st.tuples(st.just("seal"), st.booleans(), st.just(0)),
        st.tuples(st.just("due"), st.integers(0, 110), st.integers(1, 10)),
        st.tuples(st.just("unload"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("restart"), st.integers(0, 110), st.just(0)),
    ),
    max_size=60,
)


@dataclass
class _World:
    """An index with its ledgers, and what a dictionary says."""

    index: DelayedIndex = field(default_factory=lambda: DelayedIndex(segment_records=3))
    model: dict[Position, int] = field(default_factory=dict)
    ledgers: list[list[bytes]] = field(default_factory=list)
    now_ms: int = 0

    def add(self, position: Position, due_ms: int) -> None:
        if position not in self.model:
            self.model[position] = due_ms
        self.index.add(due_ms, position)

    def seal(self, is_stored: bool) -> None:
        if self.index.tail_records:
            bucket = self.index.seal()
            if is_stored:
                self.store(bucket)

    def store(self, bucket: Bucket) -> None:
        segments = bucket.whole()
        bucket.ledger_id = len(self.ledgers)
        self.ledgers.append(segments)
        bucket.unload(but_next=True)

    def due(self, cutoff_ms: int, count_max: int) -> None:
        self.now_ms = max(self.now_ms, cutoff_ms)
        expected = {each for each, due_ms in self.model.items() if due_ms <= cutoff_ms}
        found: list[Position] = []
        while True:
            taken, missing = self.index.take_due(cutoff_ms, count_max)
            assert len(taken) <= count_max
            found += taken
            for bucket in missing:
                assert bucket.ledger_id is not None
                at = bucket.next_segment
                bucket.load(at, self.ledgers[bucket.ledger_id][at])
            if not taken and not missing and (self.index.next_due_ms or 1 << 62) > cutoff_ms:
                break
        assert len(found) == len(set(found))
        assert set(found) == expected
        for each in found:
            del self.model[each]

    def restart(self, cutoff_ms: int) -> None:
        """What was stored is there again, but for what is due; the rest is found by reading."""
        self.now_ms = cutoff_ms = max(cutoff_ms, self.now_ms)
        before = self.index
        self.index = DelayedIndex(segment_records=3)
        for bucket in before.buckets:
            if bucket.ledger_id is None:
                continue
            segments = self.ledgers[bucket.ledger_id]
            again = Bucket(
                [None] * len(segments),
                bucket.starts_ms,
                records=bucket.records,
                last=bucket.last,
                ledger_id=bucket.ledger_id,
            )
            self.index.restore(again, segments, cutoff_ms=cutoff_ms)
            again.unload(but_next=True)
        self.model = {each: due for each, due in self.model.items() if due > cutoff_ms}
        for each, due_ms in self.model.items():
            self.index.add(due_ms, each)


@given(_STEPS)
@settings(deadline=None)
def test_everything_is_due_once_at_its_time(steps: list[tuple[str, object, int]]) -> None:
    world = _World()
    for kind, what, number in steps:
        if kind == "add":
            assert isinstance(what, Position)
            world.add(what, number)
        elif kind == "seal":
            world.seal(bool(what))
        elif kind == "due":
            assert isinstance(what, int)
            world.due(what, number)
        elif kind == "unload":
            assert isinstance(what, int)
            world.index.unload(what)
        else:
            assert isinstance(what, int)
            world.restart(what)
        assert len(world.index.withheld) == len(world.model)
        assert all(each in world.index.withheld for each in world.model)
    world.due(1000, 7)
    assert world.index.next_due_ms is None
    assert not world.index.withheld


@given(st.sets(_POSITIONS), st.sets(_POSITIONS), _POSITIONS, st.integers(0, 50))
def test_a_position_set_is_a_set(
    added: set[Position], discarded: set[Position], probe: Position, count: int
) -> None:
    found, model = PositionSet(), set(added)
    for each in added:
        assert found.add(each)
        assert not found.add(each)
    for each in discarded:
        assert found.discard(each) == (each in model)
        model.discard(each)
    assert len(found) == len(model)
    assert bool(found) == bool(model)
    assert (probe in found) == (probe in model)
    assert found.count_after(probe) == sum(each > probe for each in model)
    last = found.stretch_from(probe)
    if probe in model:
        assert last is not None
        stretch = [Position(probe.ledger_id, at) for at in range(probe.entry_id, last.entry_id + 1)]
        assert set(stretch) <= model
        assert Position(last.ledger_id, last.entry_id + 1) not in model
    else:
        assert last is None
    taken = found.take(count)
    assert taken == sorted(model)[:count]
    assert len(found) == len(model) - len(taken)
