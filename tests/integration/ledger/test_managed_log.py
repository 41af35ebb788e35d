"""The managed log on real bookies: chained, taken over, repaired, never torn."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import (
    LogClosedError,
    LogDataLossError,
    LogFencedError,
    LogUnavailableError,
    UnknownOutcomeError,
)
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.position import EARLIEST, Position
from magnetar.ledger.settings import LogConfig
from magnetar.ledger.system import SystemClock
from tests.integration.ledger.cluster import CLIENT_SETTINGS, Cluster, cluster_of, wait_until
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


@pytest.mark.parametrize(
    "config",
    [CONFIG, CONFIG.model_copy(update={"opens_without_ledger": True})],
    ids=["with a ledger", "without a ledger"],
)
@pytest.mark.parametrize("asked", [1, 2, 3], ids=["first", "second", "list"])
async def test_an_opener_that_may_not_own_the_log_any_more_leaves_it_as_it_is(
    cluster: Cluster, client: LedgerClient, config: LogConfig, asked: int
) -> None:
    """It is asked before each of the last two ledgers is fenced, and before the list is set."""
    first = await open_log(cluster, client)
    await append(first, [b"one"]).outcome
    await first.rotate()
    await append(first, [b"two"]).outcome
    await wait_until(lambda: first.ledgers[0].is_closed)
    if asked > 1:
        await first.close()  # from there on its ledgers end, as they should
    before, ledgers = await cluster.store.get(PATH), await _all_ledgers(client)
    answers = iter([True] * (asked - 1))

    async with cluster.client() as other:
        with pytest.raises(LogFencedError, match="may not own it any more"):
            await ManagedLog.open(
                other,
                cluster.store,
                PATH,
                config,
                clock=SystemClock(),
                random=random.Random(3),
                may_own=lambda: next(answers, False),
            )
    assert await cluster.store.get(PATH) == before
    assert await _all_ledgers(client) == ledgers, "what it made for itself is deleted"
    if asked == 1:
        await append(first, [b"three"]).outcome
        await first.close()


async def _all_ledgers(client: LedgerClient) -> list[int]:
    return sorted([ledger_id async for ledger_id in client.manager.ledger_ids()])


async def test_of_two_owners_that_open_at_once_one_wins(
    cluster: Cluster, client: LedgerClient
) -> None:
    async with cluster.client() as other:
        outcomes = await asyncio.gather(
            open_log(cluster, client), open_log(cluster, other), return_exceptions=True
        )
        logs = [outcome for outcome in outcomes if isinstance(outcome, ManagedLog)]
        acked = 0
        for log in logs:
            try:
                await append(log, [b"mine"]).outcome
                acked += 1
            except LogFencedError:
                pass
        assert acked == 1
        for log in logs:
            await log.close()


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


async def test_without_enough_bookies_appends_fail_with_a_clear_error_and_come_back(
    cluster: Cluster, client: LedgerClient
) -> None:
    config = CONFIG.model_copy(update={"repair_timeout_s": 0.3, "unavailable_retry_s": 0.01})
    log = await open_log(cluster, client, config)
    await append(log, [b"one"]).outcome
    for name in ("b1", "b2"):
        await cluster.stop_bookie(name)
    with pytest.raises(LogUnavailableError, match="no ledger can be written to"):
        await append(log, [b"two"]).outcome
    for name in ("b1", "b2"):
        await cluster.start_bookie(name)
    while True:
        try:
            await append(log, [b"three"]).outcome
            break
        except LogUnavailableError:
            pass
    assert [p for p in await read_all(log) if p != b"two"] == [b"one", b"three"]
    await log.close()


async def test_a_closed_log_refuses_appends(cluster: Cluster, client: LedgerClient) -> None:
    log = await open_log(cluster, client)
    await log.close()
    with pytest.raises(LogClosedError):
        await append(log, [b"late"]).outcome


async def test_a_log_with_a_missing_ledger_is_not_opened(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await open_log(cluster, client)
    await append(log, [b"one"]).outcome
    ledger_id = log.last_confirmed.ledger_id
    await log.close()
    await client.delete(ledger_id)
    with pytest.raises(LogDataLossError, match=f"ledger {ledger_id} is listed"):
        await open_log(cluster, client)


class ForgetfulStore:
    """Does what it is told, then says that it does not know whether it did (once per path)."""

    def __init__(self, inner: MetadataStore, path: str, *, does_it: bool) -> None:
        self._inner = inner
        self._path = path
        self._does_it = does_it
        self.forgot = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        if path != self._path or self.forgot:
            return await self._inner.set(path, value, version=version)
        self.forgot += 1
        if self._does_it:
            await self._inner.set(path, value, version=version)
        raise UnknownOutcomeError("the connection broke")


@pytest.mark.parametrize("does_it", [True, False])
async def test_m2_a_list_update_of_unknown_outcome_is_read_back(
    cluster: Cluster, client: LedgerClient, does_it: bool
) -> None:
    config = CONFIG.model_copy(update={"ledger_entries_max": 5, "ledger_age_min_s": 0})
    log = await open_log(cluster, client, config)
    forgetful = ForgetfulStore(cluster.store, PATH, does_it=does_it)
    log._list._store = forgetful  # type: ignore[assignment]
    payloads = [b"%d" % number for number in range(12)]
    for payload in payloads:
        await append(log, [payload]).outcome
    await log.rotate()
    assert forgetful.forgot == 1
    assert await read_all(log) == payloads
    await log.close()
    again = await open_log(cluster, client)
    assert await read_all(again) == payloads
    await again.close()


async def test_reads_never_pass_the_last_confirmed_entry(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await open_log(cluster, client)
    assert await log.read(EARLIEST, entries_max=10, bytes_max=100) == []
    await append(log, [b"one", b"two"]).outcome
    entries = await log.read(EARLIEST, entries_max=1, bytes_max=100)
    assert [entry.payload for entry in entries] == [b"one"]
    assert await log.read(log.next_position(log.last_confirmed), entries_max=1, bytes_max=1) == []
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
