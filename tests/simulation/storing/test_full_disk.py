"""A disk that is full refuses adds and loses nothing; with room again, adds go on by themselves."""

import asyncio
import errno
import os

import pytest

from magnetar.bookie.gc.garbage_collector import GarbageCollector
from magnetar.ledger.wire import Status
from tests.simulation.disk import SimDisk
from tests.simulation.inode import Survival
from tests.simulation.storing.client import Client
from tests.simulation.storing.inspect import Inspection
from tests.simulation.storing.machine import Machine, Shape
from tests.simulation.storing.metadata import Metadata
from tests.simulation.storing.model import Event, expectation

SHAPES = (Shape(), Shape(engine="interleaved"), Shape(journals=2, shards=2))


@pytest.mark.parametrize("left", [0, 700, 4000])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_full_disk_refuses_and_recovers(shape: Shape, left: int) -> None:
    disk, metadata = SimDisk(seed="0", faithful=True), Metadata()
    events: list[Event] = []
    machine = Machine(disk, metadata, shape, seed="0")

    async def main() -> None:
        parts = await machine.start()
        client = Client(machine, events)
        for entry in range(20):
            client.add(entry % 3, [entry], 200)
        await client.settle()
        disk.bytes_left = left
        client.is_full = True
        statuses = set()
        for entry in range(20, 80):
            reply = await client.add(entry % 3, [entry], 200)
            statuses.add(reply.status)
        assert statuses - {Status.OK}, "the disk was never full"
        await Inspection(parts, lambda: True).compare(client.model.ledgers)
        disk.bytes_left = None
        for entry in range(80, 400):
            if (await client.add(1, [entry], 200)).status == Status.OK:
                break
            await asyncio.sleep(0.5)
        else:
            raise AssertionError("adds do not go on")
        await parts.checkpointer.checkpoint()

    try:
        machine.run(main())
    finally:
        machine.close()
    after = SimDisk.of(disk.image(), seed="1", survival=Survival.NOTHING)
    again = Machine(after, metadata.copy(), shape, seed="1")

    async def look() -> None:
        await Inspection(await again.start()).compare(expectation(events))

    try:
        again.run(look())
    finally:
        again.close()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_start_without_a_byte_of_room_serves_what_was_answered(shape: Shape) -> None:
    """Part of it was flushed, part is only in the journal; the next start has room."""
    disk, metadata = SimDisk(seed="0", faithful=True), Metadata()
    events: list[Event] = []
    machine = Machine(disk, metadata, shape, seed="0")

    async def write() -> None:
        parts = await machine.start()
        client = Client(machine, events)
        for entry in range(20):
            client.add(entry % 3, [entry], 200)
        await client.settle()
        await parts.checkpointer.checkpoint()
        for entry in range(20, 30):
            client.add(entry % 3, [entry], 200)
        await client.settle()

    try:
        machine.run(write())
    finally:
        machine.close()
    image = disk.image()
    for bytes_left in (0, 0, None):
        after = SimDisk.of(image, seed="1", survival=Survival.NOTHING)
        after.bytes_left = bytes_left
        again = Machine(after, metadata.copy(), shape, seed="1")

        async def look(started: Machine = again) -> None:
            await Inspection(await started.start()).compare(expectation(events))

        try:
            again.run(look())
        finally:
            again.close()
        image = after.image()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_logs_that_nothing_needs_go_from_a_disk_that_no_flush_finds_room_on(shape: Shape) -> None:
    """The logs' ledger was deleted durably; what came since is only in memory and the journal."""
    disk = SimDisk(seed="0", faithful=True)
    machine = Machine(disk, Metadata(), shape, seed="0")

    async def main() -> None:
        parts = await machine.start()
        client = Client(machine, [])
        for entry in range(60):
            await client.add(2, [entry], 200)
        await parts.checkpointer.checkpoint()
        assert parts.ledgers.delete(2, 0.0)
        await parts.checkpointer.checkpoint()
        await client.add(3, [0], 200)
        await client.add(4, [0], 200)
        full = parts.directories.ledgers[-1]

        def fail(kind: str, path: str) -> None:
            if kind in ("write", "create") and path.startswith(f"{full}/"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

        disk.on_call = fail
        collector = GarbageCollector(parts)
        collector.start()
        report = await collector.force(major=False)
        await collector.close()
        assert any("No space left" in each for each in report.problems)
        assert report.removed_logs > 2

    try:
        machine.run(main())
    finally:
        machine.close()
