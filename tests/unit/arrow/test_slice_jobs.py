"""Rows that are not wanted are left out, and no others."""

from typing import Any

import pyarrow as pa
import pytest

from magnetar.arrow.slice_jobs import RowFilter
from magnetar.arrow.stored.column_names import ERROR, KEY, PUBLISH_TIME
from magnetar.arrow.stored.column_types import INSTANT, all_columns
from magnetar.arrow.stored.slices import FAILFAST, PERMISSIVE, ValueSchema

BATCH = pa.record_batch(
    {
        "value": pa.array(range(5)),
        KEY: pa.array([b"a", None, b"", b"b", b"a"], pa.binary()),
        PUBLISH_TIME: pa.array([1_000, 2_000, 3_000, 4_999, None], pa.int64()).view(INSTANT),
    }
)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"keys": frozenset({b"a"})}, [0, 4]),
        ({"keys": frozenset({b"a", b""})}, [0, 2, 4]),
        ({"keys": frozenset()}, []),
        ({"from_ms": 2}, [1, 2, 3]),
        ({"through_ms": 4}, [0, 1, 2, 3]),
        ({"through_ms": 3}, [0, 1, 2]),
        ({"from_ms": 2, "through_ms": 2}, [1]),
        ({"keys": frozenset({b"b"}), "from_ms": 1}, [3]),
    ],
)
def test_rows_are_filtered_by_key_and_time(wanted: dict[str, Any], expected: list[int]) -> None:
    assert RowFilter(**wanted).rows(BATCH).column("value").to_pylist() == expected


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"keys": frozenset({b"a"})}, [0, 2, 4]),
        ({"keys": frozenset({b"b"})}, [1, 2]),
        ({"keys": frozenset()}, [2]),
        ({"from_ms": 2}, [1, 2, 4]),
        ({"through_ms": 1}, [0, 4]),
    ],
)
def test_unreadable_rows_stay_where_their_key_or_time_is_unknown(
    wanted: dict[str, Any], expected: list[int]
) -> None:
    batch = pa.record_batch(
        {
            "value": pa.array(range(6)),
            KEY: pa.array([b"a", b"b", None, None, b"a", None], pa.binary()),
            PUBLISH_TIME: pa.array([1_000, 2_000, 3_000, None, None, None]).view(INSTANT),
            ERROR: pa.array([None, "damaged", "damaged", None, "damaged", None], pa.string()),
        }
    )
    rows = RowFilter(**wanted)
    assert set(rows.names) <= set(batch.schema.names)
    assert ERROR in rows.names
    assert rows.rows(batch).column("value").to_pylist() == expected


def test_errors_are_a_column_where_they_are_told_of() -> None:
    assert ERROR not in all_columns(ValueSchema(), FAILFAST).names
    assert ERROR in all_columns(ValueSchema(), PERMISSIVE).names
