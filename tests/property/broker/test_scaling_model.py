"""Splits and merges by load, against a model of traffic: keys on the ring, each with a rate.

Time passes in looks, one a minute, and what is decided is done at once. Whatever the load: a topic
has from one to so many segments, and two changes lie as far apart as they must. At a constant load
changes come to an end. While all segments are within the band between the thresholds there are
none at all.
"""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features.scalable import changes
from magnetar.broker.features.scalable.layout import RING
from magnetar.broker.features.scalable.record import ScalableTopicRecord
from magnetar.broker.features.scalable.scaling import (
    Merge,
    Rates,
    ScalePolicy,
    Split,
    TopicScaling,
    Wait,
)
from magnetar.sdk.wire import TopicName

_TOPIC = TopicName.parse("persistent://public/default/t")
_LOOK_S = 60
_SPLIT, _MERGE = 100.0, 50.0
_POLICY = replace(
    ScalePolicy.of_broker(BrokerSettings()),
    segments_max=6,
    depth_max=100,
    split=Rates(_SPLIT, _SPLIT, _SPLIT, _SPLIT),
    merge=Rates(_MERGE, _MERGE, _MERGE, _MERGE),
    split_cooldown_s=120,
    merge_cooldown_s=300,
    merge_window_s=180,
)
_LOOKS_UNTIL_QUIET = 1_500
_LOOKS_QUIET = 30
_KEYS = st.lists(
    st.tuples(st.integers(0, RING - 1), st.floats(0, 250, allow_subnormal=False)), max_size=5
)


class _World:
    def __init__(self, segments: int) -> None:
        self.record: ScalableTopicRecord = changes.new_topic(segments, now_ms=0, segments_max=6)
        self.scaling = TopicScaling()
        self.now_s = 0
        self.changed_s: list[int] = []

    def look(self, loads: dict[int, Rates]) -> None:
        """One look; what it decides is done."""
        self.now_s += _LOOK_S
        wall_ms = self.now_s * 1000
        decision = self.scaling.decide(
            self.record,
            loads,
            _POLICY,
            consumers=0,
            wall_ms=wall_ms,
            now_s=self.now_s,
            gap_s_max=3 * _LOOK_S,
        )
        if isinstance(decision, Wait):
            return
        if isinstance(decision, Split):
            begun = changes.begin_split(
                _TOPIC, self.record, decision.segment_id, now_ms=wall_ms, segments_max=6
            )
        else:
            assert isinstance(decision, Merge)
            begun = changes.begin_merge(
                _TOPIC, self.record, decision.one, decision.other, now_ms=wall_ms
            )
        assert begun.change is not None
        done = changes.commit(begun, begun.change, now_ms=wall_ms)
        assert done is not None
        cooldown_s = 120 if isinstance(decision, Split) else 300
        assert not self.changed_s or self.now_s - self.changed_s[-1] >= cooldown_s
        self.changed_s.append(self.now_s)
        self.record = done
        assert 1 <= len(done.active) <= 6

    def loads_of(self, keys: Sequence[tuple[int, float]]) -> dict[int, Rates]:
        return {
            each.id: Rates(msg_rate_in=sum(rate for at, rate in keys if at in each.hashes))
            for each in self.record.active
        }


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 6), _KEYS)
def test_at_a_constant_load_changes_come_to_an_end(
    segments: int, keys: list[tuple[int, float]]
) -> None:
    world = _World(segments)
    last = 0
    for number in range(_LOOKS_UNTIL_QUIET):
        before = len(world.changed_s)
        world.look(world.loads_of(keys))
        last = number if len(world.changed_s) > before else last
        if number - last > _LOOKS_QUIET:
            return
    raise AssertionError(f"{len(world.changed_s)} changes, and no end")


@given(st.integers(1, 6), st.lists(_KEYS, max_size=40))
def test_whatever_the_load_there_are_neither_too_many_segments_nor_changes(
    segments: int, loads: list[list[tuple[int, float]]]
) -> None:
    world = _World(segments)
    for keys in loads:
        for _ in range(3):
            world.look(world.loads_of(keys))
    assert len(world.changed_s) <= world.now_s / 120 + 1


@given(st.integers(1, 6), st.lists(st.lists(st.floats(_MERGE, _SPLIT), min_size=6), max_size=30))
def test_within_the_band_between_the_thresholds_nothing_changes(
    segments: int, rates: list[list[float]]
) -> None:
    world = _World(segments)
    for each in rates:
        world.look({number: Rates(msg_rate_in=each[number]) for number in range(segments)})
    assert world.changed_s == []
