"""Selects the consumer of a hash in a Key_Shared subscription: by a ring, by split ranges, or by
ranges that consumers name.

AUTO_SPLIT puts a hundred points of every consumer on a ring; a hash belongs to the first point at
or after it. A consumer that joins or leaves moves only the hashes between its points and the ones
before them. A setting gives a newcomer half of the widest range instead: shares are even if the
number of consumers is a power of two, and only one neighbour's hashes move. STICKY gives a hash to
the consumer that named a range with it, or to none.

STICKY by entry buckets is for the segments of scalable topics. All consumers name the same ranges,
which are the buckets of the segment; the consumers divide them in the order of their names.
Selection is by the bucket of a whole entry, so its messages stay together, and a bucket that moves
to another consumer drains like a key.

Source: protocol sheet section 11; sheet of Pulsar 5, section 3.5. Pure.
"""

import heapq
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from magnetar.broker.base.errors import ConsumerAssignError
from magnetar.broker.topic.consumer import Consumer, HashRange, KeySharedMode
from magnetar.broker.topic.run import Run
from magnetar.broker.topic.sticky_key import (
    AUTO_SPLIT_HASHES,
    STICKY_HASHES,
    auto_split_hash,
    entry_hash_of,
    key_hash_of,
    sticky_range_hash,
)
from magnetar.sdk.wire.key_hashes import murmur3_hash

POINTS_PER_CONSUMER = 100


class Selector(ABC):
    """Maps hashes to consumers. Changes only when a consumer joins or leaves."""

    hash_of: Callable[[int], int]
    """From the Murmur3 hash of a key to the hash used for selection."""
    of_entries = False
    """Whether entries are selected by the hash of the whole entry instead of its key's
    (`sticky_key.entry_hash_of`)."""

    def hashes_of(self, key_hashes: Sequence[int]) -> list[int]:
        """Return `hash_of` each hash."""
        return list(map(self.hash_of, key_hashes))

    def hashes_in(self, run: Run, start: int, stop: int) -> list[int]:
        """Return the hash of each entry of a run from `start` to before `stop`."""
        hashes = run.entry_hashes if self.of_entries else run.key_hashes
        return self.hashes_of(hashes[start:stop])

    def hash_in(self, entry: bytes) -> int:
        """Return the hash of an entry."""
        return self.hash_of(entry_hash_of(entry) if self.of_entries else key_hash_of(entry))

    def conflict_of(self, ranges: Sequence[HashRange]) -> Consumer | None:
        """Return a consumer that excludes a newcomer with these ranges; None if there is none."""
        return None

    @abstractmethod
    def add(self, consumer: Consumer) -> None: ...

    @abstractmethod
    def remove(self, consumer: Consumer) -> None: ...

    @abstractmethod
    def select(self, key_hash: int) -> Consumer | None:
        """Return the consumer that gets the hash; None if no consumer does."""

    @abstractmethod
    def ranges_of(self, consumer: Consumer) -> list[HashRange]:
        """Return the hashes of a consumer as ascending ranges, both ends included."""


@lru_cache(maxsize=4096)
def _points(name: str, index: int) -> tuple[int, ...]:
    return tuple(
        auto_split_hash(murmur3_hash(f"{name}\0{index}\0{point}".encode()))
        for point in range(POINTS_PER_CONSUMER)
    )


class _RingClaim(NamedTuple):
    name: str
    number: int
    consumer: Consumer
    """Consumer, which is never compared: name and number are unique together."""


