"""Schema versions as columns of a table: what is added, what widens, and what is refused."""

import pyarrow as pa
import pytest

from magnetar.arrow.errors import EvolutionError
from magnetar.arrow.iceberg.evolution import evolved, stored_schema


def columns(**types: pa.DataType) -> pa.Schema:
    return pa.schema(list(types.items()))


def test_a_table_has_no_small_integers_and_no_large_text() -> None:
    found = stored_schema(
        [
            pa.field("a", pa.int8()),
            pa.field("b", pa.struct([pa.field("c", pa.int16(), nullable=False)])),
            pa.field("d", pa.large_list(pa.large_string())),
            pa.field("e", pa.map_(pa.string(), pa.int16())),
            pa.field("f", pa.timestamp("ms", tz="Europe/Paris")),
        ]
    )
    assert found == pa.schema(
        [
            ("a", pa.int32()),
            ("b", pa.struct([("c", pa.int32())])),
            ("d", pa.list_(pa.field("element", pa.string()))),
            ("e", pa.map_(pa.string(), pa.int32())),
            ("f", pa.timestamp("us", tz="UTC")),
        ]
    )


@pytest.mark.parametrize("names", [("a", "A"), ("a", "a")])
def test_fields_that_engines_take_for_one_are_refused(names: tuple[str, str]) -> None:
    with pytest.raises(EvolutionError, match="one column in a table"):
        stored_schema([pa.field(name, pa.int32()) for name in names])


def test_new_fields_come_behind_and_dropped_ones_stay() -> None:
    found = evolved(columns(a=pa.int32(), b=pa.string()), columns(c=pa.bool_(), a=pa.int32()))
    assert found == columns(a=pa.int32(), b=pa.string(), c=pa.bool_())


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (pa.int32(), pa.int64()),
        (pa.float32(), pa.float64()),
        (pa.decimal128(9, 2), pa.decimal128(20, 2)),
        (pa.struct([("x", pa.int32())]), pa.struct([("x", pa.int64())])),
        (
            pa.list_(pa.field("element", pa.int32())),
            pa.list_(pa.field("element", pa.int64())),
        ),
        (pa.map_(pa.string(), pa.float32()), pa.map_(pa.string(), pa.float64())),
    ],
    ids=str,
)
def test_a_column_is_as_wide_as_the_widest_version(narrow: pa.DataType, wide: pa.DataType) -> None:
    assert evolved(columns(a=narrow), columns(a=wide)) == columns(a=wide)
    assert evolved(columns(a=wide), columns(a=narrow)) == columns(a=wide)


def test_a_field_is_added_within_a_record() -> None:
    old, new = pa.struct([("x", pa.int32())]), pa.struct([("y", pa.string()), ("x", pa.int32())])
    found = evolved(columns(a=old), columns(a=new))
    assert found == columns(a=pa.struct([("x", pa.int32()), ("y", pa.string())]))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pa.string(), pa.int32()),
        (pa.int64(), pa.float64()),
        (pa.decimal128(9, 2), pa.decimal128(9, 3)),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.int32(), pa.int32())),
        (pa.struct([("x", pa.int32())]), pa.int32()),
    ],
    ids=str,
)
def test_another_change_is_refused_with_one_line_that_names_the_column(
    old: pa.DataType, new: pa.DataType
) -> None:
    with pytest.raises(EvolutionError, match=r"column outer\.a is ") as raised:
        evolved(columns(outer=pa.struct([("a", old)])), columns(outer=pa.struct([("a", new)])))
    assert "\n" not in str(raised.value)


def test_evolving_twice_changes_nothing() -> None:
    old, new = columns(a=pa.int32()), columns(a=pa.int64(), b=pa.string())
    once = evolved(old, new)
    assert evolved(once, new) == once
    assert evolved(once, old) == once
