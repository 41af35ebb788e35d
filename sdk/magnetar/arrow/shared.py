"""What reading by Arrow and reading by Spark have in common.

Slices, the reading of entries, messages and rows are those of `magnetar.sdk.spark`. Its classes are
made with Spark's types, of which they use the Arrow schema alone: here they are made with that.
Decision 35 says how the two become one.
"""

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from magnetar.arrow.errors import CorruptDataError, MemoryLimitError
from magnetar.sdk.spark.arrow_rows import ArrowRows
from magnetar.sdk.spark.broker_reads import BrokerReads
from magnetar.sdk.spark.entries import EntryRows
from magnetar.sdk.spark.slice_reader import FallbackReads, _reads_of, _SliceReader
from magnetar.sdk.spark.slices import Slice, ValueSchema
from magnetar.sdk.spark.stored_values import StoredColumn, ValueColumns
from magnetar.sdk.spark.structured_values import StructuredValues
from magnetar.sdk.wire.errors import SdkError
from magnetar.sdk.wire.frames import split_payload


def rows_of(schema: pa.Schema, wanted: Slice, values: ValueColumns) -> ArrowRows:
    """What collects rows of these columns; `values` makes those that are no metadata."""
    return ArrowRows(
        _of_spark(schema),
        topic=wanted.topic,
        partition=wanted.partition,
        values=values,
        mode=wanted.settings.mode,
    )


def stored_column(kind: pa.DataType) -> StoredColumn:
    """Values as they are: bytes or text."""
    return StoredColumn(_of_spark(pa.schema([pa.field("value", kind)])).fields[0].dataType)


def structured_values(wanted: pa.Schema, schema: ValueSchema) -> StructuredValues:
    """Columns of JSON and AVRO values.

    Raises:
        SchemaMismatchError: a definition that cannot be read.
    """
    return StructuredValues(_of_spark(wanted), schema)


def _of_spark(schema: pa.Schema) -> StructType:
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


class SliceRows(_SliceReader):
    """The rows of one slice."""

    def __init__(self, wanted: Slice, rows: ArrowRows, reads: BrokerReads | FallbackReads) -> None:
        self._slice = wanted
        self._rows = rows
        self._reads = reads
        self._entries = _BoundedEntryRows(
            rows,
            topic=wanted.topic,
            fetch_before=self._before,
            decompressed_bytes_max=wanted.settings.decompressed_bytes_max,
            chunked_bytes_max=wanted.settings.chunked_bytes_max,
        )


class _BoundedEntryRows(EntryRows):
    """Tells messages that are too large from those that are damaged."""

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
            MemoryLimitError: it is larger than the reader may hold.
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
        """How large the message is that ends here, and how large it may be."""
        try:
            metadata, _ = split_payload(payload)
        except SdkError:  # what is wrong with it was said already
            return 0, 0
        if metadata.num_chunks_from_msg > 1:
            whole = max(metadata.total_chunk_msg_size, metadata.uncompressed_size)
            return whole, self._chunked_bytes_max
        return metadata.uncompressed_size, self._decompressed_bytes_max


class ReadsInTurn:
    """What gives the entries of one slice after the other; connections to bookies stay. For one
    thread."""

    def __init__(self) -> None:
        self._reads: BrokerReads | FallbackReads | None = None

    def of(self, wanted: Slice) -> BrokerReads | FallbackReads:
        """For the next slice; what was given before is not used any more.

        Raises:
            OptionError: a file of the bookies' security cannot be used.
        """
        before = self._reads
        made = _reads_of(wanted, before)
        assert isinstance(made, BrokerReads | FallbackReads)
        hands_on = isinstance(before, FallbackReads) and isinstance(made, FallbackReads)
        if before is not None and not hands_on:
            before.close()
        self._reads = made
        return made

    def close(self) -> None:
        """Close the connections. Closing twice is fine."""
        if self._reads is not None:
            self._reads.close()
            self._reads = None
