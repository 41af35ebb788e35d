"""A set of very many ledger ids, in many small sets. Pure.

One set of a million ids is made, grown and given up in steps that hold the interpreter for tens of
milliseconds: no request is answered meanwhile, whichever thread does it. Here each step is small,
and whoever works with many ids does so in slices.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

_BUCKET_BITS = 13


class IdSet:
    """Ids from 0, by the ranges of 8192 that they are in."""

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._buckets: defaultdict[int, set[int]] = defaultdict(set)
        self.add(ids)

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def __contains__(self, ledger_id: int) -> bool:
        bucket = self._buckets.get(ledger_id >> _BUCKET_BITS)
        return bucket is not None and ledger_id in bucket

    def add(self, ids: Iterable[int]) -> None:
        """Add ids, in any order."""
        buckets = self._buckets
        for ledger_id in ids:
            buckets[ledger_id >> _BUCKET_BITS].add(ledger_id)

    def remove(self, ids: Sequence[int]) -> None:
        """Remove those of the ids, ascending, that are in it."""
        for key, part in _parts(ids):
            bucket = self._buckets.get(key)
            if bucket is None:
                continue
            bucket.difference_update(part)
            if not bucket:
                del self._buckets[key]

    def without(self, ids: Sequence[int]) -> set[int]:
        """The given ids that are not in the set, ascending."""
        absent: set[int] = set()
        for key, part in _parts(ids):
            bucket = self._buckets.get(key)
            absent.update(part if bucket is None else set(part).difference(bucket))
        return absent

    def ascending(self) -> list[int]:
        """All of them. Only for few."""
        return sorted(each for bucket in self._buckets.values() for each in bucket)

    def shrink(self) -> bool:
        """Forget a part of it; False if nothing is left. Giving all up at once takes long."""
        if self._buckets:
            self._buckets.popitem()
        return bool(self._buckets)


def _parts(ids: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
    """Ascending ids by bucket."""
    at, count = 0, len(ids)
    while at < count:
        key = ids[at] >> _BUCKET_BITS
        end = bisect_left(ids, (key + 1) << _BUCKET_BITS, at)
        yield key, ids[at:end]
        at = end
