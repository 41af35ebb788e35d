"""One worker's share of a read: a slice of a topic into Arrow batches."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from magnetar.arrow.compacted_ledger import CompactedRows
from magnetar.arrow.errors import refusals_typed
from magnetar.arrow.newest_rows import newest_of
from magnetar.arrow.slice_rows import rows_of, slice_rows
from magnetar.arrow.stored.arrow_rows import ArrowRows
from magnetar.arrow.stored.column_names import ERROR, KEY, PUBLISH_TIME
from magnetar.arrow.stored.column_types import CHANGE, CHANGE_FIELD, all_columns
from magnetar.arrow.stored.slice_reader import ReadsInTurn
from magnetar.arrow.stored.slices import Slice
from magnetar.arrow.stored.values import value_columns


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Bounds of the selected rows; None sets no bound.

    An unreadable row whose key or time is unknown may be one of the selected rows, so it stays.
    """

    keys: frozenset[bytes] | None = None
    from_ms: int | None = None
    """Publish time, inclusive."""
    through_ms: int | None = None
    """Publish time, inclusive."""

    @property
    def names(self) -> tuple[str, ...]:
        """Columns that the filter reads. The error column exists only with mode PERMISSIVE."""
        by_key = self.keys is not None
        by_time = self.from_ms is not None or self.through_ms is not None
        return (
            *((KEY,) if by_key else ()),
            *((PUBLISH_TIME,) if by_time else ()),
            *((ERROR,) if by_key or by_time else ()),
        )

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the selected rows of a batch."""
        if self.keys is not None:
            keys = pa.array(sorted(self.keys), pa.binary())
            batch = _selected(batch, KEY, pc.is_in(batch.column(KEY), value_set=keys))
        if self.from_ms is not None:
            is_late = pc.greater_equal(_times(batch), self.from_ms * 1_000)
            batch = _selected(batch, PUBLISH_TIME, is_late)
        if self.through_ms is not None:
            is_early = pc.less(_times(batch), (self.through_ms + 1) * 1_000)
            batch = _selected(batch, PUBLISH_TIME, is_early)
        return batch


def _times(batch: pa.RecordBatch) -> pa.Array:
    return batch.column(PUBLISH_TIME).view(pa.int64())


def _selected(batch: pa.RecordBatch, name: str, fits: pa.Array) -> pa.RecordBatch:
    """Return the rows whose column `name` fits, and unreadable ones that are null there."""
    if ERROR in batch.schema.names:
        is_unknown = pc.and_(pc.is_null(batch.column(name)), pc.is_valid(batch.column(ERROR)))
        fits = pc.or_kleene(fits, is_unknown)
    return batch.filter(fits)


@dataclass(frozen=True, slots=True)
class SliceJob:
    """One share of the work. It is pickled for worker processes."""

    wanted: Slice
    names: tuple[str, ...]
    """Names of the columns."""
    rows: RowFilter = RowFilter()
    is_compacted: bool = False
    """Whether the slice is of its topic's compacted ledger."""

    @property
    def tells_changes(self) -> bool:
        """Whether the job is for a table of newest values. Each batch then has only the newest row
        of each key."""
        return CHANGE in self.names


def batches_of(job: SliceJob, reads: ReadsInTurn) -> Generator[pa.RecordBatch, None, None]:
    """Yield the selected rows of a slice, in order.

    Raises:
        DataLossError, CorruptDataError, MemoryLimitError, SchemaMismatchError, UnreachableError,
        AccessDeniedError
    """
    wanted = job.wanted
    known = all_columns(wanted.value_schema, wanted.settings.mode)
    if job.tells_changes:
        known = known.append(CHANGE_FIELD)
    filtered = (name for name in job.rows.names if name in known.names)
    names = tuple(dict.fromkeys((*job.names, *filtered)))
    schema = pa.schema([known.field(name) for name in names])
    rows = rows_of(schema, wanted, value_columns(names, wanted.value_schema))
    with refusals_typed():
        for batch in _batches(job, rows, reads):
            found = job.rows.rows(batch)
            if job.tells_changes:
                found = newest_of(found)
            if found.num_rows:
                yield found.select(list(job.names))


def _batches(job: SliceJob, rows: ArrowRows, reads: ReadsInTurn) -> Iterator[pa.RecordBatch]:
    if job.is_compacted:
        return CompactedRows(job.wanted, rows).batches()
    return slice_rows(job.wanted, rows, reads.of(job.wanted)).batches()
