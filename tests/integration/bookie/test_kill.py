"""kill -9 of a bookie process at random moments, over and over, on the same files."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from magnetar.bookie.indexes.index_mark import EngineKind
from magnetar.ledger.wire import Flag, Status
from tests.bookie_parts import (
    KEY,
    BookieClient,
    add_request,
    packets_in,
    read_lac_request,
    read_request,
)
from tests.ledger_storage import ENGINES
from tests.processes import ServerProcess, python_command
from tests.standalone import READY_TIMEOUT_S, is_ready_line

pytestmark = pytest.mark.disk

KILLS = 6
ENTRIES_PER_ADD = 5
PAYLOAD = b"x" * 700


@asynccontextmanager
async def bookie_process(
    directory: Path, engine: EngineKind = "db", disks: int = 1
) -> AsyncIterator[tuple[ServerProcess, int]]:
    module = "tests.integration.bookie.serve"
    process = ServerProcess(
        python_command(module, str(directory), engine, str(disks)),
        log_path=directory / "bookie.log",
        is_ready=is_ready_line,
    )
    try:
        await asyncio.to_thread(process.wait_ready, READY_TIMEOUT_S)
        yield process, int(process.ready_line.split()[1])
    finally:
        if process.returncode is None:
            process.kill()


class History:
    """What the bookie acknowledged, by ledger."""

    def __init__(self) -> None:
        self.acked: dict[int, int] = {}
        """Ledger -> adds acknowledged, without a gap from the first one."""
        self.fenced: set[int] = set()


async def write_until_killed(
    process: ServerProcess,
    port: int,
    ledger_id: int,
    history: History,
    rng: random.Random,
) -> None:
    """Keep 20 adds in flight; after a random number of acknowledged ones, kill."""
    client = await BookieClient.connect(port)
    kill_after = rng.randrange(20, 400)
    sent = acked = 0
    try:
        while True:
            while sent - acked < 20:
                client.send(
                    add_request(
                        sent,
                        ledger_id,
                        sent * ENTRIES_PER_ADD,
                        ENTRIES_PER_ADD,
                        payload=PAYLOAD,
                    )
                )
                sent += 1
            reply = await client.reply(acked)
            assert reply.status == Status.OK, reply
            acked += 1
            if acked == kill_after:
                process.kill()
    except ConnectionError:
        # Replies that had arrived before the end count too.
        while acked in client.replies:
            acked += 1
    history.acked[ledger_id] = acked


async def check(port: int, history: History) -> None:
    client = await BookieClient.connect(port)
    for ledger_id, adds in history.acked.items():
        first, end = 0, adds * ENTRIES_PER_ADD
        while first < end:
            at = first
            reply = await client.ask(lambda i: read_request(i, ledger_id, at, end - 1))  # noqa: B023
            packets = packets_in(reply)
            assert {p[36:] for p in packets} == {PAYLOAD}
            assert [int.from_bytes(p[8:16], "big") for p in packets] == list(
                range(first, first + len(packets))
            )
            first += len(packets)
    for ledger_id in history.fenced:
        reply = await client.ask(lambda i: add_request(i, ledger_id, 1 << 20))  # noqa: B023
        assert reply.status == Status.FENCED, ledger_id
    client.close()


async def fence(port: int, ledger_id: int, history: History) -> None:
    client = await BookieClient.connect(port)
    reply = await client.ask(lambda i: read_lac_request(i, ledger_id, fence_key=KEY))
    assert reply.flags & Flag.FENCED
    history.fenced.add(ledger_id)
    client.close()


@pytest.mark.parametrize(("engine", "disks"), [*((engine, 1) for engine in ENGINES), ("db", 2)])
async def test_nothing_acknowledged_is_lost_by_kill_9(
    tmp_path: Path, engine: EngineKind, disks: int
) -> None:
    """`disks`: so many journals, and as many ledger directories."""
    rng = random.Random(20)
    history = History()
    for ledger_id in range(KILLS):
        async with bookie_process(tmp_path, engine, disks) as (process, port):
            await check(port, history)
            if ledger_id:
                await fence(port, ledger_id - 1, history)
            await fence(port, 1000 + ledger_id, history)
            await write_until_killed(process, port, ledger_id, history, rng)
    async with bookie_process(tmp_path, engine, disks) as (process, port):
        await check(port, history)
    assert sum(history.acked.values()) > KILLS
