"""Garbage collection of a whole bookie: real files, real metadata, requests beside it."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pyroaring import BitMap64

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.gc.garbage_collector import RoundReport
from magnetar.bookie.gc.gc_preview import preview_logs, survey_all
from magnetar.ledger.ledger_manager import LedgerManager, VersionedLedger
from magnetar.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.replication_lock import lock_path
from magnetar.ledger.system import SystemClock, SystemDisk
from magnetar.ledger.wire import Flag, Frame, Status
from tests.bookie_parts import BookieClient, add_request, packets_in, packets_of, read_request
from tests.integration.bookie.bookie_machine import BookieMachine, store_in
from tests.waiting import until

PAYLOAD = b"x" * 1000
ENTRIES = 50


class Cluster(BookieMachine):
    """Metadata, and one bookie that comes and goes; a few ledgers fill one of its entry logs."""

    def __init__(self, store: MetadataStore, place: Path) -> None:
        super().__init__(store, place)
        self.options = {
            "entry_log_bytes_max": 64 << 10,
            "gc_brake_ledgers_min": 3,
            "gc_interval_s": 0,
        }
        self.manager = LedgerManager(store, random=random.Random(1), clock=SystemClock())

    @asynccontextmanager
    async def bookie(self, **options: object) -> AsyncIterator[tuple[Bookie, BookieClient]]:
        async with super().bookie(**options) as both:
            yield both
        assert self.fatal == []

    async def make_ledger(self, *bookies: str) -> int:
        def make(ledger_id: int, token: int) -> LedgerMetadata:
            return LedgerMetadata(
                ledger_id=ledger_id,
                ensemble_size=len(bookies),
                write_quorum=len(bookies),
                ack_quorum=1,
                state=LedgerState.CLOSED,
                last_entry_id=ENTRIES - 1,
                length=ENTRIES * len(PAYLOAD),
                ensembles=(Fragment(0, bookies),),
                created_ms=1,
                creation_token=token,
            )

        return (await self.manager.create(make)).metadata.ledger_id

    async def fill(self, bookie: Bookie, client: BookieClient, count: int = 6) -> list[int]:
        """Ledgers of which each flush takes a part, so that every log has parts of all."""
        ledgers = [await self.make_ledger("b1") for _ in range(count)]
        for first in range(0, ENTRIES, 10):
            for ledger_id in ledgers:
                assert (await add(client, ledger_id, first)).status == Status.OK
            await bookie.parts.storage.flush()
        return ledgers

    def log_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.place.glob("b1/ledgers*/**/*.log"))


async def add(client: BookieClient, ledger_id: int, first: int, flags: int = 0) -> Frame:
    return await client.ask(
        lambda i: add_request(i, ledger_id, first, 10, flags=flags, payload=PAYLOAD)
    )


async def check_readable(client: BookieClient, ledger_id: int) -> None:
    reply = await client.ask(lambda i: read_request(i, ledger_id, 0, ENTRIES - 1))
    expected = [packets_of(ledger_id, first, 10, PAYLOAD) for first in range(0, ENTRIES, 10)]
    assert packets_in(reply) == [packet for each in expected for packet in each]


async def status_of(client: BookieClient, ledger_id: int) -> Status:
    return Status((await client.ask(lambda i: read_request(i, ledger_id, 0))).status)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with store_in(tmp_path) as store:
        yield Cluster(store, tmp_path)


async def test_space_of_deleted_ledgers_comes_back_and_the_rest_stays(cluster: Cluster) -> None:
    async with cluster.bookie() as (bookie, client):
        ledgers = await cluster.fill(bookie, client)
        before = cluster.log_bytes()
        for ledger_id in ledgers[:3]:
            await cluster.manager.delete(ledger_id)
        report = await bookie.gc.force(major=True)
        assert (report.deleted_ledgers, report.problems) == (3, ())
        assert report.compacted_logs > 0
        assert cluster.log_bytes() < 0.7 * before
        for ledger_id in ledgers[:3]:
            assert await status_of(client, ledger_id) == Status.NO_SUCH_LEDGER
        for ledger_id in ledgers[3:]:
            await check_readable(client, ledger_id)
    async with cluster.bookie() as (bookie, client):
        assert bookie.parts.storage.ledger_ids() == ledgers[3:]
        for ledger_id in ledgers[3:]:
            await check_readable(client, ledger_id)


async def test_several_directories_are_all_collected(cluster: Cluster) -> None:
    directories = [cluster.data / f"ledgers-{number}" for number in range(3)]
    async with cluster.bookie(ledger_directories=directories) as (bookie, client):
        ledgers = await cluster.fill(bookie, client, 9)
        before = cluster.log_bytes()
        for ledger_id in ledgers[::2][:4]:
            await cluster.manager.delete(ledger_id)
        await bookie.gc.force(major=True)
        assert cluster.log_bytes() < 0.8 * before
        for ledger_id in set(ledgers) - set(ledgers[::2][:4]):
            await check_readable(client, ledger_id)


async def test_logs_go_as_they_are_when_nothing_in_them_lives(cluster: Cluster) -> None:
    async with cluster.bookie() as (bookie, client):
        ledgers = await cluster.fill(bookie, client, 3)
        for ledger_id in ledgers[:2]:
            await cluster.manager.delete(ledger_id)
        await cluster.manager.delete(ledgers[2])
        await cluster.make_ledger("b2")
        report = await bookie.gc.force(major=False)
        assert (report.deleted_ledgers, report.compacted_logs) == (3, 0)
        assert report.removed_logs > 0
        assert bookie.metrics.gc.logs == 0


async def test_b13_a_writer_that_does_not_know_of_the_deletion_is_told(cluster: Cluster) -> None:
    async with cluster.bookie() as (bookie, client):
        ledgers = await cluster.fill(bookie, client)
        await cluster.manager.delete(ledgers[0])
        await bookie.gc.force(major=False)
        assert (await add(client, ledgers[0], 50)).status == Status.FENCED
        assert (await add(client, ledgers[0], 50, Flag.RECOVERY)).status == Status.OK


async def test_most_ledgers_of_a_bookie_go_at_once_where_deletions_are_recorded(
    cluster: Cluster,
) -> None:
    async with cluster.bookie() as (bookie, client):
        ledgers = await cluster.fill(bookie, client)
        for ledger_id in ledgers:
            await cluster.manager.delete(ledger_id)
        report = await bookie.gc.force(major=True)
        assert report.deleted_ledgers == len(ledgers)
        assert bookie.metrics.gc.brakes == 0


async def test_rule_10_2_a_lost_metadata_store_deletes_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As ZooKeeper, which does not tell what was deleted from what was lost.
    monkeypatch.setattr(cluster.store, "records_deletions", False)
    async with cluster.bookie() as (bookie, client):
        ledgers = await cluster.fill(bookie, client)
        for ledger_id in ledgers[1:]:
            await cluster.manager.delete(ledger_id)
        report = await bookie.gc.force(major=True)
        assert report.deleted_ledgers == 0
        assert "lacks 5 of the 6" in report.problems[0]
        assert bookie.metrics.gc.brakes == 1
        for ledger_id in ledgers:
            await check_readable(client, ledger_id)
        report = await bookie.gc.force(major=True, accept_vanished=True)
        assert report.deleted_ledgers == 5


async def test_rule_10_2_a_lost_cluster_id_deletes_nothing(cluster: Cluster) -> None:
    async with cluster.bookie() as (bookie, client):
        ledgers = await cluster.fill(bookie, client)
        await cluster.manager.delete(ledgers[0])
        await cluster.store.delete("/ledgers/INSTANCEID")
        report = await bookie.gc.force(major=True)
        assert report.deleted_ledgers == 0
        assert "cluster (none)" in report.problems[0]


async def test_b12_surplus_ledgers_go_unless_they_are_being_copied(cluster: Cluster) -> None:
    async with cluster.bookie() as (bookie, client):
        surplus, copied, ours = [
            await cluster.make_ledger(*each) for each in (("b2",), ("b2",), ("b1", "b2"))
        ]
        for ledger_id in (surplus, copied, ours):
            for first in range(0, ENTRIES, 10):
                await add(client, ledger_id, first)
        await cluster.store.create(lock_path("/ledgers", copied), b"worker", ephemeral=True)
        assert await bookie.gc.collect_surplus() == 1
        assert bookie.parts.storage.ledger_ids() == [copied, ours]
        assert await cluster.store.exists(lock_path("/ledgers", surplus)) is None
        await cluster.store.delete(lock_path("/ledgers", copied))
        assert await bookie.gc.collect_surplus() == 1
        await check_readable(client, ours)


async def test_equal_requests_that_wait_share_a_round(cluster: Cluster) -> None:
    async with cluster.bookie() as (bookie, _):
        before = bookie.metrics.gc.rounds
        cancelled = asyncio.ensure_future(bookie.gc.force(major=True))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(
            *(bookie.gc.force(major=True) for _ in range(50)),
            *(bookie.gc.force(major=False) for _ in range(50)),
        )
        # The round of the cancelled request may have begun before the others asked.
        assert bookie.metrics.gc.rounds - before in (2, 3)


async def test_a_request_during_a_round_gets_another_round(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.bookie() as (bookie, client):
        ledgers = await cluster.fill(bookie, client)
        for ledger_id in ledgers[:3]:
            await cluster.manager.delete(ledger_id)
        before = bookie.metrics.gc.rounds
        later: list[asyncio.Future[RoundReport]] = []

        def allows(directory: str, use: object) -> bool:
            if not later:
                later.append(bookie.gc.request(major=True))
            return True

        monkeypatch.setattr(bookie.disks, "allows", allows)
        await bookie.gc.force(major=True)
        await later[0]
        assert bookie.metrics.gc.rounds - before == 2


async def test_rounds_run_by_themselves(cluster: Cluster) -> None:
    async with cluster.bookie(gc_interval_s=0.05, gc_minor_interval_s=0.1) as (bookie, client):
        ledgers = await cluster.fill(bookie, client)
        await cluster.manager.delete(ledgers[0])
        await until(lambda: bookie.parts.storage.ledger_ids() == ledgers[1:])
        await until(lambda: bookie.metrics.gc.compactions.get("minor", 0) > 0)


async def test_compaction_waits_while_the_disk_is_full(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.bookie() as (bookie, client):
        ledgers = await cluster.fill(bookie, client)
        for ledger_id in ledgers[:3]:
            await cluster.manager.delete(ledger_id)
        monkeypatch.setattr(bookie.disks, "allows", lambda directory, use: False)
        report = await bookie.gc.force(major=True)
        assert (report.deleted_ledgers, report.compacted_logs) == (3, 0)
        assert bookie.metrics.gc.suspended_compactions == {"major": 1}
        monkeypatch.undo()
        assert (await bookie.gc.force(major=True)).compacted_logs > 0


async def test_a_stop_while_a_compaction_runs_leaves_nothing_behind(cluster: Cluster) -> None:
    async with cluster.bookie(gc_compaction_bytes_per_s=10_000) as (bookie, client):
        ledgers = await cluster.fill(bookie, client)
        for ledger_id in ledgers[:3]:
            await cluster.manager.delete(ledger_id)
        forced = asyncio.ensure_future(bookie.gc.force(major=True))
        logs = cluster.data / "ledgers" / "entry-logs"
        await until(lambda: list(logs.glob("*.compacting")) != [])
    forced.cancel()
    async with cluster.bookie() as (bookie, client):
        assert {path.suffix for path in logs.iterdir()} == {".log"}
        for ledger_id in ledgers[3:]:
            await check_readable(client, ledger_id)


async def test_a_ledger_given_back_to_us_is_kept(cluster: Cluster) -> None:
    """Surplus, deleted, and then copied here again by re-replication."""
    async with cluster.bookie() as (bookie, client):
        ledger_id = await cluster.make_ledger("b2")
        for first in range(0, ENTRIES, 10):
            await add(client, ledger_id, first)
        await bookie.gc.collect_surplus()
        for first in range(0, ENTRIES, 10):
            assert (await add(client, ledger_id, first, Flag.RECOVERY)).status == Status.OK
        found: VersionedLedger = await cluster.manager.read(ledger_id)
        moved = replace(found.metadata, ensembles=(Fragment(0, ("b1",)),))
        await cluster.manager.write(moved, version=found.version)
        await bookie.gc.force(major=True)
        assert await bookie.gc.collect_surplus() == 0
        await check_readable(client, ledger_id)
    async with cluster.bookie() as (bookie, client):
        await check_readable(client, ledger_id)


async def test_the_preview_tells_what_a_round_does(cluster: Cluster) -> None:
    async with cluster.bookie() as (bookie, client):
        ledgers = await cluster.fill(bookie, client)
        for ledger_id in ledgers[:5]:
            await cluster.manager.delete(ledger_id)
        logs = str(cluster.data / "ledgers" / "entry-logs")
        finished = await bookie.parts.shards[0].maintenance.finished_logs()
        usages = [each for each in survey_all(logs, SystemDisk()) if each.log_id in finished]
        preview = preview_logs(usages, BitMap64(ledgers[5:]), bookie.parts.settings)
        before = cluster.log_bytes()
        report = await bookie.gc.force(major=False, accept_vanished=True)
        assert report.removed_logs == [each.action for each in preview].count("remove")
        minor = [each for each in preview if each.action == "compact in a minor run"]
        assert report.compacted_logs == len(minor)
        freed = sum(each.freed_bytes for each in preview if each.action != "compact in a major run")
        assert before - cluster.log_bytes() == pytest.approx(freed, rel=0.05)
