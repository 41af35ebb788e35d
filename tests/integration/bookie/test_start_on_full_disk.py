"""A bookie process that is killed on a disk without a byte free, and started there again."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from magnetar.bookie.indexes.index_mark import EngineKind
from magnetar.ledger.wire import Flag, Frame, Op, Status
from tests.bookie_parts import (
    KEY,
    BookieClient,
    add_request,
    packets_in,
    packets_of,
    read_lac_request,
    read_request,
)
from tests.ledger_storage import ENGINES
from tests.processes import (
    ServerFailedError,
    ServerProcess,
    magnetar_command,
    magnetar_environment,
)
from tests.small_disk import SmallDisk

DISK_BYTES = 48 << 20
STORED, IN_JOURNAL = 7, 8
"""A ledger that was flushed before the disk was full, and one that is only in the journal."""
PAYLOAD = b"p" * 1000


class Place:
    """Where the bookie's files are, and how it is started."""

    def __init__(self, directory: Path, small: SmallDisk, engine: EngineKind) -> None:
        self.directory = directory
        self.small = small
        self.options: dict[str, object] = {
            "storage_engine": engine,
            "ledger_directories": [str(small.path / "ledgers")],
            "disk_check_interval_s": 0.05,
            "flush_interval_s": 0.05,
            "flush_retry_s": 0.05,
            "recovery_add_free_bytes_min": 0,
            "write_cache_bytes_max": 8 << 20,
        }
        self._starts = 0

    @contextmanager
    def bookie(self, **options: object) -> Iterator[tuple[ServerProcess, int]]:
        environment = magnetar_environment()
        for name, value in {**self.options, **options}.items():
            text = value if isinstance(value, str) else json.dumps(value)
            environment[f"MAGNETAR_BOOKIE_{name.upper()}"] = text
        arguments = ["--metadata", f"embedded:{self.directory / 'metadata.db'}"]
        arguments += ["--data", str(self.directory / "b1"), "--port", "0", "--id", "b1"]
        process = ServerProcess(
            [*self.small.command_prefix, *magnetar_command("bookie", *arguments)],
            log_path=self.directory / "log",
            is_ready=lambda line: line.startswith("ready "),
            environment=environment,
        )
        try:
            process.wait_ready(30)
            yield process, int(process.ready_line.split()[1].rpartition(":")[2])
        finally:
            if process.returncode is None:
                process.kill()


@pytest.fixture(params=ENGINES)
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    with SmallDisk(tmp_path / "small", size_bytes=DISK_BYTES) as small:
        yield Place(tmp_path, small, request.param)


async def add(client: BookieClient, ledger: int, first: int, count: int, flags: int = 0) -> int:
    reply = await client.ask(
        lambda i: add_request(i, ledger, first, count, flags=flags, payload=PAYLOAD)
    )
    return reply.status


async def read(client: BookieClient, ledger: int, last: int) -> list[bytes]:
    packets: list[bytes] = []

    def ask_for_more(request_id: int) -> Frame:
        return read_request(request_id, ledger, len(packets), last)

    while len(packets) <= last:
        found = await client.ask(ask_for_more)
        assert found.status == Status.OK, found.body
        packets += packets_in(found)
    return packets


def written(ledger: int, count: int) -> list[bytes]:
    """The packets of so many entries that were added a hundred at a time."""
    return [
        packet
        for first in range(0, count, 100)
        for packet in packets_of(ledger, first, min(100, count - first), PAYLOAD)
    ]


async def until_writable(client: BookieClient) -> None:
    while True:
        reply = await client.ask(lambda i: Frame(Op.INFO, False, 0, 0, i, -1, -1, b""))
        if json.loads(reply.body)["writable"]:
            return


async def fill(place: Place, *, entries_in_journal: int) -> None:
    """Write, fill the disk, write more, kill."""
    with place.bookie() as (process, port):
        client = await BookieClient.connect(port)
        assert await add(client, STORED, 0, 100) == Status.OK
        process.terminate()
    with place.bookie(flush_interval_s=3600) as (process, port):
        client = await BookieClient.connect(port)
        place.small.fill()
        for first in range(0, entries_in_journal, 100):
            flags = Flag.RECOVERY  # the bookie may know by now that the disk is full
            assert await add(client, IN_JOURNAL, first, 100, flags) == Status.OK
        place.small.fill()
        process.kill()


async def test_a_bookie_killed_on_a_full_disk_starts_there_and_serves(place: Place) -> None:
    await fill(place, entries_in_journal=500)
    for kill in (True, False):
        place.small.fill()
        with place.bookie() as (process, port):
            client = await BookieClient.connect(port)
            assert await read(client, STORED, 99) == written(STORED, 100)
            assert await read(client, IN_JOURNAL, 499) == written(IN_JOURNAL, 500)
            missing = await client.ask(lambda i: read_request(i, STORED, 100, 100))
            assert missing.status == Status.NO_SUCH_ENTRY
            assert await add(client, STORED, 100, 1) == Status.READ_ONLY
            fenced = await client.ask(lambda i: read_lac_request(i, IN_JOURNAL, fence_key=KEY))
            assert (fenced.status, fenced.flags) == (Status.OK, Flag.FENCED)
            if kill:
                process.kill()
                continue
            place.small.make_room()
            await until_writable(client)
            assert await add(client, STORED, 100, 1) == Status.OK
            assert await add(client, IN_JOURNAL, 500, 1) == Status.FENCED
            assert process.terminate() == 0
    with place.bookie() as (_, port):
        client = await BookieClient.connect(port)
        assert await read(client, STORED, 100) == written(STORED, 101)
        assert await read(client, IN_JOURNAL, 499) == written(IN_JOURNAL, 500)
        assert await add(client, IN_JOURNAL, 500, 1) == Status.FENCED


async def test_a_running_bookie_reads_on_while_its_disk_stays_full(place: Place) -> None:
    """Every flush that is tried meanwhile fails; none of them makes anything unreadable."""
    with place.bookie() as (process, port):
        client = await BookieClient.connect(port)
        for first in range(0, 1000, 100):
            assert await add(client, STORED, first, 100) == Status.OK
        process.terminate()
    with place.bookie(flush_interval_s=0.01, flush_retry_s=0.01) as (_, port):
        client, other = await BookieClient.connect(port), await BookieClient.connect(port)
        place.small.fill()
        # With nothing for the entry log, it is the index that finds no room.
        for ledger in range(1000, 1200):
            await client.ask(partial(read_lac_request, ledger_id=ledger, fence_key=KEY))
        for _ in range(100):
            place.small.fill()
            # What is not there takes a look into the index.
            missing = await other.ask(lambda i: read_request(i, STORED, 1000, 1000))
            assert missing.status == Status.NO_SUCH_ENTRY
        assert await read(other, STORED, 999) == written(STORED, 1000)
        place.small.make_room()
        await until_writable(client)


@pytest.mark.parametrize("place", ["db"], indirect=True)
async def test_a_journal_that_memory_cannot_take_tells_what_to_do(place: Place) -> None:
    await fill(place, entries_in_journal=3000)
    place.small.fill()
    with (
        pytest.raises(ServerFailedError, match=r"make room on the disks.*write_cache_bytes_max"),
        place.bookie(write_cache_bytes_max=1 << 20),
    ):
        pass
    with place.bookie() as (_, port):
        client = await BookieClient.connect(port)
        assert await read(client, IN_JOURNAL, 2999) == written(IN_JOURNAL, 3000)
