"""What the load of its segments asks of a scalable topic, and what keeps it from that."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from magnetar.broker.base.errors import InvalidPolicyError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features.scalable import changes
from magnetar.broker.features.scalable.layout import ENTRY_BUCKETS_MAX
from magnetar.broker.features.scalable.record import ScalableTopicRecord
from magnetar.broker.features.scalable.scaling import (
    Decision,
    Merge,
    Rates,
    Rebucket,
    ScalePolicy,
    Split,
    TopicScaling,
    Wait,
    depths_of,
    last_change_ms,
)
from magnetar.broker.policies.model import AutoScale
from tests.unit.broker.scalable.test_changes import TOPIC, finish, merge, new, rebucket, split

POLICY = replace(
    ScalePolicy.of_broker(BrokerSettings()),
    segments_max=8,
    split=Rates(100, 500, 1e6, 5e6),
    merge=Rates(10, 50, 1e5, 5e5),
    consumers_split_msg_rate_in=40,
    split_cooldown_s=60,
    merge_cooldown_s=300,
    merge_window_s=120,
)
HOT, WARM, COLD = Rates(msg_rate_in=101), Rates(msg_rate_in=50), Rates(msg_rate_in=9)
LONG_AFTER_MS = 10_000_000


class Looks:
    """One broker that looks at a topic, again and again."""

    def __init__(self, record: ScalableTopicRecord, policy: ScalePolicy = POLICY) -> None:
        self.record = record
        self.policy = policy
        self.scaling = TopicScaling()

    def decide(
        self,
        loads: Mapping[int, Rates],
        *,
        now_s: float = 1_000.0,
        wall_ms: int = LONG_AFTER_MS,
        consumers: int = 0,
    ) -> Decision:
        return self.scaling.decide(
            self.record,
            loads,
            self.policy,
            consumers=consumers,
            wall_ms=wall_ms,
            now_s=now_s,
            gap_s_max=180.0,
        )

    def decide_after_the_window(self, loads: Mapping[int, Rates], consumers: int = 0) -> Decision:
        """After the same loads for just as long as merges wait for."""
        assert not isinstance(self.decide(loads, consumers=consumers), Merge)
        return self.decide(loads, now_s=1_000.0 + self.policy.merge_window_s, consumers=consumers)


@pytest.mark.parametrize("rate", ["msg_rate_in", "msg_rate_out", "bytes_rate_in", "bytes_rate_out"])
def test_each_rate_splits_a_segment_above_its_threshold_and_not_at_it(rate: str) -> None:
    threshold = getattr(POLICY.split, rate)
    assert isinstance(Looks(new()).decide({0: Rates(**{rate: threshold})}), Wait)
    assert Looks(new()).decide({0: Rates(**{rate: threshold * 1.5})}) == Split(0, 1.5)


def test_the_segment_farthest_above_a_threshold_is_split_first() -> None:
    loads = {0: HOT, 1: Rates(bytes_rate_out=2e7), 2: Rates(msg_rate_in=399)}
    assert Looks(new(3)).decide(loads) == Split(1, 4.0)


def test_a_single_hash_is_not_split_and_others_are() -> None:
    record = split(split(new(), 0, at=1), 2, at=2)
    narrow, one, rest = (each.id for each in record.active)
    assert Looks(record).decide({narrow: HOT, one: HOT, rest: WARM}) == Wait()
    assert Looks(record).decide({narrow: Rates(999), one: HOT, rest: HOT}) == Split(rest, 1.01)


def test_neighbours_are_merged_when_both_were_cold_for_the_whole_window() -> None:
    looks = Looks(new(2))
    cold = {0: COLD, 1: COLD}
    assert looks.decide(cold, now_s=0.0) == Wait()
    assert looks.decide(cold, now_s=119.0) == Wait()
    assert looks.decide(cold, now_s=120.0) == Merge(0, 1)


def test_a_moment_of_warmth_begins_the_window_anew() -> None:
    looks = Looks(new(2))
    looks.decide({0: COLD, 1: COLD}, now_s=0.0)
    looks.decide({0: COLD, 1: Rates(msg_rate_in=10)}, now_s=60.0)
    assert looks.decide({0: COLD, 1: COLD}, now_s=121.0) == Wait()
    assert looks.decide({0: COLD, 1: COLD}, now_s=241.0) == Merge(0, 1)


def test_time_without_looks_does_not_count_as_cold() -> None:
    looks = Looks(new(2))
    looks.decide({0: COLD, 1: COLD}, now_s=0.0)
    assert looks.decide({0: COLD, 1: COLD}, now_s=181.0) == Wait()


def test_the_coldest_of_several_pairs_is_merged() -> None:
    loads = {0: COLD, 1: COLD, 2: WARM, 3: COLD, 4: Rates(msg_rate_in=1)}
    assert Looks(new(5)).decide_after_the_window(loads) == Merge(3, 4)


def test_the_last_segment_and_the_first_are_no_neighbours() -> None:
    assert Looks(new(3)).decide_after_the_window({0: COLD, 1: WARM, 2: COLD}) == Wait()


def test_a_segment_of_which_nothing_is_known_is_neither_split_nor_merged() -> None:
    assert Looks(new(2)).decide_after_the_window({0: COLD}) == Wait()
    assert Looks(new(2)).decide({}) == Wait()


@pytest.mark.parametrize("partitions", [0, 1, 2, 3])
def test_a_migration_is_no_split_or_merge_that_the_next_one_waits_for(partitions: int) -> None:
    begun = changes.begin_migration(TOPIC, None, partitions, now_ms=10, segments_max=8)
    record = finish(begun)
    assert last_change_ms(record) == 0
    pruned = changes.prune(record, [each.id for each in record.legacy])
    assert pruned is not None
    assert last_change_ms(pruned) == 0
    first = record.active[0].id
    after = split(record, first)
    assert last_change_ms(after) == 30
    assert last_change_ms(after, parents=(2,)) == 0


def test_after_a_change_the_next_one_waits_also_at_another_broker() -> None:
    record = split(new(), 0)  # At 30 ms, by the record alone.
    hot = {1: HOT, 2: HOT}
    assert last_change_ms(record) == 30
    waiting = Looks(record).decide(hot, wall_ms=30 + 59_999)
    assert isinstance(waiting, Wait)
    assert "splits wait" in waiting.reason
    assert Looks(record).decide(hot, wall_ms=30 + 60_000) == Split(1, 1.01)
    looks, cold = Looks(record), {1: COLD, 2: COLD}
    looks.decide(cold, now_s=0.0, wall_ms=30)
    waiting = looks.decide(cold, now_s=150.0, wall_ms=30 + 299_999)
    assert isinstance(waiting, Wait)
    assert "merges wait" in waiting.reason
    assert looks.decide(cold, now_s=301.0, wall_ms=30 + 300_000) == Merge(1, 2)


def test_a_topic_has_no_more_segments_than_it_may_and_says_so() -> None:
    looks = Looks(new(3), replace(POLICY, segments_max=3))
    full = looks.decide({0: HOT, 1: WARM, 2: WARM})
    assert isinstance(full, Wait)
    assert full.is_full
    assert "has 3 segments" in full.reason


def test_a_full_topic_merges_what_is_cold_to_split_what_is_hot() -> None:
    looks = Looks(new(3), replace(POLICY, segments_max=3))
    assert looks.decide_after_the_window({0: HOT, 1: COLD, 2: COLD}) == Merge(1, 2)


def test_no_merge_leaves_less_segments_than_a_topic_shall_have() -> None:
    cold = {0: COLD, 1: COLD}
    looks = Looks(new(2), replace(POLICY, segments_min=2))
    assert looks.decide_after_the_window(cold) == Wait()


def test_no_merge_makes_a_layout_deeper_than_it_may_be() -> None:
    record = merge(split(new(), 0), 1, 2)
    record = split(record, 3)
    assert depths_of(record) == {0: 0, 1: 1, 2: 1, 3: 2, 4: 3, 5: 3}
    cold = {4: COLD, 5: COLD}
    deep = Looks(record, replace(POLICY, depth_max=3)).decide_after_the_window(cold)
    assert isinstance(deep, Wait)
    assert "generations" in deep.reason
    shallow = Looks(record, replace(POLICY, depth_max=4))
    assert shallow.decide_after_the_window(cold) == Merge(4, 5)


def test_more_stream_consumers_than_segments_split_the_busiest_that_has_enough_to_do() -> None:
    loads = {0: Rates(msg_rate_in=39), 1: Rates(msg_rate_in=50)}
    assert Looks(new(2)).decide(loads, consumers=2) == Wait()
    assert Looks(new(2)).decide(loads, consumers=3) == Split(1, 0.5)
    assert Looks(new(2)).decide({0: COLD, 1: COLD}, consumers=3) == Rebucket(0, 2)


@pytest.mark.parametrize(
    ("consumers", "expected"),
    [(2, Wait()), (3, Rebucket(1, 2)), (4, Rebucket(1, 2)), (5, Rebucket(1, 4))],
)
def test_consumers_beyond_the_segments_get_entry_buckets_in_the_busiest(
    consumers: int, expected: Decision
) -> None:
    loads = {0: COLD, 1: WARM}
    policy = replace(POLICY, consumers_split_msg_rate_in=1_000)
    assert Looks(new(2), policy).decide(loads, consumers=consumers) == expected


def test_entry_buckets_suffice_when_each_consumer_has_a_share() -> None:
    record = rebucket(new(2), 0, 2)  # The segments are 2 and 1 now.
    policy = replace(POLICY, consumers_split_msg_rate_in=1_000)
    assert Looks(record, policy).decide({}, consumers=3) == Wait()
    assert Looks(record, policy).decide({}, consumers=4) == Rebucket(1, 2)
    assert Looks(new(), policy).decide({}, consumers=5_000) == Rebucket(0, ENTRY_BUCKETS_MAX)
    full = rebucket(new(), 0, ENTRY_BUCKETS_MAX)
    assert Looks(full, policy).decide({}, consumers=5_000) == Wait()


def test_a_topic_that_may_have_no_more_segments_gets_entry_buckets() -> None:
    policy = replace(POLICY, segments_max=2)
    assert Looks(new(2), policy).decide({0: WARM, 1: COLD}, consumers=3) == Rebucket(0, 2)


def test_entry_buckets_wait_after_a_change() -> None:
    policy = replace(POLICY, rebucket_cooldown_s=100, segments_max=2)
    looks = Looks(split(new(), 0), policy)  # At 30 ms, by the record alone.
    assert isinstance(looks.decide({}, consumers=3, wall_ms=100_029), Wait)
    assert looks.decide({}, consumers=3, wall_ms=100_030) == Rebucket(1, 2)


def test_no_merge_takes_the_segment_of_a_consumer() -> None:
    cold = {0: COLD, 1: COLD}
    assert Looks(new(2)).decide_after_the_window(cold, consumers=2) == Wait()
    assert Looks(new(2)).decide_after_the_window(cold, consumers=1) == Merge(0, 1)


def test_nothing_happens_while_a_change_is_under_way() -> None:
    record = changes.begin_split(TOPIC, new(2), 0, now_ms=20, segments_max=8)
    waiting = Looks(record).decide({0: HOT, 1: HOT})
    assert waiting == Wait("a change is under way")


def test_a_topic_overrides_its_namespace_which_overrides_the_broker() -> None:
    namespace = AutoScale(is_on=False, segments_max=4, split_msg_rate_in=200.0)
    policy = POLICY.over(namespace).over(AutoScale(is_on=True, merge_window_s=5))
    assert (policy.is_on, policy.segments_max, policy.merge_window_s) == (True, 4, 5)
    assert policy.split == replace(POLICY.split, msg_rate_in=200.0)
    assert POLICY.over(None) == POLICY


def test_a_policy_allows_no_more_segments_than_the_broker() -> None:
    assert POLICY.over(AutoScale(segments_max=1_000)).segments_max == POLICY.segments_max


def test_a_topic_that_is_switched_off_is_left_as_it_is() -> None:
    policy = POLICY.over(AutoScale(is_on=False))
    assert Looks(new(), policy).decide({0: HOT}) == Wait("it is switched off")


@pytest.mark.parametrize(
    "own",
    [AutoScale(merge_msg_rate_in=51.0), AutoScale(segments_min=9)],
)
def test_a_policy_that_would_swing_scales_nothing_and_says_why(own: AutoScale) -> None:
    policy = POLICY.over(own)
    assert policy.fault
    assert Looks(new(), policy).decide({0: HOT}) == Wait(policy.fault)
    assert not POLICY.over(AutoScale(merge_msg_rate_in=50.0, segments_min=8)).fault


@pytest.mark.parametrize(
    ("own", "name"),
    [
        (AutoScale(segments_max=0), "maxSegments"),
        (AutoScale(merge_window_s=-1), "mergeWindowSeconds"),
        (AutoScale(split_msg_rate_in=0.0), "splitMsgRateInThreshold"),
    ],
)
def test_numbers_that_are_too_small_are_refused_by_their_names(own: AutoScale, name: str) -> None:
    with pytest.raises(InvalidPolicyError, match=name):
        own.check()
