"""Reading topics in a batch query.

Spark shows readers the filters of a query where `spark.sql.python.filterPushdown.enabled` is set.
This one takes none: Spark 4.2 and 4.3 keep the plan that a filter has narrowed for all reads of the
frame or view, and one without the filter would lack rows.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from magnetar.sdk.spark.driver import SourceDriver
from magnetar.sdk.spark.errors import one_line_errors
from magnetar.sdk.spark.slices import Slice, slices_of
from magnetar.sdk.spark.source_options import SourceOptions
from magnetar.sdk.spark.topic_schema import value_schema_of
from magnetar.sdk.spark.topic_states import TopicState
from magnetar.sdk.spark.values import value_columns

_log = logging.getLogger(__name__)

READ_HOLD_S = 3_600
"""How long brokers take the topics of a query for used, from when it is planned: nobody is told
when it ends, and who reads from bookies is connected to no broker."""


def batch_reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """The reader of a batch query.

    Raises:
        OptionError
    """
    return BatchReader(SourceOptions.read(options, is_stream=False), schema)


class BatchReader(DataSourceReader):
    """Plans on the driver, reads on executors. Pickled to them."""

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
        # Here, not above: the driver, whose process is a new one for each query, never reads.
        from magnetar.sdk.spark.slice_reader import read_slices

        return read_slices(self._schema, slices_of(partition))

    def _plan(self, driver: SourceDriver) -> list[InputPartition]:
        states = driver.topics(hold_s=READ_HOLD_S)
        _warn_of_missing(states)
        value_schema = value_schema_of(driver.admin, states, self._schema)
        value_columns(self._schema, value_schema)
        starts, ends = driver.starts(states), driver.ends(states)
        cuts = driver.cuts(states, starts, ends)
        joined = driver.joined(states, starts, ends, cuts)
        tasks = driver.tasks(states, starts, ends, value_schema, cuts, joined)
        return tasks or [Slice("", -1, (), value_schema=value_schema)]  # Spark wants one


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
