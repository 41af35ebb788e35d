"""Where entries end."""

import pyarrow as pa
import pytest

from magnetar.sdk.spark.sink.attempts import Entry, EntryCutter

_ITEMS = [b"x" * (1 + number * 7 % 13) for number in range(200)]


def _cut(pieces: list[int], *, rows_max: int, bytes_max: int, cut_at: int = 0) -> list[Entry]:
    cutter = EntryCutter(rows_max=rows_max, bytes_max=bytes_max, cut_at=cut_at)
    column, at = pa.array(_ITEMS, pa.binary()), 0
    keys = pa.array([str(number).encode() for number in range(len(_ITEMS))])
    entries: list[Entry] = []
    for piece in [*pieces, len(_ITEMS)]:
        entries += cutter.feed(column[at : at + piece], keys[at : at + piece])
        at = min(len(_ITEMS), at + piece)
    entries += cutter.rest()
    return entries


@pytest.mark.parametrize("bytes_max", [1, 20, 50, 10_000])
@pytest.mark.parametrize("rows_max", [1, 7, 1_000])
@pytest.mark.parametrize("cut_at", [0, 1, 33, 199])
def test_entries_do_not_depend_on_how_items_arrive(
    rows_max: int, bytes_max: int, cut_at: int
) -> None:
    whole = _cut([], rows_max=rows_max, bytes_max=bytes_max, cut_at=cut_at)
    assert b"".join(entry.body for entry in whole) == b"".join(_ITEMS)
    row = 0
    ends = []
    for entry in whole:
        assert 1 <= entry.rows <= rows_max
        assert len(entry.body) <= bytes_max or entry.rows == 1
        assert entry.first_key == str(row).encode()
        row += entry.rows
        ends.append(row)
    assert not cut_at or cut_at in ends
    for pieces in ([1] * 200, [0, 50, 0, 3], [199]):
        assert _cut(pieces, rows_max=rows_max, bytes_max=bytes_max, cut_at=cut_at) == whole


def test_an_item_as_large_as_the_limit_fits_and_a_larger_one_is_alone() -> None:
    cutter = EntryCutter(rows_max=10, bytes_max=4)
    fed = list(cutter.feed(pa.array([b"1", b"1234", b"12345", b"1", b"2"])))
    assert [entry.body for entry in [*fed, *cutter.rest()]] == [b"1", b"1234", b"12345", b"12"]
