"""Ranges of entries that a bookie must have: those that asking for every entry gives."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookie.integrity.own_entries import (
    confirmed_end,
    end_of,
    own_ranges,
    peers_of,
    without,
)
from magnetar.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.quorum import is_in_write_set

BOOKIES = tuple(f"b{number}" for number in range(1, 8))


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    ensemble_size = draw(st.integers(1, 5))
    write_quorum = draw(st.integers(1, ensemble_size))
    starts = draw(st.lists(st.integers(1, 40), max_size=4, unique=True).map(sorted))
    fragments = tuple(
        Fragment(start, tuple(draw(st.permutations(BOOKIES))[:ensemble_size]))
        for start in (0, *starts)
    )
    is_closed = draw(st.booleans())
    last = draw(st.integers(fragments[-1].first_entry_id - 1, 60)) if is_closed else -1
    return LedgerMetadata(
        ledger_id=7,
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=1,
        state=LedgerState.CLOSED if is_closed else LedgerState.OPEN,
        last_entry_id=last,
        length=0,
        ensembles=fragments,
        created_ms=0,
        creation_token=1,
    )


def belongs(metadata: LedgerMetadata, bookie_id: str, entry_id: int) -> bool:
    bookies = metadata.ensemble_for(entry_id)
    return bookie_id in bookies and is_in_write_set(
        bookies.index(bookie_id),
        entry_id,
        ensemble_size=len(bookies),
        write_quorum=metadata.write_quorum,
    )


@given(ledgers(), st.sampled_from(BOOKIES), st.integers(0, 60), st.integers(0, 80))
def test_own_ranges_are_the_entries_of_the_write_sets(
    metadata: LedgerMetadata, bookie_id: str, first: int, last: int
) -> None:
    ranges = list(own_ranges(metadata, bookie_id, first=first, last=last))
    found = [entry_id for low, high in ranges for entry_id in range(low, high + 1)]
    assert found == [
        entry_id
        for entry_id in range(first, min(last, end_of(metadata)) + 1)
        if belongs(metadata, bookie_id, entry_id)
    ]


@given(ledgers(), st.sampled_from(BOOKIES), st.integers(0, 60))
def test_the_peers_of_an_entry_are_the_others_of_its_write_set(
    metadata: LedgerMetadata, bookie_id: str, entry_id: int
) -> None:
    peers = peers_of(metadata, entry_id, bookie_id)
    assert set(peers) == {
        each for each in BOOKIES if each != bookie_id and belongs(metadata, each, entry_id)
    }


@given(ledgers())
def test_what_is_confirmed_ends_before_an_open_fragment(metadata: LedgerMetadata) -> None:
    if metadata.state is LedgerState.CLOSED:
        assert confirmed_end(metadata) == metadata.last_entry_id
    else:
        assert confirmed_end(metadata) == metadata.last_fragment.first_entry_id - 1


@given(st.integers(0, 30), st.integers(0, 30), st.sets(st.integers(0, 40)))
def test_without_leaves_what_is_not_held(first: int, length: int, held: set[int]) -> None:
    last = first + length
    left = [
        each for low, high in without((first, last), sorted(held)) for each in range(low, high + 1)
    ]
    assert left == [each for each in range(first, last + 1) if each not in held]
