"""The record of a scalable topic: its stored layout, and the rules that always hold for it. Pure.

/topics/<tenant>/<namespace>/<quoted name>   ScalableTopicRecord

The ring of 65,536 hashes is divided among segments. *Active* segments take messages. A *sealed* one
has been split or merged, takes none, and is read to its end. These rules always hold:

- The ranges of the active segments tile the ring: each hash is in exactly one of them.
- Parents and children name each other; a child covers a part of each of its parents, the children
  of a segment cover all of it.
- An id is used once, and epochs grow: a segment is made at an epoch, and sealed at a later one.
- Holds have ids of their own, which are used once.
- A change that is under way names active parents, and children that cover the same hashes. The
  children have ids of their own already, but are not segments yet.
- While a plain or partitioned topic is migrated, its logs are the parents, each with the whole
  ring; it has no other segments. Afterwards they are sealed.

A value that breaks one of these rules is refused, like one of another format. Changes are in
`changes.py`. Format: docs/formats/scalable-topics.md. Source: sheet of Pulsar 5, sections 2.2 and
2.3; names are ours.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from magnetar.broker.features.scalable.layout import (
    ENTRY_BUCKETS_MAX,
    RING,
    Hold,
    Layout,
    Segment,
    synthetic_layout,
)
from magnetar.broker.policies.model import AutoScale, Record
from magnetar.sdk.wire import TopicName

FIRST_EPOCH = 1
"""Epoch of a new topic. Synthetic layouts of topics without partitions have 0."""


class SegmentState(StrEnum):
    """State of a segment. Stored; never rename."""

    ACTIVE = "ACTIVE"
    SEALED = "SEALED"


class ChangeKind(StrEnum):
    """Kind of a change of the layout. Stored; never rename."""

    SPLIT = "SPLIT"
    MERGE = "MERGE"
    MIGRATION = "MIGRATION"
    """A plain or partitioned topic becomes scalable: its logs become sealed segments."""
    REBUCKET = "REBUCKET"
    """A segment is replaced by one with the same hashes and another number of entry buckets."""


LEGACY_PLAIN = -1
"""Value of `legacy` for the log of a topic without partitions. Stored; never renumber."""


class SegmentRecord(BaseModel):
    """A segment. Fields of newer releases are kept as they came."""

    model_config = ConfigDict(frozen=True, extra="allow")

    id: int = Field(ge=0)
    hash_start: int = Field(ge=0, lt=RING)
    hash_end: int = Field(ge=0, lt=RING)
    """Last hash, inclusive."""
    state: SegmentState = SegmentState.ACTIVE
    parents: tuple[int, ...] = ()
    children: tuple[int, ...] = ()
    created_epoch: int = Field(ge=FIRST_EPOCH)
    created_ms: int = Field(ge=0)
    sealed_epoch: int | None = None
    sealed_ms: int | None = None
    legacy: int | None = Field(default=None, ge=LEGACY_PLAIN)
    """Partition that it was before a migration; None if it has always been a segment."""
    entry_buckets: int = Field(default=1, ge=1, le=ENTRY_BUCKETS_MAX)

    @property
    def is_sealed(self) -> bool:
        return self.state is SegmentState.SEALED

    @property
    def hashes(self) -> range:
        return range(self.hash_start, self.hash_end + 1)

    def name_in(self, topic: TopicName) -> TopicName:
        """Return the name of the topic that has the segment's messages."""
        if self.legacy is not None:
            return topic if self.legacy == LEGACY_PLAIN else topic.partition(self.legacy)
        return topic.segment(self.id, start=self.hash_start, end=self.hash_end)


class PendingChange(BaseModel):
    """A change of the layout that has begun. Any broker may finish it."""

    model_config = ConfigDict(frozen=True, extra="allow")

    kind: ChangeKind
    parents: tuple[int, ...]
    children: tuple[SegmentRecord, ...]
    """Segments that it makes, in the order of their ranges."""
    begun_ms: int = Field(ge=0)


class HoldRecord(BaseModel):
    """A subscription that moves back in the topic. Meanwhile no coordinator gives stream consumers
    the descendants of the segments on which it moves."""

    model_config = ConfigDict(frozen=True, extra="allow")

    id: int = Field(ge=1)
    subscription: str
    segment: int | None = None
    """Segment on which it moves back; None for all segments."""
    begun_ms: int = Field(ge=0)


