"""The auditor over real bookies: what it takes for lost, and what it leaves alone."""

import asyncio
from pathlib import Path

import pytest

from magnetar.ledger.errors import MetadataUnavailableError
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.under_replication import EVERYTHING, item_path
from tests.integration.ledger.autorecovery.auditing import (
    AUDITOR,
    auditor_of,
    controls_of,
    until_items,
)
from tests.integration.ledger.autorecovery.healing import Healing, healing_of

PAYLOADS = [b"entry %d" % number for number in range(20)]
SLOW = AUDITOR.model_copy(update={"lost_bookie_recovery_delay_s": 600.0})


async def ledgers_without(healing: Healing, bookie_id: str) -> tuple[list[int], list[int]]:
    """Ledgers that name a bookie, and ledgers that do not."""
    named: list[int] = []
    others: list[int] = []
    while len(named) < 3 or not others:
        metadata = await healing.write(PAYLOADS, quorum=(2, 2, 2))
        is_named = bookie_id in metadata.ensembles[0].bookies
        (named if is_named else others).append(metadata.ledger_id)
    return named, others


async def test_each_ledger_of_a_lost_bookie_gets_an_item_and_no_other_does(tmp_path: Path) -> None:
    async with healing_of(4, tmp_path) as healing:
        named, _ = await ledgers_without(healing, "b1")
        async with auditor_of(healing) as auditor:
            await healing.until(lambda: auditor.metrics.bookies_registered == 4)
            assert await healing.items.ids() == []
            await healing.lose("b1")
            await until_items(healing, *named)
            item = await healing.items.read(named[0])
            assert item is not None
            assert item.missing == {"b1": [EVERYTHING]}
            await healing.until(lambda: auditor.metrics.under_replicated_ledgers == len(named))
            assert auditor.metrics.under_replicated_bytes == sum(
                sum(map(len, PAYLOADS)) for _ in named
            )
            assert auditor.metrics.bookies_lost == 1


async def test_with_a_worker_the_ledgers_are_whole_without_anybodys_help(tmp_path: Path) -> None:
    async with healing_of(4, tmp_path) as healing:
        ledgers = [(await healing.write(PAYLOADS)).ledger_id for _ in range(5)]
        async with auditor_of(healing) as auditor, healing.worker():
            await healing.until(lambda: auditor.metrics.bookies_registered == 4)
            await healing.lose("b1")
            await healing.until(lambda: auditor.metrics.audits.get("lost", 0) == 1)
            await healing.until_no_items()
            for ledger_id in ledgers:
                metadata = await healing.check_whole(ledger_id, PAYLOADS)
                assert "b1" not in metadata.ensembles[0].bookies


async def test_a10_a_bookie_that_was_lost_before_there_was_an_auditor_is_found(
    tmp_path: Path,
) -> None:
    async with healing_of(4, tmp_path) as healing:
        named, _ = await ledgers_without(healing, "b1")
        await healing.lose("b1")
        async with auditor_of(healing):
            await until_items(healing, *named)


async def test_a09_a_bookie_that_turns_read_only_is_not_lost(tmp_path: Path) -> None:
    async with healing_of(4, tmp_path) as healing:
        await ledgers_without(healing, "b1")
        async with auditor_of(healing) as auditor:
            await healing.until(lambda: auditor.metrics.bookies_registered == 4)
            bookie = healing.cluster.bookies["b1"]
            for readonly in (True, False, True):
                info = healing.client.registry.resolve("b1")
                assert info is not None
                await healing.client.registry.register(
                    type(info)("b1", info.host, bookie.port, readonly)
                )
                await healing.until(lambda: "b1" in healing.client.registry.registered())
            await controls_of(healing).ask_for_audit()
            await healing.until(lambda: auditor.metrics.audits.get("asked", 0) == 1)
            assert await healing.items.ids() == []
            assert auditor.metrics.bookies_lost == 0


async def test_a_bookie_that_comes_back_within_the_delay_costs_nothing(tmp_path: Path) -> None:
    async with healing_of(4, tmp_path) as healing:
        await ledgers_without(healing, "b1")
        async with auditor_of(healing, SLOW) as auditor:
            await healing.until(lambda: auditor.metrics.bookies_registered == 4)
            await healing.lose("b1")
            await healing.until(lambda: auditor.metrics.delayed_audits_scheduled == 1)
            await healing.come_back("b1")
            await healing.until(lambda: auditor.metrics.delayed_audits_cancelled == 1)
            assert auditor.metrics.audits == {}
            assert await healing.items.ids() == []


