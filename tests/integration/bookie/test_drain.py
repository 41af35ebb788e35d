"""SIGTERM at a bookie: read-only first, then an orderly end within a bound."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from magnetar.bookie.errors import StorageError
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.registration import BookieRegistry
from magnetar.ledger.system import SystemClock, SystemNetwork
from magnetar.ledger.wire import Status
from magnetar.ledger.writer import LedgerWriter
from tests.bookie_parts import packets_in, packets_of, read_request
from tests.integration.bookie.bookie_machine import add
from tests.integration.bookie.sized_machine import SizedMachine, sized_machine
from tests.real_cluster import RealCluster
from tests.waiting import until

LEDGER = 7
RUNS_AT_ONCE = 20
SECONDS_MAX = 30.0


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[SizedMachine]:
    async with sized_machine(tmp_path) as machine:
        yield machine


async def test_a_draining_bookie_is_read_only_flushed_and_still_serves_reads(
    machine: SizedMachine,
) -> None:
    async with machine.bookie(flush_interval_s=600) as (bookie, client):
        assert (await add(client, LEDGER, 0)).status == Status.OK
        await bookie.drain()
        refused = await add(client, LEDGER, 1)
        assert refused.status == Status.READ_ONLY
        assert b"about to stop" in refused.body
        await machine.until_registered(readonly=True)
        assert bookie.metrics.storage.flushes == 1
        found = await client.ask(lambda i: read_request(i, LEDGER, 0, 0))
        assert packets_in(found) == packets_of(LEDGER, 0, 1)


async def test_a_drain_ends_in_time_although_nothing_can_be_registered(
    machine: SizedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.get_running_loop().create_future()

    async with machine.bookie(drain_timeout_s=0.05) as (bookie, client):
        monkeypatch.setattr(BookieRegistry, "register", never)
        async with asyncio.timeout(30):
            await bookie.drain()
        assert (await add(client, LEDGER, 0)).status == Status.READ_ONLY


async def test_a_drain_goes_on_although_the_flush_fails(
    machine: SizedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine.bookie() as (bookie, client):
        assert (await add(client, LEDGER, 0)).status == Status.OK

        async def fails() -> None:
            raise StorageError("a disk that is full")

        with monkeypatch.context() as patch:
            patch.setattr(bookie.parts.storage, "flush", fails)
            await bookie.drain()
    # What could not be flushed is there again after the next start.
    async with machine.bookie() as (_, client):
        found = await client.ask(lambda i: read_request(i, LEDGER, 0, 0))
        assert packets_in(found) == packets_of(LEDGER, 0, 1)


class Load:
    """A writer that always has something under way, and what became of it."""

    def __init__(self, writer: LedgerWriter) -> None:
        self._writer = writer
        self.payloads: list[bytes] = []
        self.errors: list[Exception] = []
        self._is_ending = False
        self._lanes = [asyncio.create_task(self._run(lane)) for lane in range(RUNS_AT_ONCE)]

    @property
    def confirmed(self) -> int:
        return self._writer.last_add_confirmed + 1

    async def wait_for(self, more: int) -> None:
        """Wait until so many more entries are confirmed."""
        wanted = self.confirmed + more

        def are_confirmed() -> bool:
            assert not self.errors
            return self.confirmed >= wanted

        await until(are_confirmed, f"{more} more entries", within_s=SECONDS_MAX)

    async def end(self) -> None:
        self._is_ending = True
        await asyncio.gather(*self._lanes)
        assert not self.errors

    async def _run(self, lane: int) -> None:
        number = 0
        while not self._is_ending:
            number += 1
            try:
                await self._writer.add(b"%d-%d" % (lane, number) * 50)
            except Exception as error:  # noqa: BLE001  # the test looks at it
                self.errors.append(error)
                return


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[tuple[LedgerClient, MetadataStore]]:
    store = await open_store(url)
    client = LedgerClient(
        store, network=SystemNetwork(), clock=SystemClock(), random=random.Random(5)
    )
    await client.start()
    try:
        yield client, store
    finally:
        await client.close()
        await store.close()


async def entries_of(client: LedgerClient, ledger_id: int) -> int:
    """How many entries of a closed ledger can be read."""
    reader = await client.open(ledger_id)
    count = 0
    while count <= reader.last_add_confirmed:
        count += len(await reader.read(count, reader.last_add_confirmed))
    return count


def events(cluster: RealCluster, name: str) -> dict[str, Any]:
    """The last event of each name in the log of a server."""
    lines = cluster.log_text(name).splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return {each["event"]: each for each in found}


async def test_sigterm_of_a_bookie_costs_a_writer_at_work_nothing(tmp_path: Path) -> None:
    with RealCluster(tmp_path / "cluster", bookies=4, brokers=0) as cluster:
        async with client_of(cluster.metadata_url) as (client, _):
            writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
            load = Load(writer)
            await load.wait_for(500)
            leaving = writer.metadata.ensembles[-1].bookies[0]
            started_s = time.monotonic()
            stopped = asyncio.to_thread(cluster.terminate, leaving, SECONDS_MAX)
            status, _ = await asyncio.gather(stopped, load.wait_for(500))
            assert status == 0
            assert time.monotonic() - started_s < SECONDS_MAX
            await load.end()
            assert leaving not in writer.metadata.ensembles[-1].bookies
            await writer.close()

            told = events(cluster, leaving)
            assert "bookie_drain_overdue" not in told
            assert told["bookie_drained"]["seconds"] < 10
            # All of it is readable without the bookie that left, and with it.
            expected = writer.last_add_confirmed
            for _ in range(2):
                async with client_of(cluster.metadata_url) as (other, _):
                    assert await entries_of(other, writer.ledger_id) == expected + 1
                if not cluster.is_running(leaving):
                    await asyncio.to_thread(cluster.start, leaving)
            # Everything had been flushed: nothing was left for the replay.
            assert events(cluster, leaving)["bookie_started"]["replayed_records"] == 0


def test_sigterm_ends_a_bookie_in_time_although_the_metadata_store_hangs(tmp_path: Path) -> None:
    environment = {
        "MAGNETAR_BOOKIE_DRAIN_TIMEOUT_S": "0.3",
        "MAGNETAR_BOOKIE_STOP_TIMEOUT_S": "2",
    }
    with RealCluster(
        tmp_path / "cluster", bookies=1, brokers=0, environment=environment
    ) as cluster:
        cluster.pause("zookeeper-1")
        started_s = time.monotonic()
        assert cluster.terminate("bookie-1") == 0
        assert time.monotonic() - started_s < 30
        told = events(cluster, "bookie-1")
        assert "bookie_drain_overdue" in told
        assert "bookie_stop_overdue" in told
        cluster.resume("zookeeper-1")
        cluster.start("bookie-1")
