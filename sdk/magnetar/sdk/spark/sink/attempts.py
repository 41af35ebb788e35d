"""Rules that all attempts of a task share: partitions, ends of entries, sequence ids. Pure.

**Partitions** follow the rules and hashes of the official clients. A message with a key goes to the
partition of the key's hash, so that all messages of a key stay in order. The hash is that of the
key as it is sent: of the base64 text, for a key that is not UTF-8. A message without a key goes
round robin, a block at a time. The block is counted from the beginning of the task's batch, because
a retry must choose the same partition for the same row.

**Where entries end** depends on the items alone, counted from the first one of the batch, and not
on how they arrive: every attempt of a task cuts in the same places. The broker stores or drops
whole entries. So an attempt that was thought dead and continues adds nothing that overlaps with
what another stored.

**Sequence ids** say how far a batch was written, and with which rows. All attempts of a task of a
query write to a topic under one name, and the broker's deduplication keeps the highest sequence id
stored under that name. This number is the sink's only memory of an interrupted batch:

    bit 62 … 43   batch id, modulo 2^20 (higher bits are in the producer's name)
    bit 42 … 15   rows of the batch stored so far, by this task on this topic
    bit 14 …  0   checksum of those rows: CRC32C of their encoding, folded to 15 bits

The numbers ascend, as deduplication requires: within a batch by rows, then from batch to batch. A
later attempt gets the number when it attaches, once no write under the name is outstanding. It
skips the rows that are stored. The checksum shows whether the skipped rows are the stored ones.
Position alone would drop rows that were never written if a retry brought them in another order.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import google_crc32c
import pyarrow as pa
import pyarrow.compute as pc

from magnetar.sdk.spark.sink.items import wire_key
from magnetar.sdk.wire.key_hashes import java_string_hash, murmur3_hash

ROUND_ROBIN_ROWS = 1_000
"""Messages without a key that go to one partition before the next one's turn."""


def _java_hash(wired_key: bytes) -> int:
    return java_string_hash(wired_key.decode())


class Router:
    """Gives each row of a topic its partition. One for each topic and task."""

    def __init__(self, partitions: int, *, first: int, murmur: bool) -> None:
        """`first` is the partition where rows without a key begin; it differs between tasks."""
        assert partitions > 0
        self._partitions = partitions
        self._first = first
        self._rows = 0
        self._hash: Callable[[bytes], int] = murmur3_hash if murmur else _java_hash

    def route(self, key: pa.Array | None, rows: int) -> pa.Array:
        """Return the int32 partition of each row, in the order of the rows."""
        at, self._rows = self._rows, self._rows + rows
        if key is not None and key.null_count == 0:
            return self._by_key(key)
        turns = pa.array(
            [
                (self._first + row // ROUND_ROBIN_ROWS) % self._partitions
                for row in range(at, at + rows)
            ],
            pa.int32(),
        )
        if key is None or key.null_count == rows:
            return turns
        return pc.if_else(key.is_valid(), self._by_key(pc.fill_null(key, b"")), turns)

    def _by_key(self, key: pa.Array) -> pa.Array:
        encoded = key.dictionary_encode()
        partitions = [
            self._hash(wire_key(each)[0]) % self._partitions
            for each in encoded.dictionary.to_pylist()
        ]
        return pa.array(partitions, pa.int32()).take(encoded.indices)


def runs(values: pa.Array) -> list[tuple[object, int, int]]:
    """Return (value, start, stop) of each run of equal values; nulls are equal to each other."""
    encoded = pc.run_end_encode(values)
    found: list[tuple[object, int, int]] = []
    start = 0
    for value, stop in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
        found.append((value, start, stop))
        start = stop
    return found


@dataclass(frozen=True, slots=True)
class Entry:
    """The body of a batch, before compression."""

    body: bytes
    rows: int
    first_key: bytes | None


class EntryCutter:
    """Collects items until an entry is full."""

    def __init__(self, *, rows_max: int, bytes_max: int, cut_at: int = 0) -> None:
        """`cut_at`: an entry always ends after that many rows, because the stored rows end
        there."""
        self._rows_max, self._bytes_max, self._cut_at = rows_max, bytes_max, cut_at
        self._row = 0
        """Row where the open entry begins."""
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
                    stop = at + 1  # too large to share an entry
            if not self._rows and keys is not None:
                self._first_key = keys[at].as_py()
            self._parts.append(bytes(data[offsets[at] : offsets[stop]]))
            self._bytes += offsets[stop] - offsets[at]
            self._rows += stop - at
            at = stop
            if not self._rows_until_cut() or self._bytes >= self._bytes_max:
                yield self._cut()

    def rest(self) -> Iterator[Entry]:
        """Yield the last entry, if any items are left."""
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


BATCH_BITS = 20
ROW_BITS = 28
CHECKSUM_BITS = 15

BATCHES_PER_NAME = 1 << BATCH_BITS
ROWS_MAX = (1 << ROW_BITS) - 1
"""Most rows of one task on one topic in one batch of a stream."""
ROWS_MAX_ALONE = (1 << (BATCH_BITS + ROW_BITS)) - 1
"""Most rows of one task on one topic under a name that has one batch only: the row count may use
the bits of the batch."""

_CHECKSUM_MASK = (1 << CHECKSUM_BITS) - 1


@dataclass(frozen=True, slots=True)
class Progress:
    """How many rows of a task's batch are stored, and their checksum."""

    rows: int = 0
    checksum: int = 0


def fold(crc32c: int) -> int:
    """Fold 32 bits to 15, so that each of the 32 counts."""
    return (crc32c ^ crc32c >> CHECKSUM_BITS ^ crc32c >> 2 * CHECKSUM_BITS) & _CHECKSUM_MASK


def extend(crc32c: int, data: bytes) -> int:
    """Extend a checksum by `data`."""
    value: int = google_crc32c.extend(crc32c, data)
    return value


def sequence_id(batch_id: int, rows: int, crc32c: int) -> int:
    """Return the id after `rows` rows with that checksum. `batch_id` is 0 for a name with one
    batch."""
    batch = batch_id % BATCHES_PER_NAME
    return ((batch << ROW_BITS) + rows) << CHECKSUM_BITS | fold(crc32c)


def progress(batch_id: int | None, last_sequence_id: int) -> Progress | None:
    """Return the progress of a batch from the last stored id; None if the batch is completely
    stored.

    In that case a later batch is stored already. `batch_id` is None for a name that has one batch
    only. `last_sequence_id` is -1 if nothing is stored under the name.
    """
    if last_sequence_id < 0:
        return Progress()
    counted = last_sequence_id >> CHECKSUM_BITS
    checksum = last_sequence_id & _CHECKSUM_MASK
    if batch_id is None:
        return Progress(counted, checksum)
    batch, wanted = counted >> ROW_BITS, batch_id % BATCHES_PER_NAME
    if batch > wanted:
        return None
    return Progress(counted & ROWS_MAX, checksum) if batch == wanted else Progress()


def producer_name(query: str, batch_id: int | None, partition_id: int) -> str:
    """Return the name of a task's producer, which all attempts of the task share."""
    if batch_id is None:
        return f"magnetar-spark-{query}-{partition_id}"
    generation = batch_id // BATCHES_PER_NAME
    suffix = f"-{generation}" if generation else ""
    return f"magnetar-spark-{query}-{partition_id}{suffix}"
