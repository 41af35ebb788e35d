"""What clients make of bookies that are read-only: no new places; reads and recovery as ever."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError, NotEnoughBookiesError
from magnetar.ledger.ledger_metadata import LedgerState
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.writer import LedgerWriter
from tests.integration.ledger.cluster import CLIENT_SETTINGS, Cluster, cluster_of

DELAYED = CLIENT_SETTINGS.model_copy(update={"ensemble_change_mode": "delayed"})


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(4, tmp_path) as cluster:
        yield cluster


async def append(writer: LedgerWriter, payload: bytes) -> None:
    outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_done(error: LedgerError | None) -> None:
        if error is None:
            outcome.set_result(None)
        else:
            outcome.set_exception(error)

    writer.append([payload], on_done)
    await outcome


async def until(client: LedgerClient, is_so: Callable[[], bool]) -> None:
    """Wait for a change of the registrations that the client sees."""
    changed = asyncio.Event()
    client.registry.on_change(changed.set)
    async with asyncio.timeout(30):
        while not is_so():
            changed.clear()
            await changed.wait()


async def create(client: LedgerClient) -> LedgerWriter:
    return await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)


def is_readonly(client: LedgerClient, name: str) -> bool:
    info = client.registry.resolve(name)
    return info is not None and info.readonly


@pytest.mark.parametrize("settings", [CLIENT_SETTINGS, DELAYED], ids=["at once", "delayed"])
async def test_a_writer_leaves_a_bookie_that_turns_read_only_at_once(
    cluster: Cluster, settings: LedgerSettings
) -> None:
    """The delayed mode waits with a bookie that fails, but not with one that says it takes
    nothing."""
    async with cluster.client(settings=settings) as client:
        writer = await create(client)
        await append(writer, b"one")
        member = writer.metadata.last_fragment.bookies[1]
        cluster.bookies[member].set_read_only(True)
        await append(writer, b"two")
        await append(writer, b"three")
        metadata = await writer.close()
        assert len(metadata.ensembles) == 2
        assert member not in metadata.last_fragment.bookies
        # What it has is read from it as ever.
        assert [(await writer.read(i, i))[0] for i in range(3)] == [b"one", b"two", b"three"]


async def test_a_new_ledger_keeps_clear_of_read_only_bookies(cluster: Cluster) -> None:
    async with cluster.client() as client:
        cluster.bookies["b2"].set_read_only(True)
        await until(client, lambda: is_readonly(client, "b2"))
        for _ in range(5):
            writer = await create(client)
            assert "b2" not in writer.metadata.last_fragment.bookies
            await writer.close()
        cluster.bookies["b3"].set_read_only(True)
        await until(client, lambda: is_readonly(client, "b3"))
        with pytest.raises(NotEnoughBookiesError):
            await create(client)
        cluster.bookies["b2"].set_read_only(False)
        await until(client, lambda: not is_readonly(client, "b2"))
        assert set((await create(client)).metadata.last_fragment.bookies) == {"b1", "b2", "b4"}


async def test_without_a_replacement_adds_go_on_until_the_bookie_is_back(cluster: Cluster) -> None:
    await cluster.stop_bookie("b4")
    async with cluster.client() as client:
        await until(client, lambda: client.registry.resolve("b4") is None)
        writer = await create(client)
        await append(writer, b"one")
        cluster.bookies["b2"].set_read_only(True)
        await append(writer, b"two")
        cluster.bookies["b2"].set_read_only(False)
        await append(writer, b"three")
        metadata = await writer.close()
        assert len(metadata.ensembles) == 1
        assert cluster.bookies["b2"].metrics.disks.refused_adds > 0


async def test_a_ledger_is_recovered_on_bookies_that_are_all_read_only(cluster: Cluster) -> None:
    async with cluster.client() as client, cluster.client() as other:
        writer = await create(client)
        await append(writer, b"one")
        for bookie in cluster.bookies.values():
            bookie.set_read_only(True)
        for name in cluster.bookies:
            await until(other, lambda: is_readonly(other, name))  # noqa: B023
        reader = await other.open_and_recover(writer.ledger_id)
        assert reader.metadata.state is LedgerState.CLOSED
        assert await reader.read(0, 0) == [b"one"]
