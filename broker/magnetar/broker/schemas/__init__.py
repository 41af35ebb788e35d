"""Schemas of topics: their types, their compatibility, and their storage."""

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
