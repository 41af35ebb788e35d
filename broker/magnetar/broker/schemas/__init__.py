"""Schemas of topics: what they mean, which fit each other, where they are kept."""

from magnetar.broker.schemas.errors import (
    IncompatibleSchemaError,
    InvalidSchemaError,
    SchemaNotFoundError,
)
from magnetar.broker.schemas.model import SchemaData, SchemaType, StoredSchema

__all__ = [
    "IncompatibleSchemaError",
    "InvalidSchemaError",
    "SchemaData",
    "SchemaNotFoundError",
    "SchemaType",
    "StoredSchema",
]
