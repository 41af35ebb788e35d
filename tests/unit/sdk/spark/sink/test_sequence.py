"""What a sequence id of the sink says of a batch."""

import pytest

from magnetar.sdk.spark.sink.attempts import (
    BATCHES_PER_NAME,
    ROWS_MAX,
    ROWS_MAX_ALONE,
    Progress,
    extend,
    fold,
    producer_name,
    progress,
    sequence_id,
)

_LONG_MAX = (1 << 63) - 1


@pytest.mark.parametrize("batch_id", [0, 1, 7, BATCHES_PER_NAME - 1])
@pytest.mark.parametrize("rows", [1, 1_000, ROWS_MAX])
def test_an_id_tells_rows_and_checksum_of_its_batch(batch_id: int, rows: int) -> None:
    crc = extend(0, b"rows")
    assert progress(batch_id, sequence_id(batch_id, rows, crc)) == Progress(rows, fold(crc))


def test_the_ids_of_a_name_ascend_by_batch_and_row_and_are_signed_longs() -> None:
    ids = [
        sequence_id(batch, rows, crc)
        for batch in (0, 1, BATCHES_PER_NAME - 1)
        for rows in (1, 2, ROWS_MAX)
        for crc in (0xFFFFFFFF,)
    ]
    assert ids == sorted(set(ids))
    assert sequence_id(0, ROWS_MAX_ALONE, 0xFFFFFFFF) <= _LONG_MAX
    assert ids[-1] <= _LONG_MAX


def test_an_entry_of_many_rows_begins_above_the_one_before_whatever_the_checksums() -> None:
    """An entry's first id is its last one minus its rows."""
    before = sequence_id(3, 10, 0x7FFF)
    for rows in (1, 2, 1_000_000):
        assert sequence_id(3, 10 + rows, 0) - rows + 1 > before


def test_nothing_of_a_new_batch_is_stored_and_all_of_an_older_one() -> None:
    last = sequence_id(5, 100, 1)
    assert progress(6, last) == Progress()
    assert progress(4, last) is None
    assert progress(0, -1) == Progress()


def test_a_name_with_one_batch_counts_beyond_the_rows_of_a_stream() -> None:
    rows = ROWS_MAX + 10
    assert progress(None, sequence_id(0, rows, 0)) == Progress(rows, 0)


def test_a_name_ends_before_its_batch_ids_wrap() -> None:
    assert producer_name("q", 1, 0) == producer_name("q", BATCHES_PER_NAME - 1, 0)
    assert producer_name("q", 1, 0) != producer_name("q", BATCHES_PER_NAME + 1, 0)
    assert producer_name("q", 1, 0) != producer_name("q", 1, 1)


def test_each_bit_of_a_checksum_counts() -> None:
    assert all(fold(0) != fold(1 << bit) for bit in range(32))
