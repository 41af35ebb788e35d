"""Repairs of a log that meet late answers, other owners, and their own bugs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from magnetar.ledger.errors import (
    LedgerWriteError,
    LogFencedError,
    LogUnavailableError,
)
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.log_reader import LogReader
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.position import EARLIEST, Position
from magnetar.ledger.wire import Op
from tests.integration.ledger.cluster import Cluster, cluster_of, wait_until
from tests.integration.ledger.filtered_network import FilteredNetwork
from tests.integration.ledger.log_parts import (
    CONFIG,
    PATH,
    Batch,
    append,
    open_log,
    open_reader,
    read_all,
)

WAIT_S = 30.0
"""Nothing that a test waits for takes this long, unless it never comes."""


class SlowStore:
    """A store whose writes of the log's node wait, before they are done or before the answer."""

    def __init__(self, inner: MetadataStore) -> None:
        self._inner = inner
        self.before = asyncio.Event()
        self.after = asyncio.Event()
        self.before.set()
        self.after.set()
        self.begun = 0
        self.done = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        if path != PATH:
            return await self._inner.set(path, value, version=version)
        self.begun += 1
        await self.before.wait()
        found = await self._inner.set(path, value, version=version)
        self.done += 1
        await self.after.wait()
        return found


class Draining:
    """A log with `before` confirmed, `a0 a1` held on its first ledger, `b0 b1` on the next."""

    def __init__(
        self, log: ManagedLog, network: FilteredNetwork, store: SlowStore, batches: list[Batch]
    ) -> None:
        self.log = log
        self.network = network
        self.store = store
        self.batches = batches
        assert log._appender.draining is not None
        assert log._appender.writer is not None
        self.first = log._appender.draining
        self.second = log._appender.writer


