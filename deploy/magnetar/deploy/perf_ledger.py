"""`magnetar perf ledger`: measures one ledger writer on the bookies of a cluster.

Keeps `in_flight` entries outstanding, appended in small batches as a broker does. Measures each
batch from its append to its confirmation by the ack quorum; every entry counts with its batch's
latency. The result is one JSON object, as for the other perf commands.
"""

import asyncio
import os
import random
import time
from dataclasses import dataclass

from magnetar.deploy.links import link_network
from magnetar.deploy.options import Sources
from magnetar.deploy.shared_secret import with_secret_beside
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.metadata.settings import MetadataSettings
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.system import SystemClock
from magnetar.ledger.writer import LedgerWriter

_BATCHES_IN_FLIGHT = 8


@dataclass(frozen=True, slots=True)
class LedgerLoad:
    """The load to write. `size_bytes` is the payload of one entry."""

    entries: int = 100_000
    size_bytes: int = 1024
    in_flight: int = 1000
    ensemble_size: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2


class _Pump:
    """Keeps the writer's window full; one callback per batch."""

    def __init__(self, writer: LedgerWriter, load: LedgerLoad) -> None:
        self._writer = writer
        self._load = load
        self._payload = os.urandom(load.size_bytes)
        self._batch = max(1, load.in_flight // _BATCHES_IN_FLIGHT)
        self._appended = 0
        self._confirmed = 0
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self._loop.create_future()
        self.latencies: list[tuple[float, int]] = []
        """(seconds, entries) per batch."""

    def start(self) -> None:
        self._fill()

    def _fill(self) -> None:
        """Append one batch per loop turn until the window is full."""
        if self.done.done():
            return
        load = self._load
        room = min(load.entries - self._appended, load.in_flight - self._appended + self._confirmed)
        count = min(room, self._batch)
        if count <= 0:
            return
        self._append(count)
        if room > count:
            self._loop.call_soon(self._fill)

    def _append(self, count: int) -> None:
        self._appended += count
        started_s = time.perf_counter()

        def on_done(error: LedgerError | None) -> None:
            self._on_batch(count, started_s, error)

        self._writer.append([self._payload] * count, on_done)

    def _on_batch(self, count: int, started_s: float, error: LedgerError | None) -> None:
        if self.done.done():
            return
        if error is not None:
            self.done.set_exception(error)
            return
        self._confirmed += count
        self.latencies.append((time.perf_counter() - started_s, count))
        if self._confirmed == self._load.entries:
            self.done.set_result(None)
        else:
            self._fill()


async def perf_ledger(metadata_url: str, load: LedgerLoad) -> dict[str, object]:
    """Run the load against the bookies behind a metadata URL.

    Raises:
        LedgerError: the cluster failed to store the load.
    """
    sources = with_secret_beside(Sources(), metadata_url)
    store = await open_store(metadata_url, settings=sources.component(MetadataSettings, "metadata"))
    settings = sources.component(LedgerSettings, "ledger")
    client = LedgerClient(
        store,
        network=link_network(settings),
        clock=SystemClock(),
        random=random.SystemRandom(),
        settings=settings,
    )
    try:
        await client.start()
        writer = await client.create(
            ensemble_size=load.ensemble_size,
            write_quorum=load.write_quorum,
            ack_quorum=load.ack_quorum,
            custom_metadata={"component": "perf"},
        )
        pump = _Pump(writer, load)
        started_s = time.perf_counter()
        pump.start()
        await pump.done
        seconds = time.perf_counter() - started_s
        await writer.close()
        await client.delete(writer.ledger_id)
    finally:
        await client.close()
        await store.close()
    return {
        "messages": load.entries,
        "seconds": round(seconds, 3),
        "msgs_per_s": round(load.entries / seconds),
        "mb_per_s": round(load.entries * load.size_bytes / seconds / 1e6, 1),
        "latency_ms": _percentiles(pump.latencies),
        "size": load.size_bytes,
        "in_flight": load.in_flight,
        "quorum": f"{load.ensemble_size},{load.write_quorum},{load.ack_quorum}",
    }


def _percentiles(latencies: list[tuple[float, int]]) -> dict[str, float]:
    ordered = sorted(latencies)
    total = sum(count for _, count in ordered)
    result: dict[str, float] = {}
    for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)):
        seen = 0
        for seconds, count in ordered:
            seen += count
            if seen >= total * share:
                result[name] = round(seconds * 1e3, 3)
                break
    return result
