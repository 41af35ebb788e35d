"""The table of ledgers in use has a bound, and what is known of a ledger does not go with it."""

import asyncio

import pytest

from magnetar.bookie.errors import JournalFullError
from magnetar.bookie.requests.fencing import FenceState, LedgerDescriptor, LedgerTable
from magnetar.bookie.storage import LedgerState
from magnetar.ledger.digest import packet_codec
from tests.bookie_parts import KEY, OTHER_KEY, MemoryStorage

FULL = JournalFullError("full")
LAC_PACKET = packet_codec(1).seal_lac(5)


def admitted(table: LedgerTable, ledger_id: int) -> LedgerDescriptor:
    """A ledger whose key the journal has."""
    ledger = table.admit(ledger_id, KEY)
    assert ledger is not None
    ledger.on_key_written(None)
    return ledger


def crowd_out(table: LedgerTable) -> None:
    """So many others come that nobody stays who may go."""
    for ledger_id in range(1000, 1050):
        admitted(table, ledger_id)


def fenced(table: LedgerTable, storage: MemoryStorage, ledger_id: int) -> LedgerDescriptor:
    """As a request does it: in memory, and on the way to the journal."""
    ledger = admitted(table, ledger_id)
    assert ledger.request_fence()
    storage.put_state(ledger_id, ledger.state)
    return ledger


def test_a_million_ledgers_touched_are_no_more_descriptors_than_the_bound() -> None:
    table = LedgerTable(MemoryStorage(), descriptors_max=10)
    for ledger_id in range(1_000):
        admitted(table, ledger_id)
        assert len(table) <= 10


async def test_fence_key_and_lac_of_a_ledger_outlive_its_descriptor() -> None:
    storage = MemoryStorage()
    table = LedgerTable(storage, descriptors_max=2)
    ledger = fenced(table, storage, 1)
    ledger.on_fence_written(None)
    table.raise_last_add_confirmed(ledger, 7)
    table.keep_explicit_lac(ledger, LAC_PACKET)
    await table.put_changed_states()
    crowd_out(table)
    again = table.find(1)
    assert again is not None
    assert again is not ledger
    assert again.fence is FenceState.DURABLE
    assert again.explicit_lac == LAC_PACKET
    assert table.last_add_confirmed(1) == 7
    assert table.is_durably_fenced(1)
    assert table.admit(1, OTHER_KEY) is None
    assert again.is_key_journalled


@pytest.mark.parametrize("outcome", [None, FULL])
def test_a_fence_stays_in_the_table_until_it_is_durable(outcome: JournalFullError | None) -> None:
    """The storage says fenced from the request on: it cannot tell what may be told."""
    storage = MemoryStorage()
    table = LedgerTable(storage, descriptors_max=2)
    ledger = fenced(table, storage, 1)
    crowd_out(table)
    assert table.find(1) is ledger
    assert not table.is_durably_fenced(1)
    ledger.on_fence_written(outcome)
    crowd_out(table)
    assert table.is_durably_fenced(1) is (outcome is None)
    assert (table.find(1) is ledger) is (outcome is not None)


@pytest.mark.parametrize("is_handed_over", [False, True])
def test_a_ledger_stays_in_the_table_until_the_journal_has_its_key(is_handed_over: bool) -> None:
    """Another descriptor would take the key for journalled, and replay would drop the entries."""
    table = LedgerTable(MemoryStorage(), descriptors_max=2)
    ledger = table.admit(1, KEY)
    assert ledger is not None
    ledger.is_key_journalled = is_handed_over
    crowd_out(table)
    assert table.find(1) is ledger
    ledger.on_key_written(FULL)
    crowd_out(table)
    again = table.find(1)
    assert again is ledger
    assert not again.is_key_journalled


def test_a_key_that_replaces_an_empty_one_is_journalled_though_others_come() -> None:
    storage = MemoryStorage()
    storage.put_state(1, LedgerState(b"", fenced=True, last_add_confirmed=3))
    table = LedgerTable(storage, descriptors_max=2)
    ledger = table.admit(1, KEY)
    crowd_out(table)
    assert table.find(1) is ledger
    assert ledger is not None
    assert not ledger.is_key_journalled


async def test_a_lac_that_moved_stays_in_the_table_until_the_storage_has_it() -> None:
    storage = MemoryStorage()
    table = LedgerTable(storage, descriptors_max=2)
    for ledger_id in range(20):
        table.raise_last_add_confirmed(admitted(table, ledger_id), 7)
    crowd_out(table)
    assert len(table) >= 20
    assert [table.last_add_confirmed(ledger_id) for ledger_id in range(20)] == [7] * 20
    await table.put_changed_states()
    assert [storage.states[each].last_add_confirmed for each in range(20)] == [7] * 20
    assert len(table) <= 2, "the bound holds again"


async def test_b04_a_flush_has_all_changes_before_it_whoever_puts_them() -> None:
    """Rule 8.4: the states are put in slices. A second checkpoint begins while a first is on its
    way; its mark covers what the first has taken up and not put yet."""
    storage = MemoryStorage()
    table = LedgerTable(storage)
    count = 3_000
    for ledger_id in range(count):
        table.raise_last_add_confirmed(admitted(table, ledger_id), 1)
    first = asyncio.create_task(table.put_changed_states())
    await asyncio.sleep(0)
    known = sum(state.last_add_confirmed == 1 for state in storage.states.values())
    assert 0 < known < count, "others have their turn in between"
    late = admitted(table, count)
    table.raise_last_add_confirmed(late, 1)
    await table.put_changed_states()
    assert all(state.last_add_confirmed == 1 for state in storage.states.values())
    await first


async def test_a_lac_that_moves_again_between_two_slices_is_put_again() -> None:
    storage = MemoryStorage()
    table = LedgerTable(storage)
    ledgers = [admitted(table, ledger_id) for ledger_id in range(2_000)]
    for ledger in ledgers:
        table.raise_last_add_confirmed(ledger, 1)
    putting = asyncio.create_task(table.put_changed_states())
    await asyncio.sleep(0)
    for ledger in (ledgers[0], ledgers[-1]):  # put already, and not yet
        table.raise_last_add_confirmed(ledger, 2)
    await putting
    await table.put_changed_states()
    assert [storage.states[each].last_add_confirmed for each in (0, 1_999)] == [2, 2]


async def test_a_ledger_that_is_deleted_between_two_slices_does_not_come_back() -> None:
    storage = MemoryStorage()
    table = LedgerTable(storage)
    for ledger_id in range(2_000):
        table.raise_last_add_confirmed(admitted(table, ledger_id), 1)
    putting = asyncio.create_task(table.put_changed_states())
    await asyncio.sleep(0)
    table.delete(1_999, now_s=0.0)
    await putting
    assert 1_999 not in storage.states
