"""Passwords of ledgers, and ledgers of every digest type, on real bookies."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.ledger_metadata import DigestType
from tests.integration.ledger.cluster import Cluster, cluster_of


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(3, tmp_path) as made:
        yield made


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[LedgerClient]:
    async with cluster.client() as made:
        yield made


every_type = pytest.mark.parametrize("digest_type", list(DigestType))


@every_type
async def test_a_ledger_of_each_digest_type_is_written_closed_and_read(
    client: LedgerClient, digest_type: DigestType
) -> None:
    writer = await client.create(
        ensemble_size=3, write_quorum=2, ack_quorum=2, digest_type=digest_type, password=b"secret"
    )
    for payload in (b"one", b"", b"three"):
        await writer.add(payload)
    assert (await writer.close()).length == 8
    reader = await client.open(writer.ledger_id, password=b"secret")
    assert reader.metadata.digest_type is digest_type
    assert [(await reader.read(e, e))[0] for e in range(3)] == [b"one", b"", b"three"]


@every_type
async def test_a_ledger_of_each_digest_type_is_recovered(
    cluster: Cluster, client: LedgerClient, digest_type: DigestType
) -> None:
    writer = await client.create(
        ensemble_size=3, write_quorum=3, ack_quorum=2, digest_type=digest_type, password=b"secret"
    )
    for number in range(10):
        await writer.add(b"%d" % number)
    async with cluster.client() as other:
        reader = await other.open_and_recover(writer.ledger_id)
        assert reader.last_add_confirmed == 9
        assert reader.metadata.length == 10
        assert await reader.read(0, 9) == [b"%d" % number for number in range(10)]


async def test_the_password_and_the_administrative_way_open_and_recover(
    cluster: Cluster, client: LedgerClient
) -> None:
    for password in (b"secret", None):
        writer = await client.create(
            ensemble_size=3, write_quorum=3, ack_quorum=2, password=b"secret"
        )
        await writer.add(b"one")
        async with cluster.client() as other:
            reader = await other.open_and_recover(writer.ledger_id, password=password)
            assert await reader.read(0, 0) == [b"one"]
            again = await other.open(writer.ledger_id, password=password)
            assert await again.read(0, 0) == [b"one"]
