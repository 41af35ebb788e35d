"""Short measurements of the ledger client, in this process, against bookie processes."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.system import SystemClock, SystemNetwork
from magnetar.ledger.writer import LedgerWriter
from tests.waiting import until

_SIZE_BYTES = 1024
_BATCH = 50
_STEADY_ACKS = 200
"""Number of acknowledged batches before the kill."""
_SETTLE_S_MAX = 120.0
_TAIL_INTERVAL_S = 0.005
_PATIENT = LedgerSettings(request_timeout_s=60)
"""Settings by which a stalled disk does not count as a failed bookie."""


@asynccontextmanager
async def open_client(
    metadata_url: str, settings: LedgerSettings = _PATIENT
) -> AsyncIterator[LedgerClient]:
    store = await open_store(metadata_url)
    client = LedgerClient(
        store,
        network=SystemNetwork(),
        clock=SystemClock(),
        random=random.Random(),
        settings=settings,
    )
    await client.start()
    try:
        yield client
    finally:
        await client.close()
        await store.close()


async def _create(client: LedgerClient) -> LedgerWriter:
    return await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)


async def measure_recovery(metadata_url: str, *, entries: int) -> float:
    """Return the seconds to recover a ledger of so many entries, none of which carries a LAC."""
    payloads = [random.randbytes(_SIZE_BYTES) for _ in range(entries)]
    async with open_client(metadata_url) as client:
        writer = await _create(client)
        done: asyncio.Future[LedgerError | None] = asyncio.get_running_loop().create_future()
        # One append sends every entry before any is confirmed, so each carries LAC -1.
        writer.append(payloads, done.set_result)
        assert await done is None
        # The writer's process dies here, as far as the ledger can tell.
    async with open_client(metadata_url) as client:
        ledger_id = writer.ledger_id
        await client.manager.read(ledger_id)
        started_s = time.perf_counter()
        reader = await client.open_and_recover(ledger_id)
        took_s = time.perf_counter() - started_s
        assert reader.last_add_confirmed == entries - 1
        return took_s


@dataclass(frozen=True, slots=True)
class Stall:
    """The longest times without an acknowledgement, in seconds."""

    worst_gap_s: float
    """From the kill until every entry in flight at the change is acknowledged."""
    worst_gap_before_s: float
    """In the steady state before the kill, for comparison."""


class _FullWindow:
    """Keeps `in_flight` entries outstanding and notes when acknowledgements come."""

    def __init__(self, writer: LedgerWriter, in_flight: int) -> None:
        self._writer = writer
        self._in_flight = in_flight
        self._payloads = [random.randbytes(_SIZE_BYTES)] * _BATCH
        self._appended = 0
        self._confirmed = 0
        self._in_flight_at_change: int | None = None
        """Entries appended, confirmed or not, when the new ensemble was first seen."""
        self.acknowledged_at_s: list[float] = []
        self.settled_at_s = 0.0
        """Time when all entries in flight at the ensemble change were acknowledged."""
        self.error: LedgerError | None = None
        self.is_stopped = False
        self.drained: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fill(self) -> None:
        """Append one batch per loop turn until the window is full, so that several frames are
        outstanding, as with a broker, instead of one that holds everything."""
        if self.is_stopped or self._appended - self._confirmed >= self._in_flight:
            return
        self._appended += _BATCH
        self._writer.append(self._payloads, self._on_done)
        asyncio.get_running_loop().call_soon(self.fill)

    def _on_done(self, error: LedgerError | None) -> None:
        self._confirmed += _BATCH
        if error is not None:
            self.error = error
            self.is_stopped = True
        else:
            now_s = time.perf_counter()
            self.acknowledged_at_s.append(now_s)
            if self._in_flight_at_change is None and len(self._writer.metadata.ensembles) > 1:
                self._in_flight_at_change = self._appended
            if self._in_flight_at_change is not None and not self.settled_at_s:
                self.settled_at_s = now_s if self._confirmed >= self._in_flight_at_change else 0.0
            self.fill()
        if self.is_stopped and self._confirmed == self._appended and not self.drained.done():
            self.drained.set_result(None)


async def measure_ensemble_change(
    metadata_url: str, *, in_flight: int, kill: Callable[[str], None]
) -> Stall:
    """Kill a bookie of the ensemble under full load; return the longest times without an
    acknowledgement."""
    async with open_client(metadata_url) as client:
        writer = await _create(client)
        window = _FullWindow(writer, in_flight)
        window.fill()
        await until(
            lambda: len(window.acknowledged_at_s) >= _STEADY_ACKS or window.error is not None,
            "a steady state",
            within_s=_SETTLE_S_MAX,
        )
        killed_at_s = time.perf_counter()
        kill(writer.metadata.last_fragment.bookies[0])
        await until(
            lambda: window.settled_at_s > 0 or window.error is not None,
            "the ensemble changes",
            within_s=_SETTLE_S_MAX,
        )
        window.is_stopped = True
        await window.drained
        if window.error is not None:
            raise window.error
        await writer.close()
        times = window.acknowledged_at_s
        before = [at for at in times if at < killed_at_s]
        return Stall(
            worst_gap_s=_worst_gap(
                [at for at in times[len(before) - 1 :] if at <= window.settled_at_s]
            ),
            worst_gap_before_s=_worst_gap(before[len(before) // 4 :]),
        )


def _worst_gap(times_s: list[float]) -> float:
    return max(after - before for before, after in pairwise(times_s))


async def measure_tail(metadata_url: str, *, entries: int) -> list[float]:
    """Return the seconds from each acknowledgement until a following reader has the entry.

    Writer and reader have connections of their own and share this process, hence its clock. After
    each entry there is a pause: its LAC comes explicitly, not with the next entry.
    """
    settings = _PATIENT.model_copy(update={"explicit_lac_interval_ms": 1})
    async with open_client(metadata_url, settings) as writing, open_client(metadata_url) as reading:
        writer = await _create(writing)
        reader = await reading.open(writer.ledger_id)
        acknowledged_at_s: list[float] = []
        seen_after_s: list[float] = []

        async def follow() -> None:
            bound = -1
            while len(seen_after_s) < entries:
                bound = await reader.wait_beyond(bound, timeout_s=10)
                while len(seen_after_s) <= bound:
                    found = await reader.read(len(seen_after_s), bound)
                    now_s = time.perf_counter()
                    for entry_id in range(len(seen_after_s), len(seen_after_s) + len(found)):
                        seen_after_s.append(now_s - acknowledged_at_s[entry_id])

        def on_done(error: LedgerError | None) -> None:
            assert error is None
            acknowledged_at_s.append(time.perf_counter())

        following = asyncio.ensure_future(follow())
        for _ in range(entries):
            writer.append([random.randbytes(_SIZE_BYTES)], on_done)
            await asyncio.sleep(_TAIL_INTERVAL_S)
        await following
        await reader.close()
        await writer.close()
        return seen_after_s
