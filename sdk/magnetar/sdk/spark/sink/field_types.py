"""Types of columns as an Avro schema: what is registered for JSON and AVRO alike."""

import json
import re
from collections.abc import Sequence
from typing import Any

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from magnetar.sdk.spark.errors import OptionError, SchemaMismatchError
from magnetar.sdk.spark.sink.options import Encoding

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_TYPES: dict[type[DataType], Any] = {
    BooleanType: "boolean",
    ByteType: "int",
    ShortType: "int",
    IntegerType: "int",
    LongType: "long",
    FloatType: "float",
    DoubleType: "double",
    StringType: "string",
    BinaryType: "bytes",
    DateType: {"type": "int", "logicalType": "date"},
    TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}


def schema_definition(name: str, fields: Sequence[tuple[str, DataType]], encoding: Encoding) -> str:
    """A record in which every field may be null: Spark promises of no column that it is not.

    Raises:
        SchemaMismatchError: a column whose name or type has no form in Avro.
        OptionError: the record's name has none.
    """
    if not _NAME.fullmatch(name):
        raise OptionError("schemaName", f"{name!r} is not of letters, digits and underscores")
    described = []
    for field, kind in fields:
        if not _NAME.fullmatch(field):
            raise SchemaMismatchError(
                f"column {field!r}: a field of a schema has letters, digits and underscores only"
            )
        found = next((_TYPES[each] for each in type(kind).__mro__ if each in _TYPES), None)
        if found is None or (isinstance(kind, BinaryType) and encoding is Encoding.JSON):
            raise SchemaMismatchError(
                f"column {field} is {kind.simpleString()}, which the sink does not encode as "
                f"{encoding.value}: cast it, or make the value yourself"
            )
        described.append({"name": field, "type": ["null", found], "default": None})
    return json.dumps({"type": "record", "name": name, "fields": described})
