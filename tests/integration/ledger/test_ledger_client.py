"""Ledgers on real bookies: written, read, fenced, recovered."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.digest import codec_for, master_key
from magnetar.ledger.errors import (
    BeyondLastConfirmedError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    LedgerWriteError,
    NotEnoughBookiesError,
    RecoveryUndecidedError,
)
from magnetar.ledger.ledger_metadata import LedgerState
from magnetar.ledger.reader import LedgerReader
from magnetar.ledger.reading.bookie_requests import ask
from magnetar.ledger.wire import Op, Status
from magnetar.ledger.writer import LedgerWriter
from tests.integration.ledger.cluster import Cluster, cluster_of

PAYLOADS = [b"entry-%d-" % number + bytes(number % 50) for number in range(500)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(3, tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[LedgerClient]:
    async with cluster.client() as client:
        yield client


async def create(client: LedgerClient, quorums: tuple[int, int, int] = (3, 3, 2)) -> LedgerWriter:
    ensemble_size, write_quorum, ack_quorum = quorums
    return await client.create(
        ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum
    )


async def append_all(writer: LedgerWriter, payloads: list[bytes]) -> None:
    """Append in small batches and wait until all are confirmed."""
    confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    order: list[int] = []
    starts = range(0, len(payloads), 7)

    def on_done_of(start: int) -> Callable[[LedgerError | None], None]:
        def on_done(error: LedgerError | None) -> None:
            order.append(start)
            if confirmed.done():
                return
            if error is not None:
                confirmed.set_exception(error)
            elif len(order) == len(starts):
                confirmed.set_result(None)

        return on_done

    for start in starts:
        assert writer.append(payloads[start : start + 7], on_done_of(start)) == start
        if start % 5 == 0:
            await asyncio.sleep(0)  # several frames instead of one
    await confirmed
    assert order == list(starts)


async def read_all(reader: LedgerReader | LedgerWriter, last: int) -> list[bytes]:
    payloads: list[bytes] = []
    while len(payloads) <= last:
        payloads += await reader.read(len(payloads), last, bytes_max=4096)
    return payloads


@pytest.mark.parametrize("quorums", [(1, 1, 1), (3, 3, 2), (3, 2, 2), (3, 2, 1), (2, 2, 2)])
async def test_what_was_confirmed_is_read_back_in_order(
    client: LedgerClient, quorums: tuple[int, int, int]
) -> None:
    writer = await create(client, quorums)
    await append_all(writer, PAYLOADS)
    assert await read_all(writer, len(PAYLOADS) - 1) == PAYLOADS
    closed = await writer.close()
    assert (closed.state, closed.last_entry_id) == (LedgerState.CLOSED, len(PAYLOADS) - 1)
    assert closed.length == sum(map(len, PAYLOADS))
    reader = await client.open(writer.ledger_id)
    assert await read_all(reader, reader.last_add_confirmed) == PAYLOADS


async def test_entries_of_every_size_survive(client: LedgerClient) -> None:
    writer = await create(client)
    sizes = [0, 1, 4096, 1 << 20, 5 << 20]
    for size in sizes:
        await writer.add(b"x" * size)
    await writer.close()
    reader = await client.open(writer.ledger_id)
    for entry_id, size in enumerate(sizes):
        (payload,) = await reader.read(entry_id, entry_id)
        assert payload == b"x" * size


async def test_an_append_larger_than_any_frame_is_confirmed_as_one(client: LedgerClient) -> None:
    writer = await create(client)
    payloads = [bytes([number]) * (1 << 20) for number in range(16)]
    done: asyncio.Future[LedgerError | None] = asyncio.get_running_loop().create_future()
    writer.append(payloads, done.set_result)
    assert await done is None
    assert await read_all(writer, 15) == payloads


async def test_rule_9_3_nothing_beyond_the_last_add_confirmed_is_read(
    client: LedgerClient,
) -> None:
    writer = await create(client)
    await writer.add(b"one")
    with pytest.raises(BeyondLastConfirmedError, match="entry 1 is above"):
        await writer.read(0, 1)
    reader = await client.open(writer.ledger_id)
    with pytest.raises(BeyondLastConfirmedError):
        await reader.read(0, 0)


async def test_one_bookie_of_three_may_die_while_writing(
    cluster: Cluster, client: LedgerClient
) -> None:
    writer = await create(client)
    await append_all(writer, PAYLOADS)
    await cluster.stop_bookie("b2")
    for number in range(20):
        assert await writer.add(b"more") == len(PAYLOADS) + number
    await writer.close()
    reader = await client.open_and_recover(writer.ledger_id)
    assert (await read_all(reader, reader.last_add_confirmed))[-1] == b"more"


async def test_adds_fail_when_their_ack_quorum_is_gone(
    cluster: Cluster, client: LedgerClient
) -> None:
    writer = await create(client)
    await writer.add(b"kept")
    await cluster.stop_bookie("b1")
    await cluster.stop_bookie("b2")
    with pytest.raises(LedgerWriteError, match="cannot reach their ack quorum"):
        await writer.add(b"lost")
    with pytest.raises(LedgerWriteError):
        writer.append([b"later"], lambda error: None)
    closed = await writer.close(force=True)
    assert closed.last_entry_id == 0


async def test_an_ensemble_needs_enough_bookies(client: LedgerClient) -> None:
    with pytest.raises(NotEnoughBookiesError, match=r"4 bookies is needed, 3 are writable"):
        await create(client, (4, 3, 2))


@pytest.mark.parametrize("quorums", [(3, 3, 2), (2, 2, 2), (3, 2, 2), (3, 2, 1)])
async def test_a_recovered_ledger_holds_all_that_was_confirmed_and_the_old_writer_is_dead(
    cluster: Cluster, client: LedgerClient, quorums: tuple[int, int, int]
) -> None:
    writer = await create(client, quorums)
    await append_all(writer, PAYLOADS)
    async with cluster.client() as other:
        reader = await other.open_and_recover(writer.ledger_id)
        assert reader.last_add_confirmed == len(PAYLOADS) - 1
        assert reader.metadata.length == sum(map(len, PAYLOADS))
        assert await read_all(reader, reader.last_add_confirmed) == PAYLOADS
    with pytest.raises(LedgerFencedError):
        await writer.add(b"too late")
    with pytest.raises(LedgerFencedError):
        await writer.close()


async def test_recovery_of_an_empty_ledger_closes_it_empty(client: LedgerClient) -> None:
    writer = await create(client)
    reader = await client.open_and_recover(writer.ledger_id)
    assert (reader.last_add_confirmed, reader.metadata.length) == (-1, 0)
    with pytest.raises(LedgerFencedError):
        await writer.add(b"too late")


async def test_two_recoveries_at_once_agree(cluster: Cluster, client: LedgerClient) -> None:
    writer = await create(client)
    await append_all(writer, PAYLOADS)
    async with cluster.client() as one, cluster.client() as two:
        readers = await asyncio.gather(
            one.open_and_recover(writer.ledger_id), two.open_and_recover(writer.ledger_id)
        )
    assert readers[0].metadata == readers[1].metadata
    assert readers[0].last_add_confirmed == len(PAYLOADS) - 1


async def test_recovery_works_with_one_bookie_down_and_aborts_with_two(
    cluster: Cluster, client: LedgerClient
) -> None:
    writer = await create(client)
    await append_all(writer, PAYLOADS)
    await cluster.stop_bookie("b1")
    await cluster.stop_bookie("b3")
    with pytest.raises(RecoveryUndecidedError, match="only 1 of 3 bookies confirmed the fence"):
        await client.open_and_recover(writer.ledger_id)
    state = (await client.manager.read(writer.ledger_id)).metadata.state
    assert state is LedgerState.IN_RECOVERY
    await cluster.start_bookie("b3")
    async with cluster.client() as other:
        reader = await other.open_and_recover(writer.ledger_id)
        assert await read_all(reader, reader.last_add_confirmed) == PAYLOADS


async def test_a_bookie_remembers_fences_and_entries_across_a_restart(
    cluster: Cluster, client: LedgerClient
) -> None:
    writer = await create(client)
    await append_all(writer, PAYLOADS)
    async with cluster.client() as other:
        await other.open_and_recover(writer.ledger_id)
    for name in ("b1", "b2", "b3"):
        await cluster.stop_bookie(name)
        await cluster.start_bookie(name)
    async with cluster.client() as other:
        reader = await other.open(writer.ledger_id)
        assert await read_all(reader, reader.last_add_confirmed) == PAYLOADS
    # Bookies that lost their connection to this writer count as failed for one add each; the
    # writer must hear of the fence, or at least never get an acknowledgement.
    with pytest.raises((LedgerFencedError, LedgerWriteError)):
        await writer.add(b"too late")


async def test_an_explicit_lac_survives_restarts_of_the_bookies(
    cluster: Cluster, client: LedgerClient
) -> None:
    """Once through the flush at a stop, once through the journal alone is in the bookie's tests."""
    writer = await create(client)
    await writer.add(b"only")
    metadata = writer.metadata
    body = master_key(metadata.password) + codec_for(metadata).seal_lac(0)
    for name in ("b1", "b2", "b3"):
        told = await ask(
            client.channels, name, Op.WRITE_LAC, body, ledger_id=writer.ledger_id, entry_id=0
        )
        assert told.status == Status.OK
    for _ in range(2):
        for name in ("b1", "b2", "b3"):
            await cluster.stop_bookie(name)
            await cluster.start_bookie(name)
        async with cluster.client() as later:
            reader = await later.open(writer.ledger_id)
            assert await reader.read_last_add_confirmed() == 0
            await reader.close()


