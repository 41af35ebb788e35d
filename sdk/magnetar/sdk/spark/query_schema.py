"""The columns of a query, and those of an archive."""

from collections.abc import Mapping

from pyspark.sql.types import BinaryType, StructField, StructType

from magnetar.arrow.stored.column_names import VALUE
from magnetar.arrow.stored.driver import SourceDriver
from magnetar.arrow.stored.slices import PERMISSIVE, ValueSchema
from magnetar.arrow.stored.source_options import SourceOptions
from magnetar.arrow.stored.topic_schema import value_schema_of
from magnetar.sdk.spark.columns import ERROR_FIELD, METADATA_FIELDS, value_fields


def read_schema(options: Mapping[str, str]) -> StructType:
    """The columns of a query: those of its topics' schema, and the metadata.

    Raises:
        OptionError, TopicNotFoundError, SchemaMismatchError, UnreachableError
    """
    checked = SourceOptions.read(options)
    error = [ERROR_FIELD] if checked.settings.mode == PERMISSIVE else []
    return StructType([*value_fields(_value_schema(checked)), *METADATA_FIELDS, *error])


def archived_schema(options: Mapping[str, str]) -> StructType:
    """The columns of an archive: the fields of JSON and AVRO, and of every other schema the bytes,
    out of which a replay makes the same messages.

    Raises:
        OptionError, TopicNotFoundError, SchemaMismatchError, UnreachableError
    """
    value_schema = _value_schema(SourceOptions.read(options))
    stored = [StructField(VALUE, BinaryType())]
    fields = value_fields(value_schema) if value_schema.kind in ("JSON", "AVRO") else stored
    return StructType([*fields, *METADATA_FIELDS])


def _value_schema(options: SourceOptions) -> ValueSchema:
    driver = SourceDriver(options)
    try:
        return value_schema_of(driver.schemas, driver.topics())
    finally:
        driver.close()
