"""The periodic checks over real bookies: what they find, and what they never report."""

import shutil
from pathlib import Path

import pytest

from magnetar.ledger.autorecovery.auditor import Auditor
from magnetar.ledger.autorecovery.controls import Check
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.registration import BookieInfo
from magnetar.ledger.settings import LedgerSettings
from tests.integration.ledger.autorecovery.auditing import AUDITOR, auditor_of, controls_of
from tests.integration.ledger.autorecovery.healing import Healing, healing_of

PAYLOADS = [b"entry %d" % number for number in range(20)]
REPLICAS = AUDITOR.model_copy(update={"replicas_check_interval_s": 86_400.0})
ALL_LEDGERS = AUDITOR.model_copy(update={"all_ledgers_check_interval_s": 86_400.0})
PLACEMENT = AUDITOR.model_copy(update={"placement_check_interval_s": 86_400.0})


async def ended(healing: Healing, auditor: Auditor, name: str) -> None:
    """Wait until a check has come to its end once."""
    await healing.until(lambda: auditor.metrics.checks.get(name, 0) == 1)


async def lose_copies(healing: Healing, metadata: LedgerMetadata, bookie_id: str) -> None:
    """The bookie forgets the ledger, as if its disk had been replaced."""
    await healing.cluster.stop_bookie(bookie_id)
    directory = healing.cluster.settings_of(bookie_id).data_directory
    shutil.rmtree(directory)
    await healing.store.delete(f"/ledgers/cookies/{bookie_id}")
    await healing.come_back(bookie_id)


async def test_the_replicas_check_finds_what_a_bookie_never_got(tmp_path: Path) -> None:
    """Rule 4.1: entries that stayed at the ack quorum, and nobody published."""
    async with healing_of(3, tmp_path) as healing:
        metadata = await healing.write(PAYLOADS)
        whole = await healing.write(PAYLOADS)
        await lose_copies(healing, metadata, "b2")
        async with auditor_of(healing, REPLICAS) as auditor:
            await ended(healing, auditor, "replicas")
            for ledger in (metadata, whole):
                item = await healing.items.read(ledger.ledger_id)
                assert item is not None
                assert item.missing == {"b2": [(0, len(PAYLOADS) - 1)]}
            assert auditor.metrics.checked_ledgers["replicas"] == 2
            assert auditor.metrics.undecided_ledgers == {}


async def test_what_the_replicas_check_finds_a_worker_repairs_in_place(tmp_path: Path) -> None:
    async with healing_of(3, tmp_path) as healing:
        metadata = await healing.write(PAYLOADS)
        await lose_copies(healing, metadata, "b2")
        async with auditor_of(healing, REPLICAS) as auditor, healing.worker():
            await ended(healing, auditor, "replicas")
            await healing.until_no_items()
            after = await healing.check_whole(metadata.ledger_id, PAYLOADS)
            assert after.ensembles == metadata.ensembles


async def test_where_nothing_is_missing_no_check_publishes_anything(tmp_path: Path) -> None:
    settings = REPLICAS.model_copy(
        update={"all_ledgers_check_interval_s": 86_400.0, "all_ledgers_check_share": 0.5}
    )
    async with healing_of(5, tmp_path) as healing:
        for quorum in ((3, 3, 2), (5, 2, 2), (5, 3, 2)):
            await healing.write(PAYLOADS, quorum=quorum)
            await healing.write([], quorum=quorum)
            await healing.write(PAYLOADS[:1], quorum=quorum)
        writer = await healing.client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await writer.add(b"open")
        async with auditor_of(healing, settings) as auditor:
            await ended(healing, auditor, "replicas")
            await ended(healing, auditor, "all_ledgers")
            assert await healing.items.ids() == []
            assert auditor.metrics.items_published == {}
            assert auditor.metrics.checked_ledgers == {"replicas": 9, "all_ledgers": 10}
            assert auditor.metrics.undecided_ledgers == {}
        assert not writer.metadata.state.value.startswith("IN_REC")
        assert await writer.add(b"still mine") == 1


