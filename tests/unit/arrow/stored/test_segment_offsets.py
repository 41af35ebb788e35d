"""What users say of scalable topics, as offsets of their segments."""

from dataclasses import replace

import pytest

from magnetar.arrow.stored.errors import OffsetError
from magnetar.arrow.stored.offsets import BEFORE_FIRST, StartingOffsets, parse_offsets
from magnetar.arrow.stored.segment_offsets import (
    begins_behind,
    begun_by,
    done_names,
    with_segments,
)
from magnetar.arrow.stored.topic_states import LedgerState, TopicState
from magnetar.sdk.message_id import MessageId
from tests.unit.arrow.stored.test_segment_order import LEFT, MERGED, RIGHT, ROOT, SPLIT_AND_MERGED

TOPIC = "topic://public/default/t"


def state(name: str, ledger_id: int, *, has_ended: bool = True) -> TopicState:
    end = MessageId(ledger_id, 9)
    return TopicState(name, -1, (LedgerState(ledger_id, 10, 1_000),), end, has_ended=has_ended)


STATES = {
    ROOT: state(ROOT, 1),
    LEFT: state(LEFT, 2),
    RIGHT: state(RIGHT, 3),
    MERGED: state(MERGED, 4, has_ended=False),
}
ENDS = {name: each.end for name, each in STATES.items()}
NOTHING = dict.fromkeys(STATES, BEFORE_FIRST)


def begun(
    starts: dict[str, MessageId], starting: StartingOffsets
) -> tuple[dict[str, MessageId], set[str], set[str]]:
    found, ended, waiting = begun_by([SPLIT_AND_MERGED], STATES, starts, starting)
    return found, set(ended), set(waiting)


def test_earliest_begins_with_the_oldest_segments() -> None:
    found = begun(NOTHING, StartingOffsets("earliest"))
    assert found == ({ROOT: BEFORE_FIRST}, set(), {LEFT, RIGHT, MERGED})


def test_latest_begins_at_the_ends_of_the_active_segments() -> None:
    assert begun(ENDS, StartingOffsets("latest")) == ({MERGED: ENDS[MERGED]}, set(), set())
    held_back = {**STATES, LEFT: replace(STATES[LEFT], has_ended=False)}
    found, _, _ = begun_by([SPLIT_AND_MERGED], held_back, ENDS, StartingOffsets("latest"))
    assert found == {MERGED: ENDS[MERGED]}, "whatever transactions are open"


def test_a_time_begins_where_the_first_messages_since_then_are() -> None:
    """One half has nothing so late: it is named until what came of both can begin."""
    starts = {**ENDS, RIGHT: MessageId(3, 4)}
    found = begun(starts, StartingOffsets("earliest"))
    assert found == ({LEFT: ENDS[LEFT], RIGHT: MessageId(3, 4)}, {LEFT}, {MERGED})


def test_what_a_named_segment_came_of_counts_as_read() -> None:
    given = parse_offsets(f'{{"{LEFT}": "2:5"}}')
    starting = begins_behind(with_segments(given, [SPLIT_AND_MERGED]), SPLIT_AND_MERGED)
    assert dict(starting.topics) == {LEFT: MessageId(2, 5), ROOT: MessageId.LATEST}
    starts = {**NOTHING, ROOT: ENDS[ROOT], LEFT: MessageId(2, 4)}
    assert begun(starts, starting) == (
        {LEFT: MessageId(2, 4), RIGHT: BEFORE_FIRST},
        set(),
        {MERGED},
    )


def test_a_segment_and_what_came_of_it_cannot_both_begin_in_their_midst() -> None:
    given = parse_offsets(f'{{"{ROOT}": "1:3", "{LEFT}": "2:5"}}')
    starting = begins_behind(given, SPLIT_AND_MERGED)
    starts = {**NOTHING, ROOT: MessageId(1, 2), LEFT: MessageId(2, 4)}
    with pytest.raises(OffsetError, match="from 1:3 on, and a segment that came of it as well"):
        begun(starts, starting)


def test_a_word_for_the_whole_topic_is_one_for_each_of_its_segments() -> None:
    given = parse_offsets(f'{{"{TOPIC}": "latest", "{LEFT}": "earliest"}}')
    spread = with_segments(given, [SPLIT_AND_MERGED])
    assert dict(spread.topics) == {
        ROOT: MessageId.LATEST,
        LEFT: MessageId.EARLIEST,
        RIGHT: MessageId.LATEST,
        MERGED: MessageId.LATEST,
    }
    with pytest.raises(OffsetError, match="give message ids for its segments"):
        parse_offsets(f'{{"{TOPIC}": "3:0"}}')


def test_a_segment_is_done_at_its_end_if_nothing_can_follow() -> None:
    assert done_names(ENDS, STATES) == {ROOT, LEFT, RIGHT}
    assert done_names({**ENDS, ROOT: MessageId(1, 8)}, STATES) == {LEFT, RIGHT}
    assert done_names({ROOT: MessageId(1, 9, 3)}, STATES) == set(), "within its last batch"
