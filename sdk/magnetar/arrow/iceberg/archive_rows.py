"""A slice of a topic as archive rows: for the table, and for the table of undecoded messages.

A message that cannot be decoded becomes a row with the reason and its raw bytes. The slice reader
does not keep these bytes. They are read a second time, from the first to the last such entry of a
batch. If an entry cannot be parsed at all, the raw bytes are the whole entry as its producer sent
it. For a chunked message, that is its last chunk alone.

Each row has its position in the topic: ledger, entry, index in the batch. A batch of rows ends with
a complete entry. It is archived up to that entry, and the next batch begins after it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from magnetar.arrow.errors import EvolutionError
from magnetar.arrow.slice_jobs import SliceJob, batches_of
from magnetar.arrow.stored.column_names import ERROR, MESSAGE_ID, TOPIC, VALUE
from magnetar.arrow.stored.column_types import ERROR_FIELD, METADATA_FIELDS, value_fields
from magnetar.arrow.stored.slice_reader import ReadsInTurn
from magnetar.arrow.stored.slices import LedgerPart, Slice, ValueSchema
from magnetar.sdk.wire.pulsar_pb2 import MessageIdData

LEDGER = "__ledgerId"
ENTRY = "__entryId"
INDEX = "__batchIndex"
"""Position of a message in its topic. The index is -1 if its entry is not a batch."""

PLACE_FIELDS = (
    pa.field(LEDGER, pa.int64()),
    pa.field(ENTRY, pa.int64()),
    pa.field(INDEX, pa.int32()),
)
ORDER = (TOPIC, LEDGER, ENTRY, INDEX)

REASON = "reason"
RAW = "raw"
RAW_IS_ENTRY = "raw_is_entry"

UNDECODED_SCHEMA = pa.schema(
    [
        pa.field(REASON, pa.string()),
        pa.field(RAW, pa.binary()),
        pa.field(RAW_IS_ENTRY, pa.bool_()),
        *METADATA_FIELDS,
        *PLACE_FIELDS,
    ]
)
"""Columns of the table of undecoded messages. If `raw_is_entry` is set, the raw bytes are a whole
entry with its metadata; otherwise they are the payload of the message."""

_UNDECODED_ROW_BYTES = 1_024
"""Estimated size of a row in memory, in bytes, beside its raw bytes."""

Place = tuple[int, int]
"""Ledger id and entry id."""


@dataclass(frozen=True, slots=True)
class ArchiveRows:
    """The archive rows of one batch."""

    rows: pa.RecordBatch
    undecoded: list[dict[str, object]]
    """Rows of UNDECODED_SCHEMA."""
    through: Place
    """The last entry of the batch."""

    @property
    def size_bytes(self) -> int:
        """Approximate size of the rows in memory, in bytes."""
        raw = [value for each in self.undecoded if isinstance(value := each[RAW], bytes)]
        undecoded = sum(map(len, raw)) + len(self.undecoded) * _UNDECODED_ROW_BYTES
        return int(self.rows.nbytes) + undecoded


def archive_fields(schema: ValueSchema) -> list[pa.Field]:
    """Return the table's columns for topics with this schema.

    Raises:
        SchemaMismatchError: a definition that cannot be read.
        EvolutionError: a field has the name of a column that the archive adds.
    """
    fields = value_fields(schema)
    added = {each.name.lower() for each in PLACE_FIELDS}
    for each in fields:
        if each.name.lower() in added:
            raise EvolutionError(
                f"the topic's schema has a field {each.name}, which is a column of the archive's "
                "own: rename it, or archive the topic's bytes with --no-decode"
            )
    return [*fields, *METADATA_FIELDS, *PLACE_FIELDS]


class SliceRows:
    """Reads slices, one after the other. For one thread; must be closed."""

    def __init__(self) -> None:
        self._reads = ReadsInTurn()
        self._raw_reads = ReadsInTurn()

    def close(self) -> None:
        self._reads.close()
        self._raw_reads.close()

    def of(self, wanted: Slice) -> Iterator[ArchiveRows]:
        """Yield the rows of a slice, whose settings must have mode PERMISSIVE.

        Raises:
            DataLossError, SchemaMismatchError, UnreachableError, AccessDeniedError
        """
        schema = pa.schema([*value_fields(wanted.value_schema), *METADATA_FIELDS, ERROR_FIELD])
        for batch in batches_of(SliceJob(wanted, tuple(schema.names)), self._reads):
            ids = [MessageIdData.FromString(each) for each in batch.column(MESSAGE_ID).to_pylist()]
            errors = batch.column(ERROR)
            rows = _with_places(batch.select(batch.schema.names[:-1]), ids)
            undecoded: list[dict[str, object]] = []
            if errors.null_count < len(errors):
                undecoded = self._undecoded(wanted, rows, errors)
                rows = rows.filter(pc.is_null(errors))
            yield ArchiveRows(rows, undecoded, (ids[-1].ledgerId, ids[-1].entryId))

    def _undecoded(
        self, wanted: Slice, rows: pa.RecordBatch, errors: pa.Array
    ) -> list[dict[str, object]]:
        """Return rows for the messages of a batch that have an error."""
        kept = [TOPIC, *(each.name for each in METADATA_FIELDS if each.name != TOPIC)]
        bad = rows.filter(pc.is_valid(errors)).select([*kept, LEDGER, ENTRY, INDEX]).to_pylist()
        reasons = [each for each in errors.to_pylist() if each is not None]
        places = [(each[LEDGER], each[ENTRY]) for each in bad]
        raw = self._payloads(clipped(wanted, places[0], places[-1]))
        found = []
        for each, reason in zip(bad, reasons, strict=True):
            payload = raw.get(each[MESSAGE_ID])
            if payload is None:
                each |= {RAW: self._entry(wanted, each[LEDGER], each[ENTRY]), RAW_IS_ENTRY: True}
            else:
                each |= {RAW: payload, RAW_IS_ENTRY: False}
            found.append({**each, REASON: reason})
        return found

    def _payloads(self, wanted: Slice) -> Mapping[bytes, bytes]:
        """Map message id to payload, for the messages of a slice that have a payload."""
        names = (VALUE, MESSAGE_ID)
        found: dict[bytes, bytes] = {}
        for batch in batches_of(SliceJob(wanted, names), self._raw_reads):
            values, ids = (batch.column(name).to_pylist() for name in names)
            found.update(
                (message_id, value)
                for message_id, value in zip(ids, values, strict=True)
                if value is not None
            )
        return found

    def _entry(self, wanted: Slice, ledger_id: int, entry_id: int) -> bytes:
        """Return the bytes of a whole entry."""
        alone = clipped(wanted, (ledger_id, entry_id), (ledger_id, entry_id))
        for _, payloads in self._raw_reads.of(alone).entries(alone.parts[0]):
            return bytes(payloads[0])
        return b""


def clipped(wanted: Slice, first: Place, last: Place) -> Slice:
    """Return the part of a slice from one entry to another, both included, that gives undecoded
    payloads.

    Chunks may have begun in the parts before it, so these become its `before`.
    """
    parts = []
    earlier = list(wanted.before)
    for part in wanted.parts:
        if part.ledger_id < first[0]:
            earlier.append(_from_the_first_entry(part))
            continue
        if part.ledger_id > last[0]:
            break
        begin = first[1] if part.ledger_id == first[0] else part.first
        end = last[1] if part.ledger_id == last[0] else part.last
        parts.append(replace(part, first=begin, last=end))
    return Slice(
        wanted.topic,
        wanted.partition,
        tuple(parts),
        before=tuple(earlier),
        is_cut_off=wanted.is_cut_off,
        addresses=wanted.addresses,
        settings=wanted.settings,
        value_schema=ValueSchema(),
    )


def _from_the_first_entry(part: LedgerPart) -> LedgerPart:
    return replace(part, first=0)


def _with_places(batch: pa.RecordBatch, ids: list[MessageIdData]) -> pa.RecordBatch:
    columns = [
        pa.array([each.ledgerId for each in ids], pa.int64()),
        pa.array([each.entryId for each in ids], pa.int64()),
        pa.array([each.batch_index for each in ids], pa.int32()),
    ]
    return pa.RecordBatch.from_arrays(
        [*batch.columns, *columns], schema=pa.schema([*batch.schema, *PLACE_FIELDS])
    )


def undecoded_table(rows: list[dict[str, object]]) -> pa.Table:
    """Return rows as a table of undecoded messages."""
    return pa.Table.from_pylist(rows, UNDECODED_SCHEMA)