async def test_a_closed_ledger_takes_no_adds_and_closing_again_is_fine(
    client: LedgerClient,
) -> None:
    writer = await create(client)
    await writer.add(b"one")
    first = await writer.close()
    assert await writer.close() == first
    with pytest.raises(LedgerClosedError):
        await writer.add(b"two")


async def test_concurrent_adds_are_confirmed_in_order(client: LedgerClient) -> None:
    writer = await create(client)
    ids = await asyncio.gather(*(writer.add(b"%d" % number) for number in range(300)))
    assert ids == list(range(300))
    assert await read_all(writer, 299) == [b"%d" % number for number in range(300)]


async def test_a_wrong_password_is_refused(cluster: Cluster, client: LedgerClient) -> None:
    writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2, password=b"secret")
    await writer.add(b"one")
    ledger = await client.manager.read(writer.ledger_id)
    from dataclasses import replace

    await client.manager.write(replace(ledger.metadata, password=b"wrong"), version=ledger.version)
    with pytest.raises(LedgerError, match="password does not fit"):
        await client.open_and_recover(writer.ledger_id)

    # The ledger is IN_RECOVERY, whoever will finish that: its writer withdraws when it hears of it.
    async def add_until_it_ends() -> None:
        while True:
            await writer.add(b"more")

    async with asyncio.timeout(30):
        with pytest.raises(LedgerFencedError, match="being recovered"):
            await add_until_it_ends()
