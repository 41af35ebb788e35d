"""Readers that follow a ledger while somebody else writes it, on real bookies."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.digest import codec_for, master_key
from magnetar.ledger.errors import (
    BeyondLastConfirmedError,
    BookieUnavailableError,
    LedgerClosedError,
    NoSuchLedgerError,
)
from magnetar.ledger.ledger_metadata import DigestType, LedgerState
from magnetar.ledger.metadata.store import Watch, WatchCallback
from magnetar.ledger.wire import Frame, Op, Status
from magnetar.ledger.writer import LedgerWriter
from tests.bookie_parts import BookieClient
from tests.integration.ledger.cluster import CLIENT_SETTINGS, Cluster, cluster_of, wait_until
from tests.integration.ledger.filtered_network import FilteredNetwork

EXPLICIT = CLIENT_SETTINGS.model_copy(update={"explicit_lac_interval_ms": 1.0})


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(3, tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[LedgerClient]:
    async with cluster.client() as client:
        yield client


@pytest.fixture
async def network() -> FilteredNetwork:
    return FilteredNetwork()


@pytest.fixture
async def other(cluster: Cluster, network: FilteredNetwork) -> AsyncIterator[LedgerClient]:
    """Another process, as far as ledgers go: it reads."""
    async with cluster.client(network) as client:
        yield client


async def create(client: LedgerClient, quorums: tuple[int, int, int] = (3, 3, 2)) -> LedgerWriter:
    ensemble_size, write_quorum, ack_quorum = quorums
    return await client.create(
        ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum
    )


async def write_lac(
    cluster: Cluster, client: LedgerClient, ledger_id: int, last_add_confirmed: int, *names: str
) -> list[Frame]:
    """Tell bookies an explicit LAC, as the ledger's writer would; returns their answers."""
    metadata = (await client.manager.read(ledger_id)).metadata
    body = master_key(metadata.password) + codec_for(metadata).seal_lac(last_add_confirmed)
    replies: list[Frame] = []
    for name in names or tuple(cluster.bookies):
        connection = await BookieClient.connect(cluster.bookies[name].port)
        replies.append(
            await connection.ask(
                lambda request_id: Frame(
                    Op.WRITE_LAC, False, 0, 0, request_id, ledger_id, last_add_confirmed, body
                )
            )
        )
        connection.close()
    return replies


# The LAC


async def test_the_lac_is_piggy_backed_and_lags_one_entry(
    client: LedgerClient, other: LedgerClient
) -> None:
    writer = await create(client)
    for number in range(3):
        await writer.add(b"%d" % number)
    reader = await other.open(writer.ledger_id)
    assert reader.last_add_confirmed == -1
    assert await reader.read_last_add_confirmed() == 1
    assert await reader.read(0, 1) == [b"0", b"1"]
    with pytest.raises(BeyondLastConfirmedError):
        await reader.read(0, 2)
    await reader.close()


@pytest.mark.parametrize("digest_type", list(DigestType))
async def test_an_explicit_lac_shows_the_last_entry(
    cluster: Cluster, client: LedgerClient, other: LedgerClient, digest_type: DigestType
) -> None:
    writer = await client.create(
        ensemble_size=3, write_quorum=3, ack_quorum=2, digest_type=digest_type, password=b"secret"
    )
    await writer.add(b"only")
    replies = await write_lac(cluster, client, writer.ledger_id, 0)
    assert [reply.status for reply in replies] == [Status.OK] * 3
    reader = await other.open(writer.ledger_id, password=b"secret")
    assert await reader.read_last_add_confirmed() == 0
    assert await reader.read(0, 0) == [b"only"]
    await reader.close()


async def test_an_explicit_lac_survives_restarts_of_the_bookies(
    cluster: Cluster, client: LedgerClient
) -> None:
    """Once through the flush at a stop, once through the journal alone is in the bookie's tests."""
    writer = await create(client)
    await writer.add(b"only")
    await write_lac(cluster, client, writer.ledger_id, 0)
    for _ in range(2):
        for name in ("b1", "b2", "b3"):
            await cluster.stop_bookie(name)
            await cluster.start_bookie(name)
        async with cluster.client() as later:
            reader = await later.open(writer.ledger_id)
            assert await reader.read_last_add_confirmed() == 0
            await reader.close()


