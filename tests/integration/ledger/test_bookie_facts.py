"""A client asks a bookie how it is."""

import asyncio
from pathlib import Path

import pytest

from magnetar.ledger.bookie_facts import ask_facts
from magnetar.ledger.errors import BookieUnavailableError
from tests.integration.ledger.cluster import cluster_of


async def test_a_bookie_tells_its_directories_and_one_that_is_gone_tells_nothing(
    tmp_path: Path,
) -> None:
    async with cluster_of(1, tmp_path) as cluster, cluster.client() as client:
        (name,) = client.registry.registered()
        channel = client.channels.get(name)
        facts = await ask_facts(channel)
        assert facts.writable
        assert [each.use for each in facts.directories] == ["bookie", "journal", "ledgers"]
        assert all(each.path.startswith(str(tmp_path)) for each in facts.directories)
        assert all(0 < each.free_bytes <= each.total_bytes for each in facts.directories)
        # A caller that gives up leaves nothing behind that the answer could meet.
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await ask_facts(channel)
        assert (await ask_facts(channel)).writable
        await cluster.stop_bookie(name)
        with pytest.raises(BookieUnavailableError):
            await ask_facts(channel)
