"""Metadata of a closed ledger whose end is not where it was written: noticed at that end."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from magnetar.ledger.errors import InvalidLedgerMetadataError, NoSuchEntryError
from magnetar.ledger.reader import LedgerReader
from magnetar.ledger.system import SystemNetwork
from tests.integration.ledger.cluster import CLIENT_SETTINGS, Cluster, cluster_of

PAYLOADS = [b"%03d" % number * 20 for number in range(30)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(3, tmp_path) as cluster:
        yield cluster


@asynccontextmanager
async def reader_of(cluster: Cluster, **changed: int) -> AsyncIterator[LedgerReader]:
    """A handle on a closed ledger with `PAYLOADS`, whose metadata was changed by hand."""
    async with cluster.client(SystemNetwork(), CLIENT_SETTINGS) as client:
        writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        for payload in PAYLOADS:
            await writer.add(payload)
        ledger_id = (await writer.close()).ledger_id
        path = f"/ledgers/00/0000/L{ledger_id:04d}"
        node = await cluster.store.get(path)
        value = {**json.loads(node.value), **changed}
        await cluster.store.set(path, json.dumps(value).encode(), version=node.version)
        yield await client.open(ledger_id)


async def read_all(reader: LedgerReader) -> list[bytes]:
    found: list[bytes] = []
    while len(found) <= reader.last_add_confirmed:
        found += await reader.read(len(found), reader.last_add_confirmed, bytes_max=500)
    return found


@pytest.mark.parametrize("last_entry_id", [28, 19, 0])
async def test_a_closed_ledger_is_not_read_to_an_end_that_came_too_early(
    cluster: Cluster, last_entry_id: int
) -> None:
    async with reader_of(cluster, last_entry_id=last_entry_id) as reader:
        with pytest.raises(InvalidLedgerMetadataError, match=f"closed at entry {last_entry_id}"):
            await read_all(reader)


async def test_a_length_that_is_not_the_last_entrys_is_refused(cluster: Cluster) -> None:
    async with reader_of(cluster, length=1799) as reader:
        with pytest.raises(InvalidLedgerMetadataError, match="1799 bytes"):
            await read_all(reader)


async def test_an_end_that_comes_too_late_is_an_entry_that_is_missing(cluster: Cluster) -> None:
    async with reader_of(cluster, last_entry_id=30) as reader:
        with pytest.raises(NoSuchEntryError):
            await read_all(reader)


async def test_a_ledger_that_fits_is_read(cluster: Cluster) -> None:
    async with reader_of(cluster) as reader:
        assert await read_all(reader) == PAYLOADS
