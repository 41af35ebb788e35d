"""The data source that Spark finds under the name `magnetar`: its readers and writers.

Spark creates a `DataSource` in a process of its own for each request, and pickles it to executors.
Each method therefore imports only what its request needs.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from magnetar.sdk.spark.errors import MagnetarSparkError, one_line_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_OLDEST = (4, 1)
_STREAMS = "4.2"
"""First Spark version whose Python sources have limits per micro-batch."""


class MagnetarDataSource(DataSource):
    """`format("magnetar")`. Options: docs/spark.md.

    Raises:
        MagnetarSparkError: from each of its methods, on the driver, before anything runs; of
            `streamReader`, from the methods of the reader.
    """

    @classmethod
    def name(cls) -> str:
        return "magnetar"

    def schema(self) -> StructType:
        from magnetar.sdk.spark.query_schema import read_schema

        with one_line_errors():
            return read_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from magnetar.sdk.spark.batch_reader import batch_reader

        with one_line_errors():
            return batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            from magnetar.sdk.spark.stream_reader import stream_reader

            return stream_reader(self.options, schema)
        except ModuleNotFoundError as error:
            if error.name != "pyspark.sql.streaming.datasource":
                raise
            return _RefusedStream(
                f"streaming queries need Spark {_STREAMS} or newer, and this is "
                f"{pyspark.__version__}, with which batch queries and writing work"
            )
        except MagnetarSparkError as error:
            return _RefusedStream(str(error))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from magnetar.sdk.spark.sink import batch_writer

        with one_line_errors():
            return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from magnetar.sdk.spark.sink import stream_writer

        with one_line_errors():
            return stream_writer(self.options, schema, overwrite)


class _RefusedStream(DataSourceStreamReader):
    """A streaming query that cannot begin. Each method raises the reason.

    If `streamReader` itself raised, Spark would hide the error behind one of its own.
    """

    def __init__(self, problem: str) -> None:
        self._problem = problem

    def initialOffset(self) -> dict[str, Any]:
        return self._refuse()

    def latestOffset(self, *_: object) -> dict[str, Any]:
        return self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._refuse()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._refuse()

    def _refuse(self) -> NoReturn:
        with one_line_errors():
            raise MagnetarSparkError(self._problem)


def register(spark: "SparkSession") -> None:
    """Register `format("magnetar")` in a session, for reading and for writing.

    This works for each of several sessions in a context, and repeatedly.

    Raises:
        MagnetarSparkError: this Spark is too old.
    """
    version = tuple(map(int, pyspark.__version__.split(".")[:2]))
    if version < _OLDEST:
        raise MagnetarSparkError(
            f'format("magnetar") needs Spark {".".join(map(str, _OLDEST))} or newer, for streaming '
            f"queries {_STREAMS}, and this is {pyspark.__version__}"
        )
    registration: Any = spark.dataSource
    try:
        registration.register(MagnetarDataSource)
    except PySparkException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS" or not hasattr(spark, "_jvm"):
            raise
        # Spark looks up the name in the active session, and then registers in this one.
        with _active(spark):
            registration.register(MagnetarDataSource)


@contextmanager
def _active(spark: "SparkSession") -> Iterator[None]:
    """Make the session the active one for a while. Not for sessions of Spark Connect."""
    sessions: Any = spark._get_j_spark_session_class(spark._jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
