"""The columns of the source, named as the known Pulsar connector names them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    BinaryType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

if TYPE_CHECKING:
    from magnetar.sdk.spark.slices import ValueSchema
    from magnetar.sdk.spark.source_options import SourceOptions

VALUE = "value"
KEY = "__key"
TOPIC = "__topic"
MESSAGE_ID = "__messageId"
PUBLISH_TIME = "__publishTime"
EVENT_TIME = "__eventTime"
PROPERTIES = "__messageProperties"
ERROR = "__error"

METADATA_FIELDS = (
    StructField(KEY, BinaryType()),
    StructField(TOPIC, StringType()),
    StructField(MESSAGE_ID, BinaryType()),
    StructField(PUBLISH_TIME, TimestampType()),
    StructField(EVENT_TIME, TimestampType()),
    StructField(PROPERTIES, MapType(StringType(), StringType())),
)
"""What every message has beside its value. `__messageId` is a serialized `MessageIdData`."""

ERROR_FIELD = StructField(ERROR, StringType())
"""With `mode` PERMISSIVE: why the message has no value, or not all of it; else null."""

METADATA_NAMES = frozenset(each.name for each in (*METADATA_FIELDS, ERROR_FIELD))

RESERVED_NAMES = frozenset(name.lower() for name in METADATA_NAMES)
"""Names that no field of a record can have as a column: Spark knows columns without regard to
case."""


def read_schema(options: Mapping[str, str]) -> StructType:
    """The columns of a query: those of its topics' schema, and the metadata.

    Raises:
        OptionError, TopicNotFoundError, SchemaMismatchError, UnreachableError
    """
    from magnetar.sdk.spark.slices import PERMISSIVE
    from magnetar.sdk.spark.source_options import SourceOptions
    from magnetar.sdk.spark.value_types import value_fields

    checked = SourceOptions.read(options)
    error = [ERROR_FIELD] if checked.settings.mode == PERMISSIVE else []
    return StructType([*value_fields(_value_schema(checked)), *METADATA_FIELDS, *error])


def archived_schema(options: Mapping[str, str]) -> StructType:
    """The columns of an archive: the fields of JSON and AVRO, and of every other schema the bytes,
    out of which a replay makes the same messages.

    Raises:
        OptionError, TopicNotFoundError, SchemaMismatchError, UnreachableError
    """
    from magnetar.sdk.spark.source_options import SourceOptions
    from magnetar.sdk.spark.value_types import value_fields

    value_schema = _value_schema(SourceOptions.read(options))
    stored = [StructField(VALUE, BinaryType())]
    fields = value_fields(value_schema) if value_schema.kind in ("JSON", "AVRO") else stored
    return StructType([*fields, *METADATA_FIELDS])


def _value_schema(options: "SourceOptions") -> "ValueSchema":
    from magnetar.sdk.spark.driver import SourceDriver
    from magnetar.sdk.spark.topic_schema import value_schema_of

    driver = SourceDriver(options)
    try:
        return value_schema_of(driver.admin, driver.topics())
    finally:
        driver.close()
