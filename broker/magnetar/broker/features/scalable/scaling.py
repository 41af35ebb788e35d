"""Decides whether to split or merge a scalable topic now, by the load of its segments. Pure.

A segment is *hot* when one of its four rates is above the threshold of splits, *cold* when all four
are below those of merges. In the band between the two nothing happens. The hottest segment is split
in its middle. Among pairs of neighbours that have both been cold for a while, the coldest pair is
merged. With more stream consumers than segments, the busiest segment is split even below the
threshold, and no merge may leave a consumer without a segment. If the busiest has too little load
for that, or the topic may have no more segments, it gets entry buckets instead. Then the next one
gets them, until every consumer has a segment or a share of one.

Why it does not oscillate: the threshold of merges is at most half of that of splits, so two cold
segments make one that is not hot. One half of a hot segment may be cold, but not both, unless the
load falls. And after any split or merge there is none for a while, by the times in the record, so
that the broker that decides next observes it as well.

One key with too much load cannot be divided. Splits narrow its segment down to a single hash, and
then stop; cold segments next to it are merged. So the number of segments stays bounded.

An unknown rate is neither hot nor cold. Source: sheet of Pulsar 5, section 3.7.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.base.settings.scaling import MERGED_SHARE, RATES
from magnetar.broker.features.scalable.layout import ENTRY_BUCKETS_MAX
from magnetar.broker.features.scalable.record import (
    ChangeKind,
    ScalableTopicRecord,
    SegmentRecord,
)
from magnetar.broker.policies.model import AutoScale


@dataclass(frozen=True, slots=True)
class Rates:
    """Traffic of a segment, or a threshold for it; per second."""

    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    bytes_rate_in: float = 0.0
    bytes_rate_out: float = 0.0

    def share_of(self, threshold: "Rates") -> float:
        """Return the highest of the four as a share of its threshold; above 1, it exceeds one."""
        return max(_share(getattr(self, each), getattr(threshold, each)) for each in RATES)

    def is_below(self, threshold: "Rates") -> bool:
        """Whether all four are below their thresholds."""
        return all(getattr(self, each) < getattr(threshold, each) for each in RATES)


def _share(rate: float, threshold: float) -> float:
    if threshold > 0:
        return rate / threshold
    return float("inf") if rate > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePolicy:
    """Scaling policy in effect for one topic. The fields are those of the settings."""

    is_on: bool
    segments_min: int
    segments_max: int
    depth_max: int
    split: Rates
    merge: Rates
    consumers_split_msg_rate_in: float
    split_cooldown_s: float
    merge_cooldown_s: float
    merge_window_s: float
    rebucket_cooldown_s: float

    @classmethod
    def of_broker(cls, settings: BrokerSettings) -> "ScalePolicy":
        """Return the policy of topics that override nothing."""
        return cls(
            is_on=settings.scalable_auto_scale,
            segments_min=settings.scalable_segments_min,
            segments_max=settings.scalable_segments_max,
            depth_max=settings.scalable_layout_depth_max,
            split=Rates(*(getattr(settings, f"scalable_split_{each}") for each in RATES)),
            merge=Rates(*(getattr(settings, f"scalable_merge_{each}") for each in RATES)),
            consumers_split_msg_rate_in=settings.scalable_consumers_split_msg_rate_in,
            split_cooldown_s=settings.scalable_split_cooldown_s,
            merge_cooldown_s=settings.scalable_merge_cooldown_s,
            merge_window_s=settings.scalable_merge_window_s,
            rebucket_cooldown_s=settings.scalable_rebucket_cooldown_s,
        )

    def over(self, own: AutoScale | None) -> "ScalePolicy":
        """Return this policy with what a namespace or topic overrides.

        An override cannot raise the maximum of segments, because the change itself checks the
        broker's `segments_max`.
        """
        if own is None:
            return self
        found: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(own, field.name, None)
            if value is not None:
                found[field.name] = value
        for kind in ("split", "merge"):
            rates: Rates = getattr(self, kind)
            values = {each: getattr(own, f"{kind}_{each}") for each in RATES}
            found[kind] = replace(
                rates, **{name: each for name, each in values.items() if each is not None}
            )
        found["segments_max"] = min(self.segments_max, found.get("segments_max", self.segments_max))
        return replace(self, **found)

    @property
    def fault(self) -> str:
        """Why these values scale nothing, in words; empty if they are consistent."""
        if self.segments_min > self.segments_max:
            return f"minSegments {self.segments_min} is above maxSegments {self.segments_max}"
        for each in RATES:
            split, merge = getattr(self.split, each), getattr(self.merge, each)
            if merge * MERGED_SHARE > split:
                return (
                    f"the merge threshold of {each}, {merge}, is more than half of the split "
                    f"threshold, {split}: what is merged would be split again"
                )
        return ""


@dataclass(frozen=True, slots=True)
class Split:
    """Decision to divide this segment in its middle."""

    segment_id: int
    share: float
    """Highest rate of the segment, as a share of the threshold."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Decision to merge these two segments."""

    one: int
    other: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Decision to do nothing now."""

    reason: str = ""
    """Why a change that the load calls for is not made; empty if the load calls for none."""
    is_full: bool = False
    """Whether the topic should be split, but may have no more segments."""


@dataclass(frozen=True, slots=True)
class Rebucket:
    """Decision to give this segment so many entry buckets."""

    segment_id: int
    buckets: int


Decision = Split | Merge | Rebucket | Wait


class TopicScaling:
    """State of one topic between checks: since when neighbours are cold."""

    def __init__(self) -> None:
        self._cold_since_s: dict[tuple[int, int], float] = {}
        self._looked_s = 0.0

    def decide(
        self,
        record: ScalableTopicRecord,
        loads: Mapping[int, Rates],
        policy: ScalePolicy,
        *,
        consumers: int,
        wall_ms: int,
        now_s: float,
        gap_s_max: float,
    ) -> Decision:
        """Return what to do with the topic now.

        Args:
            loads: rates by the id of the segment; those of a missing segment are unknown.
            consumers: largest number of stream consumers on one subscription.
            gap_s_max: after a longer time without a check, what was cold no longer counts as cold.
        """
        if now_s - self._looked_s > gap_s_max:
            self._cold_since_s.clear()
        self._looked_s = now_s
        active = record.active
        self._note_cold(active, loads, policy.merge, now_s)
        if not policy.is_on:
            return Wait("it is switched off")
        if fault := policy.fault:
            return Wait(fault)
        if record.change is not None or record.is_deleted:
            return Wait("a change is under way")
        since_s = max(0.0, (wall_ms - last_change_ms(record)) / 1000)
        wanted = _wanted_split(active, loads, policy, consumers)
        if wanted is None:
            rebucket = _wanted_rebucket(active, loads, consumers)
            if rebucket is None:
                return self._merge(record, active, loads, policy, consumers, since_s, now_s)
            if since_s < policy.rebucket_cooldown_s:
                return Wait(f"the last change was {since_s:.0f} s ago: entry buckets wait")
            return rebucket
        if len(active) >= policy.segments_max:
            merge = self._merge(record, active, loads, policy, consumers, since_s, now_s)
            full = f"segment {wanted.segment_id} is hot, and the topic has {len(active)} segments"
            return merge if isinstance(merge, Merge) else Wait(full, is_full=True)
        if since_s < policy.split_cooldown_s:
            return Wait(f"the last change was {since_s:.0f} s ago: splits wait")
        return wanted

    def _note_cold(
        self,
        active: Sequence[SegmentRecord],
        loads: Mapping[int, Rates],
        threshold: Rates,
        now_s: float,
    ) -> None:
        cold = {each.id for each in active if each.id in loads}
        cold = {each for each in cold if loads[each].is_below(threshold)}
        pairs = pairwise(active)
        ids = [(one.id, other.id) for one, other in pairs if {one.id, other.id} <= cold]
        self._cold_since_s = {pair: self._cold_since_s.get(pair, now_s) for pair in ids}

    def _merge(
        self,
        record: ScalableTopicRecord,
        active: Sequence[SegmentRecord],
        loads: Mapping[int, Rates],
        policy: ScalePolicy,
        consumers: int,
        since_s: float,
        now_s: float,
    ) -> Decision:
        due = [
            pair
            for pair, cold_since_s in self._cold_since_s.items()
            if now_s - cold_since_s >= policy.merge_window_s
        ]
        if not due or len(active) <= max(policy.segments_min, consumers):
            return Wait()
        if since_s < policy.merge_cooldown_s:
            return Wait(f"the last change was {since_s:.0f} s ago: merges wait")
        depths = depths_of(record)
        shallow = [pair for pair in due if max(depths[each] for each in pair) < policy.depth_max]
        if not shallow:
            return Wait(f"the layout has {policy.depth_max} generations of segments: merges wait")
        coldest = min(
            shallow,
            key=lambda pair: (sum(loads[each].share_of(policy.split) for each in pair), pair),
        )
        return Merge(*coldest)


def _wanted_split(
    active: Sequence[SegmentRecord],
    loads: Mapping[int, Rates],
    policy: ScalePolicy,
    consumers: int,
) -> Split | None:
    """Return the split that the load, or the number of consumers, calls for; None if none."""
    divisible = [each.id for each in active if each.id in loads and len(each.hashes) > 1]
    shares = {each: loads[each].share_of(policy.split) for each in divisible}
    hottest = max(shares, key=lambda each: (shares[each], -each), default=None)
    if hottest is not None and shares[hottest] > 1:
        return Split(hottest, shares[hottest])
    if consumers <= len(active) or len(active) >= policy.segments_max:
        return None
    busiest = max(divisible, key=lambda each: (loads[each].msg_rate_in, -each), default=None)
    if busiest is None or loads[busiest].msg_rate_in < policy.consumers_split_msg_rate_in:
        return None
    return Split(busiest, shares[busiest])


def _wanted_rebucket(
    active: Sequence[SegmentRecord], loads: Mapping[int, Rates], consumers: int
) -> Rebucket | None:
    """Return the busiest segment with too few entry buckets, if there are consumers without a
    share. It gets a power of two of them."""
    if consumers <= sum(each.entry_buckets for each in active):
        return None
    each_has = -(-consumers // len(active))
    buckets = min(1 << (each_has - 1).bit_length(), ENTRY_BUCKETS_MAX)
    found = [each.id for each in active if each.entry_buckets < buckets]
    if not found:
        return None
    none = Rates()
    return Rebucket(
        max(found, key=lambda each: (loads.get(each, none).msg_rate_in, -each)), buckets
    )


def last_change_ms(record: ScalableTopicRecord, *, parents: Sequence[int] = (1, 2)) -> int:
    """Return when a topic was last split, merged or rebucketed, in ms of the wall clock; 0: never.
    `parents`: numbers of parents that count, 1 for splits and rebuckets, 2 for merges.

    A migration does not count. Once the logs from before it have left the record, and another
    change has followed, its segments can no longer be told from those of a split or merge.
    """
    if record.last_change is not None and record.last_change.kind is ChangeKind.MIGRATION:
        return 0
    migrated = {each.id for each in (*record.segments, *record.pruned) if each.legacy is not None}
    made = (
        each.created_ms
        for each in record.segments
        if len(each.parents) in parents and migrated.isdisjoint(each.parents)
    )
    return max(made, default=0)


def depths_of(record: ScalableTopicRecord) -> dict[int, int]:
    """Return the number of generations before each segment, by its id; 0 without known parents."""
    depths: dict[int, int] = {}
    for each in record.segments:  # Parents have smaller ids.
        known = [depths[parent] for parent in each.parents if parent in depths]
        depths[each.id] = 1 + max(known) if known else 0
    return depths
