"""Ledgers that lack copies are whole again without anybody's help, and nothing else changes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from magnetar.ledger.autorecovery.repair import Repaired
from magnetar.ledger.autorecovery.work_items import disable_path
from magnetar.ledger.autorecovery.worker import Worker
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.replication_lock import UnreleasedLocks, lock_path
from magnetar.ledger.wire import Frame, Op, Status
from tests.integration.ledger.autorecovery.healing import (
    WORKER,
    Healing,
    healing_of,
    members,
)
from tests.integration.ledger.filtered_network import FilteredNetwork

PAYLOADS = [b"entry %d" % number for number in range(40)]


@pytest.fixture
async def healing(tmp_path: Path) -> AsyncIterator[Healing]:
    """Four bookies: one more than most ledgers need."""
    async with healing_of(4, tmp_path) as made:
        yield made


def names(metadata: LedgerMetadata) -> set[str]:
    return {bookie_id for fragment in metadata.ensembles for bookie_id in fragment.bookies}


def after_each_repair(worker: Worker, then: Callable[[Repaired], Awaitable[None]]) -> None:
    """Do something between a look that found the ledger whole and the deletion of its item."""
    repair = worker.repair.repair

    async def repair_then(*arguments: Any, **options: Any) -> Repaired:
        repaired = await repair(*arguments, **options)
        await then(repaired)
        return repaired

    worker.repair.repair = repair_then  # type: ignore[method-assign]


async def lost_member(healing: Healing, metadata: LedgerMetadata) -> str:
    """The first member of the ledger, gone and reported."""
    lost = metadata.ensembles[0].bookies[0]
    await healing.lose(lost)
    await healing.report_lost(lost, metadata.ledger_id)
    return lost


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


async def test_only_the_lost_member_of_a_ledger_changes(healing: Healing) -> None:
    before = await healing.write(PAYLOADS)
    lost = await lost_member(healing, before)
    async with healing.worker():
        await healing.until_no_items()
    after = await healing.metadata(before.ledger_id)
    assert after.ensembles[0].bookies[1:] == before.ensembles[0].bookies[1:]
    assert after.ensembles[0].bookies[0] not in before.ensembles[0].bookies
    assert lost not in names(after)
    assert (after.state, after.last_entry_id, after.length) == (
        before.state,
        before.last_entry_id,
        before.length,
    )


async def test_a_bookie_that_came_back_is_left_where_it_is(healing: Healing) -> None:
    metadata = await healing.write(PAYLOADS)
    lost = await lost_member(healing, metadata)
    await healing.come_back(lost)
    async with healing.worker() as worker:
        await healing.until_no_items(worker)
        assert worker.metrics.entries_copied == 0
    assert await healing.metadata(metadata.ledger_id) == metadata


async def test_an_unregistered_bookie_that_nobody_reported_is_left_to_the_auditor(
    tmp_path: Path,
) -> None:
    async with healing_of(5, tmp_path) as healing:
        metadata = await healing.write(PAYLOADS)
        away, lost, _ = metadata.ensembles[0].bookies
        await healing.lose(away)
        await healing.lose(lost)
        await healing.report_lost(lost, metadata.ledger_id)
        async with healing.worker():
            await healing.until_no_items()
        after = await healing.metadata(metadata.ledger_id)
        assert away in names(after)
        assert lost not in names(after)


async def test_a01_a_bookie_reported_meanwhile_is_not_forgotten(tmp_path: Path) -> None:
    """The item changes after the last look: it is not deleted, and looked at again."""
    async with healing_of(5, tmp_path) as healing:
        metadata = await healing.write(PAYLOADS)
        first, second, _ = metadata.ensembles[0].bookies
        await healing.lose(first)
        await healing.report_lost(first, metadata.ledger_id)
        async with healing.worker() as worker:

            async def lose_another(repaired: Repaired) -> None:
                if second in healing.cluster.bookies:
                    await healing.lose(second)
                    await healing.report_lost(second, metadata.ledger_id)

            after_each_repair(worker, lose_another)
            await healing.until_no_items(worker)
            assert worker.metrics.items_changed == 1
        after = await healing.check_whole(metadata.ledger_id, PAYLOADS)
        assert not {first, second} & names(after)


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


async def test_a05_a_member_on_which_no_entry_falls_is_replaced_too(tmp_path: Path) -> None:
    async with healing_of(5, tmp_path) as healing:
        metadata = await healing.write(PAYLOADS[:1], quorum=(4, 2, 2))
        idle = metadata.ensembles[0].bookies[3]
        assert idle not in set(members(metadata, 0))
        await healing.lose(idle)
        await healing.report_lost(idle, metadata.ledger_id)
        async with healing.worker() as worker:
            await healing.until_no_items(worker)
            assert worker.metrics.entries_copied == 0
        assert idle not in names(await healing.check_whole(metadata.ledger_id, PAYLOADS[:1]))


async def test_a05_an_empty_ledger_loses_the_name_of_the_dead(healing: Healing) -> None:
    metadata = await healing.write([])
    lost = await lost_member(healing, metadata)
    async with healing.worker():
        await healing.until_no_items()
    assert lost not in names(await healing.metadata(metadata.ledger_id))


async def test_striped_ledgers_are_copied_by_write_sets(tmp_path: Path) -> None:
    async with healing_of(6, tmp_path) as healing:
        metadata = await healing.write(PAYLOADS, quorum=(5, 3, 2))
        lost = metadata.ensembles[0].bookies[2]
        its_entries = sum(lost in set(members(metadata, each)) for each in range(len(PAYLOADS)))
        await healing.lose(lost)
        await healing.report_lost(lost, metadata.ledger_id)
        async with healing.worker() as worker:
            await healing.until_no_items(worker)
            assert worker.metrics.entries_copied == its_entries
        assert lost not in names(await healing.check_whole(metadata.ledger_id, PAYLOADS))


async def test_a06_holes_are_filled_in_place_when_there_is_no_other_bookie(
    tmp_path: Path,
) -> None:
    """Ensemble size = cluster size. The writer publishes the hole itself (rule 4.5)."""
    async with healing_of(3, tmp_path) as healing:
        writer = await healing.client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        for payload in PAYLOADS[:10]:
            await writer.add(payload)
        lacking = writer.metadata.ensembles[0].bookies[1]
        await healing.lose(lacking)
        for payload in PAYLOADS[10:]:
            await writer.add(payload)
        await writer.close()
        await healing.come_back(lacking)
        await healing.until_published(writer.ledger_id)
        async with healing.worker() as worker:
            await healing.until_no_items(worker)
            assert worker.metrics.entries_copied == len(PAYLOADS) - 10
            assert worker.metrics.members_replaced == 0
        await healing.check_whole(writer.ledger_id, PAYLOADS)


async def test_a06_a_dead_member_waits_for_another_bookie_and_then_needs_no_help(
    tmp_path: Path,
) -> None:
    async with healing_of(3, tmp_path) as healing:
        metadata = await healing.write(PAYLOADS)
        lost = await lost_member(healing, metadata)
        async with healing.worker() as worker:
            await healing.until(lambda: worker.metrics.failures.get("NotEnoughBookies", 0) >= 2)
            assert worker.metrics.entries_copied == 0
            await healing.cluster.start_bookie("b4")
            await healing.until_no_items(worker)
        assert lost not in names(await healing.check_whole(metadata.ledger_id, PAYLOADS))


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


async def test_a08_the_lock_is_held_from_the_first_copy_to_the_swap(tmp_path: Path) -> None:
    """A bookie that is given copies must not drop them as surplus before they are named."""
    network = FilteredNetwork()
    async with healing_of(4, tmp_path, network=network) as healing:
        metadata = await healing.write(PAYLOADS)
        await lost_member(healing, metadata)
        network.holds = is_recovery_add
        async with healing.worker():
            await healing.until(lambda: bool(network.held))
            assert await healing.items.locked_ids() == {metadata.ledger_id}
            assert (
                await healing.items.take_lock(metadata.ledger_id, "b4", unclear=UnreleasedLocks())
                is None
            )
            network.release()
            await healing.until_no_items()
        await healing.check_whole(metadata.ledger_id, PAYLOADS)


async def test_a_lock_that_was_lost_ends_the_attempt_before_the_swap(tmp_path: Path) -> None:
    """Rule 5.4."""
    network = FilteredNetwork()
    async with healing_of(4, tmp_path, network=network) as healing:
        metadata = await healing.write(PAYLOADS)
        lost = await lost_member(healing, metadata)
        network.holds = is_recovery_add
        async with healing.worker() as worker:
            await healing.until(lambda: bool(network.held))
            # As if the session had ended, and somebody else were faster.
            path = lock_path("/ledgers", metadata.ledger_id)
            await healing.store.delete(path)
            other = await healing.items.take_lock(
                metadata.ledger_id, "another worker", unclear=UnreleasedLocks()
            )
            assert other is not None
            network.release()
            await healing.until(lambda: worker.metrics.items_aborted == 1)
            assert await healing.metadata(metadata.ledger_id) == metadata
            assert await other.is_held()
            await other.release()
            await healing.until_no_items(worker)
        assert lost not in names(await healing.check_whole(metadata.ledger_id, PAYLOADS))


async def test_a13_a_bad_copy_is_not_copied_on_and_is_repaired_itself(healing: Healing) -> None:
    metadata = await healing.write(PAYLOADS)
    lost, bad, _ = metadata.ensembles[0].bookies
    for entry_id in (0, 7, 39):
        await healing.spoil(metadata, bad, entry_id)
    await healing.lose(lost)
    await healing.report_lost(lost, metadata.ledger_id)
    async with healing.worker() as worker:
        await healing.until_no_items(worker)
        # Who met the bad copies published them; that, too, is done at the end.
        if worker.metrics.bad_copies:
            await healing.items.publish(metadata.ledger_id, {bad: [(0, 39)]})
            await healing.until_no_items(worker)
    new = await healing.metadata(metadata.ledger_id)
    for entry_id, payload in enumerate(PAYLOADS):
        for bookie_id in set(members(new, entry_id)) - {bad}:
            assert await healing.copy_of(new, bookie_id, entry_id) == payload


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


async def test_a14_the_item_of_a_deleted_ledger_is_dropped(healing: Healing) -> None:
    metadata = await healing.write(PAYLOADS)
    await lost_member(healing, metadata)
    await healing.client.delete(metadata.ledger_id)
    async with healing.worker() as worker:
        await healing.until_no_items(worker)
        assert worker.metrics.ledgers_deleted == 1


async def test_a14_a_ledger_deleted_while_it_is_copied_is_not_tried_again(
    tmp_path: Path,
) -> None:
    network = FilteredNetwork()
    async with healing_of(4, tmp_path, network=network) as healing:
        metadata = await healing.write(PAYLOADS)
        await lost_member(healing, metadata)
        network.holds = is_recovery_add
        async with healing.worker() as worker:
            await healing.until(lambda: bool(network.held))
            await healing.client.delete(metadata.ledger_id)
            network.release()
            await healing.until_no_items(worker)
            assert worker.metrics.ledgers_deleted == 1


async def test_an_unknown_answer_is_no_absence_and_no_presence(tmp_path: Path) -> None:
    """Rule 5.5: the item stays until the bookie gives a clear answer."""
    network = FilteredNetwork()
    async with healing_of(4, tmp_path, network=network) as healing:
        metadata = await healing.write(PAYLOADS)
        lost, dumb, _ = metadata.ensembles[0].bookies
        port = healing.cluster.bookies[dumb].port
        network.filter = lambda from_port, frame: (
            frame._replace(status=Status.UNKNOWN_LEDGER_STATE, body=b"")
            if from_port == port and frame.op == Op.LIST_ENTRIES
            else frame
        )
        await healing.lose(lost)
        await healing.report_lost(lost, metadata.ledger_id)
        async with healing.worker() as worker:
            await healing.until(lambda: worker.metrics.failures.get("Unclear", 0) >= 2)
            assert await healing.items.read(metadata.ledger_id) is not None
            network.filter = lambda from_port, frame: frame
            await healing.until_no_items(worker)
        await healing.check_whole(metadata.ledger_id, PAYLOADS)


async def test_two_workers_share_the_items(healing: Healing) -> None:
    ledgers = [(await healing.write(PAYLOADS[:3])).ledger_id for _ in range(40)]
    await healing.lose("b1")
    # One at a time, both there from the start: neither has them all before the other looks.
    settings = WORKER.model_copy(update={"ledgers_at_once": 1})
    async with (
        healing.worker(settings, holder="one") as one,
        healing.worker(settings, holder="two") as two,
    ):
        await healing.until(lambda: min(one.metrics.scans, two.metrics.scans) > 0)
        await healing.report_lost("b1", *ledgers)
        await healing.until_no_items(one, two)
        done = [worker.metrics.items_finished for worker in (one, two)]
        assert sum(done) == len(ledgers)
        assert min(done) > 0
    for ledger_id in ledgers:
        await healing.check_whole(ledger_id, PAYLOADS[:3])


async def test_a_switched_off_cluster_is_left_alone(healing: Healing) -> None:
    metadata = await healing.write(PAYLOADS)
    await healing.store.create(disable_path("/ledgers"))
    await lost_member(healing, metadata)
    async with healing.worker() as worker:
        await healing.until(lambda: worker.metrics.disabled == 1)
        await asyncio.sleep(0.05)
        assert worker.metrics.items_taken == 0
        await healing.store.delete(disable_path("/ledgers"))
        await healing.until_no_items(worker)
        assert worker.metrics.disabled == 0


async def test_a_worker_that_stops_gives_back_its_locks(tmp_path: Path) -> None:
    async with healing_of(3, tmp_path) as healing:
        metadata = await healing.write(PAYLOADS)
        await lost_member(healing, metadata)
        settings = WORKER.model_copy(update={"retry_delay_s_max": 600.0, "retry_delay_s": 600.0})
        async with healing.worker(settings) as worker:
            await healing.until(lambda: worker.metrics.items_deferred == 1)
            assert await healing.items.locked_ids() == {metadata.ledger_id}
        assert await healing.items.locked_ids() == set()
        assert await healing.items.read(metadata.ledger_id) is not None


async def test_an_item_of_another_format_is_left_as_it_is(healing: Healing) -> None:
    metadata = await healing.write(PAYLOADS)
    await lost_member(healing, metadata)
    path = f"/ledgers/underreplication/ledgers/0000/0000/0000/{metadata.ledger_id:04x}"
    path += f"/urL{metadata.ledger_id}"
    version = await healing.store.exists(path)
    assert version is not None
    await healing.store.set(path, b'{"format": 2}', version=version)
    async with healing.worker() as worker:
        await healing.until(lambda: worker.metrics.items_deferred == 1)
    assert (await healing.store.get(path)).value == b'{"format": 2}'


def is_recovery_add(frame: Frame) -> bool:
    """An answer to an add; nothing but the worker adds when this is used."""
    return frame.op == Op.ADD
