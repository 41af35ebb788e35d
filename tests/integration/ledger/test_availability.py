"""The availability table of the log, row by row: E=3, Qw=3, Qa=2 on four bookies.

One bookie is down, or one client is: the owner of the log. Source: managed ledger, section 9.

| operation | with one of them down |
|---|---|
| create | yes: three bookies remain, and creating is a matter of the metadata |
| open | a new log yes; an existing one too, unless two members of an ensemble are unknown |
| append | yes: the fourth bookie takes the place, or another client goes on |
| read | yes: one replica of an entry is enough |
| shrink | yes: a matter of the metadata |
| rotate | yes: there are bookies for a new ledger |
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import RecoveryUndecidedError
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.log_reader import LogReader
from magnetar.ledger.position import LATEST
from magnetar.ledger.system import SystemClock
from tests.integration.ledger.cluster import Cluster, cluster_of
from tests.integration.ledger.log_parts import (
    CONFIG,
    PATH,
    Batch,
    append,
    open_log,
    open_reader,
    read_all,
    read_on,
)

DOWN = ["first", "second", "third", "spare", "client"]
"""The process that fails: a bookie by its place in the ensemble of the log's ledger, or the
owner."""


class Scene:
    """A log with some entries, its owner, another client, and whoever is going to fail."""

    def __init__(self, cluster: Cluster, down: str) -> None:
        self.cluster = cluster
        self.down = down
        self._opened = AsyncExitStack()
        self._owner = AsyncExitStack()
        self.log: ManagedLog
        self.other: LedgerClient
        self.written: list[bytes] = []

    async def start(self) -> None:
        client = await self._owner.enter_async_context(self.cluster.client())
        self.other = await self._opened.enter_async_context(self.cluster.client())
        self.log = await open_log(self.cluster, client)
        await self.append(3)

    async def end(self) -> None:
        await self._owner.aclose()
        await self._opened.aclose()

    async def append(self, count: int) -> None:
        batches: list[Batch] = []
        for _ in range(count):
            self.written.append(b"%d" % len(self.written))
            batches.append(append(self.log, self.written[-1:]))
        async with asyncio.timeout(30):
            await asyncio.gather(*(batch.outcome for batch in batches))

    @property
    def ensemble(self) -> tuple[str, ...]:
        writer = self.log._appender.writer
        assert writer is not None
        return writer.metadata.last_fragment.bookies

    async def fail(self) -> None:
        """One of them goes down, and nothing is told to anybody."""
        if self.down == "client":
            await self._owner.aclose()
            return
        places = dict(zip(DOWN, self.ensemble, strict=False))
        spare = next(name for name in self.cluster.bookies if name not in self.ensemble)
        await self.cluster.stop_bookie(places.get(self.down, spare))

    async def log_after(self) -> ManagedLog:
        """The log as its owner goes on with it, or the next owner if that one is down."""
        if self.down == "client":
            async with asyncio.timeout(30):
                self.log = await open_log(self.cluster, self.other)
        return self.log


@pytest.fixture(params=DOWN)
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    async with cluster_of(4, tmp_path) as cluster:
        scene = Scene(cluster, request.param)
        await scene.start()
        try:
            yield scene
        finally:
            await scene.end()


async def test_create(scene: Scene) -> None:
    await scene.fail()
    async with asyncio.timeout(30):
        log = await ManagedLog.create(
            scene.other,
            scene.cluster.store,
            f"{PATH}-new",
            CONFIG,
            clock=SystemClock(),
            random=random.Random(1),
        )
        await append(log, [b"hello"]).outcome
    assert await read_all(log) == [b"hello"]
    await log.close()


async def test_open(scene: Scene) -> None:
    await scene.log.rotate()
    await scene.append(2)
    await scene.fail()
    async with asyncio.timeout(30):
        log = await open_log(scene.cluster, scene.other)
    assert await read_all(log) == scene.written
    await log.close()


async def test_append(scene: Scene) -> None:
    before = scene.ensemble
    await scene.fail()
    log = await scene.log_after()
    await scene.append(20)
    assert await read_all(log) == scene.written
    if scene.down in ("first", "second", "third"):
        assert len(log.ledgers) == 1, "the fourth bookie took the place in the same ledger"
        assert set(scene.ensemble) - set(before), "the fourth bookie"
    await log.close()


async def test_read(scene: Scene) -> None:
    await scene.append(1)
    await scene.fail()
    # Its owner may be gone, with the last entry confirmed and nobody to tell readers so.
    reader = await open_reader(scene.cluster, scene.other)
    assert await read_on(reader, 3) == scene.written[:3]
    log = await scene.log_after()
    await scene.append(1)
    assert await read_on(reader, 1) == scene.written[3:4]
    await reader.close()
    await log.close()
    assert await read_closed(scene) == scene.written


async def read_closed(scene: Scene) -> list[bytes]:
    reader: LogReader = await open_reader(scene.cluster, scene.other)
    payloads = await read_on(reader, len(scene.written))
    await reader.close()
    return payloads


async def test_shrink(scene: Scene) -> None:
    await scene.log.rotate()
    await scene.append(2)
    await scene.log.rotate()
    await scene.log.rotate()  # which waits until the ledger before is closed
    await scene.fail()
    log = await scene.log_after()
    assert await log.shrink(LATEST) >= 1
    await scene.append(1)
    assert (await read_all(log))[-1:] == scene.written[-1:]
    await log.close()


async def test_rotate(scene: Scene) -> None:
    await scene.fail()
    log = await scene.log_after()
    await scene.append(1)
    before = log.ledgers[-1].ledger_id
    async with asyncio.timeout(30):
        await log.rotate()
    assert log.ledgers[-1].ledger_id > before
    await scene.append(2)
    assert await read_all(log) == scene.written
    await log.close()


async def test_open_with_two_members_unknown_waits_for_one_of_them(tmp_path: Path) -> None:
    async with cluster_of(4, tmp_path) as cluster:
        scene = Scene(cluster, "client")
        await scene.start()
        gone = scene.ensemble[:2]
        await scene.fail()
        for name in gone:
            await cluster.stop_bookie(name)
        with pytest.raises(RecoveryUndecidedError):
            await open_log(cluster, scene.other)
        await cluster.start_bookie(gone[0])
        await cluster.wait_known(scene.other, gone[0])
        async with asyncio.timeout(30):
            log = await open_log(cluster, scene.other)
        assert await read_all(log) == scene.written
        await log.close()
        await scene.end()
