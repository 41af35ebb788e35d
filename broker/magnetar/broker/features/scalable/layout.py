"""The layout of a topic: its segments, and the hashes of keys that each one has. Pure.

Clients of Pulsar 5 see every topic as a list of segments on a ring of 65,536 hashes. The layout of
a scalable topic is stored (`record.py`): active segments take messages, and tile the ring; sealed
ones are read to their end.

A plain or partitioned topic has a *synthetic* layout: one segment, or one per partition. Each
represents a topic with a `persistent://` name ("legacy segment"). Its ids are 0, 1, … without
holes, because clients choose the segment of a key by the hash modulo their number; the ranges of
hashes are for display only.

The epoch of a synthetic layout is the number of partitions, and 0 for a topic without any. So it
grows with the only possible change, which is more partitions, and needs no storage. Apache Pulsar
gives every synthetic layout epoch 0, and never announces a growth. Epochs of scalable topics begin
with 1.

A segment may have *entry buckets*: parts of another ring of 65,536 hashes, that of the lower 16
bits of a key's hash. Producers do not mix buckets in a batch. So several consumers can share a
segment, each with some buckets, and every key stays with one of them. The number of buckets of a
segment never changes: another number takes a new segment (a *rebucket*).

Source: sheet of Pulsar 5, sections 1.3, 1.10, 1.11 and 2.3.
"""

from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from magnetar.sdk.wire import TopicName

RING = 1 << 16
"""Hashes on the ring: 0 to 65,535."""

ENTRY_BUCKETS_MAX = 1024
"""Most entry buckets of a segment."""

PLAIN_EPOCH = 0
"""Epoch of a topic without partitions, whether it exists or not."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a topic that takes messages, or has taken them."""

    id: int
    hash_start: int
    hash_end: int
    """Last hash, inclusive."""
    topic: str
    """Full name of the topic that has its messages."""
    is_legacy: bool = True
    """Whether `topic` is a `persistent://` name. Clients get such a name from the broker, and
    derive the names of other segments."""
    parents: tuple[int, ...] = ()
    children: tuple[int, ...] = ()
    """Segments that have its hashes now, if it is sealed."""
    created_epoch: int = 0
    created_ms: int | None = None
    """Time of creation; None if unknown."""
    sealed_epoch: int | None = None
    """Epoch at which it was sealed; None if it is active."""
    sealed_ms: int | None = None
    buckets: int = 1
    """Number of entry buckets."""

    @property
    def is_sealed(self) -> bool:
        return self.sealed_epoch is not None

    @property
    def bucket_splits(self) -> list[int]:
        """First hash of each entry bucket except the first bucket, which begins with 0."""
        return [number * RING // self.buckets for number in range(1, self.buckets)]

    @property
    def bucket_ranges(self) -> list[tuple[int, int]]:
        """First and last hash of each entry bucket."""
        starts = [0, *self.bucket_splits, RING]
        return [(start, end - 1) for start, end in pairwise(starts)]


@dataclass(frozen=True, slots=True)
class Hold:
    """A subscription that moves back: descendants of the held segments wait until it ends."""

    id: int
    """Unique within a topic for ever."""
    subscription: str
    segment_id: int | None
    """Segment on which it moves back; None for all of them."""


@dataclass(frozen=True, slots=True)
class Layout:
    """All segments of a topic at one epoch."""

    epoch: int
    segments: tuple[Segment, ...]
    is_ending: bool = False
    """Whether the topic is being deleted. That may fail, and the topic stay."""
    born_ms: int | None = None
    """Time at which a scalable topic was created; None if the layout is synthetic."""
    holds: tuple[Hold, ...] = ()
    """Subscriptions that move back. They change without a new epoch, so clients are not
    notified."""

    @property
    def is_synthetic(self) -> bool:
        return self.born_ms is None


class Change(Enum):
    """Relation of a layout to the one that a client knows."""

    NONE = "none"
    GROWN = "grown"
    """The topic has other segments; the client has to be notified."""
    GONE = "gone"
    """The topic was deleted."""
    REPLACED = "replaced"
    """The topic was deleted and created again, which no epoch can express to a client."""


def change(told: Layout, now: Layout | None) -> Change:
    """Return how a layout has changed. `now` is None if the topic does not exist."""
    if now is None:
        return Change.GONE
    if told.born_ms != now.born_ms and told.born_ms is not None:
        # A name without a topic has the layout of a plain topic.
        return Change.GONE if now.epoch == PLAIN_EPOCH else Change.REPLACED
    if now.epoch > told.epoch:
        return Change.GROWN
    if now.epoch == told.epoch and now.born_ms == told.born_ms:
        return Change.NONE
    return Change.GONE if now.epoch == PLAIN_EPOCH else Change.REPLACED


def synthetic_layout(topic: TopicName, partitions: int, *, is_ending: bool = False) -> Layout:
    """Return the layout of a plain or partitioned topic. `partitions` is 0 if it has none.

    A topic that does not exist has the layout of one without partitions. Whether it may be created
    is decided when a producer or consumer of its segment comes.
    """
    if partitions == 0:
        return Layout(PLAIN_EPOCH, (Segment(0, 0, RING - 1, str(topic)),), is_ending)
    segments = tuple(
        Segment(number, *_range_of(number, partitions), str(topic.partition(number)))
        for number in range(partitions)
    )
    return Layout(partitions, segments, is_ending)


def _range_of(number: int, partitions: int) -> tuple[int, int]:
    """Return the first and last hash of a partition. With more partitions than hashes, each has one
    hash as far as these reach; the others share the last."""
    if partitions > RING:
        alone = min(number, RING - 1)
        return alone, alone
    width = RING // partitions
    last = RING - 1 if number == partitions - 1 else (number + 1) * width - 1
    return number * width, last
