"""Ledgers that somebody writes, or wrote: the tail is never touched, and the writer has time."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.ledger.errors import LedgerFencedError
from magnetar.ledger.ledger_metadata import LedgerState
from magnetar.ledger.wire import Frame, Op, Status
from tests.integration.ledger.autorecovery.healing import WORKER, Healing, healing_of
from tests.integration.ledger.filtered_network import FilteredNetwork

PAYLOADS = [b"entry %d" % number for number in range(20)]
PATIENT = WORKER.model_copy(update={"open_ledger_grace_s": 3600.0})


@pytest.fixture
async def healing(tmp_path: Path) -> AsyncIterator[Healing]:
    async with healing_of(4, tmp_path) as made:
        yield made


async def test_a03_the_tail_of_an_open_ledger_is_not_touched_within_the_grace(
    healing: Healing,
) -> None:
    metadata = await healing.write(PAYLOADS, close=False)
    lost = metadata.ensembles[0].bookies[0]
    await healing.lose(lost)
    await healing.report_lost(lost, metadata.ledger_id)
    async with healing.worker(PATIENT) as worker:
        await healing.until(lambda: worker.metrics.failures.get("OpenLedger", 0) == 1)
        assert worker.metrics.entries_copied == 0
        assert await healing.metadata(metadata.ledger_id) == metadata
        assert await healing.items.locked_ids() == {metadata.ledger_id}


async def test_a03_after_the_grace_the_ledger_is_closed_and_its_writer_is_told(
    healing: Healing,
) -> None:
    writer = await healing.client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    for payload in PAYLOADS:
        await writer.add(payload)
    lost = writer.metadata.ensembles[0].bookies[0]
    await healing.lose(lost)
    await healing.report_lost(lost, writer.ledger_id)
    async with healing.worker() as worker:
        await healing.until_no_items(worker)
        assert worker.metrics.ledgers_fenced == 1
    metadata = await healing.check_whole(writer.ledger_id, PAYLOADS)
    assert metadata.state is LedgerState.CLOSED
    assert all(lost not in fragment.bookies for fragment in metadata.ensembles)
    with pytest.raises(LedgerFencedError):
        await writer.add(b"one more")


async def test_a_writer_that_notices_by_itself_keeps_its_ledger(healing: Healing) -> None:
    """Its ensemble change makes the fragment complete; the work that is left is done below it."""
    writer = await healing.client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    for payload in PAYLOADS[:10]:
        await writer.add(payload)
    lost = writer.metadata.ensembles[0].bookies[0]
    await healing.lose(lost)
    await healing.report_lost(lost, writer.ledger_id)
    async with healing.worker(PATIENT) as worker:
        await healing.until(lambda: worker.metrics.failures.get("OpenLedger", 0) == 1)
        for payload in PAYLOADS[10:]:
            await writer.add(payload)
        await healing.until(lambda: lost not in writer.metadata.last_fragment.bookies)
        await healing.come_back(lost)  # news: the worker looks again
        await healing.until_no_items(worker)
        assert worker.metrics.ledgers_fenced == 0
    await writer.add(b"one more")
    await writer.close()
    await healing.check_whole(writer.ledger_id, [*PAYLOADS, b"one more"])


async def test_a_finished_fragment_of_an_open_ledger_is_repaired_while_it_is_written(
    healing: Healing,
) -> None:
    writer = await healing.client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    for payload in PAYLOADS[:10]:
        await writer.add(payload)
    lost = writer.metadata.ensembles[0].bookies[0]
    await healing.lose(lost)
    for payload in PAYLOADS[10:]:
        await writer.add(payload)
    assert len(writer.metadata.ensembles) == 2
    await healing.report_lost(lost, writer.ledger_id)
    async with healing.worker(PATIENT) as worker:
        await healing.until_no_items(worker)
        assert worker.metrics.ledgers_fenced == 0
    assert (await healing.metadata(writer.ledger_id)).state is LedgerState.OPEN
    # The writer's next change of the metadata meets the one that the worker made.
    await writer.add(b"one more")
    await writer.close()
    metadata = await healing.check_whole(writer.ledger_id, [*PAYLOADS, b"one more"])
    assert all(lost not in fragment.bookies for fragment in metadata.ensembles)


async def test_a04_the_last_entry_below_the_tail_is_copied_although_no_lac_tells_of_it(
    healing: Healing,
) -> None:
    """Entry 9 ends the penultimate fragment; nothing written after it says that it is confirmed."""
    writer = await healing.client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    for payload in PAYLOADS[:10]:
        await writer.add(payload)
    first, _, _ = writer.metadata.ensembles[0].bookies
    await healing.lose(first)
    await writer.add(PAYLOADS[10])
    await healing.until(lambda: len(writer.metadata.ensembles) == 2)
    # Of the new fragment nobody can be asked for the LAC.
    await healing.report_lost(first, writer.ledger_id)
    async with healing.worker(PATIENT) as worker:
        await healing.until_no_items(worker)
    metadata = await healing.metadata(writer.ledger_id)
    assert metadata.state is LedgerState.OPEN
    assert metadata.ensembles[1].first_entry_id == 10
    assert first not in metadata.ensembles[0].bookies
    for bookie_id in metadata.ensembles[0].bookies:
        assert await healing.copy_of(metadata, bookie_id, 9) == PAYLOADS[9]
    writer.abandon()


async def test_a_hole_in_the_tail_that_is_filled_meanwhile_costs_the_writer_nothing(
    tmp_path: Path,
) -> None:
    async with healing_of(3, tmp_path) as healing:
        metadata = await healing.write(PAYLOADS, close=False)
        # The last add confirmed that the bookies can prove is one behind.
        await healing.items.publish(
            metadata.ledger_id, {metadata.ensembles[0].bookies[0]: [(3, len(PAYLOADS) - 2)]}
        )
        async with healing.worker() as worker:
            await healing.until_no_items(worker)
            assert worker.metrics.ledgers_fenced == 0
            assert worker.metrics.items_deferred == 0
        assert (await healing.metadata(metadata.ledger_id)).state is LedgerState.OPEN


async def test_a_hole_in_the_tail_is_filled_when_the_ledger_is_closed(tmp_path: Path) -> None:
    async with healing_of(3, tmp_path) as healing:
        writer = await healing.client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        lacking = writer.metadata.ensembles[0].bookies[2]
        await healing.lose(lacking)
        for payload in PAYLOADS:
            await writer.add(payload)
        await healing.come_back(lacking)
        await healing.until_published(writer.ledger_id)
        async with healing.worker(PATIENT) as worker:
            await healing.until(lambda: worker.metrics.items_deferred == 1)
            assert worker.metrics.entries_copied == 0
            await writer.close()
        async with healing.worker() as worker:
            await healing.until_no_items(worker)
            assert worker.metrics.ledgers_fenced == 0
        await healing.check_whole(writer.ledger_id, PAYLOADS)


async def test_a_ledger_that_cannot_be_closed_waits_and_is_whole_in_the_end(
    tmp_path: Path,
) -> None:
    network = FilteredNetwork()
    async with healing_of(4, tmp_path, network=network) as healing:
        metadata = await healing.write(PAYLOADS, close=False)
        lost = metadata.ensembles[0].bookies[0]
        await healing.lose(lost)
        await healing.report_lost(lost, metadata.ledger_id)
        network.filter = refuse_to_fence
        async with healing.worker() as worker:
            await healing.until(lambda: "RecoveryUndecidedError" in worker.metrics.failures)
            assert await healing.items.read(metadata.ledger_id) is not None
            network.filter = lambda port, frame: frame
            await healing.until_no_items(worker)
        await healing.check_whole(metadata.ledger_id, PAYLOADS)


async def test_a_ledger_in_recovery_whose_recoverer_died_is_closed(healing: Healing) -> None:
    metadata = await healing.write(PAYLOADS, close=False)
    ledger = await healing.client.manager.read(metadata.ledger_id)
    await healing.client.manager.write(ledger.metadata.in_recovery(), version=ledger.version)
    lost = metadata.ensembles[0].bookies[0]
    await healing.lose(lost)
    await healing.report_lost(lost, metadata.ledger_id)
    async with healing.worker() as worker:
        await healing.until_no_items(worker)
    closed = await healing.check_whole(metadata.ledger_id, PAYLOADS)
    assert closed.state is LedgerState.CLOSED


def refuse_to_fence(port: int, frame: Frame) -> Frame:
    is_about_the_lac = frame.op == Op.READ_LAC
    return frame._replace(status=Status.IO_ERROR, flags=0, body=b"") if is_about_the_lac else frame
