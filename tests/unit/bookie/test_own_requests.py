"""Adds that the bookie makes to itself."""

import asyncio

import pytest

from magnetar.bookie.errors import OwnAddError
from magnetar.bookie.integrity.own_requests import OwnRequests
from magnetar.bookie.requests.fencing import LedgerTable
from magnetar.bookie.storage import LedgerState
from tests.bookie_parts import (
    KEY,
    OTHER_KEY,
    ManualJournal,
    MemoryStorage,
    bookie_settings,
    make_handler,
    packets_of,
)

LEDGER = 7


class Parts:
    def __init__(self, *, full_wait_ms_max: int = 4000) -> None:
        self.storage = MemoryStorage()
        self.storage.put_state(LEDGER, LedgerState(KEY, True, -1))
        self.handler = make_handler(
            self.storage,
            LedgerTable(self.storage),
            settings=bookie_settings(write_cache_full_wait_ms_max=full_wait_ms_max),
        )
        self.journal = ManualJournal(self.handler)
        self.handler.use_journal(self.journal)
        self.requests = OwnRequests(self.handler)

    async def begin(self, first: int, *, key: bytes = KEY) -> "asyncio.Task[None]":
        """Begin to store three entries, and let it come as far as it can."""
        add = self.requests.add(LEDGER, key, packets_of(LEDGER, first, 3))
        task = asyncio.create_task(add)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return task


async def test_entries_of_a_fenced_ledger_are_stored_and_durable_before_it_returns() -> None:
    parts = Parts()
    task = await parts.begin(0)
    assert not task.done()
    assert list(parts.storage.packets[LEDGER]) == [0, 1, 2]
    parts.journal.commit()
    await task


async def test_one_add_after_the_other() -> None:
    parts = Parts()
    first = await parts.begin(0)
    second = await parts.begin(3)
    assert len(parts.journal.batches) == 1
    parts.journal.commit()
    await first
    await asyncio.sleep(0)
    parts.journal.commit()
    await second
    assert list(parts.storage.packets[LEDGER]) == [0, 1, 2, 3, 4, 5]


async def test_a_full_write_cache_is_waited_for() -> None:
    parts = Parts()
    parts.storage.is_full = True
    task = await parts.begin(0)
    assert not task.done()
    parts.storage.is_full = False
    parts.handler.on_flushed()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    parts.journal.commit()
    await task


async def test_one_that_stays_full_is_an_error_that_a_retry_may_mend() -> None:
    parts = Parts(full_wait_ms_max=0)
    parts.storage.is_full = True
    with pytest.raises(OwnAddError, match="TOO_MANY_REQUESTS") as caught:
        await (await parts.begin(0))
    assert caught.value.retryable


async def test_a_journal_without_room_is_an_error() -> None:
    parts = Parts()
    task = await parts.begin(0)
    parts.journal.fail()
    with pytest.raises(OwnAddError, match="IO_ERROR"):
        await task


async def test_another_key_than_the_ledgers_is_refused() -> None:
    parts = Parts()
    with pytest.raises(OwnAddError, match="UNAUTHORIZED"):
        await (await parts.begin(0, key=OTHER_KEY))


async def test_a_reply_to_an_add_that_was_given_up_is_not_taken_for_the_next_one() -> None:
    parts = Parts()
    task = await parts.begin(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    late, parts.journal.batches = parts.journal.batches, []
    second = await parts.begin(3)
    parts.handler.on_committed(late, None)
    await asyncio.sleep(0)
    assert not second.done()
    parts.journal.commit()
    await second
