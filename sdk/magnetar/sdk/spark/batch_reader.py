"""Reading topics in a batch query.

Spark offers the filters of a query to batch readers if `spark.sql.python.filterPushdown.enabled` is
set. This reader accepts none. Spark 4.2 and 4.3 reuse the plan that a filter has narrowed for all
reads of the frame or view, so a read without the filter would lack rows.

Nothing here needs features that Spark 4.1 lacks: see `stream_reader.py` for those.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from magnetar.arrow.stored.driver import SourceDriver
from magnetar.arrow.stored.slices import Slice
from magnetar.arrow.stored.source_options import SourceOptions
from magnetar.arrow.stored.topic_states import TopicState
from magnetar.sdk.spark.errors import one_line_errors
from magnetar.sdk.spark.partitions import partition_of, slices_of
from magnetar.sdk.spark.query_columns import value_columns, wants_bytes_only
from magnetar.sdk.spark.query_schema import query_values

_log = logging.getLogger(__name__)

READ_HOLD_S = 3_600
"""How long brokers regard the topics of a query as in use after it is planned, in seconds. The end
of a query is not reported, and a reader of bookies is connected to no broker."""

_UNREAD_LINES_MAX = 10


def batch_reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Return the reader of a batch query.

    Raises:
        OptionError
    """
    return BatchReader(SourceOptions.read(options, is_stream=False), schema)


class BatchReader(DataSourceReader):
    """Plans on the driver, reads on executors. It is pickled for them."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        with one_line_errors():
            driver = SourceDriver(self._options)
            try:
                return self._plan(driver)
            finally:
                driver.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Imported here: the driver, whose process is a new one for each query, never reads.
        from magnetar.sdk.spark.tasks import read_slices

        return read_slices(self._schema, slices_of(partition))

    def _plan(self, driver: SourceDriver) -> list[InputPartition]:
        states = driver.topics(hold_s=READ_HOLD_S)
        _warn_of_missing(states)
        _warn_of_unread(states)
        value_schema = query_values(
            driver,
            states,
            self._options,
            bytes_do=wants_bytes_only(self._schema),
            columns=self._schema.names,
        )
        value_columns(self._schema, value_schema)
        starts, ends = driver.starts(states), driver.ends(states)
        cuts = driver.cuts(states, starts, ends)
        joined = driver.joined(states, starts, ends, cuts)
        tasks = driver.tasks(states, starts, ends, value_schema, cuts, joined)
        nothing = (Slice("", -1, (), value_schema=value_schema),)  # Spark requires one
        return [partition_of(each) for each in tasks or [nothing]]


def _warn_of_missing(states: Mapping[str, TopicState]) -> None:
    """Warn of partitions that the topic should have and that do not exist: they may never have been
    created."""
    missing = [name for name, state in states.items() if not state.is_there]
    if missing:
        _log.warning(
            "%s does not exist%s: it was deleted, perhaps because nobody used it "
            "(inactiveTopicPolicies), or was not made yet; the query reads what is left",
            missing[0],
            f", nor do {len(missing) - 1} other partitions" if len(missing) > 1 else "",
        )


def _warn_of_unread(states: Mapping[str, TopicState]) -> None:
    """Warn of data that a query without servers cannot see, or does not read."""
    partial = [(name, state.unread) for name, state in states.items() if state.unread]
    for name, what in partial[:_UNREAD_LINES_MAX]:
        _log.warning("%s: %s", name, what)
    if len(partial) > _UNREAD_LINES_MAX:
        _log.warning("%d topics are not read in full", len(partial))
