"""Bookies that operators recover or decommission."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.ledger.autorecovery.controls import Controls
from magnetar.ledger.autorecovery.decommission import Decommission, DecommissionPace
from magnetar.ledger.autorecovery.ledger_scan import PacedReads
from magnetar.ledger.autorecovery.recover import ManualRecovery, Recovered
from magnetar.ledger.errors import (
    BookieRegisteredError,
    InvalidLedgerMetadataError,
    NoSuchBookieError,
)
from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.ledger.replication_lock import UnreleasedLocks
from tests.integration.ledger.autorecovery.healing import WORKER, Healing, healing_of

PAYLOADS = [b"entry %d" % number for number in range(10)]


@pytest.fixture
async def healing(tmp_path: Path) -> AsyncIterator[Healing]:
    async with healing_of(4, tmp_path) as made:
        yield made


def reads_of(healing: Healing) -> PacedReads:
    return PacedReads(healing.client.manager, healing.clock, per_s_max=10_000, at_once_max=10)


def recovery_of(healing: Healing) -> ManualRecovery:
    return ManualRecovery(
        healing.client,
        healing.store,
        clock=healing.clock,
        random=random.Random(5),
        holder="by hand",
        reads=reads_of(healing),
        settings=WORKER,
    )


def decommission_of(healing: Healing) -> Decommission:
    return Decommission(
        healing.client,
        healing.store,
        clock=healing.clock,
        random=random.Random(6),
        reads=reads_of(healing),
        ask_for_audit=Controls(healing.store).ask_for_audit,
        pace=DecommissionPace(poll_s=0.01, poll_s_max=0.05),
    )


async def naming(healing: Healing, bookie_id: str) -> list[LedgerMetadata]:
    found = [
        await healing.metadata(ledger_id) async for ledger_id in healing.client.manager.ledger_ids()
    ]
    return [
        each for each in found if any(bookie_id in fragment.bookies for fragment in each.ensembles)
    ]


async def test_recovery_by_hand_moves_every_ledger_of_the_bookie(healing: Healing) -> None:
    ledgers = [(await healing.write(PAYLOADS)).ledger_id for _ in range(6)]
    unfinished = (await healing.write(PAYLOADS, close=False)).ledger_id
    named = {each.ledger_id for each in await naming(healing, "b1")}
    await healing.lose("b1")
    await healing.report_lost("b1", *ledgers[:2])  # an auditor was there before
    for ledger_id in named:
        await healing.items.note_lost(ledger_id, [(0, 1)])  # and a worker, while more were away
    done = [each async for each in recovery_of(healing).recover(["b1"])]
    assert {each.ledger_id for each in done} == named
    assert {each.outcome for each in done} == {Recovered.REPAIRED}
    assert await naming(healing, "b1") == []
    for ledger_id in [*ledgers, *{unfinished} & named]:
        assert (await healing.check_whole(ledger_id, PAYLOADS)).state is LedgerState.CLOSED
    assert set(await healing.items.ids()) <= set(ledgers[:2]) - named
    assert await healing.items.lost() == ({}, [])


async def test_a_dry_run_changes_nothing(healing: Healing) -> None:
    before = [await healing.write(PAYLOADS) for _ in range(3)]
    await healing.lose("b1")
    done = [each async for each in recovery_of(healing).recover(["b1"], is_dry_run=True)]
    assert {each.outcome for each in done} <= {Recovered.WOULD_BE}
    assert [await healing.metadata(each.ledger_id) for each in before] == before


async def test_open_ledgers_may_be_left_alone(healing: Healing) -> None:
    metadata = await healing.write(PAYLOADS, close=False)
    lost = metadata.ensembles[0].bookies[0]
    await healing.lose(lost)
    done = [each async for each in recovery_of(healing).recover([lost], skips_open=True)]
    assert [each.outcome for each in done] == [Recovered.SKIPPED_OPEN]
    assert (await healing.metadata(metadata.ledger_id)).state is LedgerState.OPEN


async def test_one_ledger_alone_is_recovered(healing: Healing) -> None:
    first = await healing.write(PAYLOADS, quorum=(4, 3, 2))
    await healing.cluster.start_bookie("b5")
    await healing.cluster.wait_known(healing.client, "b5")
    other = await healing.write(PAYLOADS, quorum=(5, 3, 2))
    await healing.cluster.start_bookie("b6")
    await healing.cluster.wait_known(healing.client, "b6")
    await healing.lose("b1")
    recovery = recovery_of(healing)
    done = [each async for each in recovery.recover(["b1"], ledger_id=first.ledger_id)]
    assert [(each.ledger_id, each.is_done) for each in done] == [(first.ledger_id, True)]
    assert [each.ledger_id for each in await naming(healing, "b1")] == [other.ledger_id]


async def test_a_ledger_that_a_worker_has_is_left_to_it(healing: Healing) -> None:
    metadata = await healing.write(PAYLOADS)
    lost = metadata.ensembles[0].bookies[0]
    await healing.lose(lost)
    lock = await healing.items.take_lock(metadata.ledger_id, "a worker", unclear=UnreleasedLocks())
    assert lock is not None
    done = [each async for each in recovery_of(healing).recover([lost])]
    assert [each.outcome for each in done] == [Recovered.BUSY]
    await lock.release()


async def test_a_bookie_that_runs_is_not_recovered(healing: Healing) -> None:
    await healing.write(PAYLOADS)
    with pytest.raises(BookieRegisteredError, match="bookie b1 is registered"):
        _ = [each async for each in recovery_of(healing).recover(["b1"])]


async def test_a_decommissioned_bookie_is_named_by_nothing_and_has_no_cookie(
    healing: Healing,
) -> None:
    ledgers = [(await healing.write(PAYLOADS)).ledger_id for _ in range(6)]
    unfinished = await healing.write(PAYLOADS, close=False)
    named = len(await naming(healing, "b1"))
    await healing.lose("b1")
    async with healing.worker():
        assert await decommission_of(healing).run("b1") == named
    assert await naming(healing, "b1") == []
    assert await healing.client.registry.read_cookie("b1") is None
    assert await healing.items.ids() == []
    for ledger_id in ledgers:
        await healing.check_whole(ledger_id, PAYLOADS)
    assert (await healing.metadata(unfinished.ledger_id)).ledger_id == unfinished.ledger_id


async def test_a_bookie_that_runs_is_not_decommissioned(healing: Healing) -> None:
    with pytest.raises(BookieRegisteredError, match="Stop it for good"):
        await decommission_of(healing).run("b1")
    assert await healing.client.registry.read_cookie("b1") is not None


async def test_a_bookie_that_never_was_is_not_decommissioned(healing: Healing) -> None:
    with pytest.raises(NoSuchBookieError, match="no cookie of a bookie b9"):
        await decommission_of(healing).run("b9")


async def test_a_bookie_that_comes_back_meanwhile_keeps_its_cookie(tmp_path: Path) -> None:
    """Three bookies: there is nobody to copy to, so that it cannot be over before."""
    async with healing_of(3, tmp_path) as healing:
        metadata = await healing.write(PAYLOADS)
        await healing.lose("b1")
        running = asyncio.create_task(decommission_of(healing).run("b1"))
        await healing.until_published(metadata.ledger_id)
        await healing.come_back("b1")
        with pytest.raises(BookieRegisteredError):
            await running
        assert await healing.client.registry.read_cookie("b1") is not None


async def test_a_ledger_that_cannot_be_read_keeps_the_cookie(healing: Healing) -> None:
    """An unreadable ledger may name the bookie: what is unknown is not absent."""
    metadata = await healing.write(PAYLOADS)
    other = await healing.write(PAYLOADS)
    path = f"/ledgers/00/0000/L{other.ledger_id:04d}"
    await healing.store.set(path, b"{}", version=(await healing.store.get(path)).version)
    lost = metadata.ensembles[0].bookies[0]
    await healing.lose(lost)
    async with healing.worker():
        with pytest.raises(InvalidLedgerMetadataError, match=f"ledger {other.ledger_id}"):
            await decommission_of(healing).run(lost)
    assert await healing.client.registry.read_cookie(lost) is not None
    assert (await healing.store.get(path)).value == b"{}"
