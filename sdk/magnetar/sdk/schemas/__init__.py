"""Schemas: values of a type instead of bytes, and what the broker is told of them."""

from magnetar.sdk.schema import Schema, SchemaInfo, SchemaType
from magnetar.sdk.schemas.auto import (
    AutoConsumeSchema,
    AutoProduceSchema,
    AutoTextSchema,
    schema_of,
)
from magnetar.sdk.schemas.avro import AvroObjectSchema, AvroSchema
from magnetar.sdk.schemas.json_schema import JsonObjectSchema, JsonSchema
from magnetar.sdk.schemas.key_value import KeyValue, KeyValueEncoding, KeyValueSchema
from magnetar.sdk.schemas.primitives import (
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    FLOAT,
    INSTANT,
    INT8,
    INT16,
    INT32,
    INT64,
    LOCAL_DATE,
    LOCAL_DATE_TIME,
    LOCAL_TIME,
    STRING,
    TIME,
    TIMESTAMP,
    BytesSchema,
    StringSchema,
)
from magnetar.sdk.schemas.records import AvroType, Float32, Int32

__all__ = [
    "BOOLEAN",
    "BYTES",
    "DATE",
    "DOUBLE",
    "FLOAT",
    "INSTANT",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "LOCAL_DATE",
    "LOCAL_DATE_TIME",
    "LOCAL_TIME",
    "STRING",
    "TIME",
    "TIMESTAMP",
    "AutoConsumeSchema",
    "AutoProduceSchema",
    "AutoTextSchema",
    "AvroObjectSchema",
    "AvroSchema",
    "AvroType",
    "BytesSchema",
    "Float32",
    "Int32",
    "JsonObjectSchema",
    "JsonSchema",
    "KeyValue",
    "KeyValueEncoding",
    "KeyValueSchema",
    "Schema",
    "SchemaInfo",
    "SchemaType",
    "StringSchema",
    "schema_of",
]
