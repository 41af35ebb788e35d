"""What Spark finds under the name `magnetar`: which class reads and which writes.

Spark makes a `DataSource` in a process of its own for each question, and pickles it to executors.
So nothing is loaded here that the question at hand does not need.
"""

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from magnetar.sdk.spark.errors import one_line_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class MagnetarDataSource(DataSource):
    """`format("magnetar")`. Options: docs/spark.md.

    Raises:
        MagnetarSparkError: from each of its methods, on the driver, before anything runs.
    """

    @classmethod
    def name(cls) -> str:
        return "magnetar"

    def schema(self) -> StructType:
        from magnetar.sdk.spark.columns import read_schema

        with one_line_errors():
            return read_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from magnetar.sdk.spark.batch_reader import batch_reader

        with one_line_errors():
            return batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from magnetar.sdk.spark.stream_reader import stream_reader

        with one_line_errors():
            return stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from magnetar.sdk.spark.sink import batch_writer

        with one_line_errors():
            return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from magnetar.sdk.spark.sink import stream_writer

        with one_line_errors():
            return stream_writer(self.options, schema, overwrite)


def register(spark: "SparkSession") -> None:
    """Make `format("magnetar")` known to the session, for reading and for writing."""
    registration: Any = spark.dataSource
    registration.register(MagnetarDataSource)
