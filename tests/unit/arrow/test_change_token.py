"""A change feed goes on where it ended, or says that changes are gone."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.arrow.change_token import Reached, check_unbroken, encode_token, parse_token
from magnetar.arrow.errors import DataLossError, OptionError
from magnetar.arrow.stored.offsets import BEFORE_FIRST
from magnetar.arrow.stored.topic_states import LedgerState, TopicState
from magnetar.sdk.message_id import MessageId
from tests.processes import ROOT

TOPIC = "persistent://public/default/t"

PAGE: Path = ROOT / "docs" / "formats" / "change-token.md"

numbers = st.integers(0, 1 << 62)
places = st.builds(Reached, numbers, numbers, st.booleans())


def state(*entries: int, removed_through: int = -1, first: int = 10) -> TopicState:
    """A topic of ledgers with so many entries each."""
    ledgers = tuple(
        LedgerState(first + number, count, count * 100) for number, count in enumerate(entries)
    )
    end = MessageId(ledgers[-1].ledger_id, entries[-1] - 1) if ledgers else BEFORE_FIRST
    return TopicState(TOPIC, -1, ledgers, end, removed_through=removed_through)


@given(st.dictionaries(st.text(min_size=1), places, max_size=5))
def test_a_token_is_read_as_it_was_written(found: dict[str, Reached]) -> None:
    assert parse_token(encode_token(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "[]",
        "{}",
        '{"format":2,"topics":{}}',
        '{"format":1,"topics":[]}',
        '{"format":1,"topics":{"t":[1]}}',
        '{"format":1,"topics":{"t":[1,2,3]}}',
        '{"format":1,"topics":{"t":[-1,-1,false]}}',
        '{"format":1,"topics":{"t":["1",2,true]}}',
    ],
)
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"option after: .* is no token"):
        parse_token(text)


@given(st.text())
def test_any_text_is_a_token_or_is_refused(text: str) -> None:
    try:
        parse_token(text)
    except OptionError:
        pass


def test_the_sample_of_the_format_is_read() -> None:
    sample = PAGE.read_text().partition("```json\n")[2].partition("```")[0]
    assert parse_token(sample) == {
        "persistent://public/default/prices-partition-0": Reached(17, 4711),
        "persistent://public/default/prices-partition-1": Reached(21, 99, is_end=True),
    }


@pytest.mark.parametrize(
    ("found", "at"),
    [
        (state(5, 5), Reached(10, 2)),
        (state(5, 5), Reached(10, 4, is_end=True)),
        (state(5, 5), Reached(11, 4)),
        (state(5, removed_through=9), Reached(10, 0)),
        # All of a ledger was read before it was trimmed.
        (state(5, removed_through=9), Reached(9, 3, is_end=True)),
        (state(removed_through=9), Reached(9, 3, is_end=True)),
    ],
)
def test_a_feed_goes_on_while_everything_behind_it_is_there(found: TopicState, at: Reached) -> None:
    check_unbroken(TOPIC, found, at)


@pytest.mark.parametrize(
    ("found", "at", "said"),
    [
        (None, Reached(10, 2), "the topic was deleted"),
        (TopicState(TOPIC, -1, is_there=False), Reached(10, 2), "the topic was deleted"),
        (state(5, 5), Reached(11, 5), "another topic of the same name"),
        (state(5, removed_through=9), Reached(9, 3), "are lost, or may be"),
        (state(5, removed_through=9), Reached(8, 3, is_end=True), "are lost, or may be"),
        # The topic was deleted and made again: its ledgers have higher numbers.
        (state(5), Reached(9, 3, is_end=True), "are lost, or may be"),
        (state(), Reached(9, 3, is_end=True), "are lost, or may be"),
    ],
)
def test_changes_that_are_gone_are_told_of(
    found: TopicState | None, at: Reached, said: str
) -> None:
    with pytest.raises(DataLossError, match=said):
        check_unbroken(TOPIC, found, at)
