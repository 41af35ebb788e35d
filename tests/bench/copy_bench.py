"""Speed of re-replication of a lost bookie's ledgers: `python -m tests.bench.copy_bench`.

Bookies are processes. The worker runs in this process, as it would in one of its own. Callers that
have a cluster already use `copy_rate`.
"""

import argparse
import asyncio
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from magnetar.deploy.freed_memory import keep_freed_memory
from magnetar.ledger.autorecovery.worker import Worker
from magnetar.ledger.autorecovery.worker_metrics import WorkerMetrics
from magnetar.ledger.autorecovery.worker_settings import WorkerSettings
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.system import SystemClock, SystemNetwork
from magnetar.ledger.under_replication import EVERYTHING
from tests.cluster import ProcessCluster

_IN_FLIGHT = 1000


@dataclass(frozen=True, slots=True)
class CopyFigures:
    """Duration and counts of one recovery."""

    seconds: float
    metrics: WorkerMetrics

    @property
    def bytes_per_s(self) -> float:
        return self.metrics.bytes_copied / self.seconds

    @property
    def ledgers_per_s(self) -> float:
        return self.metrics.items_finished / self.seconds

    def __str__(self) -> str:
        metrics = self.metrics
        return (
            f"{metrics.items_finished} ledgers, {metrics.entries_copied} entries, "
            f"{metrics.bytes_copied / 1e6:.0f} MB in {self.seconds:.2f} s: "
            f"{self.bytes_per_s / 1e6:.0f} MB/s, {self.ledgers_per_s:.0f} ledgers/s "
            f"(read {1000 * metrics.read_s / max(1, metrics.read_requests):.1f} ms, "
            f"write {1000 * metrics.write_s / max(1, metrics.write_requests):.1f} ms a request; "
            f"{metrics.items_deferred} deferred)"
        )


async def copy_rate(
    client: LedgerClient,
    store: MetadataStore,
    bookie_id: str,
    ledger_ids: Sequence[int],
    *,
    settings: WorkerSettings | None = None,
) -> CopyFigures:
    """Publish the ledgers as lacking a lost bookie, and repair them."""
    clock = SystemClock()
    worker = Worker(
        client,
        store,
        clock=clock,
        random=random.Random(3),
        holder="bench",
        settings=settings or WorkerSettings(),
    )
    for ledger_id in ledger_ids:
        await worker.items.publish(ledger_id, {bookie_id: [EVERYTHING]})
    started_s = clock.monotonic_s()
    await worker.start()
    try:
        await _until(lambda: worker.metrics.items_finished >= len(ledger_ids))
        return CopyFigures(clock.monotonic_s() - started_s, worker.metrics)
    finally:
        await worker.stop()


async def fill(client: LedgerClient, *, ledgers: int, entries: int, entry_bytes: int) -> list[int]:
    """Write closed ledgers of (3, 3, 2) with entries of one size; return their ids."""
    payload = random.Random(5).randbytes(entry_bytes)
    ledger_ids = []
    for _ in range(ledgers):
        writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        left = entries
        while left:
            count = min(left, max(1, min(_IN_FLIGHT, (4 << 20) // max(1, entry_bytes))))
            await asyncio.gather(*(writer.add(payload) for _ in range(count)))
            left -= count
        await writer.close()
        ledger_ids.append(writer.ledger_id)
    return ledger_ids


async def _until(is_so: Callable[[], bool]) -> None:
    """Poll every 10 ms until a condition holds, to measure when it did."""
    while not is_so():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def _run(url: str, cluster: ProcessCluster, options: argparse.Namespace) -> None:
    store = await open_store(url)
    client = LedgerClient(
        store, network=SystemNetwork(), clock=SystemClock(), random=random.Random(1)
    )
    await client.start()
    ledger_ids = await fill(
        client, ledgers=options.ledgers, entries=options.entries, entry_bytes=options.entry_bytes
    )
    # "ready bookie://HOST:PORT ...": also the id of a bookie without a given one.
    victim = cluster.servers[0].ready_line.split()[1].removeprefix("bookie://")
    cluster.servers[0].kill()
    await store.delete(f"/ledgers/available/{victim}")
    await _until(lambda: client.registry.resolve(victim) is None)
    settings = WorkerSettings(
        copy_bytes_per_s_max=options.rate, ledgers_at_once=options.at_once, items_per_s_max=10_000
    )
    before = [server.cpu_s() for server in cluster.servers[1:]]
    figures = await copy_rate(client, store, victim, ledger_ids, settings=settings)
    cpu_s = sum(server.cpu_s() for server in cluster.servers[1:]) - sum(before)
    print(figures, f"; bookies used {cpu_s:.1f} s of processor time")
    await client.close()
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledgers", type=int, default=40)
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--entry-bytes", type=int, default=1024)
    parser.add_argument("--rate", type=int, default=0, help="bytes per second; 0: no bound")
    parser.add_argument("--at-once", type=int, default=8, help="ledgers side by side")
    options = parser.parse_args()
    keep_freed_memory()
    with (
        tempfile.TemporaryDirectory() as directory,
        ProcessCluster(Path(directory), bookies=4, broker=False) as cluster,
    ):
        uvloop.run(_run(cluster.metadata_url, cluster, options))


if __name__ == "__main__":
    main()