async def test_d5b_one_bookie_without_the_ledger_does_not_make_it_empty(
    cluster: Cluster, client: LedgerClient, other: LedgerClient, network: FilteredNetwork
) -> None:
    """Rule 9.5."""
    writer = await create(client)
    await writer.add(b"0")
    await writer.add(b"1")
    lagging = cluster.bookies["b1"].port

    def deny(port: int, frame: Frame) -> Frame:
        if port == lagging and frame.op == Op.READ_LAC:
            return frame._replace(status=Status.NO_SUCH_LEDGER, body=b"")
        return frame

    network.filter = deny
    reader = await other.open(writer.ledger_id)
    for _ in range(10):
        assert await reader.read_last_add_confirmed() == 0
    await reader.close()


@pytest.mark.parametrize("away", [1, 2])
async def test_the_lac_needs_coverage(
    cluster: Cluster, client: LedgerClient, other: LedgerClient, away: int
) -> None:
    """D5a, D5c: an error is no answer; one of three may be away, two may not."""
    writer = await create(client)
    await writer.add(b"0")
    await writer.add(b"1")
    await other.open(writer.ledger_id)
    for name in ("b2", "b3")[:away]:
        await cluster.stop_bookie(name)
    reader = await other.open(writer.ledger_id)
    if away == 1:
        assert await reader.read_last_add_confirmed() == 0
    else:
        with pytest.raises(BookieUnavailableError, match="only 1 of 3 bookies told"):
            await reader.read_last_add_confirmed()
        assert await reader.try_read_last_add_confirmed() == 0
    await reader.close()


async def test_a_damaged_lac_reply_is_no_answer_and_moves_nothing(
    cluster: Cluster, client: LedgerClient, other: LedgerClient, network: FilteredNetwork
) -> None:
    writer = await create(client)
    for _ in range(3):
        await writer.add(b"entry")

    def damage(port: int, frame: Frame) -> Frame:
        if frame.op != Op.READ_LAC or len(frame.body) < 40:
            return frame
        body = bytearray(frame.body)
        body[4 + 16 + 6] = 9  # the LAC in the header of the last packet
        return frame._replace(body=bytes(body))

    network.filter = damage
    reader = await other.open(writer.ledger_id)
    with pytest.raises(BookieUnavailableError, match="only 0 of 3"):
        await reader.read_last_add_confirmed()
    with pytest.raises(BookieUnavailableError):
        await reader.wait_beyond(-1, timeout_s=0.2)
    assert reader.last_add_confirmed == -1
    await reader.close()


async def test_the_lac_in_a_read_reply_moves_nothing(
    client: LedgerClient, other: LedgerClient, network: FilteredNetwork
) -> None:
    """No digest protects it (invariant I5)."""
    writer = await create(client)
    for _ in range(4):
        await writer.add(b"entry")
    reader = await other.open(writer.ledger_id)
    assert await reader.read_last_add_confirmed() == 2

    def lie(port: int, frame: Frame) -> Frame:
        if frame.op == Op.READ and frame.status == Status.OK:
            return frame._replace(body=(1000).to_bytes(8, "big") + frame.body[8:])
        return frame

    network.filter = lie
    assert len(await reader.read(0, 2)) == 3
    assert reader.last_add_confirmed == 2
    await reader.close()


async def test_what_earlier_fragments_hold_is_readable_without_asking(tmp_path: Path) -> None:
    async with cluster_of(4, tmp_path) as cluster, cluster.client() as client:
        writer = await create(client)
        first = await writer.add(b"0")
        await cluster.stop_bookie(writer.metadata.last_fragment.bookies[0])
        while writer.metadata.last_fragment.first_entry_id == 0:
            last = await writer.add(b"more")
        reader = await client.open(writer.ledger_id)
        begin = writer.metadata.last_fragment.first_entry_id
        assert first < begin <= last
        assert reader.last_add_confirmed >= begin - 1


# Waiting


async def test_a_waiting_reader_hears_of_the_next_entry(
    cluster: Cluster, client: LedgerClient, other: LedgerClient
) -> None:
    writer = await create(client)
    await writer.add(b"0")
    reader = await other.open(writer.ledger_id)
    waiting = asyncio.ensure_future(reader.wait_beyond(-1, timeout_s=10))
    await wait_until(lambda: cluster.long_polls == 2)
    assert not waiting.done()
    await writer.add(b"1")
    assert await waiting == 0
    assert await reader.read(0, 0) == [b"0"]
    await reader.close()


async def test_the_end_of_a_wait_needs_enough_members_that_know_of_nothing(
    cluster: Cluster, client: LedgerClient, other: LedgerClient
) -> None:
    """E - Qa + 1 of them: two of three."""
    writer = await create(client)
    await writer.add(b"0")
    reader = await other.open(writer.ledger_id)
    assert await reader.wait_beyond(-1, timeout_s=0.1) == -1
    await cluster.stop_bookie("b1")
    assert await reader.wait_beyond(-1, timeout_s=0.1) == -1
    await cluster.stop_bookie("b2")
    with pytest.raises(BookieUnavailableError, match="only 1 of 3 bookies told, 2 are needed"):
        await reader.wait_beyond(-1, timeout_s=0.1)
    await reader.close()


