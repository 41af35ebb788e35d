"""The columns of a query, and of an archive, in Spark's types: see `column_types`."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from magnetar.arrow.stored import protobuf_columns
from magnetar.arrow.stored.column_names import VALUE
from magnetar.arrow.stored.column_types import METADATA_FIELDS, all_columns, value_fields
from magnetar.arrow.stored.driver import SourceDriver
from magnetar.arrow.stored.errors import OptionError
from magnetar.arrow.stored.slices import ValueSchema
from magnetar.arrow.stored.source_options import SourceOptions
from magnetar.arrow.stored.topic_schema import value_schema_of


def read_schema(options: Mapping[str, str]) -> StructType:
    """Return the columns of a query: those of its topics' schema, and the metadata.

    Raises:
        OptionError, TopicNotFoundError, SchemaMismatchError, UnreachableError
    """
    checked = SourceOptions.read(options)
    return spark_schema(all_columns(_value_schema(checked), checked.settings.mode))


def archived_schema(options: Mapping[str, str]) -> StructType:
    """Return the columns of an archive: the fields of JSON and AVRO; the bytes for other schemas.

    A replay makes identical messages of them.

    Raises:
        OptionError, TopicNotFoundError, SchemaMismatchError, UnreachableError
    """
    checked = SourceOptions.read(options)
    if checked.selection.scalable is not None:
        raise OptionError(
            "topics",
            "scalable topics are not archived yet: a replay would not keep the order of a key over "
            "the segments. A streaming query reads them",
        )
    value_schema = _value_schema(checked)
    stored = [pa.field(VALUE, pa.binary())]
    fields = value_fields(value_schema) if value_schema.kind in ("JSON", "AVRO") else stored
    return spark_schema([*fields, *METADATA_FIELDS])


def query_values(
    driver: SourceDriver, topics: Iterable[str], options: SourceOptions, *, bytes_do: bool = False
) -> ValueSchema:
    """Return the schema of a query's values: the topics' own, or bytes if the options say so.

    Raises:
        SchemaMismatchError: the topics have different schemas, and bytes are not enough.
        UnreachableError, RefusedError
    """
    if options.takes_bytes_only:
        return ValueSchema()
    found = value_schema_of(driver.schemas, topics, bytes_do=bytes_do, takes_protobuf=True)
    # Spark has no unsigned numbers.
    return replace(found, is_signed=True) if found.kind == protobuf_columns.KIND else found


def _value_schema(options: SourceOptions) -> ValueSchema:
    driver = SourceDriver(options)
    try:
        return query_values(driver, driver.topics(), options)
    finally:
        driver.close()


def spark_schema(columns: Iterable[pa.Field]) -> StructType:
    """Convert columns to Spark's types."""
    return from_arrow_schema(pa.schema(list(columns)), prefer_timestamp_ntz=True)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Convert columns to the exact form that Spark requires of batches."""
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:
        return to_arrow_schema(schema)  # Spark 4.1 uses UTC without the argument
