"""Avro: parse definitions, and decide whether data of one can be read with another."""

from magnetar.broker.schemas.avro.parsing import parse
from magnetar.broker.schemas.avro.resolution import why_unreadable
from magnetar.broker.schemas.avro.types import AvroType

__all__ = ["AvroType", "parse", "why_unreadable"]