async def test_an_operator_may_change_the_delay_while_it_runs(tmp_path: Path) -> None:
    async with healing_of(4, tmp_path) as healing:
        named, _ = await ledgers_without(healing, "b1")
        async with auditor_of(healing, SLOW) as auditor:
            await healing.until(lambda: auditor.metrics.bookies_registered == 4)
            await healing.lose("b1")
            await healing.until(lambda: auditor.metrics.delayed_audits_scheduled == 1)
            await controls_of(healing).write_delay(0.0)
            await until_items(healing, *named)


async def test_writing_the_same_delay_again_starts_an_audit_at_once(tmp_path: Path) -> None:
    async with healing_of(4, tmp_path) as healing:
        named, _ = await ledgers_without(healing, "b1")
        controls = controls_of(healing)
        await controls.write_delay(600.0)
        async with auditor_of(healing) as auditor:
            await healing.until(lambda: auditor.metrics.bookies_registered == 4)
            await healing.lose("b1")
            await healing.until(lambda: auditor.metrics.delayed_audits_scheduled == 1)
            await controls.write_delay(600.0)
            await until_items(healing, *named)
            assert set(auditor.metrics.audits) == {"asked"}


async def test_while_it_is_switched_off_nothing_is_published(tmp_path: Path) -> None:
    async with healing_of(4, tmp_path) as healing:
        named, _ = await ledgers_without(healing, "b1")
        controls = controls_of(healing)
        assert await controls.disable(now_ms=1)
        assert not await controls.disable(now_ms=2)
        async with auditor_of(healing) as auditor:
            await healing.until(lambda: auditor.metrics.bookies_registered == 4)
            await healing.lose("b1")
            await healing.until(lambda: auditor.metrics.bookies_lost == 1)
            await controls.ask_for_audit()
            await healing.until(lambda: auditor.metrics.is_disabled == 1)
            assert auditor.metrics.audits == {}
            assert await healing.items.ids() == []
            assert await controls.enable()
            assert not await controls.enable()
            await until_items(healing, *named)


async def test_a11_when_most_bookies_vanish_publishing_waits_and_is_slow(tmp_path: Path) -> None:
    settings = AUDITOR.model_copy(
        update={"mass_loss_wait_s": 0.2, "mass_loss_items_per_s_max": 20.0}
    )
    async with healing_of(4, tmp_path) as healing:
        ledgers = [(await healing.write(PAYLOADS)).ledger_id for _ in range(8)]
        async with auditor_of(healing, settings) as auditor:
            await healing.until(lambda: auditor.metrics.bookies_registered == 4)
            begun_s = healing.clock.monotonic_s()
            await healing.lose("b1")
            await healing.lose("b2")
            await healing.until(lambda: auditor.metrics.is_mass_loss == 1)
            await until_items(healing, *ledgers)
            took_s = healing.clock.monotonic_s() - begun_s
            assert took_s > 0.2 + (len(ledgers) - 2) / 20.0
            await healing.until(lambda: bool(auditor.metrics.audits))


async def test_a11_bookies_that_are_back_after_an_outage_get_no_items(tmp_path: Path) -> None:
    settings = AUDITOR.model_copy(update={"mass_loss_wait_s": 60.0, "gather_s": 60.0})
    async with healing_of(4, tmp_path) as healing:
        await healing.write(PAYLOADS)
        async with auditor_of(healing, settings) as auditor:
            await healing.until(lambda: auditor.metrics.bookies_registered == 4)
            for bookie_id in ("b1", "b2", "b3"):
                await healing.lose(bookie_id)
            await healing.until(lambda: auditor.metrics.is_mass_loss == 1)
            for bookie_id in ("b1", "b2", "b3"):
                await healing.come_back(bookie_id)
            await healing.until(lambda: auditor.metrics.bookies_lost == 0)
            await healing.until(lambda: auditor.metrics.is_mass_loss == 0)
            assert auditor.metrics.audits == {}


async def test_a12_an_audit_reads_metadata_no_faster_than_it_may(tmp_path: Path) -> None:
    settings = AUDITOR.model_copy(
        update={"metadata_reads_per_s_max": 20.0, "metadata_reads_at_once_max": 2}
    )
    async with healing_of(3, tmp_path) as healing:
        for _ in range(10):
            await healing.write([b"one"])
        async with auditor_of(healing, settings) as auditor:
            await healing.until(lambda: auditor.metrics.bookies_registered == 3)
            begun_s = healing.clock.monotonic_s()
            await controls_of(healing).ask_for_audit()
            await healing.until(lambda: auditor.metrics.audits.get("asked", 0) == 1)
            assert healing.clock.monotonic_s() - begun_s > 8 / 20.0
            assert auditor.metrics.audit_ledgers == 10


