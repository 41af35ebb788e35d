"""The property of a log that says where its message index goes on."""

import pytest

from magnetar.broker.features.message_index.index_record import PROPERTY, IndexRecord, record_in


@pytest.mark.parametrize("record", [IndexRecord(0, True), IndexRecord(1 << 62, False)])
def test_a_record_comes_back_as_it_was_written(record: IndexRecord) -> None:
    assert record_in({PROPERTY: record.encode()}) == record


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "null",
        "[]",
        "{}",
        '{"next": 7}',
        '{"next": -1, "is_written": true}',
        '{"next": "7", "is_written": true}',
        '{"next": 7, "is_written": 1}',
    ],
)
def test_a_record_that_cannot_be_read_counts_as_none(text: str) -> None:
    assert record_in({PROPERTY: text}) is None


def test_a_log_without_an_index_has_no_record() -> None:
    assert record_in({}) is None
