"""The managed log on real bookies: chained, taken over, repaired, never torn."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import (
    LogFencedError,
)
from magnetar.ledger.position import EARLIEST, Position
from magnetar.ledger.settings import LogConfig
from tests.integration.ledger.cluster import CLIENT_SETTINGS, Cluster, cluster_of
from tests.integration.ledger.log_parts import CONFIG, PATH, append, open_log, read_all


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(3, tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[LedgerClient]:
    async with cluster.client() as client:
        yield client


async def test_batches_are_appended_in_order_under_consecutive_ids(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await open_log(cluster, client)
    batches = [append(log, [b"%d-%d" % (n, k) for k in range(n % 4 + 1)]) for n in range(50)]
    positions = await asyncio.gather(*(batch.outcome for batch in batches))
    expected = 0
    for batch, position in zip(batches, positions, strict=True):
        assert position == Position(log.last_confirmed.ledger_id, expected)
        expected += len(batch.payloads)
    assert await read_all(log) == [payload for batch in batches for payload in batch.payloads]
    await log.close()


async def test_a_log_reopened_goes_on_behind_its_end(
    cluster: Cluster, client: LedgerClient
) -> None:
    written: list[bytes] = []
    for generation in range(4):
        log = await open_log(cluster, client)
        assert await read_all(log) == written
        for number in range(3):
            written.append(b"%d-%d" % (generation, number))
            await append(log, written[-1:]).outcome
        await log.close()
    log = await open_log(cluster, client)
    assert log.entries_between(EARLIEST, log.last_confirmed) == len(written)
    assert [ledger.entries for ledger in log.ledgers] == [3, 3, 3, 3, 0]


@pytest.mark.parametrize(
    "config",
    [
        CONFIG.model_copy(update={"ledger_entries_max": 10, "ledger_age_min_s": 0}),
        CONFIG.model_copy(update={"ledger_bytes_max": 60, "ledger_age_min_s": 0}),
        CONFIG.model_copy(update={"ledger_age_min_s": 0, "ledger_age_max_s": 0.001}),
    ],
    ids=["entries", "bytes", "age"],
)
async def test_a_full_ledger_is_followed_by_the_next_and_nothing_is_lost(
    cluster: Cluster, client: LedgerClient, config: LogConfig
) -> None:
    log = await open_log(cluster, client, config)
    payloads = [b"%05d" % number for number in range(200)]
    batches = [append(log, payloads[at : at + 5]) for at in range(0, 100, 5)]
    await asyncio.gather(*(batch.outcome for batch in batches))
    for at in range(100, 200, 5):
        await append(log, payloads[at : at + 5]).outcome
    async with asyncio.timeout(30):
        while len(log.ledgers) <= 2:  # sizes are soft: appends go on while the next one is made
            payloads.append(b"%05d" % len(payloads))
            await append(log, payloads[-1:]).outcome
    assert await read_all(log) == payloads
    assert log.entries_between(EARLIEST, log.last_confirmed) == len(payloads)
    await log.close()


async def test_a_takeover_fences_the_previous_owner(cluster: Cluster, client: LedgerClient) -> None:
    first = await open_log(cluster, client)
    fenced: list[str] = []
    first.on_fenced(lambda: fenced.append("first"))
    await append(first, [b"one", b"two"]).outcome
    async with cluster.client() as other:
        second = await open_log(cluster, other)
        assert await read_all(second) == [b"one", b"two"]
        with pytest.raises(LogFencedError):
            await append(first, [b"too late"]).outcome
        assert fenced == ["first"]
        with pytest.raises(LogFencedError):
            await append(first, [b"still dead"]).outcome
        await append(second, [b"three"]).outcome
        assert await read_all(second) == [b"one", b"two", b"three"]
        await first.close()
        await second.close()


async def test_when_bookies_fail_the_log_goes_on_exactly_once(
    cluster: Cluster, client: LedgerClient
) -> None:
    for name in ("b4", "b5"):
        await cluster.start_bookie(name)
    log = await open_log(cluster, client)
    await append(log, [b"first"]).outcome
    ensemble = log._appender.writer.metadata.last_fragment.bookies  # type: ignore[union-attr]
    batches = [append(log, [b"a%d" % number]) for number in range(20)]
    for name in ensemble[:2]:
        await cluster.stop_bookie(name)
    batches += [append(log, [b"b%d" % number]) for number in range(20)]
    await asyncio.gather(*(batch.outcome for batch in batches))
    payloads = [payload for batch in batches for payload in batch.payloads]
    # The two bookies that stopped hold copies of the first entries; one good copy is enough.
    assert await read_all(log) == [b"first", *payloads]
    assert len(log.ledgers) == 1, "other bookies have taken their place"
    await log.close()


async def test_delete_removes_the_node_and_its_ledgers(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await open_log(cluster, client)
    await append(log, [b"one"]).outcome
    await log.delete()
    assert await cluster.store.exists(PATH) is None
    assert [ledger_id async for ledger_id in client.manager.ledger_ids()] == []


async def test_a_batch_of_very_many_small_payloads_fits_the_frames(cluster: Cluster) -> None:
    # Bookies take seconds for it, many of them on a busy machine.
    patient = CLIENT_SETTINGS.model_copy(update={"request_timeout_s": 120})
    async with cluster.client(settings=patient) as client:
        log = await open_log(cluster, client)
        payloads = [b"%06d" % number for number in range(220_000)]
        async with asyncio.timeout(200):
            await append(log, payloads).outcome
        assert len(log.ledgers) == 1
        assert log.last_confirmed.entry_id == len(payloads) - 1
        await log.close()
