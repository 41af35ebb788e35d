"""Metadata values that are corrupt or of a newer release: refused with advice, never repaired."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import (
    InvalidLedgerMetadataError,
    LedgerLayoutError,
)
from magnetar.ledger.layouts.ledger_layout_hierarchical import ledger_path
from magnetar.ledger.metadata import MetadataStore
from magnetar.ledger.registration import BookieRegistry
from tests.integration.ledger.cluster import Cluster, cluster_of


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(3, tmp_path) as made:
        yield made


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[LedgerClient]:
    async with cluster.client() as made:
        yield made


CORRUPT = b'{"ledger_id":0}'


async def overwrite(store: MetadataStore, ledger_id: int, value: bytes | None) -> bytes:
    """Store the value, or the ledger's own as a newer release would write it."""
    path = ledger_path("/ledgers", ledger_id)
    node = await store.get(path)
    value = value or node.value.replace(b'"format_version":1', b'"format_version":2,"new":1')
    await store.set(path, value, version=node.version)
    return value


@pytest.mark.parametrize("value", [CORRUPT, None], ids=["corrupt", "of a newer release"])
async def test_a_writer_whose_metadata_turns_bad_does_not_close_over_it(
    cluster: Cluster, client: LedgerClient, value: bytes | None
) -> None:
    writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await writer.add(b"one")
    stored = await overwrite(cluster.store, writer.ledger_id, value)
    with pytest.raises(InvalidLedgerMetadataError):
        await writer.close()
    node = await cluster.store.get(ledger_path("/ledgers", writer.ledger_id))
    assert node.value == stored


async def test_a_root_of_a_newer_release_is_not_written_to(cluster: Cluster) -> None:
    await cluster.store.create(
        "/ledgers/LAYOUT", b'{"manager":"hierarchical","manager_version":2,"format_version":1}'
    )
    async with cluster.client() as client:
        with pytest.raises(LedgerLayoutError, match="version 2; this client"):
            await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    assert "00" not in await cluster.store.children("/ledgers")


@pytest.mark.parametrize("value", [b"", b"\xff" * 32, b"A" * 32, b"0" * 31])
async def test_a_corrupt_cluster_id_is_refused(cluster: Cluster, value: bytes) -> None:
    node = await cluster.store.get("/ledgers/INSTANCEID")
    await cluster.store.set("/ledgers/INSTANCEID", value, version=node.version)
    with pytest.raises(InvalidLedgerMetadataError, match="or from the cookie of any bookie"):
        await BookieRegistry(cluster.store).instance_id()