async def test_publishing_again_changes_nothing_and_another_bookie_is_added(
    tmp_path: Path,
) -> None:
    async with healing_of(5, tmp_path) as healing:
        metadata = await healing.write(PAYLOADS)
        first, second, _ = metadata.ensembles[0].bookies
        async with auditor_of(healing) as auditor:
            await healing.until(lambda: auditor.metrics.bookies_registered == 5)
            await healing.lose(first)
            await until_items(healing, metadata.ledger_id)
            before = await healing.items.read(metadata.ledger_id)
            await controls_of(healing).ask_for_audit()
            await healing.until(lambda: auditor.metrics.audits.get("asked", 0) == 1)
            assert await healing.items.read(metadata.ledger_id) == before
            await healing.lose(second)
            await healing.until(lambda: auditor.metrics.items_published.get("audit", 0) == 2)
            item = await healing.items.read(metadata.ledger_id)
            assert item is not None
            assert item.bookies == {first, second}


async def test_a_second_auditor_takes_over_when_the_first_one_goes(tmp_path: Path) -> None:
    async with healing_of(4, tmp_path) as healing:
        named, _ = await ledgers_without(healing, "b1")
        store = await open_store(f"embedded:{tmp_path / 'metadata.db'}")
        try:
            async with (
                auditor_of(healing, name="second", store=store) as second,
                auditor_of(healing, name="third") as third,
            ):
                assert third.election.leader() == "second"
                await healing.until(lambda: second.metrics.bookies_registered == 4)
                await healing.lose("b1")
                await until_items(healing, *named)
                assert third.metrics.elections_won == 0
                await second.close()
                await healing.until(lambda: third.metrics.is_auditor == 1)
                assert second.metrics.is_auditor == 0
                assert second.metrics.bookies_lost == 0
                await healing.until(lambda: third.metrics.bookies_lost == 1)
                await healing.until(lambda: bool(third.metrics.audits))
        finally:
            await store.close()


async def test_an_audit_that_fails_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with healing_of(4, tmp_path) as healing:
        named, _ = await ledgers_without(healing, "b1")
        read, failures = healing.client.manager.read, [1, 2]

        async def read_or_fail(ledger_id: int) -> object:
            if ledger_id == named[-1] and failures:
                failures.pop()
                raise MetadataUnavailableError("no answer")
            return await read(ledger_id)

        monkeypatch.setattr(healing.client.manager, "read", read_or_fail)
        async with auditor_of(healing) as auditor:
            await healing.until(lambda: auditor.metrics.bookies_registered == 4)
            await healing.lose("b1")
            await until_items(healing, *named)
            assert auditor.metrics.audit_failures == 2


async def test_an_audit_that_was_asked_for_and_failed_is_done_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with healing_of(3, tmp_path) as healing:
        await healing.write(PAYLOADS)
        read, failures = healing.client.manager.read, [1]

        async def read_or_fail(ledger_id: int) -> object:
            if failures:
                failures.pop()
                raise MetadataUnavailableError("no answer")
            return await read(ledger_id)

        async with auditor_of(healing) as auditor:
            await healing.until(lambda: auditor.metrics.bookies_registered == 3)
            monkeypatch.setattr(healing.client.manager, "read", read_or_fail)
            await controls_of(healing).ask_for_audit()
            await healing.until(lambda: auditor.metrics.audits == {"asked": 1})
            assert auditor.metrics.audit_failures == 1


async def test_an_item_that_is_not_understood_is_left_alone_and_said_so(tmp_path: Path) -> None:
    async with healing_of(4, tmp_path) as healing:
        metadata = await healing.write(PAYLOADS)
        path = item_path("/ledgers", metadata.ledger_id)
        await healing.store.create(path, b'{"format":9}')
        async with auditor_of(healing) as auditor:
            await healing.until(lambda: auditor.metrics.unreadable_items == 1)
            await healing.lose(metadata.ensembles[0].bookies[0])
            await healing.until(lambda: bool(auditor.metrics.audits))
            assert (await healing.store.get(path)).value == b'{"format":9}'


async def test_a_delay_that_is_not_understood_changes_nothing(tmp_path: Path) -> None:
    async with healing_of(4, tmp_path) as healing:
        named, _ = await ledgers_without(healing, "b1")
        await healing.store.create(controls_of(healing).delay_path, b"ten minutes")
        async with auditor_of(healing):
            await healing.lose("b1")
            await until_items(healing, *named)
            node = await healing.store.get(controls_of(healing).delay_path)
            assert node.value == b"ten minutes"


async def test_where_the_items_are_kept_otherwise_nothing_is_touched(tmp_path: Path) -> None:
    async with healing_of(4, tmp_path) as healing:
        await ledgers_without(healing, "b1")
        await healing.store.create("/ledgers/underreplication/LAYOUT", b'{"format":2}')
        async with auditor_of(healing) as auditor:
            await healing.lose("b1")
            await asyncio.sleep(0)
            await healing.until(lambda: auditor.metrics.is_auditor == 1)
            assert auditor.metrics.bookies_registered == 0
            assert await healing.items.ids() == []
