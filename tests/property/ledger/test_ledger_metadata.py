"""Ledger metadata: every state with every event, the JSON codec, and the rules for values."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger.errors import InvalidLedgerMetadataError
from magnetar.ledger.ledger_metadata import (
    LEDGER_ID_MAX,
    TRANSITIONS,
    DigestType,
    Fragment,
    LedgerEvent,
    LedgerMetadata,
    LedgerState,
    next_state,
)

BOOKIE_IDS = st.text("abcXYZ019.-:", min_size=1, max_size=12)
INT64 = st.integers(0, LEDGER_ID_MAX)


ANY_STATE = st.sampled_from(LedgerState)


@st.composite
def ledgers(draw: st.DrawFn, states: st.SearchStrategy[LedgerState] = ANY_STATE) -> LedgerMetadata:
    """Any valid metadata."""
    ensemble_size = draw(st.integers(1, 5))
    write_quorum = draw(st.integers(1, ensemble_size))
    starts = sorted(draw(st.sets(st.integers(1, 1000), max_size=4)) | {0})
    ensembles = tuple(
        Fragment(
            start,
            tuple(
                draw(
                    st.lists(
                        BOOKIE_IDS, min_size=ensemble_size, max_size=ensemble_size, unique=True
                    )
                )
            ),
        )
        for start in starts
    )
    state = draw(states)
    is_closed = state is LedgerState.CLOSED
    last = draw(st.integers(starts[-1] - 1, starts[-1] + 1000)) if is_closed else -1
    return LedgerMetadata(
        ledger_id=draw(INT64),
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=draw(st.integers(1, write_quorum)),
        state=state,
        last_entry_id=last,
        length=draw(INT64) if last >= 0 else 0,
        ensembles=ensembles,
        digest_type=draw(st.sampled_from(DigestType)),
        password=draw(st.binary(max_size=40)),
        created_ms=draw(INT64),
        custom_metadata=draw(st.dictionaries(st.text(max_size=8), st.text(max_size=8))),
        creation_token=draw(INT64),
    )


# --- states --------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", LedgerEvent)
@pytest.mark.parametrize("state", LedgerState)
def test_every_state_takes_every_event_or_refuses_it(
    state: LedgerState, event: LedgerEvent
) -> None:
    if (state, event) in TRANSITIONS:
        assert next_state(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(InvalidLedgerMetadataError):
            next_state(state, event)


def test_closed_is_terminal() -> None:
    """Rule 2.4: after CLOSED only replicas move."""
    after = {event: to for (state, event), to in TRANSITIONS.items() if state is LedgerState.CLOSED}
    assert after == {LedgerEvent.REPLICA_MOVED: LedgerState.CLOSED}


def test_nothing_leads_back_to_open() -> None:
    assert {state for (state, _), to in TRANSITIONS.items() if to is LedgerState.OPEN} == {
        LedgerState.OPEN
    }


@given(ledgers(), st.lists(st.sampled_from(LedgerEvent), max_size=6))
def test_a_refused_event_changes_nothing_and_an_allowed_one_only_what_it_may(
    metadata: LedgerMetadata, events: list[LedgerEvent]
) -> None:
    for event in events:
        before = replace(metadata)
        try:
            metadata = _apply(metadata, event)
        except InvalidLedgerMetadataError:
            assert (metadata.state, event) not in TRANSITIONS
            assert metadata == before
            continue
        assert metadata.state is TRANSITIONS[before.state, event]
        assert metadata.ensembles[: len(before.ensembles) - 1] == before.ensembles[:-1]
        if before.state is LedgerState.CLOSED:
            assert metadata == before


def _apply(metadata: LedgerMetadata, event: LedgerEvent) -> LedgerMetadata:
    start = metadata.last_fragment.first_entry_id
    if event is LedgerEvent.ENSEMBLE_CHANGED:
        bookies = tuple(f"new{n}" for n in range(metadata.ensemble_size))
        return metadata.with_ensemble(start + 1, bookies)
    if event in (LedgerEvent.WRITER_CLOSED, LedgerEvent.LAST_ENTRY_AGREED):
        next_state(metadata.state, event)
        return metadata.closed(last_entry_id=start, length=7)
    return metadata.with_state(event)


@given(ledgers(st.just(LedgerState.CLOSED)))
def test_a_closed_ledger_can_be_closed_or_recovered_no_more(metadata: LedgerMetadata) -> None:
    with pytest.raises(InvalidLedgerMetadataError):
        metadata.closed(last_entry_id=metadata.last_entry_id, length=metadata.length)
    with pytest.raises(InvalidLedgerMetadataError):
        metadata.in_recovery()


@given(ledgers(st.just(LedgerState.OPEN)))
def test_recovery_of_a_ledger_ends_where_it_was_agreed(metadata: LedgerMetadata) -> None:
    start = metadata.last_fragment.first_entry_id
    closed = metadata.in_recovery().in_recovery().closed(last_entry_id=start + 3, length=30)
    assert (closed.state, closed.last_entry_id, closed.length) == (
        LedgerState.CLOSED,
        start + 3,
        30,
    )
    assert closed.ensembles == metadata.ensembles


# --- fragments -----------------------------------------------------------------------------------


@given(ledgers(), st.integers(0, 1200))
def test_an_entry_belongs_to_the_last_fragment_that_does_not_start_after_it(
    metadata: LedgerMetadata, entry_id: int
) -> None:
    expected = max(f for f in metadata.ensembles if f.first_entry_id <= entry_id)
    assert metadata.ensemble_for(entry_id) == expected.bookies


@given(ledgers(st.just(LedgerState.OPEN)), st.integers(0, 1200))
def test_an_ensemble_change_appends_or_replaces_the_last_fragment(
    metadata: LedgerMetadata, first_entry_id: int
) -> None:
    bookies = tuple(f"new{n}" for n in range(metadata.ensemble_size))
    start = metadata.last_fragment.first_entry_id
    if first_entry_id < start:
        with pytest.raises(InvalidLedgerMetadataError):
            metadata.with_ensemble(first_entry_id, bookies)
        return
    changed = metadata.with_ensemble(first_entry_id, bookies)
    assert changed.last_fragment == Fragment(first_entry_id, bookies)
    kept = metadata.ensembles if first_entry_id > start else metadata.ensembles[:-1]
    assert changed.ensembles[:-1] == kept


# --- codec ---------------------------------------------------------------------------------------


@given(ledgers())
def test_json_round_trip(metadata: LedgerMetadata) -> None:
    assert LedgerMetadata.from_json(metadata.to_json()) == metadata


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidLedgerMetadataError):
        LedgerMetadata.from_json(data)


JSON_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@given(ledgers(), st.data())
def test_a_changed_field_gives_valid_metadata_or_is_refused(
    metadata: LedgerMetadata, data: st.DataObject
) -> None:
    fields = json.loads(metadata.to_json())
    name = data.draw(st.sampled_from([*sorted(fields), "surprise"]))
    fields[name] = data.draw(JSON_VALUES)
    try:
        decoded = LedgerMetadata.from_json(json.dumps(fields).encode())
    except InvalidLedgerMetadataError:
        return
    assert name != "surprise"
    assert json.loads(decoded.to_json()) == fields, "nothing was read as something else"


@given(ledgers(), st.data())
def test_a_missing_field_is_refused(metadata: LedgerMetadata, data: st.DataObject) -> None:
    fields = json.loads(metadata.to_json())
    del fields[data.draw(st.sampled_from(sorted(fields)))]
    with pytest.raises(InvalidLedgerMetadataError):
        LedgerMetadata.from_json(json.dumps(fields).encode())


def test_the_password_is_neither_in_the_repr_nor_in_errors() -> None:
    fields = {"ledger_id": 1, "password": "c2VjcmV0"}
    with pytest.raises(InvalidLedgerMetadataError) as refused:
        LedgerMetadata.from_json(json.dumps(fields).encode())
    assert "c2VjcmV0" not in str(refused.value)
    metadata = LedgerMetadata(
        ledger_id=1,
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        state=LedgerState.OPEN,
        last_entry_id=-1,
        length=0,
        ensembles=(Fragment(0, ("b1",)),),
        password=b"secret",
        created_ms=0,
        creation_token=1,
    )
    assert "secret" not in repr(metadata)
