"""The columns of the source, named as the known Pulsar connector names them. Pure."""

from pyspark.sql.types import (
    BinaryType,
    MapType,
    StringType,
    StructField,
    TimestampType,
)

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