async def test_polls_last_longer_each_time_and_are_few(
    client: LedgerClient, cluster: Cluster, network: FilteredNetwork
) -> None:
    settings = CLIENT_SETTINGS.model_copy(
        update={"long_poll_first_ms": 50, "long_poll_ms_max": 200}
    )
    polls: list[int] = []

    def count(port: int, frame: Frame) -> Frame:
        if frame.op == Op.READ_LAC:
            polls.append(port)
        return frame

    network.filter = count
    async with cluster.client(network, settings) as other:
        writer = await create(client)
        await writer.add(b"0")
        reader = await other.open(writer.ledger_id)
        assert await reader.wait_beyond(-1, timeout_s=0.8) == -1
        await reader.close()
    # Two members, each after 50, 150, 350, 550 and 750 ms at the earliest.
    assert len(polls) <= 12


async def test_a_dead_member_makes_way_for_another(
    cluster: Cluster, client: LedgerClient, other: LedgerClient
) -> None:
    writer = await create(client)
    await writer.add(b"0")
    reader = await other.open(writer.ledger_id)
    waiting = asyncio.ensure_future(reader.wait_beyond(-1, timeout_s=60))
    await wait_until(lambda: cluster.long_polls == 2)
    await cluster.stop_bookie("b1")
    await writer.add(b"1")
    assert await asyncio.wait_for(waiting, 30) == 0
    await reader.close()


async def test_a_reader_may_wait_before_the_first_entry(
    cluster: Cluster, client: LedgerClient, other: LedgerClient
) -> None:
    """No bookie knows the ledger yet."""
    writer = await create(client)
    reader = await other.open(writer.ledger_id)
    waiting = asyncio.ensure_future(reader.wait_beyond(-1, timeout_s=10))
    await wait_until(lambda: cluster.long_polls == 2)
    await writer.add(b"0")
    await writer.add(b"1")
    assert await waiting >= 0
    await reader.close()


async def test_who_waits_hears_of_the_close(
    cluster: Cluster, client: LedgerClient, other: LedgerClient
) -> None:
    writer = await create(client)
    await writer.add(b"0")
    reader = await other.open(writer.ledger_id)
    waiting = asyncio.ensure_future(reader.wait_beyond(0, timeout_s=60))
    await wait_until(lambda: cluster.long_polls == 2)
    await writer.close()
    assert await asyncio.wait_for(waiting, 30) == 0
    assert reader.is_ledger_closed
    assert await reader.wait_beyond(0, timeout_s=10) == 0
    await reader.close()


async def test_who_waits_hears_of_the_deletion(
    cluster: Cluster, client: LedgerClient, other: LedgerClient
) -> None:
    writer = await create(client)
    await writer.add(b"0")
    reader = await other.open(writer.ledger_id)
    waiting = asyncio.ensure_future(reader.wait_beyond(0, timeout_s=60))
    await wait_until(lambda: cluster.long_polls == 2)
    await client.delete(writer.ledger_id)
    with pytest.raises(NoSuchLedgerError):
        await asyncio.wait_for(waiting, 30)
    await reader.close()


async def test_a_closed_handle_lets_nobody_wait(
    cluster: Cluster, client: LedgerClient, other: LedgerClient
) -> None:
    writer = await create(client)
    reader = await other.open(writer.ledger_id)
    waiting = asyncio.ensure_future(reader.wait_beyond(-1, timeout_s=10))
    await wait_until(lambda: cluster.long_polls == 2)
    await reader.close()
    with pytest.raises(LedgerClosedError):
        await waiting
    with pytest.raises(LedgerClosedError):
        await reader.read_last_add_confirmed()
    await reader.close()


async def test_a_client_that_closes_ends_the_waits_of_its_readers(
    cluster: Cluster, client: LedgerClient
) -> None:
    writer = await create(client)
    await writer.add(b"0")
    async with cluster.client() as later:
        reader = await later.open(writer.ledger_id)
        waiting = asyncio.ensure_future(reader.wait_beyond(5, timeout_s=60))
        await wait_until(lambda: cluster.long_polls == 2)
    with pytest.raises(LedgerClosedError):
        await waiting


# Following


