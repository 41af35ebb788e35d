"""Durable cursors on a real log, real bookies and the embedded metadata store."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.cursors import (
    Cursor,
    CursorFencedError,
    CursorSettings,
    CursorUnavailableError,
    list_cursors,
)
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import NoSuchLedgerError
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.position import LATEST, Position
from magnetar.ledger.settings import LogConfig
from tests.integration.cursors.acknowledging import (
    PATH,
    append,
    open_cursor,
    open_log,
    positions_of,
)
from tests.integration.ledger.cluster import Cluster, cluster_of

LOG_CONFIG = LogConfig(
    ensemble_size=3, write_quorum=3, ack_quorum=2, ledger_entries_max=100, ledger_age_min_s=0
)
SETTINGS = CursorSettings(ack_persist_interval_ms=600_000, node_ranges_max=20)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(3, tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[LedgerClient]:
    async with cluster.client() as client:
        yield client


@pytest.fixture
async def log(cluster: Cluster, client: LedgerClient) -> AsyncIterator[ManagedLog]:
    log = await open_log(client, cluster.store, LOG_CONFIG)
    for _ in range(5):
        await append(log, 100)
        await log.rotate()
    yield log
    await log.close()


async def open_on(
    cluster: Cluster, client: LedgerClient, log: ManagedLog, settings: CursorSettings = SETTINGS
) -> Cursor:
    return await open_cursor(log, client, cluster.store, settings=settings)


def acked(cursor: Cursor, log: ManagedLog) -> set[Position]:
    return {position for position in positions_of(log) if cursor.is_acked(position)}


async def test_the_log_has_the_shape_that_cursors_need(log: ManagedLog) -> None:
    assert len({position.ledger_id for position in positions_of(log)}) > 3
    assert len(positions_of(log)) == 500


async def test_holes_survive_a_crash_through_the_cursor_ledger(
    cluster: Cluster, client: LedgerClient, log: ManagedLog
) -> None:
    cursor = await open_on(cluster, client, log)
    half = positions_of(log)[::2]
    assert cursor.ack_many(half) == 250
    assert not cursor.ack_batch(positions_of(log)[1], [6], 3)
    await cursor.persist()
    cursor.abandon()
    async with cluster.client() as later:
        again = await open_on(cluster, later, log)
        assert acked(again, log) == set(half)
        assert again.remaining_words(positions_of(log)[1]) == (6,)
        assert again.backlog_entries == 250
        assert again.ack_many(positions_of(log)[1::2]) == 250
        assert again.is_caught_up
        await again.close()


async def test_a_small_state_is_in_the_node_after_a_clean_close_and_its_ledger_is_gone(
    cluster: Cluster, client: LedgerClient, log: ManagedLog
) -> None:
    cursor = await open_on(cluster, client, log)
    cursor.ack_cumulative(positions_of(log)[250])
    cursor.ack(positions_of(log)[300])
    await cursor.persist()
    ledger_id = cursor.statistics.cursor_ledger_id
    await cursor.close()
    with pytest.raises(NoSuchLedgerError):
        await client.open(ledger_id)
    assert await list_cursors(cluster.store, PATH) == ["subscription"]
    again = await open_on(cluster, client, log)
    assert acked(again, log) == {*positions_of(log)[:251], positions_of(log)[300]}


async def test_a_large_state_survives_a_clean_close_in_its_ledger(
    cluster: Cluster, client: LedgerClient, log: ManagedLog
) -> None:
    cursor = await open_on(cluster, client, log)
    cursor.ack_many(positions_of(log)[1::2])
    await cursor.close()
    again = await open_on(cluster, client, log)
    assert acked(again, log) == set(positions_of(log)[1::2])


async def test_acks_are_saved_in_the_background(
    cluster: Cluster, client: LedgerClient, log: ManagedLog
) -> None:
    eager = SETTINGS.model_copy(update={"ack_persist_interval_ms": 1})
    cursor = await open_on(cluster, client, log, eager)
    for position in positions_of(log):
        cursor.ack(position)
        if position.entry_id % 50 == 0:
            await cursor.persist()
    await cursor.persist()
    assert cursor.persisted_mark_delete == log.last_confirmed
    await cursor.close()


async def test_a_new_owner_fences_the_old_one(
    cluster: Cluster, client: LedgerClient, log: ManagedLog
) -> None:
    old = await open_on(cluster, client, log)
    old.ack(positions_of(log)[0])
    await old.persist()
    async with cluster.client() as other:
        new = await open_on(cluster, other, log)
        old.ack_cumulative(positions_of(log)[400])
        with pytest.raises(CursorFencedError):
            await old.persist()
        assert new.mark_delete == positions_of(log)[0]
        new.ack(positions_of(log)[1])
        await new.persist()
        await new.close()


async def test_acks_are_saved_with_one_bookie_down_and_in_the_node_with_two(
    cluster: Cluster, client: LedgerClient, log: ManagedLog
) -> None:
    cursor = await open_on(cluster, client, log)
    cursor.ack(positions_of(log)[0])
    await cursor.persist()
    await cluster.stop_bookie("b1")
    cursor.ack(positions_of(log)[1])
    await cursor.persist()
    assert cursor.persisted_mark_delete == positions_of(log)[1]
    await cluster.stop_bookie("b2")
    cursor.ack(positions_of(log)[2])
    await cursor.persist()
    assert cursor.persisted_mark_delete == positions_of(log)[2]
    assert cursor.statistics.cursor_ledger_id == -1
    cursor.abandon()
    again = await open_on(cluster, client, log)
    assert again.mark_delete == positions_of(log)[2]


async def test_m16_too_few_bookies_fail_the_open_and_roll_nothing_back(
    cluster: Cluster, client: LedgerClient, log: ManagedLog
) -> None:
    cursor = await open_on(cluster, client, log)
    cursor.ack_many(positions_of(log)[1::2])
    await cursor.persist()
    cursor.abandon()
    for name in ("b1", "b2"):
        await cluster.stop_bookie(name)
    with pytest.raises(CursorUnavailableError):
        await open_on(cluster, client, log)
    for name in ("b1", "b2"):
        await cluster.start_bookie(name)
    await cluster.wait_known(client, "b1", "b2")
    again = await open_on(cluster, client, log)
    assert acked(again, log) == set(positions_of(log)[1::2])


async def test_a_new_cursor_at_latest_starts_behind_the_last_entry(
    cluster: Cluster, client: LedgerClient, log: ManagedLog
) -> None:
    cursor = await open_cursor(
        log, client, cluster.store, "late", settings=SETTINGS, initial=LATEST
    )
    assert cursor.is_caught_up
    end = log.last_confirmed
    await append(log, 100)
    assert cursor.backlog_entries == 100
    assert cursor.next_unacked(cursor.mark_delete) == log.next_position(end)


async def test_deleting_a_cursor_removes_node_and_ledger(
    cluster: Cluster, client: LedgerClient, log: ManagedLog
) -> None:
    cursor = await open_on(cluster, client, log)
    cursor.ack(positions_of(log)[0])
    await cursor.persist()
    ledger_id = cursor.statistics.cursor_ledger_id
    await cursor.delete()
    assert await list_cursors(cluster.store, PATH) == []
    with pytest.raises(NoSuchLedgerError):
        await client.open(ledger_id)
