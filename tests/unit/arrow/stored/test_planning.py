"""From offsets to slices: nothing twice, nothing left out."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from magnetar.arrow.stored.planning import (
    EntryRange,
    entries_left,
    joined_topics,
    limited_ends,
    plan_slices,
    ranges_between,
    releasable,
    slice_entries,
    unread,
)
from magnetar.arrow.stored.topic_states import LedgerState, TopicState, state_of
from magnetar.arrow.stored.trigger_limits import TriggerLimits, in_sum
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.wire.topic_name import TopicName

NAME = TopicName.parse("t")


def state(*ledgers: tuple[int, int]) -> TopicState:
    made = tuple(LedgerState(number, entries, 100 * entries) for number, entries in ledgers)
    return TopicState("t", -1, made, MessageId(made[-1].ledger_id, made[-1].entries - 1))


THREE = state((3, 10), (7, 1), (9, 20))


def test_an_offset_is_the_last_entry_that_was_read() -> None:
    assert ranges_between(THREE, MessageId(3, 4), MessageId(9, 2)) == [
        EntryRange(3, 5, 9),
        EntryRange(7, 0, 0),
        EntryRange(9, 0, 2),
    ]
    assert ranges_between(THREE, MessageId(3, 9), MessageId(7, 0)) == [EntryRange(7, 0, 0)]
    assert ranges_between(THREE, MessageId(9, 19), MessageId(9, 19)) == []
    assert ranges_between(THREE, MessageId(-1, -1), MessageId(3, 0)) == [EntryRange(3, 0, 0)]
    assert ranges_between(THREE, MessageId(5, 77), MessageId(7, 0)) == [EntryRange(7, 0, 0)]


def test_an_offset_within_a_batch_reads_its_entry_again() -> None:
    (plan,) = plan_slices(THREE, MessageId(3, 9, 4), MessageId(9, 2, 1), entries_max=100)
    assert plan.ranges == (EntryRange(3, 9, 9), EntryRange(7, 0, 0), EntryRange(9, 0, 2))
    assert (plan.skip_through_batch_index, plan.stop_at_batch_index) == (4, 1)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 40)), min_size=1, max_size=6),
    st.data(),
    st.integers(1, 50),
)
def test_slices_have_every_entry_once_and_in_order(
    sizes: list[tuple[int, int]], data: st.DataObject, entries_max: int
) -> None:
    number, ledgers = 0, []
    for gap, entries in sizes:
        number += gap
        ledgers.append((number, entries))
    topic = state(*ledgers)
    every = [(ledger, entry) for ledger, entries in ledgers for entry in range(entries)]
    first = data.draw(st.integers(-1, len(every) - 1))
    last = data.draw(st.integers(first, len(every) - 1))
    start = MessageId(*every[first]) if first >= 0 else MessageId(-1, -1)
    end = MessageId(*every[last]) if last >= 0 else MessageId(-1, -1)

    plans = plan_slices(topic, start, end, entries_max=entries_max)

    found = [
        (each.ledger_id, entry)
        for plan in plans
        for each in plan.ranges
        for entry in range(each.first, each.last + 1)
    ]
    assert found == every[first + 1 : last + 1]
    counts = [sum(each.last - each.first + 1 for each in plan.ranges) for plan in plans]
    assert all(count == entries_max for count in counts[:-1])
    assert all(0 < count <= entries_max for count in counts[-1:])


def test_slices_are_about_as_large_as_asked_for_and_alike() -> None:
    start, end = MessageId(-1, -1), MessageId(9, 19)  # 31 entries of 100 bytes
    assert slice_entries(THREE, start, end, slice_bytes=1 << 30) == 31
    assert slice_entries(THREE, start, end, slice_bytes=1_000) == 8
    assert slice_entries(THREE, start, end, slice_bytes=1) == 1
    assert slice_entries(THREE, end, end, slice_bytes=1_000) == 1  # nothing to cut


def test_a_growing_ledger_changes_nothing_of_how_a_batch_was_cut() -> None:
    start, end = MessageId(3, 4), MessageId(9, 19)
    cut = slice_entries(THREE, start, end, slice_bytes=1_000)
    grown = TopicState(
        "t", -1, (*THREE.ledgers[:2], LedgerState(9, 5_000, 5_000_000)), MessageId(9, 4_999)
    )
    assert slice_entries(grown, start, end, slice_bytes=1_000) != cut
    before = plan_slices(THREE, start, end, entries_max=cut)
    assert plan_slices(grown, start, end, entries_max=cut) == before


def test_a_limit_is_shared_out_and_starves_nobody() -> None:
    states = {"a": state((1, 1000)), "b": state((2, 10)), "c": state((3, 1))}
    starts = dict.fromkeys(states, MessageId(-1, -1))
    ends = {name: each.end for name, each in states.items()}
    limited = limited_ends(states, starts, ends, TriggerLimits(entries_max=101))
    assert limited == {"a": MessageId(1, 98), "b": MessageId(2, 0), "c": MessageId(3, 0)}
    by_bytes = limited_ends(states, starts, ends, TriggerLimits(bytes_max=10_100))
    assert by_bytes == limited
    assert limited_ends(states, starts, ends, TriggerLimits(entries_max=1011)) == ends
    assert limited_ends(states, starts, ends, TriggerLimits(entries_max=101, bytes_max=1)) != ends


def test_a_limit_in_messages_goes_by_how_many_an_entry_has() -> None:
    """Of a topic whose mean is not known, an entry is one."""
    states = {
        "a": replace(state((1, 100)), messages_per_entry=50.0),
        "b": replace(state((2, 100)), messages_per_entry=None),
    }
    starts = dict.fromkeys(states, MessageId(-1, -1))
    ends = {name: each.end for name, each in states.items()}
    assert in_sum(unread(states, starts, ends)).messages == 5_100
    limited = limited_ends(states, starts, ends, TriggerLimits(messages_max=510))
    assert limited == {"a": MessageId(1, 9), "b": MessageId(2, 9)}
    assert limited_ends(states, starts, ends, TriggerLimits(messages_max=5_100)) == ends


def test_how_many_messages_an_entry_has_is_told_by_counters_or_else_by_the_last_entry() -> None:
    known = stats("3:9", (3, 10))
    assert state_of(NAME, known).messages_per_entry is None
    known |= {"entriesAddedCounter": 4, "messagesAddedCounter": 10}
    assert state_of(NAME, known).messages_per_entry == 2.5
    known |= {"entriesAddedCounter": 0, "messagesAddedCounter": 0, "lastEntryMessages": 7}
    assert state_of(NAME, known).messages_per_entry == 7.0


def stats(last: str, *ledgers: tuple[int, int], current: int = 0) -> dict[str, object]:
    return {
        "lastConfirmedEntry": last,
        "currentLedgerEntries": current,
        "currentLedgerSize": current * 50,
        "ledgers": [{"ledgerId": n, "entries": e, "size": 100 * e} for n, e in ledgers],
        "cursors": {},
    }


def test_an_open_ledger_is_read_as_far_as_it_is_confirmed() -> None:
    found = state_of(NAME, stats("9:4", (3, 10), (9, 0), current=5))
    assert found.ledgers == (LedgerState(3, 10, 1000), LedgerState(9, 5, 250))
    assert found.end == MessageId(9, 4)


def test_nothing_behind_a_ledger_that_is_still_open_is_read() -> None:
    found = state_of(NAME, stats("9:4", (3, 10), (7, 0), (9, 0), current=5))
    assert found.ledgers == (LedgerState(3, 10, 1000),)
    assert found.end == MessageId(3, 9)
    assert state_of(NAME, stats("7:4", (3, 10), (7, 0), (9, 0))).end == MessageId(7, 4)


def test_an_empty_topic_has_nothing_to_read() -> None:
    assert state_of(NAME, stats("9:-1", (9, 0))).end == MessageId(-1, -1)
    assert state_of(NAME, stats("3:9", (3, 10), (9, 0))).end == MessageId(3, 9)


def test_a_slice_is_cut_off_when_ledgers_before_its_start_are_gone() -> None:
    trimmed = replace(THREE, removed_through=2)
    for topic, start, is_cut_off in (
        (THREE, MessageId(2, 8), True),
        (THREE, MessageId(3, 9), False),
        (trimmed, MessageId(3, 9), True),
        (trimmed, MessageId(-1, -1), False),
        (trimmed, MessageId(3, -1), False),  # as of startingTime, long ago
    ):
        plans = plan_slices(topic, start, MessageId(9, 19), entries_max=10)
        assert {each.is_cut_off for each in plans} == {is_cut_off}, start


def test_the_last_entry_is_held_and_the_ledger_before_until_the_next_micro_batch_is_done() -> None:
    """A message in chunks may have begun there, and end in the next micro-batch."""

    def held(ledger: int, entry: int) -> MessageId:
        return MessageId(ledger, entry, batch_index=0)

    for before, done, stands_at in (
        (MessageId(-1, -1), MessageId(3, 4), held(3, 4)),
        (held(3, 4), MessageId(3, 9), held(3, 9)),
        (held(3, 4), MessageId(7, 0), held(3, 9)),
        (held(3, 4), MessageId(9, 5), held(7, 0)),
        (held(7, 0), MessageId(9, 6), held(9, 6)),
        (held(9, 6), MessageId(9, 6), MessageId(9, 6)),
        (MessageId(9, 5), MessageId(9, 6), MessageId(9, 6)),
        # As a broker tells it: through there all is acknowledged.
        (MessageId(3, 8), MessageId(7, 0), held(7, 0)),
        (MessageId(-1, -1), MessageId(-1, -1), MessageId(-1, -1)),
    ):
        assert releasable(THREE, before, done) == stands_at, (before, done)


def test_what_is_left_of_a_ledger_is_behind_the_offset() -> None:
    assert entries_left(THREE, MessageId(9, 4)) == 15
    assert entries_left(THREE, MessageId(9, 4, 1)) == 16, "of the entry it ends within, too"
    assert entries_left(THREE, MessageId(9, -1)) == 20
    assert entries_left(THREE, MessageId(7, 0)) == 0
    for beyond in (MessageId(9, 50), MessageId(8, 0), MessageId(-1, -1)):
        assert entries_left(THREE, beyond) == 0


def sized(*sizes: int) -> dict[str, TopicState]:
    """Topics of as many bytes, in ten entries each; nothing is in those of 0."""
    return {
        f"t-{number:03}": replace(
            TopicState("", -1, (LedgerState(number, 10, size),), MessageId(number, 9)),
            name=f"t-{number:03}",
        )
        for number, size in enumerate(sizes)
    }


def joined(states: dict[str, TopicState], slice_bytes: int = 32 << 20) -> list[list[str]]:
    """The topics of each task that reads several."""
    begin = MessageId(-1, -1)
    starts = {
        name: state.end if not state.ledgers[0].bytes else begin for name, state in states.items()
    }
    ends = {name: state.end for name, state in states.items()}
    cuts = {
        name: slice_entries(state, starts[name], ends[name], slice_bytes=slice_bytes)
        for name, state in states.items()
    }
    found = joined_topics(states, starts, ends, cuts, slice_bytes=slice_bytes)
    groups: dict[int, list[str]] = {}
    for name, number in found.items():
        groups.setdefault(number, []).append(name)
    return list(groups.values())


def test_small_topics_share_tasks_and_there_are_some_for_the_cores() -> None:
    states = sized(*[10_000] * 200)
    groups = joined(states)
    assert [name for group in groups for name in group] == list(states), "in order, each once"
    assert 8 <= len(groups) <= 10
    assert joined(sized(*[10_000] * 8)) == []
    assert [len(group) for group in joined(sized(*[10_000] * 16))] == [2] * 8


def test_what_is_joined_stays_well_below_a_slice() -> None:
    groups = joined(sized(*[1 << 20] * 1_000))
    assert groups
    assert max(map(len, groups)) <= 8
    assert joined(sized(*[10 << 20] * 100)) == []
    assert joined(sized(*[100] * 100), slice_bytes=1_000) == []


def test_topics_with_nothing_to_read_are_in_no_task() -> None:
    states = sized(*[10_000, 0] * 100)
    groups = joined(states)
    assert {name for group in groups for name in group} == set(list(states)[::2])
