"""The columns of the source, named as the known Pulsar connector names them."""

from collections.abc import Mapping

from pyspark.sql.types import (
    BinaryType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

VALUE = "value"
KEY = "__key"
TOPIC = "__topic"
MESSAGE_ID = "__messageId"
PUBLISH_TIME = "__publishTime"
EVENT_TIME = "__eventTime"
PROPERTIES = "__messageProperties"

METADATA_FIELDS = (
    StructField(KEY, BinaryType()),
    StructField(TOPIC, StringType()),
    StructField(MESSAGE_ID, BinaryType()),
    StructField(PUBLISH_TIME, TimestampType()),
    StructField(EVENT_TIME, TimestampType()),
    StructField(PROPERTIES, MapType(StringType(), StringType())),
)
"""What every message has beside its value. `__messageId` is a serialized `MessageIdData`."""

METADATA_NAMES = frozenset(each.name for each in METADATA_FIELDS)


def read_schema(options: Mapping[str, str]) -> StructType:
    """The columns of a query: those of its topics' schema, and the metadata.

    Raises:
        OptionError, TopicNotFoundError, SchemaMismatchError, UnreachableError
    """
    from magnetar.sdk.spark.avro_types import fields_of
    from magnetar.sdk.spark.driver import SourceDriver
    from magnetar.sdk.spark.source_options import SourceOptions
    from magnetar.sdk.spark.topic_schema import value_schema_of

    driver = SourceDriver(SourceOptions.read(options))
    try:
        value_schema = value_schema_of(driver.admin, driver.topics())
    finally:
        driver.close()
    if value_schema.kind == "BYTES":
        return StructType([StructField(VALUE, BinaryType()), *METADATA_FIELDS])
    fields = fields_of(value_schema.definition, is_json=value_schema.kind == "JSON")
    return StructType([*fields, *METADATA_FIELDS])
