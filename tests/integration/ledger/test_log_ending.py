"""Shrinking a log and ending it: what is gone is gone in the right order, what ended stays so."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import (
    FutureLogFormatError,
    InvalidLedgerMetadataError,
    LogClosedError,
    LogDataLossError,
    LogFencedError,
    LogTerminatedError,
    MetadataUnavailableError,
    UnauthorizedError,
    UnknownOutcomeError,
)
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.log_reader import LogReader
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.position import EARLIEST, LATEST, Position
from magnetar.ledger.system import SystemClock
from magnetar.ledger.wire import Op
from tests.integration.ledger.cluster import Cluster, cluster_of
from tests.integration.ledger.filtered_network import FilteredNetwork
from tests.integration.ledger.log_parts import CONFIG, PATH, append, open_log, read_all


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(3, tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[LedgerClient]:
    async with cluster.client() as client:
        yield client


async def log_of(cluster: Cluster, client: LedgerClient, ledgers: int) -> ManagedLog:
    """Two entries in each of so many closed ledgers, and an empty one behind them."""
    log = await open_log(cluster, client)
    for number in range(ledgers):
        await append(log, [b"%d-0" % number, b"%d-1" % number]).outcome
        await log.rotate()
    await log.rotate()  # which waits until the one before is closed
    return log


async def ledger_ids(client: LedgerClient) -> list[int]:
    return [ledger_id async for ledger_id in client.manager.ledger_ids()]


class FaultyStore:
    """Writes of one node end as a test says: `before` and `after` may raise."""

    def __init__(self, inner: MetadataStore) -> None:
        self._inner = inner
        self.before: BaseException | None = None
        self.after: BaseException | None = None
        self.writes = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        if path != PATH:
            return await self._inner.set(path, value, version=version)
        self.writes += 1
        if self.before is not None:
            raise self.before
        new_version = await self._inner.set(path, value, version=version)
        if self.after is not None:
            raise self.after
        return new_version


def faulty(log: ManagedLog) -> FaultyStore:
    store = FaultyStore(log._list._store)
    log._list._store = store  # type: ignore[assignment]
    return store


# Shrinking


async def test_shrink_removes_whole_ledgers_and_their_metadata(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await log_of(cluster, client, 4)
    ids = [ledger.ledger_id for ledger in log.ledgers]
    assert await log.shrink(Position(ids[0], 1)) == 0, "its last entry is not before this"
    assert await log.shrink(Position(ids[2], 1)) == 2
    assert await read_all(log) == [b"2-0", b"2-1", b"3-0", b"3-1"]
    assert [ledger.ledger_id for ledger in log.ledgers] == ids[2:]
    assert await ledger_ids(client) == ids[2:]
    assert log.first_position() == Position(ids[2], 0)
    assert log.entries_between(EARLIEST, log.last_confirmed) == 4
    await append(log, [b"more"]).outcome
    await log.close()
    again = await open_log(cluster, client)
    assert await read_all(again) == [b"2-0", b"2-1", b"3-0", b"3-1", b"more"]
    await again.close()


async def test_shrink_never_removes_the_current_ledger_nor_the_draining_one(
    cluster: Cluster,
) -> None:
    network = FilteredNetwork()
    async with cluster.client(network) as client:
        log = await log_of(cluster, client, 1)
        await append(log, [b"draining"]).outcome
        draining = log.last_confirmed.ledger_id
        network.holds = lambda frame: frame.op == Op.ADD and frame.ledger_id == draining
        held = append(log, [b"held"])
        await log.rotate()
        assert await log.shrink(LATEST) == 1
        assert [ledger.is_closed for ledger in log.ledgers] == [False, False]
        network.release()
        await held.outcome
        await log.rotate()  # nothing to rotate; waits until the one before is closed
        assert await log.shrink(LATEST) == 1
        assert await log.shrink(LATEST) == 0, "the current ledger, empty as it is"
        assert await read_all(log) == []
        assert log.first_position() > log.last_confirmed
        await append(log, [b"on"]).outcome
        assert await read_all(log) == [b"on"]
        await log.close()


async def test_an_owners_read_of_what_a_shrink_removes_goes_on_at_the_first_entry_there_is(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await log_of(cluster, client, 3)
    ids = [ledger.ledger_id for ledger in log.ledgers]
    inner = client.open

    async def open_after_the_shrink(ledger_id: int, *, password: bytes | None = None) -> object:
        client.open = inner  # type: ignore[method-assign]
        await log.shrink(Position(ids[2], 0))
        return await inner(ledger_id, password=password)

    client.open = open_after_the_shrink  # type: ignore[method-assign, assignment]
    entries = await log.read(EARLIEST, entries_max=10, bytes_max=1000)
    assert [entry.payload for entry in entries] == [b"2-0", b"2-1"]
    await log.close()


async def test_m9_rule_6_1_a_ledger_is_deleted_only_after_it_left_the_list(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await log_of(cluster, client, 3)
    store = faulty(log)
    ids = [ledger.ledger_id for ledger in log.ledgers]
    store.before = MetadataUnavailableError("the store is away")
    with pytest.raises(MetadataUnavailableError):
        await log.shrink(LATEST)
    assert await ledger_ids(client) == ids
    assert len(await read_all(log)) == 6
    store.before = None
    store.after = UnknownOutcomeError("the connection broke")
    assert await log.shrink(LATEST) == 3, "its own update, found when it was read back"
    assert await ledger_ids(client) == ids[3:]
    store.after = None
    await log.close()


async def test_m9_a_ledger_that_could_not_be_deleted_is_tried_again(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await log_of(cluster, client, 3)
    ids = [ledger.ledger_id for ledger in log.ledgers]
    inner = client.delete

    async def fail(ledger_id: int) -> None:
        raise MetadataUnavailableError("the store is away")

    client.delete = fail  # type: ignore[method-assign]
    assert await log.shrink(LATEST) == 3
    assert log.leftover_ledgers == 3
    assert await ledger_ids(client) == ids, "they left the list, and are there"
    client.delete = inner  # type: ignore[method-assign]
    assert await log.shrink(LATEST) == 0
    assert log.leftover_ledgers == 0
    assert await ledger_ids(client) == ids[3:]
    await log.close()


async def test_m9_in_the_end_what_cannot_be_deleted_is_left_to_the_orphan_sweep(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await log_of(cluster, client, 1)
    attempts: list[int] = []

    async def fail(ledger_id: int) -> None:
        attempts.append(ledger_id)
        raise MetadataUnavailableError("the store is away")

    inner, client.delete = client.delete, fail  # type: ignore[method-assign]
    await log.shrink(LATEST)
    while log.leftover_ledgers:
        await log.delete_unlisted()
    assert len(attempts) == 5
    client.delete = inner  # type: ignore[method-assign]
    await log.close()


async def test_shrinking_a_log_that_was_taken_over_changes_nothing(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await log_of(cluster, client, 2)
    fenced: list[str] = []
    log.on_fenced(lambda: fenced.append("log"))
    async with cluster.client() as other:
        second = await open_log(cluster, other)
        with pytest.raises(LogFencedError):
            await log.shrink(LATEST)
        assert fenced == ["log"]
        with pytest.raises(LogFencedError):
            await log.shrink(LATEST)
        assert len(await read_all(second)) == 4
        await second.close()
    await log.close()
    closed = await open_log(cluster, client)
    await closed.close()
    with pytest.raises(LogClosedError):
        await closed.shrink(LATEST)


# The end


async def test_a_terminated_log_has_what_was_appended_and_takes_no_more(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await log_of(cluster, client, 1)
    pending = append(log, [b"pending"])
    terminating = asyncio.ensure_future(log.terminate())
    await asyncio.sleep(0)
    with pytest.raises(LogTerminatedError, match="only be read"):
        await append(log, [b"too late"]).outcome
    end = await terminating
    assert await pending.outcome == end
    assert log.terminated == log.last_confirmed == end
    assert await log.terminate() == end, "terminating again changes nothing"
    with pytest.raises(LogTerminatedError):
        await log.rotate()
    assert await read_all(log) == [b"0-0", b"0-1", b"pending"]
    await log.close()


async def test_the_end_survives_reopening_and_no_ledger_is_made(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await log_of(cluster, client, 2)
    end = await log.terminate()
    await log.close()
    before = await ledger_ids(client)
    for _ in range(2):
        again = await open_log(cluster, client)
        assert again.terminated == again.last_confirmed == end
        assert await read_all(again) == [b"0-0", b"0-1", b"1-0", b"1-1"]
        with pytest.raises(LogTerminatedError):
            await append(again, [b"no"]).outcome
        assert await ledger_ids(client) == before
        await again.close()
    again = await open_log(cluster, client)
    assert await again.shrink(LATEST) == 1, "the last ledger stays"
    assert await read_all(again) == [b"1-0", b"1-1"]
    await again.delete()
    assert await ledger_ids(client) == []


async def test_a_log_that_is_terminated_empty_is_empty_for_good(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await open_log(cluster, client)
    assert await log.terminate() == Position(-1, -1)
    await log.close()
    again = await open_log(cluster, client)
    assert again.terminated == Position(-1, -1)
    assert await read_all(again) == []
    assert again.entries_between(EARLIEST, LATEST) == 0
    assert again.previous_position(LATEST) == Position(-1, -1)
    await again.close()


async def test_a_termination_of_unknown_outcome_can_be_asked_for_again(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await log_of(cluster, client, 1)
    await append(log, [b"last"]).outcome
    store = faulty(log)
    store.before = UnknownOutcomeError("the connection broke")
    with pytest.raises(UnknownOutcomeError):
        await log.terminate()
    assert store.writes < 10, "an outcome that stays unknown is not asked about for ever"
    with pytest.raises(LogTerminatedError):
        await append(log, [b"no"]).outcome
    store.before = None
    end = await log.terminate()
    await log.close()
    again = await open_log(cluster, client)
    assert again.terminated == end
    assert await read_all(again) == [b"0-0", b"0-1", b"last"]
    await again.close()


async def test_of_a_termination_and_a_takeover_the_later_one_decides(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await log_of(cluster, client, 1)
    async with cluster.client() as other:
        second = await open_log(cluster, other)
        with pytest.raises(LogFencedError, match="not terminated"):
            await log.terminate()
        await append(second, [b"on"]).outcome
        assert second.terminated is None
        await second.close()
    await log.close()


# Values that are not for us


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b'{"format":2,"ledgers":[],"properties":{}}', FutureLogFormatError),
        (b"{}", InvalidLedgerMetadataError),
        (b"", InvalidLedgerMetadataError),
        (b'{"format":1,"ledgers":[{"id":1}],"properties":{}}', InvalidLedgerMetadataError),
    ],
)
async def test_a_list_of_the_future_or_of_nonsense_is_refused_and_left_as_it_is(
    cluster: Cluster, client: LedgerClient, value: bytes, error: type[Exception]
) -> None:
    await cluster.store.create(PATH, value)
    with pytest.raises(error, match=PATH):
        await open_log(cluster, client)
    assert (await cluster.store.get(PATH)).value == value


async def test_a_log_that_is_deleted_under_its_owner_says_so(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await log_of(cluster, client, 1)
    await append(log, [b"more"]).outcome
    await cluster.store.delete(PATH)
    with pytest.raises(LogFencedError, match="the log was deleted"):
        await log.shrink(LATEST)
    with pytest.raises(LogFencedError):
        await append(log, [b"no"]).outcome
    await log.close()


async def test_a_wrong_password_opens_nothing_and_fences_nothing(
    cluster: Cluster, client: LedgerClient
) -> None:
    secret = CONFIG.model_copy(update={"password": b"secret"})
    log = await open_log(cluster, client, secret)
    await append(log, [b"one"]).outcome
    async with cluster.client() as other:
        with pytest.raises(UnauthorizedError):
            await open_log(cluster, other)
        reader = await LogReader.open(
            other, cluster.store, PATH, clock=SystemClock(), password=b"guess"
        )
        with pytest.raises(UnauthorizedError):
            await reader.read()
        await reader.close()
    await append(log, [b"two"]).outcome
    assert await read_all(log) == [b"one", b"two"]
    await log.close()
    again = await open_log(cluster, client, secret)
    assert await read_all(again) == [b"one", b"two"]
    await again.close()


async def append_until_refused(log: ManagedLog) -> None:
    async with asyncio.timeout(30):
        while True:
            await append(log, [b"more"]).outcome


async def test_an_owner_whose_ledger_was_deleted_by_hand_is_told_so(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await open_log(cluster, client)
    await append(log, [b"one"]).outcome
    lost = log.last_confirmed.ledger_id
    async with cluster.client() as other:
        await other.delete(lost)
        outcomes = []
        for _ in range(2):
            with pytest.raises(LogFencedError) as caught:
                await append_until_refused(log)
            outcomes.append(str(caught.value))
        assert outcomes[0] == outcomes[1]
        assert f"ledger {lost}" in outcomes[0]
        assert "close this handle" in outcomes[0]
        await log.close()
        with pytest.raises(LogDataLossError, match=f"ledger {lost} is listed"):
            await open_log(cluster, other)


# An owner that may have lost the log


async def test_m13_an_abandoned_log_is_closed_without_a_write(
    cluster: Cluster, client: LedgerClient
) -> None:
    """Neither its list nor its ledger changes, what is pending fails, the next owner has it all."""
    log = await open_log(cluster, client)
    await append(log, [b"kept"]).outcome
    (ledger,) = log.ledgers
    list_before = await cluster.store.get(PATH)
    ledger_before = (await client.manager.read(ledger.ledger_id)).version
    heard: list[str] = []
    log.on_fenced(lambda: heard.append("fenced"))
    log.abandon("the lease has run out")
    assert heard == ["fenced"]
    with pytest.raises(LogFencedError, match="the lease has run out"):
        await append(log, [b"refused"]).outcome
    await log.close()
    log.abandon("again")
    assert await cluster.store.get(PATH) == list_before
    assert (await client.manager.read(ledger.ledger_id)).version == ledger_before
    next_owner = await open_log(cluster, client)
    assert await read_all(next_owner) == [b"kept"]
    await next_owner.close()