ALL = [b"before", b"a0", b"a1", b"b0", b"b1"]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(3, tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def opened() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def soon(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        await wait_until(is_so)


async def draining(cluster: Cluster, opened: AsyncExitStack) -> Draining:
    network = FilteredNetwork()
    client = await opened.enter_async_context(cluster.client(network))
    store = SlowStore(cluster.store)
    log = await open_log(cluster, client, CONFIG, store)  # type: ignore[arg-type]
    await append(log, [b"before"]).outcome
    first = log.last_confirmed.ledger_id
    network.holds = lambda frame: frame.op == Op.ADD and frame.ledger_id == first
    batches = [append(log, [b"a%d" % number]) for number in range(2)]
    await log.rotate()
    state = Draining(log, network, store, batches)
    for number in range(2):  # one by one: the second tells the bookies that the first is confirmed
        batches.append(append(log, [b"b%d" % number]))
        await soon(lambda: state.second.last_add_confirmed == number)  # noqa: B023
    return state


async def read_exactly(reader: LogReader, count: int) -> list[bytes]:
    """So many entries, however long they take, and what comes at once behind them."""
    read: list[bytes] = []
    while len(read) < count:
        read += [entry.payload for entry in await reader.read(wait_s=10)]
    return read + [entry.payload for entry in await reader.read(wait_s=0.1)]


async def positions(batches: list[Batch]) -> list[Position]:
    async with asyncio.timeout(WAIT_S):
        return [await batch.outcome for batch in batches]


async def test_a_ledger_that_drains_while_its_follower_leaves_the_list_reports_nothing_of_it(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    state = await draining(cluster, opened)
    impatient = CONFIG.model_copy(update={"repair_timeout_s": 0.2})
    state.log._changes._config = impatient  # not before: all had to be set up in that time
    state.store.after.clear()
    writes = state.store.done
    # The second ledger fails; the first neither drains nor fails until the repair is overdue.
    state.second._fail(LedgerWriteError("two bookies are gone"))
    batches = [*state.batches, append(state.log, [b"c0"])]
    await soon(lambda: state.store.done > writes)  # the list names the second no more
    state.network.release()  # the first drains now
    await asyncio.sleep(0.05)
    state.store.after.set()
    outcomes = await positions(batches)
    assert outcomes == sorted(outcomes)
    everything = [*ALL, b"c0"]
    assert await read_all(state.log) == everything, "what was reported as appended is in the log"
    listed = [ledger.ledger_id for ledger in state.log.ledgers]
    assert {position.ledger_id for position in outcomes} <= set(listed)
    await state.log.close()
    async with cluster.client() as other:
        again = await open_log(cluster, other)
        assert await read_all(again) == everything
        await again.close()


async def test_a_reader_goes_on_behind_a_ledger_only_when_the_list_says_that_it_is_closed(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    state = await draining(cluster, opened)
    other = await opened.enter_async_context(cluster.client())
    reader = await open_reader(cluster, other)
    # The owner drops the second ledger, and its write of the list is late.
    state.store.before.clear()
    begun = state.store.begun
    state.first._fail(LedgerWriteError("two bookies are gone"))
    await soon(lambda: state.store.begun > begun)
    # Meanwhile somebody who wants to take over closes the first one.
    await other.open_and_recover(state.first.ledger_id)
    read = await read_exactly(reader, 3)
    sought = await open_reader(cluster, other, Position(state.second.ledger_id, 0))
    read_behind = [entry.payload for entry in await sought.read(wait_s=0.1)]
    state.store.before.set()  # the owner's write arrives; the other one must begin again
    for batch in state.batches:
        with pytest.raises(LogFencedError):
            await batch.outcome
    again = await open_log(cluster, other)
    final = await read_all(again)
    assert read == final[: len(read)], "nothing that was read has vanished"
    assert read == [b"before", b"a0", b"a1"]
    assert set(read_behind) <= set(final), "not even by one who sought behind the open ledger"
    for each in (reader, sought):
        await each.close()
    await again.close()
    await state.log.close()


async def test_a_reader_goes_on_once_the_next_owner_has_recorded_the_end(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    state = await draining(cluster, opened)
    other = await opened.enter_async_context(cluster.client())
    reader = await open_reader(cluster, other, EARLIEST)
    await other.open_and_recover(state.first.ledger_id)
    read = await read_exactly(reader, 3)
    assert read == ALL[:3]
    waiting = asyncio.ensure_future(reader.read(wait_s=10))
    again = await open_log(cluster, other)
    assert [entry.payload for entry in await waiting] == ALL[3:]
    await reader.close()
    await again.close()
    await state.log.close()


async def test_a_ledger_that_fails_with_everything_reported_is_closed_and_skipped_by_nobody(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    client = await opened.enter_async_context(cluster.client())
    store = SlowStore(cluster.store)
    log = await open_log(cluster, client, CONFIG, store)  # type: ignore[arg-type]
    for number in range(5):
        await append(log, [b"%d" % number]).outcome
    first = log._appender.writer
    assert first is not None
    store.before.clear()
    rotating = asyncio.ensure_future(log.rotate())
    await soon(lambda: store.begun > 1)
    first._fail(LedgerWriteError("two bookies are gone"))  # nobody waits for anything of it
    store.before.set()
    await rotating
    await soon(lambda: log.ledgers[0].is_closed)
    store.before.clear()
    late = await append(log, [b"5"]).outcome
    assert await read_all(log) == [b"%d" % number for number in range(6)]
    assert log.entries_between(Position(first.ledger_id, -1), late) == 6
    store.before.set()
    await log.close()


async def test_who_waits_for_a_rotation_hears_at_once_that_the_log_was_fenced(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    state = await draining(cluster, opened)
    again = asyncio.ensure_future(state.log.rotate())  # waits for the one that is under way
    await asyncio.sleep(0)
    other = await opened.enter_async_context(cluster.client())
    later = await open_log(cluster, other)
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(LogFencedError):
            await again
    await state.log.close()
    await later.close()


async def test_an_owner_that_was_fenced_writes_no_list_any_more(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    client = await opened.enter_async_context(cluster.client())
    store = SlowStore(cluster.store)
    log = await open_log(cluster, client, CONFIG, store)  # type: ignore[arg-type]
    await append(log, [b"one"]).outcome
    go_on = asyncio.Event()
    create = log._ledgers.create

    async def create_later() -> object:
        await go_on.wait()
        return await create()

    log._ledgers.create = create_later  # type: ignore[method-assign, assignment]
    rotating = asyncio.ensure_future(log.rotate())
    await asyncio.sleep(0)
    # Another owner has fenced the ledger, and is about to set the list.
    other = await opened.enter_async_context(cluster.client())
    await other.open_and_recover(log.ledgers[-1].ledger_id)
    with pytest.raises(LogFencedError):
        await append(log, [b"two"]).outcome
    writes = store.begun
    go_on.set()
    with pytest.raises(LogFencedError):
        await rotating
    await log.close()
    assert store.begun == writes, "it would take the log from its new owner"


async def test_a_bug_in_a_change_of_ledgers_fails_appends_instead_of_keeping_them_for_ever(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    client = await opened.enter_async_context(cluster.client())
    config = CONFIG.model_copy(update={"unavailable_retry_s": 0.05})
    log = await open_log(cluster, client, config)
    await append(log, [b"one"]).outcome
    take_spare = log._ledgers.take_spare

    async def broken() -> object:
        raise KeyError("a bug")

    log._ledgers.take_spare = broken  # type: ignore[method-assign, assignment]
    writer = log._appender.writer
    assert writer is not None
    writer._fail(LedgerWriteError("two bookies are gone"))
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(LogUnavailableError):
            await append(log, [b"two"]).outcome
        log._ledgers.take_spare = take_spare  # type: ignore[method-assign]
        await asyncio.sleep(0.06)
        await append(log, [b"three"]).outcome
    assert await read_all(log) == [b"one", b"three"]
    await log.close()


async def test_nobody_waits_for_a_ledger_to_drain_when_the_log_has_given_up(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    state = await draining(cluster, opened)
    changes, appender = state.log._changes, state.log._appender
    # As after a ledger that failed long ago, and nothing was confirmed since.
    changes._confirmed_at_failure = appender.confirmed_batches
    changes._broken_since_s = -1e9
    state.second._fail(LedgerWriteError("two bookies are gone"))
    with pytest.raises(LogUnavailableError):
        await append(state.log, [b"c0"]).outcome
    for batch in state.batches:
        with pytest.raises(LogUnavailableError):
            await batch.outcome
    task = changes._task
    assert task is not None
    await soon(task.done)
    state.network.release()
    await state.log.close()
