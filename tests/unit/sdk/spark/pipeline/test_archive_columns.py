"""Columns of files that were written by different versions of a schema."""

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

from magnetar.sdk.spark.errors import ArchiveError
from magnetar.sdk.spark.pipeline.archive_store import widest

INT, LONG, FLOAT, DOUBLE, STRING = (
    IntegerType(), LongType(), FloatType(), DoubleType(), StringType(),
)  # fmt: skip


def columns(**types: DataType) -> StructType:
    made = StructType()
    for name, kind in types.items():
        made.add(name, kind)
    return made


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (INT, LONG),
        (INT, DOUBLE),
        (FLOAT, DOUBLE),
        (STRING, STRING),
        (ArrayType(INT), ArrayType(LONG)),
        (MapType(STRING, INT), MapType(STRING, LONG)),
        (columns(b=INT), columns(b=LONG)),
    ],
    ids=str,
)
def test_a_column_is_as_wide_as_in_any_file(narrow: DataType, wide: DataType) -> None:
    for schemas in ([narrow, wide], [wide, narrow], [narrow, wide, narrow]):
        assert widest([columns(a=each) for each in schemas]) == columns(a=wide)


def test_a_column_that_is_in_some_files_only_is_there() -> None:
    first, second = columns(a=INT, b=columns(c=INT)), columns(b=columns(d=INT), e=INT)
    assert widest([first, second]) == columns(a=INT, b=columns(c=INT, d=INT), e=INT)


@pytest.mark.parametrize(("one", "other"), [(STRING, INT), (LONG, DOUBLE), (INT, ArrayType(INT))])
def test_types_that_do_not_go_together_are_named(one: DataType, other: DataType) -> None:
    with pytest.raises(ArchiveError, match=r"column a\.b is .* in some files and .* in others"):
        widest([columns(a=columns(b=one)), columns(a=columns(b=other))])
