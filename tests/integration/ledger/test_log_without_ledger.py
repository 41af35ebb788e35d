"""A log that is opened without a ledger: its first append brings it one."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import (
    LogFencedError,
    LogTerminatedError,
    LogUnavailableError,
    MetadataUnavailableError,
    UnknownOutcomeError,
)
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.position import EARLIEST, Position
from magnetar.ledger.settings import LogConfig
from magnetar.ledger.system import SystemClock
from tests.integration.ledger.cluster import Cluster, cluster_of, wait_until
from tests.integration.ledger.log_parts import PATH, append, open_reader, read_all, read_on

CONFIG = LogConfig(ensemble_size=3, write_quorum=3, ack_quorum=2, opens_without_ledger=True)
IMPATIENT = CONFIG.model_copy(update={"repair_timeout_s": 0.2, "unavailable_retry_s": 0.05})

_owners = itertools.count()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(3, tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[LedgerClient]:
    async with cluster.client() as client:
        yield client


async def open_log(
    store: MetadataStore, client: LedgerClient, config: LogConfig = CONFIG
) -> ManagedLog:
    """Every owner draws numbers of its own, as processes do."""
    return await ManagedLog.open(
        client, store, PATH, config, clock=SystemClock(), random=random.Random(next(_owners))
    )


async def ledgers_of(client: LedgerClient) -> list[int]:
    return [ledger_id async for ledger_id in client.manager.ledger_ids()]


class CountingStore:
    """Counts the writes that reach a store."""

    def __init__(self, inner: MetadataStore) -> None:
        self._inner = inner
        self.writes: list[str] = []

    def __getattr__(self, name: str) -> object:
        if name in ("create", "set", "delete"):
            self.writes.append(name)
        return getattr(self._inner, name)


async def test_a_log_that_is_only_read_gets_no_ledger(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await open_log(cluster.store, client)
    assert log.last_confirmed == Position(-1, -1)
    assert await read_all(log) == []
    await log.close()
    assert await ledgers_of(client) == []


async def test_the_first_appends_wait_for_their_ledger_and_keep_their_order(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await open_log(cluster.store, client)
    batches = [append(log, [b"%d" % number]) for number in range(50)]
    positions = [await batch.outcome for batch in batches]
    assert positions == [Position(0, number) for number in range(50)]
    assert await read_all(log) == [b"%d" % number for number in range(50)]
    await log.close()


async def test_m1_no_entry_is_written_before_the_list_names_its_ledger(
    cluster: Cluster, client: LedgerClient
) -> None:
    class Away:
        """A store that is away for the log's node from the second write on."""

        def __init__(self) -> None:
            self.writes = 0

        def __getattr__(self, name: str) -> object:
            return getattr(cluster.store, name)

        async def set(self, path: str, value: bytes, *, version: int) -> int:
            self.writes += path == PATH
            if path == PATH and self.writes > 1:
                raise MetadataUnavailableError("the store is away")
            return await cluster.store.set(path, value, version=version)

    log = await open_log(Away(), client, IMPATIENT)  # type: ignore[arg-type]
    with pytest.raises(LogUnavailableError):
        await append(log, [b"one"]).outcome
    (ledger_id,) = await ledgers_of(client)
    reader = await client.open_and_recover(ledger_id)
    assert reader.last_add_confirmed == -1
    await log.close()


