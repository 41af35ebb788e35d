"""The newest row of each key, from rows that come in the order of their topic. Pure.

`newest_of` reduces one batch. It keeps tombstones, since rows before the batch may have their keys.
`NewestRows` folds all batches of a topic, from the first one on, into the newest rows. A merge
costs as much as the kept rows and the new ones together, so it waits until enough new ones have
come. Rows without a key are not part of a table. A row that could not be read, and whose key is
unknown, stays: nothing is left out silently.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from magnetar.arrow.errors import MemoryLimitError
from magnetar.arrow.stored.column_names import ERROR, KEY, TOPIC
from magnetar.arrow.stored.column_types import CHANGE, DELETE

_MERGE_BYTES_MIN = 32 << 20
_BATCH_ROWS_MIN = 1_000
"""Average size, in rows, below which batches are joined."""

_ROW = "row"


def newest_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the last row of each key in a batch, tombstones included."""
    return batch.filter(pa.array(_is_newest(pa.Table.from_batches([batch]))))


def _is_newest(rows: pa.Table) -> npt.NDArray[np.bool_]:
    """Mark the last row of each key, and unreadable rows whose key is unknown."""
    keys = rows.column(KEY)
    numbered = pa.table({KEY: keys, _ROW: np.arange(rows.num_rows)})
    last = numbered.group_by(KEY, use_threads=False).aggregate([(_ROW, "max")])
    found = np.zeros(rows.num_rows, dtype=np.bool_)
    found[last.column(f"{_ROW}_max").to_numpy()] = True
    has_key = pc.is_valid(keys).to_numpy()
    found &= has_key
    if ERROR in rows.column_names:
        found |= ~has_key & pc.is_valid(rows.column(ERROR)).to_numpy()
    return found


class NewestRows:
    """Folds batches into the newest row of each key. For one thread."""

    def __init__(self, schema: pa.Schema, *, bytes_max: int) -> None:
        """
        Args:
            schema: of the batches; it has the columns of key, topic and change.
            bytes_max: limit of the kept rows, in bytes. A merge may hold three times as much.
        """
        self._schema = schema
        self._bytes_max = bytes_max
        self._topic = ""
        self._kept: list[pa.RecordBatch] = []
        """Newest rows of the current topic."""
        self._kept_bytes = 0
        self._waiting: list[pa.RecordBatch] = []
        """Batches that have come since the last merge."""
        self._waiting_bytes = 0
        self._done: list[pa.RecordBatch] = []
        """Newest rows of the topics before the current one."""
        self._done_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the next rows of a topic. All rows of one topic come before those of the next one.

        Raises:
            MemoryLimitError: the kept rows exceed the limit.
        """
        topic = str(batch.column(TOPIC)[0])
        if topic != self._topic:
            self._end_topic()
            self._topic = topic
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= max(_MERGE_BYTES_MIN, self._kept_bytes // 2):
            self._merge()

    def table(self) -> pa.Table:
        """Return the kept rows, in the order of their topics. Nothing may be added after this.

        Raises:
            MemoryLimitError: the kept rows exceed the limit.
        """
        self._end_topic()
        return pa.Table.from_batches(self._done, self._schema)

    def _end_topic(self) -> None:
        self._merge()
        self._done += self._kept
        self._done_bytes += self._kept_bytes
        self._kept, self._kept_bytes = [], 0

    def _merge(self) -> None:
        if not self._waiting:
            return
        rows = pa.Table.from_batches([*self._kept, *self._waiting], self._schema)
        self._waiting, self._waiting_bytes = [], 0
        is_left = _is_newest(rows) & pc.not_equal(rows.column(CHANGE), DELETE).to_numpy()
        self._kept = _joined(rows.filter(pa.array(is_left)))
        self._kept_bytes = _bytes(self._kept)
        size = self._done_bytes + self._kept_bytes
        if size > self._bytes_max:
            raise MemoryLimitError(
                f"{self._topic}: the newest rows have more than {size} bytes, and table_bytes is "
                f"{self._bytes_max}: raise it, name the columns or keys that are wanted, or follow "
                f"the changes and keep the table elsewhere"
            )


def _joined(rows: pa.Table) -> list[pa.RecordBatch]:
    batches = [each for each in rows.to_batches() if each.num_rows]
    if rows.num_rows >= _BATCH_ROWS_MIN * len(batches):
        return batches
    return list(rows.combine_chunks().to_batches())


def _bytes(batches: Iterable[pa.RecordBatch]) -> int:
    return sum(each.nbytes for each in batches)
