"""The columns of an archive whose topics' schemas have changed: each as wide as in any file. Pure.

Spark merges the columns of files only where types are equal. It reads a narrow one as a wide one if
it is told to.
"""

from functools import reduce

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StructField,
    StructType,
)

from magnetar.sdk.spark.pipeline.errors import ArchiveError

_WIDER = ((IntegerType(), LongType()), (IntegerType(), DoubleType()), (FloatType(), DoubleType()))
"""What Spark reads of Parquet as something wider."""


def widest(schemas: list[StructType]) -> StructType:
    """The columns of all, in the order of their first coming.

    Raises:
        ArchiveError: one is of types that are not the same, nor one wider than the other.
    """
    return reduce(_struct, schemas)


def _struct(one: StructType, other: StructType, at: str = "") -> StructType:
    fields = {each.name: each for each in one.fields}
    for each in other.fields:
        known = fields.get(each.name)
        kind = each.dataType
        if known is not None:
            kind = _type(known.dataType, kind, f"{at}{each.name}")
        fields[each.name] = StructField(each.name, kind)
    return StructType(list(fields.values()))


def _type(one: DataType, other: DataType, at: str) -> DataType:
    if isinstance(one, StructType) and isinstance(other, StructType):
        return _struct(one, other, f"{at}.")
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return ArrayType(_type(one.elementType, other.elementType, at))
    if isinstance(one, MapType) and isinstance(other, MapType):
        return MapType(one.keyType, _type(one.valueType, other.valueType, at))
    if one == other or (other, one) in _WIDER:
        return one
    if (one, other) in _WIDER:
        return other
    raise ArchiveError(
        f"column {at} is {one.simpleString()} in some files and {other.simpleString()} in others; "
        f"read them one by one"
    )
