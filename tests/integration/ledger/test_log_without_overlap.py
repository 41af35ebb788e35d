"""A log that rotates without overlap is at every moment a prefix of its appends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from magnetar.ledger.errors import LedgerWriteError, LogFencedError, LogUnavailableError
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.wire import Op
from tests.integration.ledger.cluster import Cluster, cluster_of
from tests.integration.ledger.filtered_network import FilteredNetwork
from tests.integration.ledger.log_parts import CONFIG, Batch, append, open_log, read_all

ONE_AFTER_ANOTHER = CONFIG.model_copy(update={"overlaps_ledgers": False})


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(3, tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def opened() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def rotating(
    cluster: Cluster, opened: AsyncExitStack
) -> tuple[ManagedLog, FilteredNetwork, list[Batch]]:
    """`a0 a1` are held on the first ledger; `b0 b1` came when the second was there."""
    network = FilteredNetwork()
    client = await opened.enter_async_context(cluster.client(network))
    log = await open_log(cluster, client, ONE_AFTER_ANOTHER)
    await append(log, [b"before"]).outcome
    first = log.last_confirmed.ledger_id
    network.holds = lambda frame: frame.op == Op.ADD and frame.ledger_id == first
    batches = [append(log, [b"a%d" % number]) for number in range(2)]
    await log.rotate()
    batches += [append(log, [b"b%d" % number]) for number in range(2)]
    return log, network, batches


async def places(batches: list[Batch]) -> list[bytes]:
    async with asyncio.timeout(30):
        await asyncio.gather(*(batch.outcome for batch in batches))
    return [batch.payloads[0] for batch in sorted(batches, key=lambda each: each.outcome.result())]


async def test_nothing_goes_into_the_next_ledger_before_the_one_before_has_drained(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    log, network, batches = await rotating(cluster, opened)
    assert log._appender.writer is not None
    assert log._appender.draining is not None
    assert log._appender.writer.entries_added == 0
    assert log.pending_batches == 4
    network.release()
    assert await places(batches) == [b"a0", b"a1", b"b0", b"b1"]
    assert await read_all(log) == [b"before", b"a0", b"a1", b"b0", b"b1"]
    await append(log, [b"c"]).outcome
    await log.close()
    assert [ledger.entries for ledger in log.ledgers] == [3, 3]


async def test_what_waits_is_written_in_order_when_the_draining_ledger_fails(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    log, network, batches = await rotating(cluster, opened)
    assert log._appender.draining is not None
    log._appender.draining._fail(LedgerWriteError("two bookies are gone"))
    batches.append(append(log, [b"c"]))
    assert await places(batches) == [b"a0", b"a1", b"b0", b"b1", b"c"]
    network.release()
    assert await read_all(log) == [b"before", b"a0", b"a1", b"b0", b"b1", b"c"]
    await log.close()


async def test_the_next_owner_finds_a_prefix(cluster: Cluster, opened: AsyncExitStack) -> None:
    log, network, batches = await rotating(cluster, opened)
    client = await opened.enter_async_context(cluster.client())
    second = await open_log(cluster, client)
    assert (await read_all(second)) in (
        [b"before"],
        [b"before", b"a0"],
        [b"before", b"a0", b"a1"],
    )
    network.release()
    for batch in batches:
        with pytest.raises(LogFencedError):
            await batch.outcome
    await second.close()
    await log.close()


async def test_close_finishes_what_waits_for_the_next_ledger(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    log, network, batches = await rotating(cluster, opened)
    closing = asyncio.ensure_future(log.close())
    await asyncio.sleep(0)
    network.release()
    await closing
    assert await places(batches) == [b"a0", b"a1", b"b0", b"b1"]


async def test_nothing_is_taken_behind_an_append_that_was_refused_and_has_not_heard_of_it(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    network = FilteredNetwork()
    client = await opened.enter_async_context(cluster.client(network))
    small = ONE_AFTER_ANOTHER.model_copy(update={"pending_bytes_max": 1 << 20})
    log = await open_log(cluster, client, small)
    await append(log, [b"before"]).outcome
    first = log.last_confirmed.ledger_id
    network.holds = lambda frame: frame.op == Op.ADD and frame.ledger_id == first
    held = append(log, [b"a"])
    await log.rotate()
    too_large, fits = append(log, [bytes(2 << 20)]), append(log, [b"b"])
    for refused in (too_large, fits):
        with pytest.raises(LogUnavailableError):
            await refused.outcome
    taken = append(log, [b"c"])
    network.release()
    assert await places([held, taken]) == [b"a", b"c"]
    assert await read_all(log) == [b"before", b"a", b"c"]
    await log.close()


async def test_properties_survive_the_owner_and_belong_to_the_owner_alone(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    client = await opened.enter_async_context(cluster.client())
    log = await open_log(cluster, client)
    await log.update_properties({"epoch": "1", "other": "x"})
    await log.update_properties({"epoch": "2", "other": None})
    assert log.properties == {"epoch": "2"}
    await append(log, [b"a"]).outcome
    second = await open_log(cluster, client)
    assert second.properties == {"epoch": "2"}
    with pytest.raises(LogFencedError):
        await log.update_properties({"epoch": "3"})
    await log.close()
    await second.close()
