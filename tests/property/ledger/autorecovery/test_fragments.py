"""What is missing, by bit arithmetic and sweeps: the same as asking for every entry, one by one."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger.autorecovery.fragments import (
    HeldIds,
    LedgerCheck,
    MemberCheck,
    MemberState,
    Span,
    SpanCheck,
    intersect,
    missing_in,
    pieces_of,
    ranges_of_member,
    spans_of,
    subtract,
    with_replaced,
)
from magnetar.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.quorum import is_in_write_set
from magnetar.ledger.under_replication import Range, merge_ranges

BOOKIES = tuple(f"b{number}" for number in range(1, 9))


@st.composite
def ledgers(draw: st.DrawFn, states: Sequence[LedgerState] = tuple(LedgerState)) -> LedgerMetadata:
    size = draw(st.integers(1, 5))
    write_quorum = draw(st.integers(1, size))
    firsts = [0, *sorted(draw(st.sets(st.integers(1, 30), max_size=3)))]
    state = draw(st.sampled_from(states))
    is_closed = state is LedgerState.CLOSED
    last = draw(st.integers(firsts[-1] - 1, firsts[-1] + 20)) if is_closed else -1
    return LedgerMetadata(
        ledger_id=3,
        ensemble_size=size,
        write_quorum=write_quorum,
        ack_quorum=draw(st.integers(1, write_quorum)),
        state=state,
        last_entry_id=last,
        length=0 if last == -1 else 10 * (last + 1),
        ensembles=tuple(
            Fragment(first, tuple(draw(st.permutations(BOOKIES))[:size])) for first in firsts
        ),
        created_ms=0,
        creation_token=1,
    )


@st.composite
def span_members(draw: st.DrawFn) -> tuple[Span, int, int]:
    """A span, the index of a member, and the write quorum."""
    size = draw(st.integers(1, 6))
    first = draw(st.integers(0, 100))
    span = Span(first, draw(st.integers(first - 1, first + 60)), BOOKIES[:size], True)
    return span, draw(st.integers(0, size - 1)), draw(st.integers(1, size))


def entries(ranges: Sequence[Range]) -> set[int]:
    found = [entry_id for first, last in ranges for entry_id in range(first, last + 1)]
    assert len(found) == len(set(found)), "ranges overlap"
    return set(found)


def belongs(span: Span, index: int, write_quorum: int, entry_id: int) -> bool:
    return is_in_write_set(
        index, entry_id, ensemble_size=len(span.bookies), write_quorum=write_quorum
    )


ranges = st.lists(st.tuples(st.integers(0, 80), st.integers(0, 10)), max_size=6).map(
    lambda pairs: merge_ranges([(a, a + b) for a, b in pairs], ranges_max=100)
)


@given(span_members())
def test_a_member_has_the_entries_of_whose_write_set_it_is(
    member: tuple[Span, int, int],
) -> None:
    span, index, write_quorum = member
    found = entries(ranges_of_member(span, index, write_quorum))
    assert found == {
        entry_id
        for entry_id in range(span.first, span.last + 1)
        if belongs(span, index, write_quorum, entry_id)
    }


@given(span_members(), st.sets(st.integers(0, 200)), st.integers(0, 130), st.integers(0, 80))
def test_missing_is_what_belongs_there_and_is_not_listed(
    member: tuple[Span, int, int], held: set[int], page_first: int, page_length: int
) -> None:
    span, index, write_quorum = member
    page_last = page_first + page_length
    on_page = sorted(each for each in held if page_first <= each <= page_last)
    bits_from = on_page[0] if on_page else 0
    page = HeldIds(page_first, page_last, sum(1 << each - bits_from for each in on_page), bits_from)
    found = missing_in(span, index, write_quorum, page)
    assert entries(found) == {
        entry_id
        for entry_id in range(max(span.first, page_first), min(span.last, page_last) + 1)
        if belongs(span, index, write_quorum, entry_id) and entry_id not in held
    }
    assert found == merge_ranges(found, ranges_max=1000)


@given(st.dictionaries(st.sampled_from(BOOKIES), ranges, max_size=4))
def test_pieces_cover_what_each_bookie_wants_and_no_more(wanted: dict[str, list[Range]]) -> None:
    pieces = pieces_of(wanted)
    assert all(left.last < right.first for left, right in pairwise(pieces))
    for bookie_id, its in wanted.items():
        got = [(piece.first, piece.last) for piece in pieces if bookie_id in piece.targets]
        assert entries(got) == entries(its)
    assert all(piece.targets for piece in pieces)


@given(ranges, ranges)
def test_ranges_are_cut_and_subtracted_as_sets(left: list[Range], right: list[Range]) -> None:
    assert entries(intersect(left, right)) == entries(left) & entries(right)
    assert entries(subtract(left, right)) == entries(left) - entries(right)


@given(ledgers(), st.integers(-1, 80))
def test_spans_cover_every_entry_once(metadata: LedgerMetadata, lac: int) -> None:
    spans = spans_of(metadata, last_add_confirmed=lac)
    is_closed = metadata.state is LedgerState.CLOSED
    tail_first = metadata.last_fragment.first_entry_id
    end = metadata.last_entry_id if is_closed else max(lac, tail_first - 1)
    covered = [each for span in spans for each in range(span.first, span.last + 1)]
    assert covered == list(range(end + 1))
    assert [span.is_complete for span in spans] == [True] * (len(spans) - 1) + [is_closed]
    assert all(
        metadata.ensemble_for(each) == span.bookies
        for span in spans
        for each in range(span.first, span.last + 1)
    )


@given(ledgers(), st.data())
def test_lost_is_what_every_bookie_of_the_write_set_lacks(
    metadata: LedgerMetadata, data: st.DataObject
) -> None:
    checks: list[SpanCheck] = []
    expected: set[int] = set()
    for span in spans_of(metadata):
        members: list[MemberCheck] = []
        lacking: list[set[int]] = []
        for index, bookie_id in enumerate(span.bookies):
            own = entries(ranges_of_member(span, index, metadata.write_quorum))
            state = data.draw(st.sampled_from([MemberState.LACKS, MemberState.GONE]))
            missing = data.draw(st.sets(st.sampled_from(sorted(own)))) if own else set()
            members.append(
                MemberCheck(
                    index,
                    bookie_id,
                    state,
                    tuple(merge_ranges([(each, each) for each in missing], ranges_max=1000)),
                )
            )
            lacking.append(missing if state is MemberState.LACKS else set())
        checks.append(SpanCheck(span, tuple(members)))
        if span.is_complete:
            expected |= {
                entry_id
                for entry_id in range(span.first, span.last + 1)
                if all(
                    entry_id in lacking[index]
                    for index in range(len(span.bookies))
                    if belongs(span, index, metadata.write_quorum, entry_id)
                )
            }
    check = LedgerCheck(metadata, tuple(checks))
    assert entries(check.lost(metadata.write_quorum)) == expected


@given(ledgers(), st.data())
def test_a03_a_swap_changes_members_of_a_complete_fragment_and_nothing_else(
    metadata: LedgerMetadata, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(metadata.ensembles) - 1))
    first, bookies = metadata.ensembles[at]
    old = data.draw(st.sampled_from(bookies))
    new = data.draw(st.sampled_from([*BOOKIES, "other"]))
    is_tail = at == len(metadata.ensembles) - 1 and metadata.state is not LedgerState.CLOSED
    changed = with_replaced(metadata, first, {old: new})
    if is_tail or new in bookies:
        assert changed is None
        return
    assert changed is not None
    index = bookies.index(old)
    assert changed.ensembles[at].bookies == (*bookies[:index], new, *bookies[index + 1 :])
    assert [each.first_entry_id for each in changed.ensembles] == [
        each.first_entry_id for each in metadata.ensembles
    ]
    assert changed.ensembles[:at] + changed.ensembles[at + 1 :] == (
        metadata.ensembles[:at] + metadata.ensembles[at + 1 :]
    )
    assert (changed.state, changed.last_entry_id, changed.length) == (
        metadata.state,
        metadata.last_entry_id,
        metadata.length,
    )


@given(ledgers())
def test_a_swap_of_a_member_that_left_is_dropped(metadata: LedgerMetadata) -> None:
    assert with_replaced(metadata, 0, {"gone": "other"}) is None
    assert with_replaced(metadata, 1_000, {metadata.ensembles[0].bookies[0]: "other"}) is None
