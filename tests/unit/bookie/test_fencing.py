from itertools import product

import pytest

from magnetar.bookie.errors import JournalFullError
from magnetar.bookie.requests.fencing import (
    TRANSITIONS,
    FenceEvent,
    FenceState,
    LedgerDescriptor,
    LedgerTable,
)
from magnetar.bookie.storage import LedgerState
from tests.bookie_parts import KEY, OTHER_KEY, MemoryStorage

NEW = LedgerState(KEY, fenced=False, last_add_confirmed=-1)


def test_a_durable_fence_never_opens_again() -> None:
    assert {
        target for (state, _), target in TRANSITIONS.items() if state is FenceState.DURABLE
    } == {FenceState.DURABLE}


def test_no_event_makes_a_fenced_ledger_open() -> None:
    assert FenceState.OPEN not in TRANSITIONS.values()


def test_only_a_write_makes_a_fence_durable() -> None:
    causes = {
        event
        for (state, event), target in TRANSITIONS.items()
        if target is FenceState.DURABLE and state is not FenceState.DURABLE
    }
    assert causes == {FenceEvent.WRITTEN}


def test_outcomes_are_legal_for_a_pending_fence_only() -> None:
    outcomes = (FenceEvent.WRITTEN, FenceEvent.FAILED)
    for state, event in product(FenceState, FenceEvent):
        is_legal = event is FenceEvent.REQUESTED or state is FenceState.PENDING
        assert ((state, event) in TRANSITIONS) is is_legal, (state, event)
        assert event in outcomes or is_legal


def test_only_the_first_request_writes() -> None:
    ledger = LedgerDescriptor(1, NEW, is_key_journalled=True)
    assert ledger.request_fence()
    assert not ledger.request_fence()
    ledger.on_fence_written(None)
    assert not ledger.request_fence()


def test_everyone_who_waits_hears_the_outcome_once() -> None:
    ledger = LedgerDescriptor(1, NEW, is_key_journalled=True)
    heard: list[JournalFullError | None] = []
    ledger.request_fence()
    ledger.wait_for_fence(heard.append)
    ledger.wait_for_fence(heard.append)
    error = JournalFullError("full")
    ledger.on_fence_written(error)
    assert heard == [error, error]
    assert ledger.request_fence()
    ledger.on_fence_written(None)
    assert len(heard) == 2


def test_an_outcome_without_a_write_is_a_bug() -> None:
    with pytest.raises(KeyError):
        LedgerDescriptor(1, NEW, is_key_journalled=True).on_fence_written(None)


def test_first_contact_makes_the_ledger_known() -> None:
    storage = MemoryStorage()
    ledger = LedgerTable(storage).admit(1, KEY)
    assert ledger is not None
    assert not ledger.is_key_journalled
    assert storage.states == {1: NEW}


def test_another_key_is_not_admitted() -> None:
    table = LedgerTable(MemoryStorage())
    table.admit(1, KEY)
    assert table.admit(1, OTHER_KEY) is None


def test_the_first_real_key_replaces_an_empty_one() -> None:
    storage = MemoryStorage()
    storage.put_state(1, LedgerState(b"", fenced=True, last_add_confirmed=3))
    ledger = LedgerTable(storage).admit(1, KEY)
    assert ledger is not None
    assert not ledger.is_key_journalled
    assert storage.states == {1: LedgerState(KEY, fenced=True, last_add_confirmed=3)}


def test_a_state_of_the_storage_counts_as_durable() -> None:
    storage = MemoryStorage()
    storage.put_state(1, LedgerState(KEY, fenced=True, last_add_confirmed=3))
    table = LedgerTable(storage)
    assert table.is_durably_fenced(1)
    assert table.last_add_confirmed(1) == 3
    assert not table.is_durably_fenced(2)
    assert table.last_add_confirmed(2) == -1


async def test_the_lac_never_goes_back() -> None:
    storage = MemoryStorage()
    table = LedgerTable(storage)
    ledger = table.admit(1, KEY)
    assert ledger is not None
    for value in (4, 2, 5):
        table.raise_last_add_confirmed(ledger, value)
    await table.put_changed_states()
    assert storage.states[1].last_add_confirmed == 5


async def test_states_are_put_only_when_they_changed() -> None:
    storage = MemoryStorage()
    table = LedgerTable(storage)
    ledger = table.admit(1, KEY)
    assert ledger is not None
    table.raise_last_add_confirmed(ledger, 4)
    await table.put_changed_states()
    storage.states.clear()
    await table.put_changed_states()
    assert storage.states == {}


def test_2_4_a_last_add_confirmed_never_goes_back() -> None:
    """Adds that are sent again, and those of recovery, carry older ones."""
    table = LedgerTable(MemoryStorage())
    ledger = table.admit(1, KEY)
    assert ledger is not None
    assert table.raise_last_add_confirmed(ledger, 5)
    assert not table.raise_last_add_confirmed(ledger, 5)
    assert not table.raise_last_add_confirmed(ledger, 3)
    assert table.last_add_confirmed(1) == 5