async def test_an_idle_log_costs_one_write_to_open_and_none_to_close(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await open_log(cluster.store, client)
    await append(log, [b"one"]).outcome
    await log.close()
    store = CountingStore(cluster.store)
    log = await open_log(store, client)  # type: ignore[arg-type]
    assert await read_all(log) == [b"one"]
    assert store.writes == ["set"]
    await log.close()
    assert store.writes == ["set"]
    assert len(await ledgers_of(client)) == 1


async def test_m15_an_owner_that_opened_the_log_before_can_begin_no_ledger(
    cluster: Cluster, client: LedgerClient
) -> None:
    first = await open_log(cluster.store, client)
    fenced: list[str] = []
    first.on_fenced(lambda: fenced.append("first"))
    async with cluster.client() as other:
        second = await open_log(cluster.store, other)
        with pytest.raises(LogFencedError):
            await append(first, [b"too late"]).outcome
        assert fenced == ["first"]
        assert (await append(second, [b"mine"]).outcome).entry_id == 0
        assert await read_all(second) == [b"mine"]
        await first.close()
        await second.close()
    # What the first one had created is no part of the log, and was removed.
    assert len(await ledgers_of(client)) == 1


async def test_m15_of_two_that_open_the_log_at_once_one_is_fenced(
    cluster: Cluster, client: LedgerClient
) -> None:
    await (await open_log(cluster.store, client)).close()
    barrier = asyncio.Barrier(2)

    class Together:
        """A store whose first write to the log waits for the other owner's."""

        def __init__(self) -> None:
            self.has_waited = False

        def __getattr__(self, name: str) -> object:
            return getattr(cluster.store, name)

        async def set(self, path: str, value: bytes, *, version: int) -> int:
            if path == PATH and not self.has_waited:
                self.has_waited = True
                await barrier.wait()
            return await cluster.store.set(path, value, version=version)

    async with cluster.client() as other:
        opened = await asyncio.gather(
            open_log(Together(), client),  # type: ignore[arg-type]
            open_log(Together(), other),  # type: ignore[arg-type]
            return_exceptions=True,
        )
        assert sorted(type(each).__name__ for each in opened) == ["LogFencedError", "ManagedLog"]
        (log,) = [each for each in opened if isinstance(each, ManagedLog)]
        await append(log, [b"one"]).outcome
        await log.close()


async def test_m2_a_claim_whose_reply_was_lost_is_ours(
    cluster: Cluster, client: LedgerClient
) -> None:
    class Losing:
        """A store that loses the reply of the first write."""

        def __init__(self) -> None:
            self.has_lost = False

        def __getattr__(self, name: str) -> object:
            return getattr(cluster.store, name)

        async def set(self, path: str, value: bytes, *, version: int) -> int:
            done = await cluster.store.set(path, value, version=version)
            if not self.has_lost:
                self.has_lost = True
                raise UnknownOutcomeError("the reply was lost")
            return done

    log = await open_log(Losing(), client)  # type: ignore[arg-type]
    await append(log, [b"one"]).outcome
    assert await read_all(log) == [b"one"]
    await log.close()


async def test_what_an_owner_left_open_is_closed_when_the_log_is_opened(
    cluster: Cluster, client: LedgerClient
) -> None:
    first = await open_log(cluster.store, client)
    await append(first, [b"one"]).outcome  # and crash
    async with cluster.client() as other:
        second = await open_log(cluster.store, other)
        assert all(ledger.is_closed for ledger in second.ledgers)
        with pytest.raises(LogFencedError):
            await append(first, [b"late"]).outcome
        position = await append(second, [b"two"]).outcome
        assert position.ledger_id != second.ledgers[0].ledger_id
        assert await read_all(second) == [b"one", b"two"]
        await second.close()
    await first.close()


async def test_positions_hold_over_the_first_ledger(cluster: Cluster, client: LedgerClient) -> None:
    empty = await open_log(cluster.store, client)
    start = empty.next_position(EARLIEST)
    await append(empty, [b"one"]).outcome
    assert empty.next_position(EARLIEST) == empty.first_position() > start
    end = empty.last_confirmed
    await empty.close()

    again = await open_log(cluster.store, client)
    assert again.last_confirmed == end
    assert again.entries_between(EARLIEST, end) == 1
    waiting_at = again.next_position(end)  # a consumer that has read all there is
    second = await append(again, [b"two"]).outcome
    assert again.next_position(end) == second
    (entry,) = await again.read(waiting_at, entries_max=10, bytes_max=1 << 20)
    assert (entry.position, entry.payload) == (second, b"two")
    await again.close()


async def test_a_reader_of_its_own_follows_from_before_the_first_ledger(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await open_log(cluster.store, client)
    async with cluster.client() as other:
        reader = await open_reader(cluster, other)
        assert await reader.read() == []
        await append(log, [b"one"]).outcome
        await log.close()
        log = await open_log(cluster.store, client)
        await append(log, [b"two"]).outcome
        await log.close()
        assert await read_on(reader, 2) == [b"one", b"two"]
        await reader.close()


async def test_without_bookies_appends_fail_in_time_and_go_on_when_they_are_back(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await open_log(cluster.store, client, IMPATIENT)
    for name in ("b1", "b2"):
        await cluster.stop_bookie(name)
    async with asyncio.timeout(30):
        await wait_until(lambda: len(client.registry.writable()) == 1)
        with pytest.raises(LogUnavailableError):
            await append(log, [b"one"]).outcome
        for name in ("b1", "b2"):
            await cluster.start_bookie(name)
        await cluster.wait_known(client, "b1", "b2")
        while True:
            try:
                await append(log, [b"two"]).outcome
                break
            except LogUnavailableError:
                await asyncio.sleep(0.05)
    assert await read_all(log) == [b"two"]
    await log.close()


async def test_rotating_shrinking_and_ending_need_no_ledger(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await open_log(cluster.store, client)
    await log.rotate()
    assert await log.shrink(Position(100, 0)) == 0
    assert await log.terminate() == Position(-1, -1)
    with pytest.raises(LogTerminatedError):
        await append(log, [b"one"]).outcome
    await log.close()
    assert await ledgers_of(client) == []


async def test_a_log_closed_while_it_waits_for_its_ledger_leaves_none_behind(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await open_log(cluster.store, client)
    batch = append(log, [b"one"])
    await log.close()
    await asyncio.wait([batch.outcome])
    listed = LogMetadata.from_json((await cluster.store.get(PATH)).value, path=PATH).ledgers
    assert await ledgers_of(client) == [ledger.ledger_id for ledger in listed]
    log = await open_log(cluster.store, client)
    assert await read_all(log) == ([] if batch.outcome.exception() else [b"one"])
    await log.close()
