"""A ledger directory that fails a sync ends the bookie, whoever asked for the flush (rule B18)."""

import errno
import os
from collections.abc import Awaitable, Callable

import pytest

from magnetar.bookie.errors import StorageError
from magnetar.bookie.gc.garbage_collector import GarbageCollector
from magnetar.bookie.parts import BookieParts
from tests.simulation.disk import SimDisk
from tests.simulation.storing.client import Client
from tests.simulation.storing.machine import Machine, ProcessEndedError, Shape
from tests.simulation.storing.metadata import Metadata


async def collect(machine: Machine, parts: BookieParts) -> None:
    collector = GarbageCollector(parts)
    collector.start()
    await collector.force(major=False)
    await collector.close()


async def drain(machine: Machine, parts: BookieParts) -> None:
    await machine.bookie.drain()


async def flush(machine: Machine, parts: BookieParts) -> None:
    try:
        await parts.storage.flush()
    except StorageError:
        pass  # as the healer, which tries again


@pytest.mark.parametrize("shape", [Shape(), Shape(shards=2)], ids=str)
@pytest.mark.parametrize("ask", [collect, drain, flush])
def test_b18_a_failed_sync_of_a_flush_ends_the_bookie_whoever_asked_for_it(
    ask: Callable[[Machine, BookieParts], Awaitable[None]], shape: Shape
) -> None:
    disk = SimDisk(seed="0", faithful=True)
    machine = Machine(disk, Metadata(), shape, seed="0")

    def fail(kind: str, path: str) -> None:
        if kind == "sync" and "/entry-logs/" in path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    async def main() -> None:
        parts = await machine.start()
        client = Client(machine, [])
        await client.add(1, [0], 200)
        disk.on_call = fail
        await ask(machine, parts)

    try:
        with pytest.raises(ProcessEndedError):
            machine.run(main())
    finally:
        machine.close()
