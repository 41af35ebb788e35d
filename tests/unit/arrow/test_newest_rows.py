"""Of each key the newest row is left, whatever the batches are, and within a limit of bytes."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.arrow import newest_rows
from magnetar.arrow.errors import MemoryLimitError
from magnetar.arrow.newest_rows import NewestRows, newest_of
from magnetar.arrow.stored.column_names import ERROR, KEY, TOPIC
from magnetar.arrow.stored.column_types import CHANGE, DELETE, UPSERT

SCHEMA = pa.schema(
    [
        pa.field("value", pa.int64()),
        pa.field(KEY, pa.binary()),
        pa.field(TOPIC, pa.string()),
        pa.field(CHANGE, pa.string()),
    ]
)

Message = tuple[bytes | None, int | None]
"""Key and value; None: a message without a key, a tombstone."""

messages = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from([b"", b"a", b"b", b"c"])),
        st.one_of(st.none(), st.integers(0, 9)),
    )
)


def batch_of(found: Sequence[Message], topic: str = "t") -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {"value": value, KEY: key, TOPIC: topic, CHANGE: DELETE if value is None else UPSERT}
            for key, value in found
        ],
        SCHEMA,
    )


def newest(found: Sequence[Message]) -> dict[bytes, int | None]:
    """The last value of each key, in the order of those, tombstones included."""
    last: dict[bytes, int | None] = {}
    for key, value in found:
        if key is not None:
            last.pop(key, None)
            last[key] = value
    return last


def shown(rows: Any) -> list[tuple[Any, ...]]:
    return [(each[KEY], each["value"]) for each in rows.to_pylist()]


@given(messages)
def test_a_batch_keeps_the_newest_row_of_each_key_and_tombstones(found: list[Message]) -> None:
    assert shown(newest_of(batch_of(found))) == list(newest(found).items())


@given(st.lists(messages), st.integers(1, 400))
def test_a_table_is_the_newest_value_of_each_key_however_rows_are_merged(
    batches: list[list[Message]], merge_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(newest_rows, "_MERGE_BYTES_MIN", merge_bytes)
        rows = NewestRows(SCHEMA, bytes_max=1 << 20)
        for topic in ("t", "u"):
            for each in filter(None, batches):
                rows.add(batch_of(each, topic))
    expected = newest([message for each in batches for message in each])
    left = [(key, value) for key, value in expected.items() if value is not None]
    # The same keys in another topic are other rows.
    assert shown(rows.table()) == left * 2


def test_rows_that_cannot_be_read_stay_without_a_key() -> None:
    batch = batch_of([(None, 1), (None, 2), (b"a", 3)])
    errors = pa.array(["damaged", None, None], pa.string())
    told = pa.RecordBatch.from_arrays([*batch.columns, errors], [*SCHEMA.names, ERROR])
    assert shown(newest_of(told)) == [(None, 1), (b"a", 3)]


def test_the_limit_is_for_the_rows_that_are_left() -> None:
    few = batch_of([(b"%03d" % (number % 4), number) for number in range(1_000)])
    size = newest_of(few).nbytes
    rows = NewestRows(few.schema, bytes_max=size)
    rows.add(few)
    assert rows.table().num_rows == 4
    rows = NewestRows(few.schema, bytes_max=size - 1)
    rows.add(few)
    with pytest.raises(MemoryLimitError, match=r"table_bytes is .*: raise it"):
        rows.table()
