"""Rows of a slice: changes of a table, and separate errors for messages that are too large."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from magnetar.arrow.errors import CorruptDataError, MemoryLimitError
from magnetar.arrow.stored.arrow_rows import ArrowRows
from magnetar.arrow.stored.column_types import CHANGE, DELETE, UPSERT
from magnetar.arrow.stored.entries import EntryRows
from magnetar.arrow.stored.slice_reader import Reads, SliceReader
from magnetar.arrow.stored.slices import Slice
from magnetar.arrow.stored.stored_values import ValueColumns
from magnetar.sdk.wire.errors import SdkError
from magnetar.sdk.wire.frames import split_payload


def rows_of(schema: pa.Schema, wanted: Slice, values: ValueColumns) -> ArrowRows:
    """Return a collector of rows with these columns. `values` makes the columns that are not
    metadata."""
    kind = _ChangeRows if CHANGE in schema.names else ArrowRows
    return kind(
        schema,
        topic=wanted.topic,
        partition=wanted.partition,
        values=values,
        mode=wanted.settings.mode,
    )


def slice_rows(wanted: Slice, rows: ArrowRows, reads: Reads) -> SliceReader:
    """Return a reader of the rows of one slice."""
    return SliceReader(wanted, rows, reads, entries=BoundedEntryRows)


class _ChangeRows(ArrowRows):
    """Rows with a column that says which messages are tombstones.

    Tombstones are messages with the null-value flag, and those without a payload, as in compaction.
    Neither is decoded.
    """

    _is_tombstone: npt.NDArray[np.bool_]
    """Whether each row of the current batch is a tombstone."""

    def take(self) -> pa.RecordBatch:
        """Return all rows so far as one batch: see `ArrowRows.take`."""
        found = np.asarray(self._lengths) == 0
        found[self._nulls] = True
        found[list(self._unfit)] = False  # an unreadable message is not a tombstone
        self._is_tombstone = found
        self._nulls = sorted({*self._nulls, *np.flatnonzero(found).tolist()})
        return super().take()

    def _metadata_column(self, name: str, unfit: Mapping[int, str]) -> pa.Array:
        if name == CHANGE:
            return pc.if_else(pa.array(self._is_tombstone), DELETE, UPSERT)
        return super()._metadata_column(name, unfit)


class BoundedEntryRows(EntryRows):
    """Distinguishes messages that are too large from damaged ones."""

    def add(
        self,
        ledger_id: int,
        entry_id: int,
        payload: bytes,
        *,
        skip_through: int = -1,
        stop_at: int = -1,
    ) -> None:
        """Add the messages of an entry, as `EntryRows.add` does.

        Raises:
            MemoryLimitError: a message is larger than the reader may hold.
            CorruptDataError, HeadlessMessageError, UnreachableError
        """
        try:
            super().add(ledger_id, entry_id, payload, skip_through=skip_through, stop_at=stop_at)
        except CorruptDataError as error:
            size, limit = self._size_of(payload)
            if size <= limit:
                raise
            raise MemoryLimitError(
                f"{self._topic}: message {ledger_id}:{entry_id} has {size} bytes, and this reader "
                f"takes {limit}: raise memory_bytes, or read with fewer workers"
            ) from error

    def _size_of(self, payload: bytes) -> tuple[int, int]:
        """Return the size of the message that ends here, and the limit for it, in bytes."""
        try:
            metadata, _ = split_payload(payload)
        except SdkError:  # the damage was reported already
            return 0, 0
        if metadata.num_chunks_from_msg > 1:
            whole = max(metadata.total_chunk_msg_size, metadata.uncompressed_size)
            return whole, self._chunked_bytes_max
        return metadata.uncompressed_size, self._decompressed_bytes_max