async def test_a_tailing_reader_gets_every_entry_and_the_end(
    client: LedgerClient, other: LedgerClient
) -> None:
    writer = await create(client)
    payloads = [b"entry-%d" % number for number in range(200)]
    reader = await other.open(writer.ledger_id)

    async def write() -> None:
        for payload in payloads:
            await writer.add(payload)
        await writer.close()

    writing = asyncio.ensure_future(write())
    seen: list[bytes] = []
    async for batch in reader.follow():
        seen += batch
        assert len(seen) <= reader.last_add_confirmed + 1
    assert seen == payloads
    await writing
    await reader.close()


@pytest.mark.parametrize("quorums", [(3, 2, 2), (2, 2, 2), (3, 3, 3), (1, 1, 1)])
async def test_a_striped_ledger_is_followed_too(
    cluster: Cluster, other: LedgerClient, quorums: tuple[int, int, int]
) -> None:
    async with cluster.client(settings=EXPLICIT) as client:
        writer = await create(client, quorums)
        reader = await other.open(writer.ledger_id)
        batches = reader.follow()
        for number in range(20):
            await writer.add(b"%d" % number)
            assert await asyncio.wait_for(anext(batches), 30) == [b"%d" % number]
        await writer.close()
        with pytest.raises(StopAsyncIteration):
            await anext(batches)
        await reader.close()


async def test_an_explicit_bound_shows_an_entry_that_none_follows(
    cluster: Cluster, other: LedgerClient
) -> None:
    """With an explicit LAC every millisecond; without one, this would take for ever. How long it
    takes is measured by the benchmark (tailing reader)."""
    async with cluster.client(settings=EXPLICIT) as client:
        writer = await create(client)
        reader = await other.open(writer.ledger_id)
        batches = reader.follow()
        for _ in range(100):
            seeing = asyncio.ensure_future(anext(batches))
            await writer.add(b"x" * 100)
            assert await seeing == [b"x" * 100]
        await reader.close()


async def test_a_bound_never_goes_back_through_recovery(
    cluster: Cluster, client: LedgerClient, other: LedgerClient
) -> None:
    """Rule 9.4."""
    writer = await create(client)
    for number in range(5):
        await writer.add(b"%d" % number)
    reader = await other.open(writer.ledger_id)
    bounds = [await reader.read_last_add_confirmed()]
    recovered = await client.open_and_recover(writer.ledger_id)
    while not reader.is_ledger_closed:
        bounds.append(await reader.wait_beyond(bounds[-1], timeout_s=5))
    assert bounds == sorted(bounds)
    assert bounds[-1] == recovered.last_add_confirmed == 4
    await reader.close()


async def test_a_lac_beyond_the_end_of_a_closed_ledger_moves_nothing(
    cluster: Cluster, client: LedgerClient, other: LedgerClient
) -> None:
    writer = await create(client)
    await writer.add(b"0")
    await writer.close()
    await write_lac(cluster, client, writer.ledger_id, 7)
    reader = await other.open(writer.ledger_id)
    assert await reader.read_last_add_confirmed() == 0
    assert await reader.wait_beyond(0, timeout_s=10) == 0
    await reader.close()


async def test_a_fenced_ledger_takes_no_explicit_lac(
    cluster: Cluster, client: LedgerClient
) -> None:
    writer = await create(client)
    await writer.add(b"0")
    await client.open_and_recover(writer.ledger_id)
    (reply,) = await write_lac(cluster, client, writer.ledger_id, 5, "b1")
    assert reply.status == Status.FENCED


async def test_a_new_fragment_is_noticed_by_who_follows(tmp_path: Path) -> None:
    async with (
        cluster_of(4, tmp_path) as cluster,
        cluster.client(settings=EXPLICIT) as client,
        cluster.client() as other,
    ):
        writer = await create(client)
        reader = await other.open(writer.ledger_id)
        batches = reader.follow()
        for number in range(10):
            if number == 5:
                await cluster.stop_bookie(writer.metadata.last_fragment.bookies[1])
            await writer.add(b"%d" % number)
            assert await asyncio.wait_for(anext(batches), 30) == [b"%d" % number]
        assert reader.metadata.state is LedgerState.OPEN
        await reader.close()


# Watches


async def test_readers_that_never_close_leave_no_watch_behind(
    cluster: Cluster, client: LedgerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await create(client)
    await writer.add(b"0")
    await writer.close()
    watched: list[str] = []
    watch = cluster.store.watch

    def note(path: str, callback: WatchCallback) -> Watch:
        watched.append(path)
        return watch(path, callback)

    monkeypatch.setattr(cluster.store, "watch", note)
    reader = await client.open(writer.ledger_id)
    assert await reader.read(0, 0) == [b"0"]
    assert watched == []
    reader.watch()
    reader.watch()
    assert len(watched) == 1
    await reader.close()
