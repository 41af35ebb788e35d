"""A process that acknowledges entries of a log in a known order, until it is killed.

`python -m tests.integration.cursors.acknowledging DIRECTORY CURSOR SEED`: a bookie, a managed log
and a durable cursor in one process. After each save it prints how many acknowledgements were made
before it. Run by `test_crash.py`.
"""

import asyncio
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from magnetar.cursors import Cursor, CursorSettings
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LogError
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.position import EARLIEST, Position
from magnetar.ledger.settings import LogConfig
from magnetar.ledger.system import SystemClock
from tests.integration.ledger.cluster import cluster_of

PATH = "/managed-ledgers/public/default/persistent/topic"
ENTRIES = 5000
LOG_CONFIG = LogConfig(
    ensemble_size=1, write_quorum=1, ack_quorum=1, ledger_entries_max=700, ledger_age_min_s=0
)
CURSOR_SETTINGS = CursorSettings(
    ensemble_size=1,
    write_quorum=1,
    ack_quorum=1,
    ack_persist_interval_ms=1,
    ledger_entries_max=10,
    node_ranges_max=200,
)


class Batch:
    """An AppendBatch whose outcome can be awaited."""

    def __init__(self, payloads: Sequence[bytes]) -> None:
        self.payloads = payloads
        self.done: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

    def on_appended(self, ledger_id: int, first_entry_id: int) -> None:
        self.done.set_result(Position(ledger_id, first_entry_id))

    def on_failed(self, error: LogError) -> None:
        self.done.set_exception(error)


async def append(log: ManagedLog, entries: int) -> None:
    """Append entries in small batches and wait until they are confirmed."""
    for _ in range(0, entries, 100):
        batch = Batch([b"entry"] * min(100, entries))
        log.append(batch)
        await batch.done


async def open_log(
    client: LedgerClient, store: MetadataStore, config: LogConfig = LOG_CONFIG
) -> ManagedLog:
    return await ManagedLog.open(
        client, store, PATH, config, clock=SystemClock(), random=random.Random(5)
    )


async def open_cursor(
    log: ManagedLog,
    client: LedgerClient,
    store: MetadataStore,
    name: str = "subscription",
    settings: CursorSettings = CURSOR_SETTINGS,
    initial: Position | None = EARLIEST,
) -> Cursor:
    return await Cursor.open(
        log, client, store, name, initial=initial, settings=settings, clock=SystemClock()
    )


def positions_of(log: ManagedLog) -> list[Position]:
    """All confirmed positions."""
    found: list[Position] = []
    position = log.next_position(EARLIEST)
    while position <= log.last_confirmed:
        found.append(position)
        position = log.next_position(position)
    return found


def ack_order(positions: Sequence[Position], seed: int) -> list[Position]:
    """The order of acknowledgement: shuffled, but roughly from the beginning to the end."""
    rng = random.Random(seed)
    order = sorted(range(len(positions)), key=lambda at: at + rng.uniform(0, 1500))
    return [positions[at] for at in order]


async def main(directory: Path, name: str, seed: int) -> None:
    async with cluster_of(1, directory) as cluster, cluster.client() as client:
        log = await open_log(client, cluster.store)
        if log.entries_between(EARLIEST, log.last_confirmed) == 0:
            await append(log, ENTRIES)
        cursor = await open_cursor(log, client, cluster.store, name)
        order = ack_order(positions_of(log), seed)
        rng = random.Random(seed)
        at = 0
        while at < len(order):
            count = rng.randint(1, 20)
            assert cursor.ack_many(order[at : at + count]) == len(order[at : at + count])
            at += count
            await cursor.persist()
            print(f"saved {at}", flush=True)  # noqa: T201  # read by the test
        await asyncio.Event().wait()  # to be killed


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
