"""`magnetar ledger passwords`, which turns them on where an older release began the cluster."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from magnetar.ledger.hello import READS_TAKE_KEYS
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.registration import BookieInfo, BookieRegistry
from magnetar.ledger.wire import RESPONSE, FrameDecoder, encode_frame
from tests.integration.deploy.commands import Ended, magnetar
from tests.standalone import Standalone

OF_OLDER_RELEASES = b'{"manager":"hierarchical","manager_version":1,"format_version":1}'


async def make_older(metadata_url: str) -> None:
    """As a release left it that knows no passwords, before its first ledger."""
    store = await open_store(metadata_url)
    await store.create("/ledgers/LAYOUT", OF_OLDER_RELEASES)
    await store.close()


def passwords(metadata_url: str, *options: str) -> Ended:
    return magnetar("ledger", "passwords", "--metadata", metadata_url, *options)


def ledgers_with_password(metadata_url: str) -> list[bool]:
    listed = magnetar("ledger", "list", "--json", "--metadata", metadata_url)
    assert listed.status == 0, listed.stderr
    return [json.loads(line)["has_password"] for line in listed.stdout.splitlines()]


def test_a_new_cluster_has_them(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data") as server:
        assert magnetar("produce", "t", "-m", "one", "--url", server.url).status == 0
        assert passwords(server.metadata_url).stdout.startswith("on:")
        assert passwords(server.metadata_url, "--turn-on").stdout == "already on\n"
        found = ledgers_with_password(server.metadata_url)
        assert found
        assert all(found)


async def test_an_older_one_gets_them_when_it_is_told_to(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    await make_older(f"embedded:{data / 'metadata.db'}")
    with Standalone(data) as server:
        url = server.metadata_url
        assert magnetar("produce", "t", "-m", "one", "--url", server.url).status == 0
        assert passwords(url).stdout.startswith("off:")
        assert not any(ledgers_with_password(url))
        done = passwords(url, "--turn-on")
        assert (done.status, done.stdout) == (0, "turned on\n"), done.stderr
        assert passwords(url).stdout.startswith("on:")
        # What is there stays readable, and the next ledger has one.
        assert server.terminate() == 0
        server.start()
        assert magnetar("produce", "t", "-m", "two", "--url", server.url).status == 0
        read = magnetar("read", "t", "--start", "earliest", "--count", "2", "--url", server.url)
        assert read.stdout.split() == ["one", "two"], read.stderr
        found = ledgers_with_password(url)
        assert any(found)
        assert not all(found)


class _OldBookie(asyncio.Protocol):
    """A bookie that answers INFO as a release before keys of reads did."""

    def __init__(self, **facts: object) -> None:
        self._facts = {"bookie_id": "old", "instance_id": "", **facts}
        self._decoder = FrameDecoder()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            self._transport.write(
                encode_frame(
                    frame.op | RESPONSE,
                    request_id=frame.request_id,
                    ledger_id=frame.ledger_id,
                    entry_id=frame.entry_id,
                    body=json.dumps(self._facts).encode(),
                )
            )


@asynccontextmanager
async def cluster_with_a_bookie_that_says(directory: Path, **facts: object) -> AsyncIterator[str]:
    url = f"embedded:{directory / 'metadata.db'}"
    await make_older(url)
    store = await open_store(url)
    registry = BookieRegistry(store)
    await registry.start()
    await registry.instance_id()
    server = await asyncio.get_running_loop().create_server(
        lambda: _OldBookie(**facts), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    await registry.register(BookieInfo("old", "127.0.0.1", port, readonly=False))
    try:
        yield url
    finally:
        server.close()
        await registry.close()
        await store.close()


async def test_it_waits_for_the_last_bookie_that_is_of_an_older_release(tmp_path: Path) -> None:
    async with cluster_with_a_bookie_that_says(tmp_path) as url:
        refused = await asyncio.to_thread(passwords, url, "--turn-on")
        assert refused.status == 1, refused.stdout
        assert "bookie old runs a release that does not know ledger passwords" in refused.stderr
        assert (await asyncio.to_thread(passwords, url)).stdout.startswith("off:")


async def test_it_is_content_with_one_that_is_not(tmp_path: Path) -> None:
    async with cluster_with_a_bookie_that_says(tmp_path, **{READS_TAKE_KEYS: True}) as url:
        done = await asyncio.to_thread(passwords, url, "--turn-on")
        assert (done.status, done.stdout) == (0, "turned on\n"), done.stderr


async def test_it_waits_for_a_bookie_that_is_away(tmp_path: Path) -> None:
    async with cluster_with_a_bookie_that_says(tmp_path, **{READS_TAKE_KEYS: True}) as url:
        store = await open_store(url)
        await store.create("/ledgers/cookies/away", b"{}")
        await store.close()
        refused = await asyncio.to_thread(passwords, url, "--turn-on")
        assert refused.status == 1, refused.stdout
        assert "bookie away is lost" in refused.stderr
