"""A set of entry ids of one ledger, as a bitmap in chunks.

Acknowledgements arrive in any order. The worst order (every second entry) would make an interval
list as long as the set itself. A bitmap costs one bit per entry in that case, and runs of
acknowledged entries are skipped a chunk at a time. A chunk is a Python int of `CHUNK_ENTRIES` bits:
small enough that setting a bit copies little, large enough that the table of chunks stays short.

The module knows nothing of positions, ends of ledgers or batches.
"""

from collections.abc import Iterator

CHUNK_ENTRIES = 1024

_SHIFT = CHUNK_ENTRIES.bit_length() - 1
_OFFSET_MASK = CHUNK_ENTRIES - 1
_FULL = (1 << CHUNK_ENTRIES) - 1


def _mask(first: int, last: int) -> int:
    """Return a mask with bits `first` to `last` set, both included."""
    return ((1 << (last - first + 1)) - 1) << first


def _ones(bits: int) -> int:
    """Return the number of bits that are set without a gap, from bit 0 up."""
    return (~bits & (bits + 1)).bit_length() - 1


class EntrySet:
    """Entry ids (0 or more) of one ledger. Adding is O(1), finding a gap O(chunks skipped)."""

    __slots__ = ("_chunks", "count")

    def __init__(self) -> None:
        self._chunks: dict[int, int] = {}
        self.count = 0
        """Number of entries in the set."""

    def __contains__(self, entry_id: int) -> bool:
        return bool(self._chunks.get(entry_id >> _SHIFT, 0) >> (entry_id & _OFFSET_MASK) & 1)

    def add(self, entry_id: int) -> bool:
        """Add one entry; return False if it was in the set."""
        index = entry_id >> _SHIFT
        bit = 1 << (entry_id & _OFFSET_MASK)
        chunk = self._chunks.get(index, 0)
        if chunk & bit:
            return False
        self._chunks[index] = chunk | bit
        self.count += 1
        return True

    def add_range(self, first: int, last: int) -> int:
        """Add `first` to `last`, both included; return the number of new entries."""
        before = self.count
        for index in range(first >> _SHIFT, (last >> _SHIFT) + 1):
            base = index << _SHIFT
            chunk = self._chunks.get(index, 0)
            added = chunk | _mask(max(first - base, 0), min(last - base, _OFFSET_MASK))
            self.count += added.bit_count() - chunk.bit_count()
            # Full chunks share one object: a long run costs a dictionary slot per chunk.
            self._chunks[index] = _FULL if added == _FULL else added
        return self.count - before

    def discard_range(self, first: int, last: int) -> int:
        """Remove `first` to `last`, both included; return the number of removed entries."""
        before = self.count
        first_index, last_index = first >> _SHIFT, last >> _SHIFT
        indexes = (
            range(first_index, last_index + 1)
            if last_index - first_index < len(self._chunks)
            else [index for index in self._chunks if first_index <= index <= last_index]
        )
        for index in indexes:
            chunk = self._chunks.get(index)
            if chunk is None:
                continue
            base = index << _SHIFT
            kept = chunk & ~_mask(max(first - base, 0), min(last - base, _OFFSET_MASK))
            self.count += kept.bit_count() - chunk.bit_count()
            if kept:
                self._chunks[index] = kept
            else:
                del self._chunks[index]
        return before - self.count

    def is_disjoint(self, first: int, last: int) -> bool:
        """Return whether none of `first` to `last`, both included, is in the set."""
        for index in range(first >> _SHIFT, (last >> _SHIFT) + 1):
            chunk = self._chunks.get(index)
            if chunk is not None:
                base = index << _SHIFT
                if chunk & _mask(max(first - base, 0), min(last - base, _OFFSET_MASK)):
                    return False
        return True

    def first_absent(self, entry_id: int) -> int:
        """Return the lowest entry id >= `entry_id` that is not in the set."""
        index = entry_id >> _SHIFT
        absent = entry_id + _ones(self._chunks.get(index, 0) >> (entry_id & _OFFSET_MASK))
        if absent >> _SHIFT == index:
            return absent
        index += 1
        while self._chunks.get(index) == _FULL:
            index += 1
        return (index << _SHIFT) + _ones(self._chunks.get(index, 0))

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield runs of consecutive entries as (first, last), ascending, never adjacent."""
        first = last = -2
        for index in sorted(self._chunks):
            # A reversed string of bits: `find` in it is far cheaper than shifting a long int.
            bits = format(self._chunks[index], "b")[::-1]
            base = index << _SHIFT
            start = bits.find("1")
            while start >= 0:
                stop = bits.find("0", start)
                if stop < 0:
                    stop = len(bits)
                if base + start == last + 1:
                    last = base + stop - 1
                else:
                    if first >= 0:
                        yield first, last
                    first, last = base + start, base + stop - 1
                start = bits.find("1", stop)
        if first >= 0:
            yield first, last

    def run_count(self) -> int:
        """Return the number of runs; cheaper than making them."""
        runs = 0
        for index, chunk in self._chunks.items():
            runs += (chunk & ~(chunk << 1)).bit_count()
            if chunk & 1 and self._chunks.get(index - 1, 0) >> _OFFSET_MASK:
                runs -= 1  # it continues the last run of the previous chunk
        return runs
