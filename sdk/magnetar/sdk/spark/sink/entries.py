"""A task's items cut into entries. Pure.

Where entries end depends on the items alone, counted from the first one of the batch, and not on
how they arrive: every attempt of a task cuts alike. The broker takes or leaves whole entries, so
an attempt that was thought dead and goes on adds nothing that overlaps with what another stored.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Entry:
    """The body of a batch, before compression."""

    body: bytes
    rows: int
    first_key: bytes | None


class EntryCutter:
    """Collects items until an entry is full."""

    def __init__(self, *, rows_max: int, bytes_max: int, cut_at: int = 0) -> None:
        """`cut_at`: an entry ends after that many rows in any case: what is stored ends there."""
        self._rows_max, self._bytes_max, self._cut_at = rows_max, bytes_max, cut_at
        self._row = 0
        """Where the open entry begins."""
        self._parts: list[bytes] = []
        self._rows = 0
        self._bytes = 0
        self._first_key: bytes | None = None

    def feed(self, items: pa.Array, keys: pa.Array | None = None) -> Iterator[Entry]:
        """Add items (binary, no nulls), and yield the entries that are full."""
        count = len(items)
        if not count:
            return
        _, offset_buffer, data_buffer = items.buffers()
        offsets = memoryview(offset_buffer).cast("i")[items.offset : items.offset + count + 1]
        data = memoryview(data_buffer)
        at = 0
        while at < count:
            stop = min(count, at + self._rows_until_cut())
            byte_limit = offsets[at] + self._bytes_max - self._bytes
            if offsets[stop] > byte_limit:
                stop = bisect_right(offsets, byte_limit, at, stop + 1) - 1
                if stop <= at:
                    if self._rows:
                        yield self._cut()
                        continue
                    stop = at + 1  # too large for any entry with company
            if not self._rows and keys is not None:
                self._first_key = keys[at].as_py()
            self._parts.append(bytes(data[offsets[at] : offsets[stop]]))
            self._bytes += offsets[stop] - offsets[at]
            self._rows += stop - at
            at = stop
            if not self._rows_until_cut() or self._bytes >= self._bytes_max:
                yield self._cut()

    def rest(self) -> Iterator[Entry]:
        """What is left, if anything."""
        if self._rows:
            yield self._cut()

    def _rows_until_cut(self) -> int:
        stop = (self._row // self._rows_max + 1) * self._rows_max
        if self._row < self._cut_at < stop:
            stop = self._cut_at
        return stop - self._row - self._rows

    def _cut(self) -> Entry:
        parts = self._parts
        entry = Entry(parts[0] if len(parts) == 1 else b"".join(parts), self._rows, self._first_key)
        self._row += self._rows
        self._parts, self._rows, self._bytes, self._first_key = [], 0, 0, None
        return entry
