"""What a topic costs in writes of metadata, by operation: the figures of docs/scaling.md.

Writes are what a metadata store can do least of, and reads scale with its servers. Counted are the
calls that reach the store, also those that find nothing to do.
"""

import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.cursors import Cursor, CursorSettings
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.position import EARLIEST, Position
from magnetar.ledger.settings import LogConfig
from magnetar.ledger.system import SystemClock
from tests.integration.ledger.cluster import Cluster, cluster_of
from tests.integration.ledger.log_parts import PATH, append

CONFIG = LogConfig(ensemble_size=3, write_quorum=3, ack_quorum=2, opens_without_ledger=True)
CURSORS = CursorSettings(
    ensemble_size=3, write_quorum=3, ack_quorum=2, ack_persist_interval_ms=60_000
)


class Counting:
    """Counts the writes that reach a store."""

    def __init__(self, inner: MetadataStore) -> None:
        self._inner = inner
        self._writes: Counter[str] = Counter()

    def __getattr__(self, name: str) -> object:
        if name in ("create", "create_child", "set", "delete"):
            self._writes[name.removesuffix("_child")] += 1
        return getattr(self._inner, name)

    def taken(self) -> dict[str, int]:
        """Since the last call."""
        taken, self._writes = dict(self._writes), Counter()
        return taken


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(3, tmp_path, Counting) as cluster:  # type: ignore[arg-type]
        async with cluster.client() as client:
            # The first ledger of a cluster makes the nodes that all share.
            for _ in range(2):
                await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        yield cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[LedgerClient]:
    async with cluster.client() as client:
        yield client


async def open_log(cluster: Cluster, client: LedgerClient, seed: int) -> ManagedLog:
    return await ManagedLog.open(
        client, cluster.store, PATH, CONFIG, clock=SystemClock(), random=random.Random(seed)
    )


async def open_cursor(cluster: Cluster, client: LedgerClient, log: ManagedLog) -> Cursor:
    return await Cursor.open(
        log,
        client,
        cluster.store,
        "subscription",
        initial=EARLIEST,
        settings=CURSORS,
        clock=SystemClock(),
    )


async def test_the_writes_of_a_topics_life(cluster: Cluster, client: LedgerClient) -> None:
    store = cluster.store
    assert isinstance(store, Counting)
    store.taken()

    log = await open_log(cluster, client, 1)
    assert store.taken() == {"create": 1, "set": 1}, "a new topic"
    first = await append(log, [b"one"]).outcome
    assert store.taken() == {"create": 2, "delete": 1, "set": 1}, "its first publish"
    for _ in range(100):
        await append(log, [b"more"]).outcome
    assert store.taken() == {}, "further publishes"

    cursor = await open_cursor(cluster, client, log)
    assert store.taken() == {"create": 1}, "a new subscription"
    cursor.ack(first)
    await cursor.persist()
    assert store.taken() == {"create": 2, "delete": 1, "set": 1}, "the first saved acknowledgement"
    for entry_id in range(1, 50):
        cursor.ack(Position(first.ledger_id, entry_id))
        await cursor.persist()
    assert store.taken() == {}, "further ones"

    await log.rotate()
    await append(log, [b"in the next ledger"]).outcome
    while not log.ledgers[0].is_closed:
        await append(log, [b"more"]).outcome
    assert store.taken() == {"create": 2, "delete": 1, "set": 3}, "a change of ledgers"

    await cursor.close()
    assert store.taken() == {"set": 1, "delete": 2}, "an orderly end: cursor"
    await log.close()
    assert store.taken() == {"set": 2}, "an orderly end: log"

    log = await open_log(cluster, client, 2)
    assert store.taken() == {"set": 1}, "the topic is loaded again"
    cursor = await open_cursor(cluster, client, log)
    assert store.taken() == {"set": 1}, "and its subscription"
    await cursor.close()
    await log.close()
    assert store.taken() == {}, "an orderly end of an idle topic"

    log = await open_log(cluster, client, 3)
    store.taken()
    await append(log, [b"before the crash"]).outcome
    store.taken()
    async with cluster.client() as other:
        await open_log(cluster, other, 4)
        assert store.taken() == {"set": 3}, "a takeover after a crash: fence, close, list"
