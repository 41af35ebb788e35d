"""Which partition of a topic a message goes to: the rules and hashes of the official clients.

A message with a key goes where the hash of its key says, so that all of one key stay in order.
One without goes round robin, a block at a time; the block is counted from the beginning of the
task's batch, because a retry must come to the same partition for the same row.
"""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from magnetar.sdk.wire.key_hashes import java_string_hash, murmur3_hash

ROUND_ROBIN_ROWS = 1_000
"""Messages without a key that go to one partition before the next one's turn."""


def _java_hash(key: bytes) -> int:
    return java_string_hash(key.decode(errors="replace"))


class Router:
    """Gives each row of a topic its partition. One for each topic and task."""

    def __init__(self, partitions: int, *, first: int, murmur: bool) -> None:
        """`first`: where rows without a key begin, so that tasks do not all begin alike."""
        assert partitions > 0
        self._partitions = partitions
        self._first = first
        self._rows = 0
        self._hash: Callable[[bytes], int] = murmur3_hash if murmur else _java_hash

    def route(self, key: pa.Array | None, rows: int) -> pa.Array:
        """int32 partition of each row, in the order of the rows."""
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
            self._hash(each) % self._partitions for each in encoded.dictionary.to_pylist()
        ]
        return pa.array(partitions, pa.int32()).take(encoded.indices)


def runs(values: pa.Array) -> list[tuple[object, int, int]]:
    """(value, start, stop) of each run of equal values; nulls are equal to each other."""
    encoded = pc.run_end_encode(values)
    found: list[tuple[object, int, int]] = []
    start = 0
    for value, stop in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
        found.append((value, start, stop))
        start = stop
    return found
