"""A managed log whose ledgers fail at bad moments: every batch hears its outcome, once."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import (
    BadVersionError,
    LedgerFencedError,
    LedgerWriteError,
    LogClosedError,
    LogError,
    LogFencedError,
    LogUnavailableError,
    UnknownOutcomeError,
)
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.settings import LogConfig
from magnetar.ledger.wire import Frame, Op, Status
from magnetar.ledger.writer import LedgerWriter
from tests.integration.ledger.cluster import CLIENT_SETTINGS, Cluster, cluster_of
from tests.integration.ledger.filtered_network import FilteredNetwork
from tests.integration.ledger.log_parts import (
    CONFIG,
    PATH,
    ROLLING,
    Batch,
    append,
    open_log,
    read_all,
)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(3, tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[LedgerClient]:
    async with cluster.client() as client:
        yield client


def writer_of(log: ManagedLog) -> LedgerWriter:
    assert log._appender.writer is not None
    return log._appender.writer


async def reopened(cluster: Cluster, client: LedgerClient) -> list[bytes]:
    """What the next owner finds in the log."""
    log = await open_log(cluster, client)
    payloads = await read_all(log)
    await log.close()
    return payloads


class SlowStore:
    """A store whose writes to one node take until they are let through."""

    def __init__(self, inner: MetadataStore, path: str) -> None:
        self._inner = inner
        self._path = path
        self.arrived = asyncio.Event()
        self.go_on = asyncio.Event()
        self.writing: asyncio.Future[int]

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        if path != self._path or self.go_on.is_set():
            return await self._inner.set(path, value, version=version)
        self.arrived.set()
        self.writing = asyncio.ensure_future(self._set_later(value, version))
        return await asyncio.shield(self.writing)

    async def _set_later(self, value: bytes, version: int) -> int:
        await self.go_on.wait()
        return await self._inner.set(self._path, value, version=version)


async def test_a_ledger_that_fails_while_its_change_begins_is_replaced(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await open_log(cluster, client, ROLLING)
    batch = append(log, [b"one", b"two", b"three"])  # the ledger is full: a change begins
    writer_of(log)._fail(LedgerWriteError("two bookies are gone"))
    async with asyncio.timeout(30):
        await batch.outcome
    assert await read_all(log) == [b"one", b"two", b"three"]
    await log.close()


async def test_an_owner_whose_empty_ledger_was_deleted_by_the_next_is_fenced(
    cluster: Cluster, client: LedgerClient
) -> None:
    first = await open_log(cluster, client)
    fenced: list[str] = []
    first.on_fenced(lambda: fenced.append("first"))
    async with cluster.client() as other:
        second = await open_log(cluster, other)
        batch = append(first, [b"too late"])
        writer_of(first)._fail(LedgerWriteError("no bookie answers"))
        async with asyncio.timeout(30):
            with pytest.raises(LogFencedError):
                await batch.outcome
        assert fenced == ["first"]
        await first.close()
        await second.close()


async def test_a_fence_that_is_heard_when_nothing_is_pending_fences_the_log(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await open_log(cluster, client)
    fenced: list[str] = []
    log.on_fenced(lambda: fenced.append("fenced"))
    await append(log, [b"one"]).outcome  # by two of three; the third answers "fenced" later
    writer_of(log)._pipeline._lose(LedgerFencedError("b3: fenced by another client"))
    for _ in range(2):
        with pytest.raises(LogFencedError):
            await append(log, [b"two"]).outcome
    assert fenced == ["fenced"]
    await log.close()


async def test_a_writer_that_failed_when_nothing_was_pending_is_replaced(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await open_log(cluster, client)
    await append(log, [b"one"]).outcome
    writer_of(log)._fail(LedgerWriteError("b3: refuses the add"))
    await append(log, [b"two"]).outcome
    assert await read_all(log) == [b"one", b"two"]
    await log.close()


async def test_closing_with_unanswered_appends_leaves_a_log_that_can_be_opened(
    cluster: Cluster,
) -> None:
    network = FilteredNetwork()
    settings = CLIENT_SETTINGS.model_copy(update={"close_drain_timeout_s": 0.05})
    async with cluster.client(network, settings) as client:
        store = SlowStore(cluster.store, PATH)
        log = await open_log(cluster, client)
        await append(log, [b"one"]).outcome
        log._list._store = store  # type: ignore[assignment]
        network.filter = lambda port, frame: None if frame.op == Op.ADD else frame
        batch = append(log, [b"two"])
        closing = asyncio.ensure_future(log.close())
        await store.arrived.wait()
        store.go_on.set()
        await closing
        with pytest.raises(LogClosedError):
            await batch.outcome
        tasks = [task for task in asyncio.all_tasks() if PATH in task.get_name()]
        assert tasks == [], "a closed log does nothing any more"
        async with cluster.client() as other:
            assert await reopened(cluster, other) == [b"one"]


async def test_closing_twice_at_once_closes_once(cluster: Cluster, client: LedgerClient) -> None:
    log = await open_log(cluster, client)
    batch = append(log, [b"one"])
    async with asyncio.timeout(30):
        await asyncio.gather(log.close(), log.close())
    await batch.outcome
    assert await reopened(cluster, client) == [b"one"]


async def test_an_append_while_the_log_closes_is_refused(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await open_log(cluster, client)
    first = append(log, [b"one"])
    closing = asyncio.ensure_future(log.close())
    await asyncio.sleep(0)
    with pytest.raises(LogClosedError):
        await append(log, [b"two"]).outcome
    await closing
    await first.outcome


async def test_m2_a_cancelled_change_of_ledgers_does_not_delete_what_the_list_may_name(
    cluster: Cluster, client: LedgerClient
) -> None:
    store = SlowStore(cluster.store, PATH)
    config = ROLLING.model_copy(update={"repair_timeout_s": 0.05})
    log = await open_log(cluster, client, config)
    log._list._store = store  # type: ignore[assignment]
    await append(log, [b"one", b"two", b"three"]).outcome
    await store.arrived.wait()
    listing = store.writing
    store.arrived.clear()
    during = append(log, [b"four"])  # appends go on while the next ledger is being listed
    closing = asyncio.ensure_future(log.close())  # cancels the change, whose update is under way
    await during.outcome
    await store.arrived.wait()
    closing.cancel()  # and is cancelled as well, before its own update happens
    store.go_on.set()
    # Both updates are based on the same version: one of them happens.
    results = await asyncio.gather(listing, store.writing, return_exceptions=True)
    assert sorted(isinstance(result, BadVersionError) for result in results) == [False, True]
    async with cluster.client() as other:
        assert await reopened(cluster, other) == [b"one", b"two", b"three", b"four"]


async def test_d26_an_update_that_lands_after_it_was_asked_about_is_our_own(
    cluster: Cluster, client: LedgerClient
) -> None:
    class LateStore(SlowStore):
        """The first write is reported as unknown at once, and lands before the second."""

        first: asyncio.Task[int] | None = None

        async def set(self, path: str, value: bytes, *, version: int) -> int:
            if path == PATH and self.first is None:
                self.first = asyncio.ensure_future(self._set_later(value, version))
                raise UnknownOutcomeError("the connection broke")
            if path == PATH and not self.go_on.is_set():
                assert self.first is not None
                self.go_on.set()
                await self.first
            return await super().set(path, value, version=version)

    log = await open_log(cluster, client, ROLLING)
    log._list._store = LateStore(cluster.store, PATH)  # type: ignore[assignment]
    payloads = [b"%d" % number for number in range(5)]
    for payload in payloads:
        await append(log, [payload]).outcome
    assert await read_all(log) == payloads
    await log.close()
    assert await reopened(cluster, client) == payloads


async def test_a_log_whose_every_new_ledger_fails_gives_up_in_time(cluster: Cluster) -> None:
    network = FilteredNetwork()
    config = CONFIG.model_copy(update={"repair_timeout_s": 1, "unavailable_retry_s": 0.05})

    def refuse_adds(port: int, frame: Frame) -> Frame:
        return frame._replace(status=Status.IO_ERROR) if frame.op == Op.ADD else frame

    async with cluster.client(network) as client:
        log = await open_log(cluster, client, config)
        await append(log, [b"one"]).outcome
        network.filter = refuse_adds
        async with asyncio.timeout(30):
            with pytest.raises(LogUnavailableError, match="IO_ERROR"):
                await append(log, [b"two"]).outcome
        ledger_ids = [ledger_id async for ledger_id in client.manager.ledger_ids()]
        assert len(ledger_ids) <= 3
        assert writer_of(log).ledger_id < 8, "new ledgers are made ever more slowly"
        network.filter = lambda port, frame: frame
        while True:
            try:
                await append(log, [b"three"]).outcome
                break
            except LogUnavailableError:
                pass
        assert await read_all(log) == [b"one", b"three"]
        await log.close()


async def test_of_two_takeovers_the_slower_one_is_fenced_though_its_ledger_is_gone(
    cluster: Cluster, client: LedgerClient
) -> None:
    await open_log(cluster, client)  # and crash: its empty ledger stays open
    other_config = LogConfig(ensemble_size=3, write_quorum=3, ack_quorum=2)
    async with cluster.client() as slow:
        inner = slow.open_and_recover

        async def recover_after_the_other(ledger_id: int, *, password: bytes) -> object:
            slow.open_and_recover = inner  # type: ignore[method-assign]
            log = await open_log(cluster, client)
            await log.close()
            return await inner(ledger_id, password=password)

        slow.open_and_recover = recover_after_the_other  # type: ignore[method-assign, assignment]
        with pytest.raises(LogFencedError):
            await open_log(cluster, slow, other_config)


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


async def test_a_batch_that_breaks_does_not_keep_others_from_their_outcome(
    cluster: Cluster, client: LedgerClient
) -> None:
    class Broken(Batch):
        def on_appended(self, ledger_id: int, first_entry_id: int) -> None:
            raise KeyError("a bug")

        def on_failed(self, error: LogError) -> None:
            raise KeyError("a bug")

    broken: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: broken.append(context["exception"]))
    log = await open_log(cluster, client)
    log.append(Broken([b"one"]))
    async with asyncio.timeout(30):
        await append(log, [b"two"]).outcome
    log.append(Broken([b"three"]))
    batch = append(log, [b"four"])
    log._appender.fence(LedgerFencedError("by another client"))
    with pytest.raises(LogFencedError):
        await batch.outcome
    assert [type(error) for error in broken] == [KeyError, KeyError]
    await log.close()
