"""Reading topics in a batch query."""

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
)
from pyspark.sql.types import StructType

from magnetar.sdk.errors import SdkError
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.spark.columns import MESSAGE_ID, PUBLISH_TIME
from magnetar.sdk.spark.driver import SourceDriver
from magnetar.sdk.spark.errors import one_line_errors
from magnetar.sdk.spark.planning import ledgers_since
from magnetar.sdk.spark.slices import Slice, slices_of
from magnetar.sdk.spark.source_options import SourceOptions
from magnetar.sdk.spark.topic_schema import value_schema_of
from magnetar.sdk.spark.topic_states import LedgerState, TopicState
from magnetar.sdk.spark.values import value_columns

_log = logging.getLogger(__name__)

READ_HOLD_S = 3_600
"""How long brokers take the topics of a query for used, from when it is planned: nobody is told
when it ends, and who reads from bookies is connected to no broker."""

_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


def batch_reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """The reader of a batch query.

    Spark refuses a reader that takes filters unless `spark.sql.python.filterPushdown.enabled` is
    set, and does not tell whether it is; but it asks in another process then.

    Raises:
        OptionError, TopicNotFoundError, UnreachableError, SchemaMismatchError
    """
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    pushes = _PUSHDOWN_WORKER in sys.modules or getattr(spec, "name", "") == _PUSHDOWN_WORKER
    checked = SourceOptions.read(options, is_stream=False)
    return PushingBatchReader(checked, schema) if pushes else BatchReader(checked, schema)


class BatchReader(DataSourceReader):
    """Plans on the driver, reads on executors. Pickled to them."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._since_ms: int | None = None
        self._ids: tuple[MessageId, ...] | None = None

    def partitions(self) -> Sequence[InputPartition]:
        with one_line_errors():
            driver = SourceDriver(self._options)
            try:
                return self._plan(driver)
            finally:
                driver.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Here, not above: the driver, whose process is a new one for each query, never reads.
        from magnetar.sdk.spark.slice_reader import read_slices

        return read_slices(self._schema, slices_of(partition))

    def _plan(self, driver: SourceDriver) -> list[InputPartition]:
        states = driver.topics(hold_s=READ_HOLD_S)
        _warn_of_missing(states)
        value_schema = value_schema_of(driver.admin, states)
        value_columns(self._schema, value_schema)
        starts, ends = driver.starts(states), driver.ends(states)
        narrowed = {name: self._narrowed(driver, state) for name, state in states.items()}
        cuts = driver.cuts(narrowed, starts, ends)
        joined = driver.joined(narrowed, starts, ends, cuts)
        tasks = driver.tasks(narrowed, starts, ends, value_schema, cuts, joined)
        return tasks or [Slice("", -1, (), value_schema=value_schema)]  # Spark wants one

    def _narrowed(self, driver: SourceDriver, state: TopicState) -> TopicState:
        """Without the ledgers that the filters rule out."""
        if self._ids is not None:
            wanted = {each.ledger_id for each in self._ids}
            return _without(state, (each for each in state.ledgers if each.ledger_id in wanted))
        if self._since_ms is None or not state.ledgers:
            return state
        kept = ledgers_since(
            state.ledgers,
            driver.closed_ms(state),
            since_ms=self._since_ms - self._options.publish_time_skew_ms,
        )
        return _without(state, kept)


def _warn_of_missing(states: Mapping[str, TopicState]) -> None:
    """Of what the number of partitions names and nobody has: it may never have been made."""
    missing = [name for name, state in states.items() if not state.is_there]
    if missing:
        _log.warning(
            "%s does not exist%s: it was deleted, perhaps because nobody used it "
            "(inactiveTopicPolicies), or was not made yet; the query reads what is left",
            missing[0],
            f", nor do {len(missing) - 1} other partitions" if len(missing) > 1 else "",
        )


def _without(state: TopicState, kept: Iterable[LedgerState]) -> TopicState:
    ids = {each.ledger_id for each in kept}
    return replace(
        state,
        ruled_out=frozenset(each.ledger_id for each in state.ledgers if each.ledger_id not in ids),
    )


class PushingBatchReader(BatchReader):
    """Leaves out ledgers that cannot have what the query wants; Spark still checks each row."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for each in filters:
            self._push(each)
        return filters

    def _push(self, wanted: Filter) -> None:
        if isinstance(wanted, (GreaterThan, GreaterThanOrEqual, EqualTo)) and _is(
            wanted.attribute, PUBLISH_TIME
        ):
            since_ms = _ms(wanted.value)
            if since_ms is not None:
                self._since_ms = max(since_ms, self._since_ms or 0)
        if isinstance(wanted, (EqualTo, In)) and _is(wanted.attribute, MESSAGE_ID):
            values = wanted.value if isinstance(wanted, In) else (wanted.value,)
            ids = _ids(values)
            if ids is not None:
                self._ids = ids


def _is(attribute: tuple[str, ...], name: str) -> bool:
    return attribute == (name,)


def _ms(value: object) -> int | None:
    return int(value.timestamp() * 1000) if isinstance(value, datetime) else None


def _ids(values: Iterable[object]) -> tuple[MessageId, ...] | None:
    found = []
    for value in values:
        if not isinstance(value, (bytes, bytearray)):
            return None
        try:
            found.append(MessageId.from_bytes(bytes(value)))
        except SdkError:
            return None
    return tuple(found)
