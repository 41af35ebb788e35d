from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger.errors import BeyondLastConfirmedError, InvalidLedgerMetadataError
from magnetar.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.reading.read_bound import ReadBound

OPEN = LedgerMetadata(
    ledger_id=7,
    ensemble_size=2,
    write_quorum=2,
    ack_quorum=2,
    state=LedgerState.OPEN,
    last_entry_id=-1,
    length=0,
    ensembles=(Fragment(0, ("b1", "b2")),),
    created_ms=0,
    creation_token=1,
)
IN_RECOVERY = OPEN.in_recovery()


def closed(last_entry_id: int) -> LedgerMetadata:
    return OPEN.closed(last_entry_id=last_entry_id, length=0 if last_entry_id < 0 else 10)


def with_fragment(first_entry_id: int) -> LedgerMetadata:
    return replace(OPEN, ensembles=(*OPEN.ensembles, Fragment(first_entry_id, ("b2", "b3"))))


@pytest.mark.parametrize(
    ("metadata", "bound"),
    [(OPEN, -1), (IN_RECOVERY, -1), (with_fragment(5), 4), (closed(9), 9), (closed(-1), -1)],
)
def test_what_the_metadata_alone_makes_readable(metadata: LedgerMetadata, bound: int) -> None:
    assert ReadBound(metadata).last_entry_id == bound


def test_rule_9_4_the_bound_never_moves_backwards() -> None:
    bound = ReadBound(OPEN)
    assert bound.learn(5)
    assert not bound.learn(5)
    assert not bound.learn(3)
    bound.adopt(with_fragment(3))
    assert bound.last_entry_id == 5
    bound.adopt(with_fragment(9))
    assert bound.last_entry_id == 8


def test_rule_9_4_the_bound_never_exceeds_the_final_last_entry() -> None:
    bound = ReadBound(OPEN)
    bound.learn(5)
    bound.adopt(closed(7))
    assert not bound.learn(9)
    assert (bound.last_entry_id, bound.is_final) == (7, True)


def test_an_end_below_what_was_confirmed_is_no_end() -> None:
    bound = ReadBound(OPEN)
    bound.learn(5)
    with pytest.raises(InvalidLedgerMetadataError, match="entry 5 had been confirmed"):
        bound.adopt(closed(4))


def test_rule_9_3_ids_above_the_bound_are_refused() -> None:
    bound = ReadBound(OPEN)
    bound.learn(5)
    bound.check(5)
    with pytest.raises(BeyondLastConfirmedError):
        bound.check(6)


@given(st.lists(st.integers(-1, 50)), st.integers(-1, 50))
def test_whatever_comes_in_whatever_order_it_only_grows(lacs: list[int], last: int) -> None:
    bound = ReadBound(OPEN)
    seen = [bound.last_entry_id]
    for lac in [each for each in lacs if each <= last]:
        bound.learn(lac)
        seen.append(bound.last_entry_id)
    bound.adopt(closed(last))
    seen.append(bound.last_entry_id)
    for lac in lacs:
        bound.learn(lac)
        seen.append(bound.last_entry_id)
    assert seen == sorted(seen)
    assert seen[-1] == last
