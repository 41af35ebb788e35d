"""Ledgers that lack copies are whole again without anybody's help, and nothing else changes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.ledger.ledger_metadata import LedgerMetadata
from tests.integration.ledger.autorecovery.healing import (
    Healing,
    healing_of,
)

PAYLOADS = [b"entry %d" % number for number in range(40)]


@pytest.fixture
async def healing(tmp_path: Path) -> AsyncIterator[Healing]:
    """Four bookies: one more than most ledgers need."""
    async with healing_of(4, tmp_path) as made:
        yield made


def names(metadata: LedgerMetadata) -> set[str]:
    return {bookie_id for fragment in metadata.ensembles for bookie_id in fragment.bookies}


async def test_the_ledgers_of_a_lost_bookie_are_whole_again(healing: Healing) -> None:
    ledgers = [(await healing.write(PAYLOADS)).ledger_id for _ in range(5)]
    await healing.lose("b1")
    await healing.report_lost("b1", *ledgers)
    async with healing.worker() as worker:
        await healing.until_no_items(worker)
        for ledger_id in ledgers:
            assert "b1" not in names(await healing.check_whole(ledger_id, PAYLOADS))
        assert worker.metrics.items_finished == len(ledgers)
        assert worker.metrics.items_deferred == 0
    assert await healing.items.locked_ids() == set()


async def test_a02_copies_are_recovery_adds_with_the_key_which_fenced_bookies_take(
    tmp_path: Path,
) -> None:
    async with healing_of(3, tmp_path) as healing:
        open_ledger = await healing.write(PAYLOADS, close=False, password=b"secret")
        await healing.client.open_and_recover(open_ledger.ledger_id)
        # The new copies go to a bookie that is fenced for the ledger already.
        lacking = open_ledger.ensembles[0].bookies[0]
        metadata = await healing.metadata(open_ledger.ledger_id)
        await healing.spoil(metadata, lacking, 3)
        await healing.items.publish(open_ledger.ledger_id, {lacking: [(0, 5)]})
        async with healing.worker() as worker:
            await healing.until_no_items(worker)
            assert worker.metrics.entries_copied == 1
        await healing.check_whole(open_ledger.ledger_id, PAYLOADS)


async def test_a06_a_read_only_bookie_that_lacks_entries_is_replaced(healing: Healing) -> None:
    metadata = await healing.write(PAYLOADS)
    lacking = metadata.ensembles[0].bookies[0]
    await healing.spoil(metadata, lacking, 3)
    await healing.cluster.bookies[lacking].drain()
    await healing.until(lambda: healing.is_read_only(lacking))
    await healing.items.publish(metadata.ledger_id, {lacking: [(3, 3)]})
    async with healing.worker():
        await healing.until_no_items()
    assert lacking not in names(await healing.check_whole(metadata.ledger_id, PAYLOADS))


async def test_a13_a_bad_copy_that_was_reported_is_overlaid_in_place(tmp_path: Path) -> None:
    async with healing_of(3, tmp_path) as healing:
        metadata = await healing.write(PAYLOADS)
        bad = metadata.ensembles[0].bookies[0]
        for entry_id in (0, 7, 39):
            await healing.spoil(metadata, bad, entry_id)
        await healing.items.publish(metadata.ledger_id, {bad: [(0, 39)]})
        async with healing.worker() as worker:
            await healing.until_no_items(worker)
            assert worker.metrics.entries_copied == 3
        await healing.check_whole(metadata.ledger_id, PAYLOADS)