class HashRing(Selector):
    """Selector of AUTO_SPLIT.

    Joining and leaving touch a hundred points each; the points are sorted at the next lookup.
    """

    hash_of = staticmethod(auto_split_hash)

    def hashes_of(self, key_hashes: Sequence[int]) -> list[int]:
        return [each % AUTO_SPLIT_HASHES + 1 for each in key_hashes]  # inlined: it is hot

    def __init__(self) -> None:
        self._numbers: dict[Consumer, int] = {}
        """Numbers that distinguish consumers of the same name."""
        self._free: dict[str, list[int]] = {}
        """Free numbers below the next one of each name, as a heap."""
        self._next: dict[str, int] = {}
        self._sorted: list[int] = []
        """Points as of the last lookup; at most `AUTO_SPLIT_HASHES`, however many consumers there
        are."""
        self._added: list[int] = []
        self._has_lost = False
        """Whether points have been removed since the last lookup."""
        self._claims: dict[int, list[_RingClaim]] = {}
        """Claims of each point, ascending. The first one counts, so the order of joining does not
        matter.
        """

    def add(self, consumer: Consumer) -> None:
        name = consumer.name
        free = self._free.get(name)
        if free:
            number = heapq.heappop(free)
        else:
            number = self._next.get(name, 0)
            self._next[name] = number + 1
        self._numbers[consumer] = number
        claim = _RingClaim(name, number, consumer)
        for point in set(_points(name, number)):
            claims = self._claims.get(point)
            if claims is None:
                self._added.append(point)
                self._claims[point] = [claim]
            else:
                insort(claims, claim)

    def remove(self, consumer: Consumer) -> None:
        number = self._numbers.pop(consumer, None)
        if number is None:
            return
        name = consumer.name
        if number == self._next[name] - 1 == 0:
            del self._next[name]
            self._free.pop(name, None)
        else:
            heapq.heappush(self._free.setdefault(name, []), number)
            if len(self._free[name]) == self._next[name]:
                del self._next[name], self._free[name]
        for point in set(_points(name, number)):
            claims = self._claims[point]
            if len(claims) == 1:
                del self._claims[point]
                self._has_lost = True
            else:
                del claims[bisect_left(claims, (name, number))]

    def select(self, key_hash: int) -> Consumer | None:
        points = self._points()
        if not points:
            return None
        at = bisect_left(points, key_hash)
        return self._claims[points[at if at < len(points) else 0]][0].consumer

    def ranges_of(self, consumer: Consumer) -> list[HashRange]:
        found: list[HashRange] = []
        before = 0
        points = self._points()
        for point in points:
            if self._claims[point][0].consumer is consumer:
                _append_range(found, HashRange(before + 1, point))
            before = point
        is_first = points and self._claims[points[0]][0].consumer is consumer
        if is_first and before < AUTO_SPLIT_HASHES:
            _append_range(found, HashRange(before + 1, AUTO_SPLIT_HASHES))
        return found

    def _points(self) -> list[int]:
        """Return all points, ascending, sorted once for all changes since the last lookup."""
        if self._has_lost:
            self._sorted = [point for point in self._sorted if point in self._claims]
            self._has_lost = False
        if self._added:
            known = set(self._sorted)
            self._sorted += {each for each in self._added if each in self._claims} - known
            self._sorted.sort()  # almost sorted: a long run, and a few new points
            self._added.clear()
        return self._sorted


