"""Entries that nobody can give: an alarm and long waits, never a hot loop, never "replicated"."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.ledger.ledger_metadata import LedgerMetadata
from tests.integration.ledger.autorecovery.healing import WORKER, Healing, healing_of

PAYLOADS = [b"entry %d" % number for number in range(20)]


@pytest.fixture
async def healing(tmp_path: Path) -> AsyncIterator[Healing]:
    async with healing_of(4, tmp_path) as made:
        yield made


async def with_lost_tail(healing: Healing, lost: int) -> LedgerMetadata:
    """A closed ledger whose metadata names more entries than any bookie ever had."""
    made = await healing.write(PAYLOADS, close=False)
    ledger = await healing.client.manager.read(made.ledger_id)
    closed = ledger.metadata.closed(
        last_entry_id=len(PAYLOADS) - 1 + lost, length=sum(map(len, PAYLOADS)) + lost
    )
    return (await healing.client.manager.write(closed, version=ledger.version)).metadata


async def test_a07_lost_entries_are_an_alarm_and_not_a_hot_loop(healing: Healing) -> None:
    metadata = await with_lost_tail(healing, 5)
    bookie_id = metadata.ensembles[0].bookies[0]
    await healing.items.publish(metadata.ledger_id, {bookie_id: [(0, 24)]})
    settings = WORKER.model_copy(update={"retry_delay_s_max": 3600.0})
    async with healing.worker(settings) as worker:
        await healing.until(lambda: worker.metrics.items_deferred == 1)
        assert worker.metrics.lost_entries == {metadata.ledger_id: [(20, 24)]}
        assert worker.metrics.lost_ledgers == 1
        assert await healing.items.lost() == ({metadata.ledger_id: [(20, 24)]}, [])
        await asyncio.sleep(0.3)
        assert worker.metrics.items_taken == 1
        assert await healing.items.read(metadata.ledger_id) is not None
    assert await healing.metadata(metadata.ledger_id) == metadata


async def test_a07_a_lost_member_of_a_fragment_with_lost_entries_stays_in_the_metadata(
    healing: Healing,
) -> None:
    """The lost member may be the only one that can ever give the entries back."""
    metadata = await with_lost_tail(healing, 5)
    lost = metadata.ensembles[0].bookies[0]
    await healing.lose(lost)
    await healing.report_lost(lost, metadata.ledger_id)
    async with healing.worker() as worker:
        await healing.until(lambda: worker.metrics.items_deferred == 1)
        # It does not answer: whether the entries are lost, nobody knows.
        assert worker.metrics.lost_ledgers == 0
        assert worker.metrics.unreachable_ledgers == 1
    assert await healing.metadata(metadata.ledger_id) == metadata


async def test_a07_a_single_copy_on_a_dead_bookie_waits_for_it(healing: Healing) -> None:
    metadata = await healing.write(PAYLOADS, quorum=(1, 1, 1))
    (only,) = metadata.ensembles[0].bookies
    await healing.lose(only)
    await healing.report_lost(only, metadata.ledger_id)
    settings = WORKER.model_copy(update={"retry_delay_s": 0.2, "retry_delay_s_max": 3600.0})
    async with healing.worker(settings) as worker:
        await healing.until(lambda: worker.metrics.items_deferred == 2)
        assert worker.metrics.unreachable_ledgers == 1
        assert worker.metrics.lost_ledgers == 0
        assert await healing.metadata(metadata.ledger_id) == metadata
        await healing.come_back(only)
        await healing.until_no_items(worker)
        assert worker.metrics.unreachable_ledgers == 0
    await healing.check_whole(metadata.ledger_id, PAYLOADS)


async def test_a_loss_that_was_none_is_forgotten(healing: Healing) -> None:
    """The next worker, which does not know of the first one's alarm, takes it back."""
    metadata = await with_lost_tail(healing, 1)
    bookie_id = metadata.ensembles[0].bookies[0]
    await healing.items.publish(metadata.ledger_id, {bookie_id: [(20, 20)]})
    async with healing.worker() as worker:
        await healing.until(lambda: worker.metrics.lost_ledgers == 1)
    for each in metadata.ensembles[0].bookies[:1]:
        await healing.store_good(metadata, each, 20, b"!")
    async with healing.worker() as worker:
        await healing.until_no_items(worker)
    assert await healing.items.lost() == ({}, [])
    await healing.check_whole(metadata.ledger_id, [*PAYLOADS, b"!"])


async def test_a13_entries_of_which_all_copies_are_bad_are_lost(healing: Healing) -> None:
    metadata = await healing.write(PAYLOADS)
    for bookie_id in metadata.ensembles[0].bookies:
        await healing.spoil(metadata, bookie_id, 4)
    await healing.items.publish(
        metadata.ledger_id, {each: [(4, 4)] for each in metadata.ensembles[0].bookies}
    )
    async with healing.worker() as worker:
        await healing.until(lambda: worker.metrics.lost_ledgers == 1)
        assert worker.metrics.lost_entries == {metadata.ledger_id: [(4, 4)]}
    assert await healing.items.read(metadata.ledger_id) is not None


async def test_the_rest_of_a_ledger_with_lost_entries_is_filled_in_place(
    healing: Healing,
) -> None:
    metadata = await healing.write(PAYLOADS)
    one, two, three = metadata.ensembles[0].bookies
    for bookie_id in (one, two, three):
        await healing.spoil(metadata, bookie_id, 4)
    await healing.spoil(metadata, one, 9)
    await healing.items.publish(
        metadata.ledger_id, {one: [(0, 19)], two: [(4, 4)], three: [(4, 4)]}
    )
    async with healing.worker() as worker:
        await healing.until(lambda: worker.metrics.lost_ledgers == 1)
    assert await healing.copy_of(metadata, one, 9) == PAYLOADS[9]
