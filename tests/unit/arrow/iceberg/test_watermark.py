"""How far each topic is archived: marks, their stored form, and what is lost behind them."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.arrow.errors import DataLossError, TableError
from magnetar.arrow.iceberg.watermark import (
    MARKS_PRUNED_ABOVE,
    WATERMARK_TOPICS_MAX,
    WATERMARKS_BYTES_MAX,
    DeletedTopics,
    Mark,
    check_kept,
    encode_watermark,
    is_archived,
    lag_of,
    mark_at,
    merged,
    parse_watermark,
    pruned,
    snapshots_max,
    start_of,
)
from magnetar.arrow.stored.offsets import BEFORE_FIRST
from magnetar.arrow.stored.topic_states import LedgerState, TopicState
from magnetar.sdk.message_id import MessageId
from tests.processes import ROOT

TOPIC = "persistent://public/default/t"
PAGE: Path = ROOT / "docs" / "formats" / "iceberg-archive.md"

numbers = st.integers(0, 1 << 62)
marks = st.builds(Mark, numbers, numbers, st.integers(0, 1000))
watermarks = st.dictionaries(st.text(min_size=1), marks, max_size=5)


def state(*entries: int, removed_through: int = -1, first: int = 10) -> TopicState:
    """A topic of ledgers with so many entries each."""
    ledgers = tuple(
        LedgerState(first + number, count, count * 100) for number, count in enumerate(entries)
    )
    end = MessageId(ledgers[-1].ledger_id, entries[-1] - 1) if ledgers else BEFORE_FIRST
    return TopicState(TOPIC, -1, ledgers, end, removed_through=removed_through)


@given(watermarks)
def test_a_watermark_is_read_as_it_was_written(found: dict[str, Mark]) -> None:
    assert parse_watermark(encode_watermark(found)) == found


@pytest.mark.parametrize("text", ["", "[]", "7", '{"t": "1"}', '{"t": "1:2:3"}', '{"t": null}'])
def test_what_is_no_watermark_is_refused(text: str) -> None:
    with pytest.raises(TableError, match="watermark cannot be read"):
        parse_watermark(text)


def test_the_sample_of_the_format_is_read() -> None:
    sample = PAGE.read_text().partition("```json\n")[2].partition("```")[0]
    assert parse_watermark(sample) == {
        "persistent://public/default/flights": Mark(17, 4711),
        "persistent://public/default/orders-partition-0": Mark(21, 3, 120),
    }


def test_a_watermark_has_so_many_topics_and_no_more() -> None:
    most = {str(number): Mark(1, 1) for number in range(WATERMARK_TOPICS_MAX)}
    assert len(parse_watermark(encode_watermark(most))) == WATERMARK_TOPICS_MAX
    with pytest.raises(TableError, match="several tables"):
        encode_watermark({**most, "one more": Mark(1, 1)})


@given(watermarks, watermarks)
def test_marks_only_move_forward_whichever_comes_first(
    one: dict[str, Mark], other: dict[str, Mark]
) -> None:
    found = merged(one, other)
    places = {topic: mark.place for topic, mark in found.items()}
    assert places == {topic: mark.place for topic, mark in merged(other, one).items()}
    for each in (one, other):
        for topic, mark in each.items():
            assert is_archived(found, topic, ledger_id=mark.ledger_id, entry_id=mark.entry_id)


def test_what_is_archived_ends_with_the_mark() -> None:
    found = {TOPIC: Mark(10, 5)}
    assert is_archived(found, TOPIC, ledger_id=10, entry_id=5)
    assert is_archived(found, TOPIC, ledger_id=9, entry_id=500)
    assert not is_archived(found, TOPIC, ledger_id=10, entry_id=6)
    assert not is_archived(found, TOPIC, ledger_id=11, entry_id=0)
    assert not is_archived(found, "another", ledger_id=1, entry_id=1)
    assert start_of(found, TOPIC) == MessageId(10, 5)
    assert start_of(found, "another") == BEFORE_FIRST


def test_the_lag_is_what_is_confirmed_behind_the_marks() -> None:
    states = {TOPIC: state(10, 4)}
    assert lag_of(states, {}) == (14, 1400)
    assert lag_of(states, {TOPIC: Mark(10, 6)}) == (7, 700)
    assert lag_of(states, {TOPIC: Mark(11, 3)}) == (0, 0)


def test_a_mark_knows_what_was_left_of_its_ledger() -> None:
    assert mark_at(state(10, 4), (10, 6)) == Mark(10, 6, 3)
    assert mark_at(state(10, 4), (11, 3)) == Mark(11, 3, 0)


@pytest.mark.parametrize(
    ("found", "mark", "stands_at"),
    [
        (state(10, 4), Mark(10, 6, 3), None),
        (state(4, first=11, removed_through=10), Mark(10, 9), MessageId(10, 9)),
        (state(4, first=11, removed_through=10), Mark(10, 9), MessageId(10, 8)),
        (state(4, first=11, removed_through=10), Mark(10, 9), MessageId(11, -1)),
        (state(removed_through=10), Mark(10, 9), MessageId(10, 9)),
        (None, Mark(10, 9), None),
    ],
    ids=["kept", "at the mark", "before it", "at the next ledger", "nothing left", "deleted"],
)
def test_nothing_is_lost_where_only_archived_entries_went(
    found: TopicState | None, mark: Mark, stands_at: MessageId | None
) -> None:
    check_kept(TOPIC, found, mark, stands_at)


@pytest.mark.parametrize(
    ("found", "mark", "stands_at", "line"),
    [
        (state(4, first=12, removed_through=11), Mark(10, 9), None, "ledger 11 was trimmed"),
        (state(4, first=11, removed_through=10), Mark(10, 6, 3), None, "3 later entries are lost"),
        (
            state(4, first=11, removed_through=10),
            Mark(10, 9),
            MessageId(10, 10),
            "moved by others",
        ),
        (state(4, first=11, removed_through=10), Mark(10, 9), None, "subscription was deleted"),
        (None, Mark(10, 6, 3), None, "the topic was deleted"),
        (state(4, first=2), Mark(10, 6), None, "another topic of the same name"),
    ],
)
def test_a_loss_is_told_in_one_line(
    found: TopicState | None, mark: Mark, stands_at: MessageId | None, line: str
) -> None:
    with pytest.raises(DataLossError, match=line) as raised:
        check_kept(TOPIC, found, mark, stands_at)
    assert "\n" not in str(raised.value)


def many(count: int) -> dict[str, Mark]:
    return {f"{TOPIC}-{number}": Mark(7, number) for number in range(count)}


@pytest.mark.parametrize("topics", [1, 100, 1_000, WATERMARK_TOPICS_MAX])
def test_the_watermarks_of_all_snapshots_fit_into_their_bound(topics: int) -> None:
    found = snapshots_max(many(topics), most=1_000)
    assert 10 <= found <= 1_000
    assert found * len(encode_watermark(many(topics))) <= WATERMARKS_BYTES_MAX
    assert found == 1_000 or topics > 100


def test_marks_of_deleted_topics_leave_a_large_watermark() -> None:
    """So short-lived topics never fill a table."""
    marks = many(MARKS_PRUNED_ABOVE + 1)
    there = f"{TOPIC}-5"
    states = {there: state(10), f"{TOPIC}-6": TopicState(TOPIC, 6, is_there=False)}
    deleted = found_in(marks, states)
    assert pruned(marks, deleted, allows_loss=False) == {there: marks[there]}


def found_in(
    marks: Mapping[str, Mark],
    states: Mapping[str, TopicState],
    selects: Callable[[str], bool] = lambda _: True,
) -> set[str]:
    """Return the topics that are missing in two equal looks."""
    found = DeletedTopics()
    found.look(marks, states, selects, allows_loss=True)
    return found.find(lambda: states)


def test_a_topic_that_is_missing_in_one_look_is_not_deleted() -> None:
    marks = many(MARKS_PRUNED_ABOVE + 1)
    wrong, right = dict.fromkeys(list(marks)[2:], state(10)), dict.fromkeys(marks, state(10))
    found = DeletedTopics()
    deleted = []
    for each in (wrong, right, wrong, wrong, right, wrong):
        found.look(marks, each, lambda _: True, allows_loss=False)
        deleted.append(found.find(lambda: right))
    gone = set(list(marks)[:2])
    assert deleted == [set(), set(), set(), gone, set(), set()]


@pytest.mark.parametrize("allows_loss", [False, True])
def test_a_look_is_repeated_only_if_there_is_something_to_leave(*, allows_loss: bool) -> None:
    marks = many(MARKS_PRUNED_ABOVE)
    one_more = {**marks, TOPIC: Mark(7, 1, entries_left=2)}
    all_but_one = dict.fromkeys(marks, state(10))
    looks: list[None] = []

    def look_again() -> dict[str, TopicState]:
        looks.append(None)
        return {}

    def found(marks: Mapping[str, Mark], states: Mapping[str, TopicState]) -> set[str]:
        deleted = DeletedTopics()
        deleted.look(marks, states, lambda _: True, allows_loss=allows_loss)
        return deleted.find(look_again)

    assert found(marks, {}) == set()
    assert found(one_more, dict.fromkeys(one_more, state(10))) == set()
    assert looks == []
    assert found(one_more, all_but_one) == ({TOPIC} if allows_loss else set())
    assert len(looks) == allows_loss, "a mark with lost entries after it may stay anyway"


def test_a_job_looks_a_second_time_just_before_its_first_commit_and_once() -> None:
    """A look right after the first one would see the same server behind."""
    marks = many(MARKS_PRUNED_ABOVE + 2)
    late, gone, *others = marks
    found = DeletedTopics()
    found.look(marks, dict.fromkeys(others, state(10)), lambda _: True, allows_loss=False)
    states = [dict.fromkeys([late, *others], state(10))]
    assert found.find(states.pop) == {gone}
    assert found.find(states.pop) == {gone}


def test_a_small_watermark_keeps_the_marks_of_deleted_topics() -> None:
    marks = many(MARKS_PRUNED_ABOVE)
    assert pruned(marks, set(marks), allows_loss=True) == marks


def test_marks_of_topics_that_the_job_does_not_select_stay() -> None:
    marks = many(MARKS_PRUNED_ABOVE + 1)
    others = {topic: mark for topic, mark in marks.items() if topic.endswith("7")}
    deleted = found_in(marks, {}, lambda topic: topic not in others)
    assert pruned(marks, deleted, allows_loss=True) == others


@pytest.mark.parametrize("allows_loss", [False, True])
def test_a_mark_with_lost_entries_after_it_leaves_only_if_loss_is_allowed(
    *, allows_loss: bool
) -> None:
    marks = many(MARKS_PRUNED_ABOVE) | {TOPIC: Mark(7, 3, entries_left=2)}
    found = pruned(marks, set(marks), allows_loss=allows_loss)
    assert found == ({} if allows_loss else {TOPIC: marks[TOPIC]})