class LastChange(BaseModel):
    """The change that was finished last, for display."""

    model_config = ConfigDict(frozen=True, extra="allow")

    kind: ChangeKind
    parents: tuple[int, ...]
    begun_ms: int
    ended_ms: int
    stalled_ms: int
    """Longest time, in ms, for which the keys of the parents could not be published."""


class ScalableTopicRecord(Record):
    """A scalable topic."""

    epoch: int = Field(ge=FIRST_EPOCH)
    next_segment_id: int = Field(ge=1)
    segments: tuple[SegmentRecord, ...]
    """Segments in the order of their ids."""
    created_ms: int = Field(ge=0)
    """Time of creation, which also distinguishes a topic from a later one of its name."""
    properties: dict[str, str] = Field(default_factory=dict)
    is_deleted: bool = False
    """Whether the topic is being deleted: nothing of it appears any more."""
    gives_way: bool = False
    """Whether it is hidden (`is_deleted`) only until it is clear whether it stays: the name was
    taken by a plain topic at its creation. Any broker may find that out."""
    change: PendingChange | None = None
    pruned: tuple[SegmentRecord, ...] = ()
    """Segments that left the layout, but whose logs are not yet deleted."""
    splits: int = Field(default=0, ge=0)
    """Splits since the topic was created; merges are counted alike."""
    merges: int = Field(default=0, ge=0)
    last_change: LastChange | None = None
    auto_scale: AutoScale | None = None
    """The topic's own policy of splits and merges by load."""
    seeks: int = Field(default=0, ge=0)
    """Number of holds since the topic was created, which is the id of the last one."""
    holds: tuple[HoldRecord, ...] = ()

    @model_validator(mode="after")
    def _holds(self) -> Self:
        fault = fault_of(self)
        if fault:
            raise ValueError(fault)
        return self

    @property
    def is_migrating(self) -> bool:
        """Whether the topic is being migrated, and still is a plain or partitioned one for its
        clients."""
        return self.change is not None and self.change.kind is ChangeKind.MIGRATION

    @property
    def legacy(self) -> Sequence[SegmentRecord]:
        """Segments that were partitions, or a plain topic, before a migration."""
        return [each for each in self.segments if each.legacy is not None]

    def find_named(self, topic: TopicName, name: TopicName) -> SegmentRecord | None:
        """Return the segment whose messages are in the topic `name`; None if it is not, or no
        longer, in the layout."""
        segment_id = name.segment_id if name.is_segment else max(0, name.partition_index)
        found = self.find(segment_id)
        return found if found is not None and found.name_in(topic) == name else None

    def find(self, segment_id: int) -> SegmentRecord | None:
        """Return the segment with this id; None if it is not, or no longer, in the layout."""
        return next((each for each in self.segments if each.id == segment_id), None)

    @property
    def active(self) -> Sequence[SegmentRecord]:
        """Segments that take messages, in the order of their ranges."""
        found = (each for each in self.segments if not each.is_sealed)
        return sorted(found, key=lambda each: each.hash_start)

    @property
    def sealed(self) -> Sequence[SegmentRecord]:
        """Segments that take no messages any more, in the order of their ids."""
        return [each for each in self.segments if each.is_sealed]

    def descendants(self, segment: SegmentRecord) -> Sequence[SegmentRecord]:
        """Return the descendants of a segment, over all generations, in the order of their ids."""
        found: set[int] = set()
        waiting = list(segment.children)
        while waiting:
            each = self.find(waiting.pop())
            if each is not None and each.id not in found:
                found.add(each.id)
                waiting += each.children
        return [each for each in self.segments if each.id in found]

    def layout_of(self, topic: TopicName) -> Layout:
        """Return the layout for clients. `topic`: the `persistent://` name."""
        if self.is_migrating:
            partitions = sum(each.legacy != LEGACY_PLAIN for each in self.segments)
            return synthetic_layout(topic, partitions, is_ending=self.is_deleted)
        segments = tuple(
            Segment(
                each.id,
                each.hash_start,
                each.hash_end,
                str(each.name_in(topic)),
                is_legacy=each.legacy is not None,
                parents=each.parents,
                children=each.children,
                created_epoch=each.created_epoch,
                created_ms=each.created_ms,
                sealed_epoch=each.sealed_epoch,
                sealed_ms=each.sealed_ms,
                buckets=each.entry_buckets,
            )
            for each in self.segments
        )
        holds = tuple(Hold(each.id, each.subscription, each.segment) for each in self.holds)
        return Layout(self.epoch, segments, self.is_deleted, born_ms=self.created_ms, holds=holds)


