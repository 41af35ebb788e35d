"""The part of a slice that is read a second time, and the columns of an archive."""

import json

import pytest

from magnetar.arrow.errors import EvolutionError
from magnetar.arrow.iceberg.archive_rows import (
    RAW,
    UNDECODED_SCHEMA,
    archive_fields,
    clipped,
    undecoded_table,
)
from magnetar.arrow.stored.slices import LedgerPart, Slice, ValueSchema

WHOLE = Slice(
    "t",
    2,
    (LedgerPart(5, 3, 9), LedgerPart(6, 0, 4), LedgerPart(8, 0, 1)),
    before=(LedgerPart(4, 0, 7),),
    value_schema=ValueSchema("STRING"),
)


@pytest.mark.parametrize(
    ("first", "last", "parts", "before"),
    [
        ((5, 3), (8, 1), [(5, 3, 9), (6, 0, 4), (8, 0, 1)], [(4, 0, 7)]),
        ((5, 4), (5, 4), [(5, 4, 4)], [(4, 0, 7)]),
        ((5, 9), (6, 2), [(5, 9, 9), (6, 0, 2)], [(4, 0, 7)]),
        ((8, 0), (8, 0), [(8, 0, 0)], [(4, 0, 7), (5, 0, 9), (6, 0, 4)]),
    ],
)
def test_a_part_of_a_slice_knows_where_chunks_may_have_begun(
    first: tuple[int, int],
    last: tuple[int, int],
    parts: list[tuple[int, int, int]],
    before: list[tuple[int, int, int]],
) -> None:
    found = clipped(WHOLE, first, last)
    assert [(each.ledger_id, each.first, each.last) for each in found.parts] == parts
    assert [(each.ledger_id, each.first, each.last) for each in found.before] == before
    assert (found.topic, found.partition) == ("t", 2)
    assert found.value_schema == ValueSchema(), "payloads as they are"


@pytest.mark.parametrize("name", ["__ledgerId", "__ENTRYID"])
def test_a_field_with_the_name_of_a_column_of_the_archive_is_refused(name: str) -> None:
    fields = [{"name": name, "type": "int"}, {"name": "other", "type": "int"}]
    definition = json.dumps({"type": "record", "name": "R", "fields": fields})
    with pytest.raises(EvolutionError, match=f"field {name}"):
        archive_fields(ValueSchema("AVRO", definition))


def test_a_row_of_the_second_table_may_lack_what_is_not_known() -> None:
    table = undecoded_table([{RAW: b"x", "__topic": "t"}])
    assert table.schema == UNDECODED_SCHEMA
    assert table[RAW].to_pylist() == [b"x"]
    assert table["__publishTime"].to_pylist() == [None]
