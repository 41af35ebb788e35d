"""The archiver: copies topics to an Iceberg table, each message exactly once, even across crashes.

A round looks at the topics once, and reads everything confirmed then and after the table's
watermark. Rows are collected up to a limit of bytes; then two commits follow. First, undecodable
messages go to their own table. Then the rows go to the table, with the watermark. A job that was
killed begins after the table's watermark, and leaves out the rows that the second table already
has. That table's own watermark says where to look for them. It is no proof: a message that it
covers was decoded before the kill, and may be too large now. So nothing is lost, and each
table has a message once at most. With a larger limit of bytes after the kill, both may have it: the
second table keeps a message that can be decoded now.

A subscription on each topic retains the messages that are not archived yet. It is named after the
table, and moves after each commit.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import pyarrow as pa

from magnetar.arrow.errors import (
    CatalogError,
    DataLossError,
    MagnetarArrowError,
    OptionError,
    TableBusyError,
    refusals_typed,
)
from magnetar.arrow.iceberg.archive_rows import (
    ENTRY,
    LEDGER,
    ORDER,
    PLACE_FIELDS,
    UNDECODED_SCHEMA,
    ArchiveRows,
    SliceRows,
    archive_fields,
    undecoded_table,
)
from magnetar.arrow.iceberg.commits import CompactionLimits, ExpiryLimits, Head
from magnetar.arrow.iceberg.evolution import stored_schema
from magnetar.arrow.iceberg.iceberg_table import IcebergTable, Surroundings
from magnetar.arrow.iceberg.watermark import (
    DeletedTopics,
    Mark,
    Watermark,
    check_kept,
    is_archived,
    lag_of,
    mark_at,
    merged,
    pruned,
    snapshots_max,
    start_of,
)
from magnetar.arrow.stored.column_names import TOPIC
from magnetar.arrow.stored.column_types import METADATA_FIELDS, value_fields
from magnetar.arrow.stored.driver import SourceDriver
from magnetar.arrow.stored.dropped_fields import older_schemas, with_dropped_fields
from magnetar.arrow.stored.hold import Hold
from magnetar.arrow.stored.planning import releasable
from magnetar.arrow.stored.slices import PERMISSIVE, Slice, ValueSchema
from magnetar.arrow.stored.source_options import SourceOptions
from magnetar.arrow.stored.topic_schema import value_schema_of
from magnetar.arrow.stored.topic_states import TopicState
from magnetar.sdk.message_id import MessageId

_log = logging.getLogger(__name__)

UNDECODED_SUFFIX = "_undecoded"

BATCH_BYTES = 64 << 20
BATCH_BYTES_MIN = 1 << 20
FILE_BYTES = 128 << 20
FILES_MIN = 8
SNAPSHOT_AGE_S = 86_400
SNAPSHOTS_MIN = 10
SNAPSHOTS_MAX = 1_000

_EXPIRED_AT_ONCE_MAX = 200
_MERGES_AT_ONCE_MAX = 4
_COMMITS_PER_UPKEEP = 16
_OVERTAKEN_MAX = 100
"""Most rounds in a row in which another archiver committed first."""
_FAILURES_MAX = 20
"""Most rounds in a row that fail with a retryable error, in a continuous job."""
_IDLE_RELEASE_S = 60.0
"""Idle time, in seconds, after which a topic without new messages is not retained any more. A
chunked message may have begun before; consumers wait that long for its end by default."""
_SLICE_BYTES = 8 << 20
_BASE_COLUMNS = pa.schema([*METADATA_FIELDS, *PLACE_FIELDS])
"""Columns of every table, whatever the topic's schema is."""
_MESSAGE_BYTES_MIN = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """Settings of one archive job."""

    source: Mapping[str, str]
    """Options of the Spark source: servers and topics."""
    table: str
    """`namespace.table`."""
    once: bool = True
    """Whether to end when everything is archived that existed at the start."""
    interval_s: float = 60.0
    """Seconds between two rounds of a continuous job."""
    batch_bytes: int = BATCH_BYTES
    """Size of the rows in memory that triggers a commit, in bytes."""
    decodes: bool = True
    """Whether to decode the values. False gives a column `value` with the bytes, whatever the
    schema is."""
    allows_loss: bool = False
    """Whether to continue when messages were deleted before they were archived."""
    file_bytes: int = FILE_BYTES
    """Target size of merged files, in bytes."""
    files_min: int = FILES_MIN
    """Number of small files that triggers a merge; at the end of a job, two are enough."""
    snapshot_age_s: float = SNAPSHOT_AGE_S
    """Snapshots younger than this, in seconds, are kept."""

    def __post_init__(self) -> None:
        if self.batch_bytes < BATCH_BYTES_MIN:
            raise OptionError("batch-bytes", f"{self.batch_bytes} is less than {BATCH_BYTES_MIN}")

    def source_options(self) -> SourceOptions:
        """Check the options, and return those of the source.

        Raises:
            OptionError: an option for topics or servers is not valid.
        """
        message_bytes = max(_MESSAGE_BYTES_MIN, self.batch_bytes)
        checked = SourceOptions.read(
            {
                "sliceBytes": str(_SLICE_BYTES),
                "maxDecompressedBytes": str(message_bytes),
                "maxChunkedBytes": str(message_bytes),
                **self.source,
                "startingOffsets": "earliest",
                "mode": PERMISSIVE,
                "failOnDataLoss": "false" if self.allows_loss else "true",
            },
            is_stream=False,
        )
        if checked.selection.scalable is not None:
            raise OptionError(
                "topic",
                "scalable topics are not archived to Iceberg tables yet; a streaming query of "
                "Spark reads them",
            )
        return checked


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of one job, after a commit."""

    rows: int = 0
    undecoded_rows: int = 0
    commits: int = 0
    entries_left: int = 0
    """Confirmed entries that are not archived, at the last look at the topics."""
    bytes_left: int = 0
    marks: Mapping[str, Mark] = field(default_factory=dict)


class World(Surroundings, Protocol):
    """Clock, randomness and the stop signal; replaceable in tests."""

    def wall_ms(self) -> int: ...
    def monotonic_s(self) -> float: ...
    def is_ending(self) -> bool: ...


@dataclass(slots=True)
class _Batch:
    """Rows that wait for a commit."""

    rows: list[pa.RecordBatch] = field(default_factory=list)
    undecoded: list[dict[str, object]] = field(default_factory=list)
    marks: dict[str, Mark] = field(default_factory=dict)
    size_bytes: int = 0

    def add(self, found: ArchiveRows) -> None:
        if found.rows.num_rows:
            self.rows.append(found.rows)
        self.undecoded += found.undecoded
        self.size_bytes += found.size_bytes


@dataclass(frozen=True, slots=True)
class _Plan:
    """One look at the topics."""

    states: Mapping[str, TopicState]
    slices: list[Slice]


class Archiver:
    """One archive job. For one thread.

    Methods raise, beside what is named:
        UnreachableError, AccessDeniedError: a broker refuses, or does not answer.
        CatalogError, TableError: as `IcebergTable`.
    """

    def __init__(
        self,
        settings: ArchiveSettings,
        table: IcebergTable,
        undecoded: IcebergTable,
        world: World,
        report: Callable[[Progress], None],
    ) -> None:
        """`report` is called after each commit."""
        self._settings = settings
        self._table, self._undecoded = table, undecoded
        self._world, self._report = world, report
        self._driver = SourceDriver(settings.source_options())
        self._hold: Hold | None = None
        self._head, self._undecoded_head = Head(), Head()
        self._row_bytes: dict[str, float] = {}
        """Size of a row in memory, in bytes, as last measured, by table."""
        self._upkeep_at = _COMMITS_PER_UPKEEP
        self._new_at_s = world.monotonic_s()
        self._missing: set[str] = set()
        """Topics whose loss was already logged."""
        self._deleted = DeletedTopics()
        self.progress = Progress()

    def close(self) -> None:
        self._driver.close()

    def run(self) -> Progress:
        """Archive until everything is archived or the job is to end.

        Raises:
            EvolutionError, SchemaMismatchError: the topics' schema does not fit the table.
            DataLossError, TopicNotFoundError
        """
        failures = 0
        while True:
            try:
                self._round()
                failures = 0
            except MagnetarArrowError as error:
                failures += 1
                if self._settings.once or not error.retryable or failures > _FAILURES_MAX:
                    raise
                _log.warning("%s; trying again in %s s", error, self._settings.interval_s)
            if self._settings.once or self._world.is_ending():
                break
            if self._world.wait(self._settings.interval_s):
                break
        if self._settings.once and not self._world.is_ending() and self.progress.commits:
            try:
                self._keep_up(files_min=2)
            except TableBusyError as error:
                _log.warning("%s", error)  # everything that this job had to archive is archived
        return self.progress

    def _round(self) -> None:
        """Archive everything that is confirmed now."""
        for _ in range(_OVERTAKEN_MAX):
            try:
                with refusals_typed():
                    self._archive(self._plan())
                return
            except TableBusyError as error:
                _log.warning("%s", error)
                if self._world.is_ending():
                    return
        raise TableBusyError(
            f"table {self._settings.table}: another archiver was faster {_OVERTAKEN_MAX} times in "
            "a row: end one of the two"
        )

    # Planning

    def _plan(self) -> _Plan:
        """Look at the table and the topics, and prepare the table for the rows to read."""
        self._head = self._table.load()
        self._undecoded_head = self._undecoded.load()
        driver = self._driver
        states = driver.topics(missing_ok=bool(self._head.watermark))
        there = {topic: state for topic, state in states.items() if state.is_there}
        schema = self._value_schema(states)
        columns = stored_schema(archive_fields(schema))
        if not self._table.is_there:
            # A topic without messages may still get its schema: its columns come with its rows.
            has_rows = any(state.ledgers for state in there.values())
            self._head = self._table.create(columns if has_rows else _BASE_COLUMNS)
        if self._hold is None:
            self._hold = Hold(driver.admin, f"archive-{self._table.uuid}")
        held = self._hold.subscription
        stand = {topic: (state.mark_deletes or {}).get(held) for topic, state in there.items()}
        self._check_kept(states, stand)
        starts = {topic: start_of(self._head.watermark, topic) for topic in states}
        self._hold.keep({topic: (starts[topic], stand[topic]) for topic in there})
        ends = {topic: state.end for topic, state in there.items()}
        slices = driver.slices(states, starts, ends, schema)
        if slices:
            self._table.evolve(columns)
        marks = merged(self._undecoded_head.watermark, self._head.watermark)
        loses = self._settings.allows_loss
        self._deleted.look(marks, states, driver.selects, allows_loss=loses)
        return _Plan(states, slices)

    def _value_schema(self, states: Mapping[str, TopicState]) -> ValueSchema:
        """Return the newest schema of the topics, plus the fields that it has dropped."""
        if not self._settings.decodes:
            return ValueSchema()
        newest = value_schema_of(self._driver.schemas, states)
        if newest.kind not in ("JSON", "AVRO"):
            return newest
        older = older_schemas(self._driver.schemas, states)
        # A column keeps its type if the table cannot have the widest: no int becomes double.
        return with_dropped_fields(
            newest, older, suits=lambda one: self._table.takes(stored_schema(value_fields(one)))
        )

    def _check_kept(
        self, states: Mapping[str, TopicState], stand: Mapping[str, MessageId | None]
    ) -> None:
        """Check that all messages after the watermark still exist.

        Raises:
            DataLossError: messages are gone that were not archived, and `allows_loss` is not set.
            TableBusyError: another archiver has moved a mark since the table was loaded.
        """
        for topic, mark in self._head.watermark.items():
            state = states.get(topic)
            try:
                check_kept(topic, state, mark, stand.get(topic))
            except DataLossError as error:
                # An archiver commits first, and moves its subscription afterwards. What looks like
                # a loss after an older mark may already be archived.
                if self._table.load().watermark.get(topic) != mark:
                    raise TableBusyError(
                        f"table {self._table.name}: another archiver wrote to it while its topics "
                        "were looked at; the rest is read again"
                    ) from error
                if not self._settings.allows_loss:
                    raise
                if topic not in self._missing:
                    _log.warning("%s", error)
                    self._missing.add(topic)

    # Archiving

    def _archive(self, plan: _Plan) -> None:
        """Read the slices, and commit their rows."""
        batch = _Batch()
        reader = SliceRows()
        if plan.slices:
            self._new_at_s = self._world.monotonic_s()
        try:
            for wanted in plan.slices:
                state = plan.states[wanted.topic]
                for found in reader.of(wanted):
                    batch.add(found)
                    batch.marks[wanted.topic] = mark_at(state, found.through)
                    if batch.size_bytes >= self._settings.batch_bytes:
                        self._commit(batch, plan)
                        batch = _Batch()
                    if self._world.is_ending():
                        break
                if self._world.is_ending():
                    break
                # After the last row there may be entries that are not messages.
                last = wanted.parts[-1]
                batch.marks[wanted.topic] = mark_at(state, (last.ledger_id, last.last))
        finally:
            reader.close()
        self._commit(batch, plan)
        if not self._world.is_ending():
            self._release_idle(plan)

    def _commit(self, batch: _Batch, plan: _Plan) -> None:
        """Commit a batch: first the undecodable messages, then the rows.

        Once the table's watermark covers the undecodable messages, they are never read again.

        Raises:
            TableBusyError: another archiver committed first.
        """
        marks = merged(self._head.watermark, batch.marks)
        if marks == self._head.watermark:
            return
        marks = self._pruned(marks)
        undecoded = self._add_undecoded(batch, marks)
        rows = pa.Table.from_batches(batch.rows, None if batch.rows else _BASE_COLUMNS)
        self._head = self._append(self._table, rows, marks, self._head)
        self._release(batch.marks, plan.states)
        entries_left, bytes_left = lag_of(plan.states, marks)
        done = self.progress
        self.progress = replace(
            done,
            rows=done.rows + rows.num_rows,
            undecoded_rows=done.undecoded_rows + undecoded,
            commits=done.commits + 1,
            entries_left=entries_left,
            bytes_left=bytes_left,
            marks=marks,
        )
        self._report(self.progress)
        if self.progress.commits >= self._upkeep_at:
            self._upkeep_at = self.progress.commits + _COMMITS_PER_UPKEEP
            self._keep_up(files_min=self._settings.files_min)

    def _pruned(self, marks: Watermark) -> dict[str, Mark]:
        deleted = self._deleted.find(lambda: self._driver.topics(missing_ok=True))
        return pruned(marks, deleted, allows_loss=self._settings.allows_loss)

    def _add_undecoded(self, batch: _Batch, marks: Watermark) -> int:
        """Add the undecoded rows that the second table lacks; return their number."""
        if not batch.undecoded:
            return 0
        if not self._undecoded.is_there:
            self._undecoded_head = self._undecoded.create(UNDECODED_SCHEMA)
        known = self._undecoded_head.watermark
        rows = _not_stored(batch.undecoded, known, self._undecoded)
        if not rows:
            return 0
        self._undecoded_head = self._append(
            self._undecoded,
            undecoded_table(rows),
            self._pruned(merged(known, marks)),
            self._undecoded_head,
        )
        return len(rows)

    def _append(
        self, table: IcebergTable, rows: pa.Table, marks: Mapping[str, Mark], planned: Head
    ) -> Head:
        if rows.num_rows:
            self._row_bytes[table.name] = max(1.0, rows.nbytes / rows.num_rows)
        return table.append(rows, marks, planned)

    def _release(self, marks: Mapping[str, Mark], states: Mapping[str, TopicState]) -> None:
        """Move the subscriptions over the archived entries."""
        assert self._hold is not None
        hold = self._hold
        hold.release(
            {
                topic: releasable(states[topic], hold.stands_at(topic), mark.offset)
                for topic, mark in marks.items()
            }
        )

    def _release_idle(self, plan: _Plan) -> None:
        """Release topics that are archived up to their end and have been idle since."""
        idle_s = self._world.monotonic_s() - self._new_at_s
        if self._hold is None or (not self._settings.once and idle_s < _IDLE_RELEASE_S):
            return
        marks = self._head.watermark
        read = {
            topic: marks[topic].offset
            for topic, state in plan.states.items()
            if topic in marks and state.is_there
        }
        self._hold.release(read, is_idle=True)

    def _keep_up(self, *, files_min: int) -> None:
        """Merge small files and expire snapshots. Failures are logged, and retried at the next
        upkeep.

        Raises:
            TableBusyError: another archiver has moved the watermark.
        """
        heads = ((self._table, self._head), (self._undecoded, self._undecoded_head))
        for table, head in heads:
            if not table.is_there:
                continue
            try:
                self._keep_up_table(table, head.watermark, files_min)
            except CatalogError as error:
                _log.warning("%s; it is tried again later", error)
        found = self._table.load()
        if found.watermark != self._head.watermark:
            # The other archiver may have added what this round still reads.
            raise TableBusyError(f"table {self._table.name}: another archiver wrote to it")
        self._head = found
        self._undecoded_head = self._undecoded.load()

    def _keep_up_table(self, table: IcebergTable, marks: Watermark, files_min: int) -> None:
        settings = self._settings
        row_bytes = self._row_bytes.get(table.name)
        if row_bytes is not None:
            limits = CompactionLimits(
                rows_max=max(1, int(settings.batch_bytes / row_bytes)),
                file_bytes=settings.file_bytes,
                files_min=files_min,
            )
            files = table.compact(limits, groups_max=_MERGES_AT_ONCE_MAX)
            if files:
                _log.info("%s: %d small files were merged", table.name, files)
        expiry = ExpiryLimits(
            age_ms=int(settings.snapshot_age_s * 1_000),
            count_min=SNAPSHOTS_MIN,
            count_max=snapshots_max(marks, most=SNAPSHOTS_MAX),
            at_once_max=_EXPIRED_AT_ONCE_MAX,
        )
        table.expire(expiry, now_ms=self._world.wall_ms())


def _not_stored(
    rows: Sequence[dict[str, object]], marks: Mapping[str, Mark], table: IcebergTable
) -> list[dict[str, object]]:
    """Return the rows that a table with this watermark lacks.

    The table is only read after a crash: usually its watermark covers none of the rows.
    """
    ledger_ids = {_ledger_of(each) for each in rows if _is_covered(each, marks)}
    if not ledger_ids:
        return list(rows)
    stored = table.places(ledger_ids)
    return [each for each in rows if tuple(each[name] for name in ORDER) not in stored]


def _ledger_of(row: Mapping[str, object]) -> int:
    ledger_id = row[LEDGER]
    assert isinstance(ledger_id, int)
    return ledger_id


def _is_covered(row: Mapping[str, object], marks: Mapping[str, Mark]) -> bool:
    entry_id = row[ENTRY]
    assert isinstance(entry_id, int)
    return is_archived(marks, str(row[TOPIC]), ledger_id=_ledger_of(row), entry_id=entry_id)


def undecoded_name(table: str) -> str:
    """Return the name of the table of undecodable messages."""
    return f"{table}{UNDECODED_SUFFIX}"