async def test_the_all_ledgers_check_finds_a_first_entry_that_does_not_match_its_digest(
    tmp_path: Path,
) -> None:
    async with healing_of(3, tmp_path) as healing:
        metadata = await healing.write(PAYLOADS)
        await healing.spoil(metadata, "b1", 0)
        async with auditor_of(healing, ALL_LEDGERS) as auditor:
            await ended(healing, auditor, "all_ledgers")
            item = await healing.items.read(metadata.ledger_id)
            assert item is not None
            assert item.missing == {"b1": [(0, 0)]}


async def test_a_check_is_not_repeated_before_its_interval_is_over(tmp_path: Path) -> None:
    async with healing_of(3, tmp_path) as healing:
        await healing.write(PAYLOADS)
        controls = controls_of(healing)
        async with auditor_of(healing, REPLICAS) as auditor:
            await ended(healing, auditor, "replicas")
            first_ms = await controls.last_run_ms(Check.REPLICAS)
            assert first_ms is not None
        settings = REPLICAS.model_copy(update={"all_ledgers_check_interval_s": 86_400.0})
        async with auditor_of(healing, settings) as auditor:
            await ended(healing, auditor, "all_ledgers")
            assert auditor.metrics.checks == {"all_ledgers": 1}
            assert await controls.last_run_ms(Check.REPLICAS) == first_ms


async def test_while_a_single_bookie_is_waited_for_checks_skip_their_run(tmp_path: Path) -> None:
    settings = REPLICAS.model_copy(update={"lost_bookie_recovery_delay_s": 600.0})
    async with healing_of(4, tmp_path) as healing:
        await healing.write(PAYLOADS)
        await healing.lose("b4")
        async with auditor_of(healing, settings) as auditor:
            await healing.until(lambda: auditor.metrics.delayed_audits_scheduled == 1)
            assert auditor.metrics.checks == {}
            await healing.come_back("b4")
            await ended(healing, auditor, "replicas")
            assert auditor.metrics.delayed_audits_cancelled == 1


async def test_the_bookie_check_finds_lost_bookies_that_have_no_cookie(tmp_path: Path) -> None:
    settings = AUDITOR.model_copy(update={"bookie_check_interval_s": 86_400.0})
    async with healing_of(4, tmp_path) as healing:
        metadata = await healing.write(PAYLOADS)
        gone = metadata.ensembles[0].bookies[0]
        await healing.lose(gone)
        await healing.store.delete(f"/ledgers/cookies/{gone}")
        async with auditor_of(healing, settings) as auditor:
            await ended(healing, auditor, "bookies")
            item = await healing.items.read(metadata.ledger_id)
            assert item is not None
            assert item.bookies == {gone}
            assert auditor.metrics.audits == {"periodic": 1}


@pytest.mark.parametrize(
    ("racks", "misplaced", "concentrated"),
    [
        (("r1", "r2", "r3"), 0, 0),
        (("r1", "r1", "r2"), 0, 0),
        (("r1", "r1", "r1"), 0, 0),  # there is but one rack: it cannot be better
        (("r1", "r1", "r1", "r2"), 1, 1),
    ],
)
async def test_the_placement_check_counts_fragments_in_too_few_racks(
    tmp_path: Path, racks: tuple[str, ...], misplaced: int, concentrated: int
) -> None:
    async with healing_of(3, tmp_path) as healing:
        await healing.write(PAYLOADS)
        registry = healing.client.registry
        for number, rack in enumerate(racks, start=1):
            bookie_id = f"b{number}"
            known = registry.resolve(bookie_id)
            port = known.port if known is not None else 1
            await registry.register(BookieInfo(bookie_id, "127.0.0.1", port, False, rack=rack))
        await healing.until(
            lambda: (
                [registry.registered()[f"b{n + 1}"].rack for n in range(len(racks))] == list(racks)
                if len(registry.registered()) == len(racks)
                else False
            )
        )
        async with auditor_of(healing, PLACEMENT, ledger_settings=LedgerSettings()) as auditor:
            await ended(healing, auditor, "placement")
            assert auditor.metrics.misplaced_fragments == misplaced
            assert auditor.metrics.concentrated_fragments == concentrated
