"""The layout of a topic: its segments, and which of them takes a key. Pure; no I/O.

A layout is a directed graph. A segment has a range of key hashes, and is active or sealed. A split
or merge seals segments and adds their children. The ranges of the active ones cover all hashes from
0 to 65535, each exactly once. Every change has a higher epoch, and ids are never reused.

A plain or partitioned topic has a layout as well: one *legacy* segment, or one for each partition.
While all active segments are legacy ones, a key goes to the segment whose id is its hash modulo
their number, as in clients of version 4 with Murmur3. Otherwise the upper 16 bits of the hash
decide, by the ranges. Source: sheet of Pulsar 5, sections 1.3, 1.5, 1.10 and 2.3.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from mmh3 import mmh3_32_uintdigest

from magnetar.sdk.errors import LayoutError
from magnetar.sdk.scalable.names import LayoutName
from magnetar.sdk.wire.errors import TopicNameError
from magnetar.sdk.wire.key_hashes import murmur3_hash
from magnetar.sdk.wire.pulsar_pb2 import SEALED, ScalableTopicDAG, SegmentInfoProto
from magnetar.sdk.wire.topic_name import TopicName

HASH_MAX = 0xFFFF
SEGMENTS_MAX = 100_000
"""Most segments of a layout that a client accepts."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a topic, stored as a topic of its own."""

    id: int
    hash_start: int
    hash_end: int
    """Last hash, included."""
    topic: TopicName
    is_sealed: bool = False
    parents: tuple[int, ...] = ()
    is_legacy: bool = False
    """Whether the segment is a plain topic or a partition: its range of hashes has no meaning
    then."""
    bucket_splits: tuple[int, ...] = ()
    """First hashes of the entry buckets, without the first bucket; empty if there is only one.
    Brokers may divide the segment's entries among consumers by buckets, so an entry holds keys of
    one bucket."""
    created_ms: int = 0

    def overlaps(self, other: "Segment") -> bool:
        """Return whether a key may have been in both, now or in an earlier layout."""
        if self.is_legacy or other.is_legacy:
            return True
        return self.hash_start <= other.hash_end and other.hash_start <= self.hash_end


class Layout:
    """The segments of a topic at one epoch."""

    def __init__(
        self,
        epoch: int,
        segments: Iterable[Segment],
        *,
        controller_url: str = "",
        controller_url_tls: str = "",
    ) -> None:
        """Check the segments.

        Raises:
            LayoutError: an id appears twice, or the active segments do not cover the hashes once.
        """
        self.epoch = epoch
        self.controller_url, self.controller_url_tls = controller_url, controller_url_tls
        self.segments = tuple(sorted(segments, key=lambda each: each.id))
        self.by_id = {each.id: each for each in self.segments}
        if len(self.by_id) != len(self.segments):
            raise LayoutError(f"layout of epoch {epoch}: a segment id appears twice")
        active = [each for each in self.segments if not each.is_sealed]
        self.by_modulo = all(each.is_legacy for each in active)
        """Whether keys are assigned by the modulo of their hash, not by ranges."""
        if not self.by_modulo:
            active.sort(key=lambda each: each.hash_start)
        self.active = tuple(active)
        """Segments that take messages: by id, or by range if ranges decide."""
        self._check_active()
        self._starts = [each.hash_start for each in active]

    def __repr__(self) -> str:
        return f"<Layout of epoch {self.epoch}, {len(self.active)} of {len(self.segments)} active>"

    @classmethod
    def from_dag(cls, name: LayoutName, dag: ScalableTopicDAG) -> "Layout":
        """Parse a layout from a broker.

        Raises:
            LayoutError: the layout cannot be used.
        """
        if len(dag.segments) > SEGMENTS_MAX:
            raise LayoutError(
                f"the layout of {name} has {len(dag.segments)} segments; the client accepts "
                f"{SEGMENTS_MAX}"
            )
        return cls(
            dag.epoch,
            [_segment(name, each) for each in dag.segments],
            controller_url=dag.controller_broker_url,
            controller_url_tls=dag.controller_broker_url_tls,
        )

    def segment_of(self, key: bytes) -> Segment:
        """Return the active segment that takes messages of a key."""
        if self.by_modulo:
            return self.active[murmur3_hash(key) % len(self.active)]
        at = mmh3_32_uintdigest(key) >> 16
        return self.active[bisect_right(self._starts, at) - 1]

    def is_active(self, segment_id: int) -> bool:
        """Return whether the segment takes messages."""
        segment = self.by_id.get(segment_id)
        return segment is not None and not segment.is_sealed

    def replaces(self, other: "Layout") -> bool:
        """Return whether this layout is newer than another one of the same name.

        The other one may also be of a previous topic, which was deleted and created again under the
        name.
        """
        if self.epoch > other.epoch:
            return True
        common = [(each, other.by_id[each.id]) for each in self.segments if each.id in other.by_id]
        if not common:
            return self.segments[-1].id < other.segments[-1].id  # Ids of a topic only grow.
        return any(
            not ours.is_legacy and ours.created_ms != theirs.created_ms for ours, theirs in common
        )

    def _check_active(self) -> None:
        if not self.active:
            raise LayoutError(f"layout of epoch {self.epoch}: no segment takes messages")
        if self.by_modulo:
            if [each.id for each in self.active] != list(range(len(self.active))):
                raise LayoutError(
                    f"layout of epoch {self.epoch}: expected partitions 0 to "
                    f"{len(self.active) - 1}, got {[each.id for each in self.active]}"
                )
            return
        expected = 0
        for each in self.active:
            if each.hash_start != expected or each.hash_end < each.hash_start:
                raise LayoutError(
                    f"layout of epoch {self.epoch}: expected a segment that begins at hash "
                    f"{expected}, got segment {each.id} of {each.hash_start} to {each.hash_end}"
                )
            expected = each.hash_end + 1
        if expected != HASH_MAX + 1:
            raise LayoutError(
                f"layout of epoch {self.epoch}: no segment has the hashes from {expected} on"
            )


def _segment(name: LayoutName, info: SegmentInfoProto) -> Segment:
    """Parse one segment.

    Raises:
        LayoutError: its range, buckets or name cannot be used.
    """
    start, end, number = info.hash_start, info.hash_end, info.segment_id
    if not 0 <= start <= end <= HASH_MAX:
        raise LayoutError(f"{name}: segment {number} has hashes {start} to {end}")
    is_legacy = info.HasField("legacy_topic_name")
    splits = tuple(info.entry_bucket_splits)
    if any(one >= other for one, other in pairwise((0, *splits, HASH_MAX + 1))):
        raise LayoutError(f"{name}: entry buckets of segment {number} begin at {splits}")
    try:
        topic = (
            TopicName.parse(info.legacy_topic_name)
            if is_legacy
            else name.whole.segment(number, start=start, end=end)
        )
    except TopicNameError as error:
        raise LayoutError(f"{name}: segment {number} has no valid name: {error}") from error
    return Segment(
        number,
        start,
        end,
        topic,
        is_sealed=info.state == SEALED,
        parents=tuple(info.parent_ids),
        is_legacy=is_legacy,
        bucket_splits=splits,
        created_ms=info.created_at_ms,
    )
