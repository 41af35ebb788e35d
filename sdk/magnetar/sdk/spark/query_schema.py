"""The columns of a query, and of an archive, in Spark's types: see `column_types`."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from magnetar.arrow.stored import protobuf_columns
from magnetar.arrow.stored.column_names import VALUE
from magnetar.arrow.stored.column_types import (
    METADATA_FIELDS,
    METADATA_NAMES,
    NULL_VALUE_FIELD,
    all_columns,
    value_fields,
)
from magnetar.arrow.stored.driver import SourceDriver
from magnetar.arrow.stored.dropped_fields import older_schemas, with_dropped_fields
from magnetar.arrow.stored.errors import OptionError
from magnetar.arrow.stored.slices import ValueSchema
from magnetar.arrow.stored.source_options import SourceOptions
from magnetar.arrow.stored.topic_schema import value_schema_of

_WITH_FIELDS = ("JSON", "AVRO")
"""Schemas whose versions are known by their fields."""


def read_schema(options: Mapping[str, str]) -> StructType:
    """Return the columns of a query: those of its topics' schema, and the metadata.

    Raises:
        OptionError, TopicNotFoundError, SchemaMismatchError, UnreachableError
    """
    checked = SourceOptions.read(options)
    return spark_schema(all_columns(_value_schema(checked), checked.settings.mode))


class ArchivedColumns:
    """The columns of an archive: the fields of JSON and AVRO; the bytes for other schemas.

    Fields that the newest version of a schema has dropped are among them: older messages may not
    be archived yet. Beside fields, a column says which messages have no value. A replay makes
    identical messages of the columns.
    """

    def __init__(self, options: Mapping[str, str], *, reserved: Collection[str] = ()) -> None:
        """
        Args:
            options: those of the source.
            reserved: names of columns that the archive adds. A dropped field of that name is left
                out; a field of the newest version keeps its name.

        Raises:
            OptionError
        """
        self._options = SourceOptions.read(options)
        if self._options.selection.scalable is not None:
            raise OptionError(
                "topics",
                "scalable topics are not archived yet: a replay would not keep the order of a key "
                "over the segments. A streaming query reads them",
            )
        # A query cannot tell a field `value` that was dropped from the values themselves.
        self._reserved = {*reserved, VALUE}
        self._driver = SourceDriver(self._options)

    def close(self) -> None:
        self._driver.close()

    def now(self, *, missing_ok: bool = False) -> StructType:
        """Return the columns by all versions that producers have registered so far.

        Raises:
            OptionError, TopicNotFoundError, SchemaMismatchError, UnreachableError
        """
        topics = self._driver.topics(missing_ok=missing_ok)
        newest = query_values(self._driver, topics, self._options)
        if newest.kind not in _WITH_FIELDS:
            return spark_schema([pa.field(VALUE, pa.binary()), *METADATA_FIELDS])
        older = older_schemas(self._driver.schemas, topics)
        every = with_dropped_fields(newest, older, reserved=self._reserved)
        return spark_schema([*value_fields(every), *METADATA_FIELDS, NULL_VALUE_FIELD])


def query_values(
    driver: SourceDriver,
    topics: Iterable[str],
    options: SourceOptions,
    *,
    bytes_do: bool = False,
    columns: Collection[str] = (),
) -> ValueSchema:
    """Return the schema of a query's values: the topics' own, or bytes if the options say so.

    Args:
        driver: asks for the schemas.
        topics: those of the query.
        options: those of the query.
        bytes_do: whether the query needs the values only as bytes.
        columns: names of the query's columns. If the newest version of a schema lacks one of them,
            fields that it has dropped are added.

    Raises:
        SchemaMismatchError: the topics have different schemas, and bytes are not enough.
        UnreachableError, RefusedError
    """
    if options.takes_bytes_only:
        return ValueSchema()
    found = value_schema_of(driver.schemas, topics, bytes_do=bytes_do, takes_protobuf=True)
    if found.kind in _WITH_FIELDS:
        fields = set(columns) - METADATA_NAMES - {VALUE}
        if fields and not fields <= {each.name for each in value_fields(found)}:
            return with_dropped_fields(found, older_schemas(driver.schemas, topics))
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
