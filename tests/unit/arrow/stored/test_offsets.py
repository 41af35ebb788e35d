"""Offsets: what users write, and how they are ordered."""

import pytest

from magnetar.arrow.stored.errors import OffsetError
from magnetar.arrow.stored.offsets import before, parse_id, parse_offsets, reach, shown_id
from magnetar.sdk.message_id import MessageId

TOPIC = "persistent://public/default/t"


def test_words_stand_for_all_topics() -> None:
    assert parse_offsets("Earliest").of("any") == MessageId.EARLIEST
    assert parse_offsets("latest").of("any") == MessageId.LATEST


def test_json_names_topics_in_short_or_full() -> None:
    found = parse_offsets('{"t": "3:4", "public/default/u": "latest", "v": "1:2:-1:7"}')
    assert found.of(TOPIC) == MessageId(3, 4)
    assert found.of("persistent://public/default/u") == MessageId.LATEST
    assert found.of("persistent://public/default/v") == MessageId(1, 2, 7)
    assert found.of("persistent://public/default/w") is None


def test_an_id_may_be_the_bytes_that_the_column_has() -> None:
    data = MessageId(3, 4, 5).to_bytes().hex()
    assert parse_offsets(f'{{"t": "{data}"}}').of(TOPIC) == MessageId(3, 4, 5)


def test_an_id_may_be_the_bytes_as_the_pulsar_connector_writes_them() -> None:
    data = MessageId(300, 4, 5).to_bytes()
    signed = [each - 256 if each > 127 else each for each in data]
    assert min(signed) < 0
    assert parse_offsets(f'{{"t": {signed}}}').of(TOPIC) == MessageId(300, 4, 5)


@pytest.mark.parametrize(
    "text",
    ["erliest", "{", "[]", "{}", '{"t": 5}', '{"t": "5"}', '{"t": "a:b"}', '{"t": "1:2:3:4:5"}',
     '{"t": [300]}', '{"t": ["a"]}', '{"t": []}', '{"t": [true]}',
     '{"t": "-1:-1"}', '{"a/b": "1:2"}', '{"t": "1:99999999999999999999"}'],
)  # fmt: skip
def test_what_is_no_offset_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(OffsetError) as refusal:
        parse_offsets(text)
    assert "\n" not in str(refusal.value)


def test_ids_are_shown_as_they_are_read() -> None:
    for each in (MessageId(1, 2), MessageId(1, -1), MessageId(7, 8, 9)):
        assert parse_id(shown_id(each)) == each


def test_an_offset_is_behind_what_was_read() -> None:
    assert before(MessageId(5, 0)) == MessageId(5, -1)
    assert before(MessageId(5, 3, 0)) == MessageId(5, 2)
    assert before(MessageId(5, 3, 2)) == MessageId(5, 3, 1)


def test_a_whole_entry_reaches_farther_than_a_message_in_it() -> None:
    ordered = [MessageId(1, 2, 0), MessageId(1, 2, 9), MessageId(1, 2), MessageId(1, 3, 0)]
    assert sorted([*ordered[2:], *ordered[:2]], key=reach) == ordered
