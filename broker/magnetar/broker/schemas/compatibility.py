"""Decide whether a schema may follow others, by a topic's strategy. Pure.

A schema *reads* another one if its holder can read data written with the other one. BACKWARD: the
new one reads the last one. FORWARD: the last one reads the new one. FULL: both. The transitive
strategies require that with all schemas of the topic. Source: binary sheet, section 13.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from magnetar.broker.policies.model import SchemaCompatibility as Strategy
from magnetar.broker.schemas import protobuf_native
from magnetar.broker.schemas.avro import why_unreadable as why_unreadable_avro
from magnetar.broker.schemas.avro.types import (
    Array,
    Enumeration,
    Fixed,
    Map,
    Primitive,
    Record,
    Union,
)
from magnetar.broker.schemas.definitions import Definition, JsonSchemaObject, KeyValueDefinition
from magnetar.broker.schemas.errors import IncompatibleSchemaError
from magnetar.broker.schemas.protobuf_native import ProtobufDefinition


@dataclass(frozen=True, slots=True)
class Rule:
    """Requirements of a strategy on a new schema."""

    reads_old: bool = False
    is_read_by_old: bool = False
    is_transitive: bool = False
    """Whether they hold for all schemas of the topic, and not for the last one only."""


RULES = {
    Strategy.BACKWARD: Rule(reads_old=True),
    Strategy.FORWARD: Rule(is_read_by_old=True),
    Strategy.FULL: Rule(reads_old=True, is_read_by_old=True),
    Strategy.BACKWARD_TRANSITIVE: Rule(reads_old=True, is_transitive=True),
    Strategy.FORWARD_TRANSITIVE: Rule(is_read_by_old=True, is_transitive=True),
    Strategy.FULL_TRANSITIVE: Rule(reads_old=True, is_read_by_old=True, is_transitive=True),
}
"""Requirements by strategy. ALWAYS_COMPATIBLE and ALWAYS_INCOMPATIBLE compare no schemas."""

_WITH_LAST_ONLY = (Strategy.BACKWARD, Strategy.FORWARD, Strategy.FORWARD_TRANSITIVE, Strategy.FULL)
"""Strategies under which a consumer must be able to read the last schema only."""


def asks_for_all(strategy: Strategy) -> bool:
    """Whether a new schema must be compared with all schemas of a topic, and not with the last one
    only."""
    rule = RULES.get(strategy)
    return rule is not None and rule.is_transitive


def for_consumers(strategy: Strategy) -> Strategy:
    """Return the strategy for the schema of a consumer, which does not become one of the
    topic's."""
    return Strategy.BACKWARD if strategy in _WITH_LAST_ONLY else strategy


def check(existing: Sequence[Definition], new: Definition, strategy: Strategy) -> None:
    """Refuse a schema that is not compatible with `existing`: the topic's schemas, oldest first, as
    many as the strategy needs.

    A schema that is among them is never refused.

    Raises:
        IncompatibleSchemaError
    """
    if not existing or any(each.fingerprint == new.fingerprint for each in existing):
        return
    if strategy is Strategy.ALWAYS_COMPATIBLE:
        return
    if strategy is Strategy.ALWAYS_INCOMPATIBLE:
        raise IncompatibleSchemaError(
            "Incompatible schema: the strategy is ALWAYS_INCOMPATIBLE, and the topic has a schema"
        )
    rule = RULES.get(strategy, RULES[Strategy.FULL])
    for old in existing if rule.is_transitive else existing[-1:]:
        if old.type is not new.type:
            raise IncompatibleSchemaError(
                f"Incompatible schema: exists schema type {old.type}, new schema type {new.type}"
            )
        problem = None
        if rule.reads_old:
            problem = _prefixed("the new one cannot read the old one", new, old)
        if problem is None and rule.is_read_by_old:
            problem = _prefixed("the old one cannot read the new one", old, new)
        if problem is not None:
            raise IncompatibleSchemaError(f"Incompatible schema by {strategy}: {problem}")


def why_unreadable(*, reader: Definition, writer: Definition) -> str | None:
    """Return the part of the writer's data that the reader cannot read; None if it reads all of
    it."""
    if reader.type is not writer.type:
        return f"exists schema type {writer.type}, new schema type {reader.type}"
    match reader.body, writer.body:
        case KeyValueDefinition() as read, KeyValueDefinition() as written:
            return _why_unreadable_pair(read, written)
        case ProtobufDefinition() as read, ProtobufDefinition() as written:
            return protobuf_native.why_unreadable(reader=read, writer=written)
        case JsonSchemaObject() as read, JsonSchemaObject() as written:
            return None if read == written else f"the schema {written.id} is none of {read.id}"
        case JsonSchemaObject(), _:
            return "an Avro definition cannot be followed by a JSON Schema"
        case _, JsonSchemaObject():
            return None  # A Java client that was upgraded to 2.1 or later.
        case (
            (Primitive() | Array() | Map() | Union() | Fixed() | Enumeration() | Record()) as read,
            (
                Primitive() | Array() | Map() | Union() | Fixed() | Enumeration() | Record()
            ) as written,
        ):
            return why_unreadable_avro(reader=read, writer=written)
    return None


def _why_unreadable_pair(reader: KeyValueDefinition, writer: KeyValueDefinition) -> str | None:
    if reader.encoding != writer.encoding:
        return f"the encoding {reader.encoding} cannot read {writer.encoding}"
    parts: tuple[tuple[str, Callable[[KeyValueDefinition], Definition]], ...] = (
        ("key", lambda pair: pair.key),
        ("value", lambda pair: pair.value),
    )
    for name, part in parts:
        problem = why_unreadable(reader=part(reader), writer=part(writer))
        if problem is not None:
            return f"{name}: {problem}"
    return None


def _prefixed(what: str, reader: Definition, writer: Definition) -> str | None:
    problem = why_unreadable(reader=reader, writer=writer)
    return None if problem is None else f"{what}: {problem}"
