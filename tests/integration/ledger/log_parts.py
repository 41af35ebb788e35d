"""What the tests of logs share: batches with their outcome as a future, logs on a test cluster."""

import asyncio
import random
from collections.abc import Sequence

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LogError
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.log_reader import LogReader
from magnetar.ledger.position import EARLIEST, Position
from magnetar.ledger.settings import LogConfig
from magnetar.ledger.system import SystemClock
from tests.integration.ledger.cluster import Cluster

PATH = "/managed-ledgers/public/default/persistent/a-topic"
CONFIG = LogConfig(ensemble_size=3, write_quorum=3, ack_quorum=2)


class Batch:
    """An AppendBatch with its outcome as a future: the first position, or the error."""

    def __init__(self, payloads: Sequence[bytes]) -> None:
        self.payloads = payloads
        self.outcome: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

    def on_appended(self, ledger_id: int, first_entry_id: int) -> None:
        self.outcome.set_result(Position(ledger_id, first_entry_id))

    def on_failed(self, error: LogError) -> None:
        self.outcome.set_exception(error)


async def open_log(
    cluster: Cluster, client: LedgerClient, config: LogConfig = CONFIG
) -> ManagedLog:
    return await ManagedLog.open(
        client,
        cluster.store,
        PATH,
        config,
        clock=SystemClock(),
        random=random.Random(3),
    )


async def open_reader(
    cluster: Cluster, client: LedgerClient, start: Position = EARLIEST
) -> LogReader:
    return await LogReader.open(client, cluster.store, PATH, clock=SystemClock(), start=start)


def append(log: ManagedLog, payloads: Sequence[bytes]) -> Batch:
    batch = Batch(payloads)
    log.append(batch)
    return batch


async def read_all(log: ManagedLog) -> list[bytes]:
    """What the owner finds in its log."""
    payloads: list[bytes] = []
    position = log.first_position()
    while entries := await log.read(position, entries_max=100, bytes_max=1 << 20):
        payloads += [entry.payload for entry in entries]
        position = log.next_position(entries[-1].position)
    return payloads


async def read_on(reader: LogReader, count: int) -> list[bytes]:
    """The next `count` payloads; waits for them."""
    payloads: list[bytes] = []
    async with asyncio.timeout(30):
        while len(payloads) < count:
            entries = await reader.read(entries_max=count - len(payloads), wait_s=10)
            payloads += [entry.payload for entry in entries]
    return payloads
