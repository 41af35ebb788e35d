"""Rows as Arrow batches, made from buffers.

Values that all messages of an entry share are written once for all of them, and there are as few
Python steps per message as possible. `ArrowRows` takes the messages of one entry after the other.
It is full at `ROWS_MAX` rows, or at `BYTES_MAX` bytes of values, keys and properties; `take` then
makes a batch. Columns that the query does not select cost nothing. An unreadable message fails the
query, is left out, or is reported in a column, as `mode` says.
"""

import logging
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa

from magnetar.arrow.stored.column_names import (
    ERROR,
    EVENT_TIME,
    KEY,
    MESSAGE_ID,
    NULL_VALUE,
    PROPERTIES,
    PUBLISH_TIME,
    TOPIC,
)
from magnetar.arrow.stored.errors import SchemaMismatchError
from magnetar.arrow.stored.slices import DROPMALFORMED, FAILFAST, NO_VERSION, PERMISSIVE
from magnetar.arrow.stored.stored_values import (
    Lengths,
    Part,
    StoredValues,
    ValueColumns,
    offsets_of,
)
from magnetar.sdk.wire.hot_commands import encode_varint

ROWS_MAX = 10_000
BYTES_MAX = 4 << 20

_TIME_MS_MAX = (1 << 63) // 1000 - 1
"""Spark's times are microseconds in 64 bits."""

_LEFT_OUT_LINES_MAX = 10
"""Most log lines per slice about unreadable messages."""

_log = logging.getLogger(__name__)

_Run = tuple[int, int, int, int, int, Sequence[int] | None]
"""Rows of one entry: their number, publish time, schema version, ledger, entry, and indexes in the
batch; indexes None means the whole batch, from 0. An entry that is not a batch is one row with
indexes ()."""

_SUFFIXES: list[bytes] = []
"""Batch index -> the field `batch_index` of a serialized `MessageIdData`."""