def fault_of(record: ScalableTopicRecord) -> str:
    """Return which rule a record breaks, in words; empty if it breaks none."""
    return (
        _fault_of_segments(record)
        or _fault_of_links(record)
        or _fault_of_change(record)
        or _fault_of_holds(record)
    )


def _fault_of_segments(record: ScalableTopicRecord) -> str:
    ids = [each.id for each in record.segments]
    if ids != sorted(set(ids)) or (ids and ids[-1] >= record.next_segment_id):
        return f"segments {ids} are not in order, or not below {record.next_segment_id}"
    for each in record.segments:
        if each.created_epoch > record.epoch:
            return f"segment {each.id} was made at {each.created_epoch}, after {record.epoch}"
        sealed = each.sealed_epoch
        if each.is_sealed != (sealed is not None) or each.is_sealed != bool(each.children):
            return f"segment {each.id} is {each.state}: epoch of its seal and children must fit"
        if sealed is not None and not each.created_epoch < sealed <= record.epoch:
            return f"segment {each.id} was sealed at {sealed}, made at {each.created_epoch}"
    if record.is_migrating:
        is_before = all(each.legacy is not None and not each.is_sealed for each in record.segments)
        return "" if is_before else "a topic that is being migrated has segments already"
    known = set(ids)
    if any(not each.is_sealed or each.id in known for each in record.pruned):
        return "what is pruned is not sealed, or is there as well"
    if not _tiles(record.active, range(RING)):
        return "the ranges of the active segments do not tile the ring"
    if any(each.legacy is not None for each in record.active):
        return "a segment that was a partition is active"
    return ""


def _fault_of_links(record: ScalableTopicRecord) -> str:
    known = {each.id: each for each in record.segments}
    for parent in record.segments:
        children = [known[each] for each in parent.children if each in known]
        for child in children:
            if parent.id not in child.parents or not _overlaps(child, parent):
                return f"segment {child.id} is no child of {parent.id}, which names it"
        if len(children) == len(parent.children) and not _covers(children, parent):
            return f"the children of segment {parent.id} do not cover it"
        for other in parent.parents:
            if other in known and parent.id not in known[other].children:
                return f"segment {other} does not name its child {parent.id}"
    return ""


def _fault_of_change(record: ScalableTopicRecord) -> str:
    change = record.change
    if change is None:
        return ""
    parents = [record.find(each) for each in change.parents]
    active = [each for each in parents if each is not None and not each.is_sealed]
    if not active or len(active) != len(set(change.parents)):
        return f"the change under way has parents {change.parents} that are not all active"
    known = {each.id for each in record.segments}
    for child in change.children:
        if child.id in known or child.id >= record.next_segment_id:
            return f"child {child.id} of the change under way has no id of its own"
        if child.is_sealed or child.parents != change.parents or child.children:
            return f"child {child.id} of the change under way is not as it will be"
    if change.kind is ChangeKind.MIGRATION:
        is_whole = len(active) == len(record.segments) and _tiles(change.children, range(RING))
        return "" if is_whole else "the children of a migration do not tile the ring"
    start = min(each.hash_start for each in active)
    end = max(each.hash_end for each in active)
    both = range(start, end + 1)
    if not _tiles(active, both) or not _tiles(change.children, both):
        return "parents and children of the change under way do not cover the same hashes"
    return ""


def _fault_of_holds(record: ScalableTopicRecord) -> str:
    ids = [each.id for each in record.holds]
    if ids != sorted(set(ids)) or (ids and ids[-1] > record.seeks):
        return f"holds {ids} are not in order, or above {record.seeks}"
    return ""


def _tiles(segments: Iterable[SegmentRecord], hashes: range) -> bool:
    """Whether each of the hashes is in exactly one of the segments, and no other is in any."""
    at = hashes.start
    for each in sorted(segments, key=lambda each: each.hash_start):
        if each.hash_start != at or each.hash_end < each.hash_start:
            return False
        at = each.hash_end + 1
    return at == hashes.stop


def _overlaps(one: SegmentRecord, other: SegmentRecord) -> bool:
    return one.hash_start <= other.hash_end and other.hash_start <= one.hash_end


def _covers(children: Sequence[SegmentRecord], parent: SegmentRecord) -> bool:
    if not children:
        return True
    start = min(each.hash_start for each in children)
    end = max(each.hash_end for each in children)
    return (
        start <= parent.hash_start
        and parent.hash_end <= end
        and _tiles(children, range(start, end + 1))
    )