class SplitRanges(Selector):
    """AUTO_SPLIT by ranges, as in Pulsar with subscriptionKeySharedUseConsistentHashing=false.

    The ranges cover all hashes: each reaches from the end of the previous one to its own end.
    Unlike on a ring, the assignment depends on the order in which the consumers joined.
    """

    hash_of = staticmethod(sticky_range_hash)

    def __init__(self) -> None:
        self._ends: list[int] = []
        """Ends of the ranges, ascending and included; the last one is `STICKY_HASHES`."""
        self._owners: list[Consumer] = []

    def add(self, consumer: Consumer) -> None:
        ends = self._ends
        if not ends:
            ends.append(STICKY_HASHES)
            self._owners.append(consumer)
            return
        sizes = [end - start for start, end in pairwise((0, *ends))]
        widest = sizes.index(max(sizes))
        ends.insert(widest, ends[widest] - sizes[widest] // 2)
        self._owners.insert(widest, consumer)

    def remove(self, consumer: Consumer) -> None:
        if consumer not in self._owners:
            return
        at = self._owners.index(consumer)
        del self._owners[at]
        # The next range takes over; in place of the last range, the previous one does.
        del self._ends[at if at < len(self._owners) else at - 1 if at else 0]

    def select(self, key_hash: int) -> Consumer | None:
        ends = self._ends
        return self._owners[bisect_left(ends, key_hash)] if ends else None

    def ranges_of(self, consumer: Consumer) -> list[HashRange]:
        return [
            HashRange(start + 1 if start else 0, min(end, STICKY_HASHES - 1))
            for (start, end), owner in zip(pairwise((0, *self._ends)), self._owners, strict=True)
            if owner is consumer
        ]


def _append_range(ranges: list[HashRange], following: HashRange) -> None:
    """Append a range, merging it with the last one if they are adjacent."""
    if ranges and ranges[-1].end + 1 == following.start:
        following = HashRange(ranges.pop().start, following.end)
    ranges.append(following)


class _Claim(NamedTuple):
    start: int
    end: int
    consumer: Consumer


class HashRanges(Selector):
    """Selector of STICKY."""

    hash_of = staticmethod(sticky_range_hash)

    def __init__(self) -> None:
        self._claims: list[_Claim] = []
        self._starts: list[int] = []

    def add(self, consumer: Consumer) -> None:
        """Add a consumer whose ranges are checked and free of conflicts."""
        assert self.conflict_of(consumer.hash_ranges) is None
        self._set(
            [*self._claims, *(_Claim(*each, consumer) for each in consumer.hash_ranges)],
        )

    def remove(self, consumer: Consumer) -> None:
        self._set([claim for claim in self._claims if claim.consumer is not consumer])

    def select(self, key_hash: int) -> Consumer | None:
        at = bisect_right(self._starts, key_hash) - 1
        if at < 0:
            return None
        claim = self._claims[at]
        return claim.consumer if key_hash <= claim.end else None

    def ranges_of(self, consumer: Consumer) -> list[HashRange]:
        return sorted(consumer.hash_ranges)

    def conflict_of(self, ranges: Sequence[HashRange]) -> Consumer | None:
        """Return a consumer that has some of these hashes already."""
        for claim in self._claims:
            for each in ranges:
                if each.start <= claim.end and claim.start <= each.end:
                    return claim.consumer
        return None

    def _set(self, claims: list[_Claim]) -> None:
        self._claims = sorted(claims, key=lambda claim: claim.start)
        self._starts = [claim.start for claim in self._claims]


class EntryBuckets(Selector):
    """Selector of STICKY by entry buckets.

    A bucket represents its hashes: its number is its first hash plus 1. The number 0 is for hashes
    outside all buckets, which no consumer gets.
    """

    of_entries = True

    def __init__(self) -> None:
        self._buckets: list[HashRange] = []
        self._starts: list[int] = []
        self._consumers: list[Consumer] = []
        self._owners: list[Consumer] = []
        """Owner of each bucket."""

    def add(self, consumer: Consumer) -> None:
        """Add a consumer whose ranges are checked and equal those of the others."""
        assert self.conflict_of(consumer.hash_ranges) is None
        if not self._consumers:
            self._buckets = sorted(consumer.hash_ranges)
            self._starts = [each.start for each in self._buckets]
        self._consumers.append(consumer)
        self._divide()

    def remove(self, consumer: Consumer) -> None:
        self._consumers = [each for each in self._consumers if each is not consumer]
        self._divide()

    def _divide(self) -> None:
        """Give consumer number j of k the buckets from j·n/k on, below (j+1)·n/k."""
        count, consumers = len(self._buckets), self._consumers
        if not consumers:
            self._owners = []
            return
        consumers.sort(key=lambda each: (each.name, each.consumer_id))
        shares = [number * count // len(consumers) for number in range(len(consumers) + 1)]
        self._owners = [
            consumer
            for consumer, (first, end) in zip(consumers, pairwise(shares), strict=True)
            for _ in range(first, end)
        ]

    def hash_of(self, entry_hash: int) -> int:
        at = bisect_right(self._starts, entry_hash) - 1
        if at < 0 or entry_hash > self._buckets[at].end:
            return 0
        return self._starts[at] + 1

    def select(self, key_hash: int) -> Consumer | None:
        if not key_hash or not self._owners:
            return None
        return self._owners[bisect_right(self._starts, key_hash - 1) - 1]

    def ranges_of(self, consumer: Consumer) -> list[HashRange]:
        ranges: list[HashRange] = []
        for bucket, owner in zip(self._buckets, self._owners, strict=False):
            if owner is consumer:
                _append_range(ranges, bucket)
        return ranges

    def conflict_of(self, ranges: Sequence[HashRange]) -> Consumer | None:
        """Return a consumer that names other buckets."""
        if not self._consumers or sorted(ranges) == self._buckets:
            return None
        return self._consumers[0]


def selector_of(mode: KeySharedMode, *, splits_ranges: bool) -> Selector:
    """Return the selector of a new dispatcher. `splits_ranges`: instead of a ring; see
    `SplitRanges`."""
    if mode.by_buckets:
        return EntryBuckets()
    if mode.is_sticky:
        return HashRanges()
    return SplitRanges() if splits_ranges else HashRing()


def check_ranges(ranges: Sequence[HashRange], *, of: str) -> None:
    """Refuse invalid ranges. `of`: the consumer and subscription, for the error text.

    Raises:
        ConsumerAssignError: there are none, one is empty or not within 0 to 65535, or two overlap.
    """
    if not ranges:
        raise ConsumerAssignError(f"{of} needs at least one range of hashes; it names none")
    for each in ranges:
        if not 0 <= each.start <= each.end < STICKY_HASHES:
            raise ConsumerAssignError(
                f"{of} names the hashes {each.start} to {each.end}; "
                f"a range lies within 0 to {STICKY_HASHES - 1}, and starts before it ends"
            )
    ascending = sorted(ranges)
    for one, two in pairwise(ascending):
        if two.start <= one.end:
            raise ConsumerAssignError(
                f"{of} names overlapping ranges: {one.start} to {one.end}, "
                f"and {two.start} to {two.end}"
            )