class ArrowRows:
    """Collects rows, and makes batches of them."""

    def __init__(
        self,
        schema: pa.Schema,
        *,
        topic: str,
        partition: int,
        values: ValueColumns,
        mode: str = FAILFAST,
    ) -> None:
        """`values` makes the columns that are not metadata."""
        self._schema = schema
        names = set(schema.names)
        self._values = values
        self._topic = topic
        self._index = partition
        self._mode = mode
        self._left_out = 0
        self._partition = b"\x18" + encode_varint(partition) if partition >= 0 else b""
        self._has_ids = MESSAGE_ID in names
        self._has_keys = KEY in names or values.needs_keys
        self._has_event_times = EVENT_TIME in names
        self._has_properties = PROPERTIES in names
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        self.bytes = 0
        self._parts: list[Part] = []
        self._lengths = array("q")
        self._nulls: list[int] = []
        self._id_parts: list[bytes] = []
        self._id_lengths = array("q")
        self._runs: list[_Run] = []
        self._unfit: dict[int, str] = {}
        """Row -> reason why its message could not be read."""
        self._event_ms: dict[int, int] = {}
        self._keys: dict[int, bytes] = {}
        self._properties: dict[int, list[tuple[str, str]]] = {}

    @property
    def is_full(self) -> bool:
        return self.rows >= ROWS_MAX or self.bytes >= BYTES_MAX

    def add_entry(
        self,
        parts: Sequence[Part],
        lengths: Lengths,
        *,
        ledger_id: int,
        entry_id: int,
        publish_ms: int,
        schema_version: int = NO_VERSION,
        indexes: Sequence[int] | None = None,
    ) -> int:
        """Add the messages of an entry; return the number of the first row.

        Args:
            parts: the payloads, cut in any way.
            lengths: of the payloads.
            indexes: in the batch; None means the whole batch, from 0.
        """
        first, count = self.rows, len(lengths)
        self._parts += parts
        self._lengths += lengths
        self._runs.append((count, publish_ms, schema_version, ledger_id, entry_id, indexes))
        self.rows = first + count
        self.bytes += sum(map(len, parts))
        if self._has_ids:
            prefix = _ledger_prefix(ledger_id) + encode_varint(entry_id) + self._partition
            self._add_batch_ids(prefix, count, indexes)
        return first

    def add_single(
        self,
        part: Part,
        *,
        ledger_id: int,
        entry_id: int,
        publish_ms: int,
        schema_version: int = NO_VERSION,
    ) -> int:
        """Add the message of an entry that is not a batch; return the number of its row."""
        row, size = self.rows, len(part)
        self._parts.append(part)
        self._lengths.append(size)
        self._runs.append((1, publish_ms, schema_version, ledger_id, entry_id, ()))
        self.rows = row + 1
        self.bytes += size
        if self._has_ids:
            message_id = _ledger_prefix(ledger_id) + encode_varint(entry_id) + self._partition
            self._id_parts.append(message_id)
            self._id_lengths.append(len(message_id))
        return row

    def add_unreadable(
        self, problem: str, *, ledger_id: int, entry_id: int, publish_ms: int
    ) -> int | None:
        """Add a row for an unreadable entry; return its number, or None if the mode leaves such
        entries out.

        Not to be called with mode FAILFAST.
        """
        if self._mode == DROPMALFORMED:
            self._tell_left_out(f"{ledger_id}:{entry_id}", problem)
            return None
        row = self.add_single(b"", ledger_id=ledger_id, entry_id=entry_id, publish_ms=publish_ms)
        self._nulls.append(row)
        self._unfit[row] = problem
        return row

    @property
    def fails_fast(self) -> bool:
        return self._mode == FAILFAST

    def set_null(self, row: int) -> None:
        """Mark the message of a row as one without a value."""
        self._nulls.append(row)

    def set_key(self, row: int, key: bytes) -> None:
        if self._has_keys:
            self._keys[row] = key
            self.bytes += len(key)

    def set_keys(self, keys: Iterable[tuple[int, bytes]]) -> None:
        """Set the keys of many rows at once. The keys are short, and do not count towards
        `bytes`."""
        if self._has_keys:
            self._keys.update(keys)

    def set_event_ms(self, row: int, event_ms: int) -> None:
        if self._has_event_times:
            self._event_ms[row] = event_ms

    def set_event_times(self, times_ms: Iterable[tuple[int, int]]) -> None:
        """Set the event times of many rows at once."""
        if self._has_event_times:
            self._event_ms.update(times_ms)

    def set_properties(self, row: int, properties: list[tuple[str, str]]) -> None:
        if self._has_properties:
            self._properties[row] = properties
            self.bytes += sum(len(name) + len(value) for name, value in properties)

    def take(self) -> pa.RecordBatch:
        """Return all rows so far as one batch.

        Raises:
            SchemaMismatchError: a value does not fit its schema, and the mode is FAILFAST.
        """
        stored = StoredValues(
            self._parts,
            self._lengths,
            self._nulls,
            [(version, count) for count, _, version, *_ in self._runs],
            self._keys,
        )
        columns = self._values.columns(stored)
        made = {
            name: columns[name] if name in columns else self._metadata_column(name, stored.unfit)
            for name in self._schema.names
        }
        batch = pa.RecordBatch.from_arrays(list(made.values()), schema=self._schema)
        if stored.unfit and self._mode != PERMISSIVE:
            batch = self._without(batch, stored.unfit)
        self._clear()
        return batch

    def _without(self, batch: pa.RecordBatch, unfit: Mapping[int, str]) -> pa.RecordBatch:
        """Return the batch without the rows that do not fit their schema.

        Raises:
            SchemaMismatchError: the mode is FAILFAST.
        """
        if self._mode == FAILFAST:
            row = min(unfit)
            raise SchemaMismatchError(
                f"{self._topic}: message {self._place(row)}: {unfit[row]}; set mode to PERMISSIVE "
                f"or DROPMALFORMED to go on"
            )
        for row in sorted(unfit):
            self._tell_left_out(self._place(row), unfit[row])
        return batch.filter(pa.array([row not in unfit for row in range(self.rows)], pa.bool_()))

    def _place(self, row: int) -> str:
        """Return the id of a row's message, in the form of option startingOffsets."""
        first = 0
        for count, _, _, ledger_id, entry_id, indexes in self._runs:
            if row < first + count:
                place = f"{ledger_id}:{entry_id}"
                if indexes == ():
                    return place
                return f"{place}:{self._index}:{(indexes or range(count))[row - first]}"
            first += count
        raise AssertionError(f"row {row} of {self.rows}")

    def _tell_left_out(self, place: str, problem: str) -> None:
        self._left_out += 1
        if self._left_out <= _LEFT_OUT_LINES_MAX:
            _log.warning("%s: message %s is left out: %s", self._topic, place, problem)
        if self._left_out == _LEFT_OUT_LINES_MAX:
            _log.warning("%s: others that are left out by this task are not told of", self._topic)

    def _add_batch_ids(self, prefix: bytes, count: int, indexes: Sequence[int] | None) -> None:
        last = count - 1 if indexes is None else indexes[-1]
        while len(_SUFFIXES) <= last:
            _SUFFIXES.append(b"\x20" + encode_varint(len(_SUFFIXES)))
        if indexes is None:
            suffixes = _SUFFIXES[:count]
            self._id_lengths += _id_lengths(len(prefix), count)
        else:
            suffixes = [_SUFFIXES[index] for index in indexes]
            self._id_lengths.extend([len(prefix) + len(each) for each in suffixes])
        self._id_parts += (prefix, prefix.join(suffixes))

    def _publish_micros(self) -> "array[int]":
        """Return the publish times of all rows, in microseconds.

        Raises:
            OverflowError: a time is out of Spark's range.
        """
        times = array("q")
        if len(self._runs) == self.rows:
            times.extend([run[1] * 1000 for run in self._runs])
        else:
            for count, publish_ms, *_ in self._runs:
                times += array("q", (publish_ms * 1000,)) * count
        return times

    def _metadata_column(self, name: str, unfit: Mapping[int, str]) -> pa.Array:
        rows = self.rows
        kind = self._schema.field(name).type
        if name == PUBLISH_TIME:
            try:
                times = self._publish_micros()
            except OverflowError:
                every = [run[1] for run in self._runs for _ in range(run[0])]
                return _sparse(_micros(dict(enumerate(every))), rows, pa.int64()).view(kind)
            return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(times)])
        if name == TOPIC:
            return _repeated(self._topic, rows)
        if name == MESSAGE_ID:
            return _binary_array(self._id_parts, self._id_lengths)
        if name == KEY:
            return self._key_column(kind)
        if name == NULL_VALUE:
            return _flags(self._nulls, rows)
        if name == ERROR:
            return _sparse({**unfit, **self._unfit}, rows, kind)
        if name == EVENT_TIME:
            # Through integers: Arrow takes several times as long to convert times.
            return _sparse(_micros(self._event_ms), rows, pa.int64()).view(kind)
        assert name == PROPERTIES, name
        if not self._properties:
            return _no_properties(rows, kind)
        none: list[tuple[str, str]] = []
        return pa.array([self._properties.get(row, none) for row in range(rows)], kind)

    def _key_column(self, kind: pa.DataType) -> pa.Array:
        try:
            return _sparse(self._keys, self.rows, kind)
        except pa.ArrowInvalid:  # the query wants text, and some keys are not UTF-8
            texts = {row: key.decode("utf-8", "replace") for row, key in self._keys.items()}
            return _sparse(texts, self.rows, kind)


