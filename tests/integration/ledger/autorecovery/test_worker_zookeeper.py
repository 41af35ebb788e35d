"""The worker on a real ZooKeeper: sessions that end under it, and a server that dies."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from magnetar.ledger.autorecovery.worker import Worker
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.metadata.zookeeper import ZooKeeperStore
from magnetar.ledger.ports import Listener
from magnetar.ledger.system import SystemNetwork
from magnetar.ledger.wire import FrameDecoder, Op
from tests.integration.ledger.autorecovery.healing import CLIENT, WORKER, Healing
from tests.integration.ledger.cluster import Cluster
from tests.integration.ledger.metadata_stores import LONG_SESSION
from tests.zookeeper_fixture import ZooKeeper

PAYLOADS = [b"entry %d" % number for number in range(10)]


class HoldingNetwork(SystemNetwork):
    """Keeps bookies' answers to adds, and what comes behind them, while it is told to."""

    def __init__(self) -> None:
        self.is_holding = False
        self.held: list[Callable[[], None]] = []

    def release(self) -> None:
        """Deliver what was held, in order, and hold no more."""
        self.is_holding = False
        held, self.held = self.held, []
        for deliver in held:
            deliver()

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol], *, timeout_s: float
    ) -> asyncio.Transport:
        return await super().connect(
            host, port, lambda: _Held(self, factory()), timeout_s=timeout_s
        )

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> Listener:
        raise AssertionError("a client does not listen")


class _Held(asyncio.Protocol):
    def __init__(self, network: HoldingNetwork, inner: asyncio.Protocol) -> None:
        self._network = network
        self._inner = inner
        self._decoder = FrameDecoder()
        self._holds = False
        self.connection_made = inner.connection_made  # type: ignore[method-assign]
        self.connection_lost = inner.connection_lost  # type: ignore[method-assign]

    def data_received(self, data: bytes) -> None:
        is_add = any(frame.op in (Op.ADD, Op.ADDS) for frame in self._decoder.feed(data))
        self._holds = self._network.is_holding and (self._holds or is_add)
        if self._holds:
            self._network.held.append(partial(self._inner.data_received, data))
        else:
            self._inner.data_received(data)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ZooKeeper]:
    directory = tmp_path / "zookeeper"
    directory.mkdir()
    made = ZooKeeper(directory)
    made.start()
    yield made
    made.stop()


@asynccontextmanager
async def healing_on(
    server: ZooKeeper, directory: Path, network: HoldingNetwork | None = None
) -> AsyncIterator[Healing]:
    store = await open_store(server.url, settings=LONG_SESSION)
    cluster = Cluster(store, directory)
    try:
        for number in range(1, 5):
            await cluster.start_bookie(f"b{number}")
        async with cluster.client(network, CLIENT) as client:
            yield Healing(cluster, client, store)
    finally:
        for name in list(cluster.bookies):
            await cluster.stop_bookie(name)
        await store.close()


def expire(server: ZooKeeper, store: ZooKeeperStore) -> None:
    """End the session for good: whoever knows its id and password may close it."""
    session = store._client.client_id
    thief = KazooClient(hosts=server.url.removeprefix("zk://"), client_id=session)
    thief.start()
    thief.stop()
    thief.close()


async def test_a_session_that_ends_ends_the_attempt_and_the_next_one_succeeds(
    server: ZooKeeper, tmp_path: Path
) -> None:
    """Rule 5.4, with a real session: the copies are under way when it expires."""
    network = HoldingNetwork()
    async with healing_on(server, tmp_path, network) as healing:
        metadata = await healing.write(PAYLOADS)
        lost = metadata.ensembles[0].bookies[0]
        await healing.lose(lost)
        await healing.report_lost(lost, metadata.ledger_id)
        network.is_holding = True
        own_store = await open_store(server.url, settings=LONG_SESSION)
        assert isinstance(own_store, ZooKeeperStore)
        worker = Worker(
            healing.client,
            own_store,
            clock=healing.clock,
            random=random.Random(13),
            holder="worker",
            settings=WORKER,
        )
        await worker.start()
        try:
            await healing.until(lambda: bool(network.held))
            assert await healing.items.locked_ids() == {metadata.ledger_id}
            expire(server, own_store)
            await healing.until(lambda: worker.metrics.items_aborted == 1)
            assert await healing.metadata(metadata.ledger_id) == metadata
            network.release()
            await healing.until_no_items(worker)
        finally:
            await worker.stop()
            await own_store.close()
        assert lost not in (await healing.metadata(metadata.ledger_id)).ensembles[0].bookies
        await healing.check_whole(metadata.ledger_id, PAYLOADS)


async def test_a_metadata_server_that_dies_and_comes_back_stops_nothing_for_good(
    server: ZooKeeper, tmp_path: Path
) -> None:
    async with healing_on(server, tmp_path) as healing:
        ledgers = [(await healing.write(PAYLOADS)).ledger_id for _ in range(30)]
        await healing.lose("b1")
        await healing.report_lost("b1", *ledgers)
        async with healing.worker() as worker:
            await healing.until(lambda: worker.metrics.items_finished >= 3)
            server.kill()
            server.start()
            await healing.until_no_items(worker)
        for ledger_id in ledgers:
            metadata = await healing.check_whole(ledger_id, PAYLOADS)
            assert all("b1" not in fragment.bookies for fragment in metadata.ensembles)
