"""Schema versions of a topic as columns of a table: which columns are added and which widen. Pure.

A table only gets more columns or wider ones, as Iceberg allows: a new column is null in older rows,
int becomes long, float becomes double, a decimal gets more digits. A field that the topic's schema
has dropped stays a column. Any other change, such as text that becomes a number, is refused: the
job ends with one line, and no row is written.

Types are Arrow's. `stored_schema` maps them to those of a table: Iceberg has no 8-bit and 16-bit
integers.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as kinds

from magnetar.arrow.errors import EvolutionError

_DEPTH_MAX = 64


def stored_schema(fields: Sequence[pa.Field]) -> pa.Schema:
    """Return the columns of a topic as a table stores them; all of them may be null.

    Raises:
        EvolutionError: two columns differ in case only; most engines treat them as one.
    """
    seen: dict[str, str] = {}
    for each in fields:
        other = seen.setdefault(each.name.lower(), each.name)
        if other != each.name or sum(1 for field in fields if field.name == each.name) > 1:
            raise EvolutionError(
                f"the topic's schema has fields {other} and {each.name}, which are one column in a "
                "table: rename one of them, or archive the topic's bytes with --no-decode"
            )
    return pa.schema([pa.field(each.name, stored_type(each.type)) for each in fields])


def stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that a table uses for an Arrow type."""
    if kinds.is_int8(kind) or kinds.is_int16(kind):
        return pa.int32()
    if kinds.is_large_string(kind) or kinds.is_string_view(kind):
        return pa.string()
    if kinds.is_large_binary(kind) or kinds.is_binary_view(kind):
        return pa.binary()
    if kinds.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC") if kind.tz else pa.timestamp("us")
    if kinds.is_struct(kind):
        return pa.struct([pa.field(each.name, stored_type(each.type)) for each in kind])
    if kinds.is_map(kind):
        return pa.map_(stored_type(kind.key_type), stored_type(kind.item_type))
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        return pa.list_(pa.field("element", stored_type(kind.value_type)))
    return kind


def evolved(table: pa.Schema, topic: pa.Schema) -> pa.Schema:
    """Return the columns that hold the rows of both: the table's, widened as needed, then new ones.

    Both schemas are as `stored_schema` returns them.

    Raises:
        EvolutionError: a column would have to change in a way that Iceberg does not support.
    """
    return pa.schema(_fields(list(table), list(topic), "", 0))


def _fields(old: list[pa.Field], new: list[pa.Field], path: str, depth: int) -> list[pa.Field]:
    by_name = {each.name: each for each in new}
    result = []
    for each in old:
        wanted = by_name.pop(each.name, None)
        kind = each.type
        if wanted is not None:
            kind = _wider(kind, wanted.type, f"{path}{each.name}", depth)
        result.append(pa.field(each.name, kind))
    return result + [pa.field(each.name, each.type) for each in by_name.values()]


def _wider(old: pa.DataType, new: pa.DataType, path: str, depth: int) -> pa.DataType:
    """Return a type that holds the values of both."""
    if old.equals(new):
        return old
    if depth < _DEPTH_MAX:
        if kinds.is_struct(old) and kinds.is_struct(new):
            return pa.struct(_fields(list(old), list(new), f"{path}.", depth + 1))
        if kinds.is_list(old) and kinds.is_list(new):
            element = _wider(old.value_type, new.value_type, f"{path}.element", depth + 1)
            return pa.list_(pa.field("element", element))
        if kinds.is_map(old) and kinds.is_map(new) and old.key_type.equals(new.key_type):
            value = _wider(old.item_type, new.item_type, f"{path}.value", depth + 1)
            return pa.map_(old.key_type, value)
    for narrow, wide in ((old, new), (new, old)):
        if _widens(narrow, wide):
            return wide
    raise EvolutionError(
        f"column {path} is {old} in the table and {new} in the topic's newest schema, and a table "
        "can only widen it (int to long, float to double, more digits): archive to another table, "
        "or keep the field's type"
    )


def _widens(narrow: pa.DataType, wide: pa.DataType) -> bool:
    if kinds.is_decimal(narrow) and kinds.is_decimal(wide):
        return bool(narrow.scale == wide.scale and narrow.precision < wide.precision)
    pairs = ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))
    return any(narrow.equals(one) and wide.equals(other) for one, other in pairs)