def _flags(rows: Iterable[int], count: int) -> pa.Array:
    """Return booleans that are true in some rows."""
    flags = np.zeros(count, dtype=np.bool_)
    flags[list(rows)] = True
    return pa.array(flags)


def _micros(times_ms: Mapping[int, int]) -> dict[int, int]:
    """Convert times to microseconds, and leave out those that Spark cannot represent.

    Producers may write anything, for instance nanoseconds. One such value must not stop a query.
    """
    return {
        row: time_ms * 1000 for row, time_ms in times_ms.items() if abs(time_ms) <= _TIME_MS_MAX
    }


def _binary_array(parts: Sequence[Part], lengths: Sequence[int]) -> pa.Array:
    """Make one array of values that are adjacent in `parts`."""
    buffers = [None, offsets_of(lengths), pa.py_buffer(b"".join(parts))]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


def _sparse(values: Mapping[int, object], rows: int, kind: pa.DataType) -> pa.Array:
    if not values:
        return pa.nulls(rows, kind)
    return pa.array([values.get(row) for row in range(rows)], kind)


@lru_cache(maxsize=64)
def _ledger_prefix(ledger_id: int) -> bytes:
    """Return a serialized `MessageIdData` up to the entry id."""
    return b"\x08" + encode_varint(ledger_id) + b"\x10"


@lru_cache(maxsize=64)
def _id_lengths(prefix_bytes: int, count: int) -> Lengths:
    return array("q", [prefix_bytes + len(each) for each in _SUFFIXES[:count]])


@lru_cache(maxsize=64)
def _repeated(text: str, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), rows)


@lru_cache(maxsize=64)
def _no_properties(rows: int, kind: pa.DataType) -> pa.Array:
    return pa.array([[]] * rows, kind)
