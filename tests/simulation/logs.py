"""Managed logs in client processes, for scripted tests: the real `ManagedLog` and `LogReader`.

What a log confirms and what is read of it becomes part of the history, and so L2 to L4 are judged.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TypeVar, TypeVarTuple, Unpack

from magnetar.ledger.errors import LedgerFencedError, LedgerWriteError, LogError
from magnetar.ledger.log import LogEntry, ManagedLog
from magnetar.ledger.log_reader import LogReader
from magnetar.ledger.position import EARLIEST, Position
from magnetar.ledger.settings import LogConfig
from magnetar.ledger.wire import Op
from magnetar.ledger.writer import LedgerWriter
from tests.simulation.clients import FAST, SimClient
from tests.simulation.frame_rules import Hold
from tests.simulation.history import Began, Ended, LogAppended, LogRead
from tests.simulation.simulation import Simulation

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

PATH = "/managed-ledgers/log"
CONFIG = LogConfig(ensemble_size=3, write_quorum=3, ack_quorum=2)
ROLLING = CONFIG.model_copy(update={"ledger_entries_max": 3, "ledger_age_min_s": 0})
PATIENT = FAST.model_copy(update={"request_timeout_s": 30.0, "explicit_lac_interval_ms": 2.0})
"""What is held counts as failed after half a minute; a writer tells of its last entry by itself."""


class Batch:
    """An append, and what becomes of it: `outcome` is its first position, or the error."""

    def __init__(self, client: SimClient, payloads: Sequence[bytes]) -> None:
        self.payloads = payloads
        self.outcome: asyncio.Future[Position] = client.loop.create_future()
        self._client = client
        self._number = client.next_number()
        client.record(Began(self._number, "log append", -1))

    def on_appended(self, ledger_id: int, first_entry_id: int) -> None:
        for at, payload in enumerate(self.payloads):
            self._client.record(LogAppended(payload, ledger_id, first_entry_id + at, ""))
        self._client.record(Ended(self._number, "log append", ""))
        self.outcome.set_result(Position(ledger_id, first_entry_id))

    def on_failed(self, error: LogError) -> None:
        for payload in self.payloads:
            self._client.record(LogAppended(payload, -1, -1, type(error).__name__))
        self._client.record(Ended(self._number, "log append", f"{type(error).__name__}: {error}"))
        self.outcome.set_exception(error)


class SimLog:
    """The log of an owner. `log` is the real one."""

    def __init__(self, client: SimClient, log: ManagedLog) -> None:
        self.client = client
        self.log = log
        self.fences = 0
        """How often the log said that it is fenced."""
        log.on_fenced(self._on_fenced)

    def _on_fenced(self) -> None:
        self.fences += 1

    @property
    def writer(self) -> LedgerWriter:
        """Of the ledger that takes the appends."""
        assert self.log._appender.writer is not None
        return self.log._appender.writer

    @property
    def draining(self) -> LedgerWriter:
        """Of the ledger before, whose appends are not all reported."""
        assert self.log._appender.draining is not None
        return self.log._appender.draining

    @property
    def ledger_ids(self) -> list[int]:
        """The ledgers of its list."""
        return [ledger.ledger_id for ledger in self.log.ledgers]

    def append(self, *payloads: bytes) -> Batch:
        """Append a batch, without waiting."""
        batch = Batch(self.client, payloads)
        self.append_batch(batch)
        return batch

    def append_batch(self, batch: Batch) -> None:
        self.here(self.log.append, batch)

    def here(self, call: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        """Call something of the log, in its process."""
        self.client.process.context.copy().run(call, *args)

    async def add(self, *payloads: bytes) -> Position:
        """Append a batch and wait until it is confirmed.

        Raises:
            LogError: it may not be.
        """
        return await self.append(*payloads).outcome

    def fail(self, writer: LedgerWriter) -> None:
        """Have a ledger fail."""
        self.here(writer._fail, LedgerWriteError("two bookies are gone"))

    def fence(self) -> None:
        """Have the log hear that another owner took it over."""
        self.here(self.log._appender.fence, LedgerFencedError("by another client"))

    # Each as a task of the process; `await` it, or go on.

    def rotate(self) -> asyncio.Task[None]:
        return self._spawn("rotate log", self.log.rotate())

    def close(self) -> asyncio.Task[None]:
        return self._spawn("close log", self.log.close())

    def terminate(self) -> asyncio.Task[Position]:
        return self._spawn("terminate log", self.log.terminate())

    def shrink(self, before: Position) -> asyncio.Task[int]:
        return self._spawn("shrink log", self.log.shrink(before))

    def delete(self) -> asyncio.Task[None]:
        return self._spawn("delete log", self.log.delete())

    def _spawn(self, what: str, call: Coroutine[object, object, T]) -> asyncio.Task[T]:
        return self.client.spawn(self.client.operation(what, -1, call))

    async def read(self, start: Position, *, entries_max: int = 100) -> list[bytes]:
        """What one read finds."""
        read = self.log.read(start, entries_max=entries_max, bytes_max=1 << 20)
        return _noted(self.client, self.client.next_reader_name(), await self.client.run(read))

    async def read_all(self) -> list[bytes]:
        """What the owner finds in its log."""
        name = self.client.next_reader_name()
        payloads: list[bytes] = []
        position = self.log.first_position()
        while entries := await self.client.run(
            self.log.read(position, entries_max=100, bytes_max=1 << 20)
        ):
            payloads += _noted(self.client, name, entries)
            position = self.log.next_position(entries[-1].position)
        return payloads


class SimLogReader:
    """One who reads a log without owning it. `reader` is the real one."""

    def __init__(self, client: SimClient, reader: LogReader) -> None:
        self.client = client
        self.reader = reader
        self._name = client.next_reader_name()

    async def read(self, *, entries_max: int = 100, wait_s: float = 0.0) -> list[bytes]:
        """What one read finds, which may be nothing."""
        read = self.reader.read(entries_max=entries_max, wait_s=wait_s)
        return _noted(self.client, self._name, await self.client.run(read))

    async def read_on(self, count: int) -> list[bytes]:
        """The next `count` payloads; waits for them."""
        payloads: list[bytes] = []
        async with asyncio.timeout(60):
            while len(payloads) < count:
                payloads += await self.read(entries_max=count - len(payloads), wait_s=10)
        return payloads

    async def seek(self, position: Position) -> None:
        self._name = self.client.next_reader_name()
        await self.client.run(self.reader.seek(position))

    async def close(self) -> None:
        await self.client.run(self.reader.close())


def _noted(client: SimClient, reader: str, entries: Sequence[LogEntry]) -> list[bytes]:
    for entry in entries:
        ledger_id, entry_id = entry.position
        client.record(LogRead(reader, ledger_id, entry_id, entry.payload))
    return [entry.payload for entry in entries]


async def client_of(sim: Simulation, name: str) -> SimClient:
    """The client process of that name; made, and patient, if there is none."""
    return sim.clients.get(name) or await sim.client(name, PATIENT)


async def open_log(
    sim: Simulation, name: str = "w", config: LogConfig = CONFIG, *, apart: bool = False
) -> SimLog:
    """A client takes the log over, or creates it.

    `apart`: the list has a session of its own with the metadata store, so that what is held of it
    does not stop what the client asks about ledgers.

    Raises:
        LogError: as `ManagedLog.open`.
    """
    client = await client_of(sim, name)
    store = sim.store.open(client.process) if apart else client.store
    opening = ManagedLog.open(
        client.ledgers, store, PATH, config, clock=client.clock, random=client.random
    )
    return SimLog(client, await client.run(client.operation("open log", -1, opening)))


async def open_reader(
    sim: Simulation, name: str = "r", start: Position = EARLIEST, *, password: bytes | None = None
) -> SimLogReader:
    client = await client_of(sim, name)
    opening = LogReader.open(
        client.ledgers, client.store, PATH, clock=client.clock, start=start, password=password
    )
    return SimLogReader(client, await client.run(client.operation("open log", -1, opening)))


def hold_answers(sim: Simulation, log: SimLog) -> Hold:
    """Hold the answers to the adds of the log's current ledger, and no others."""
    return sim.net.hold(
        client=log.client.name,
        op=Op.ADD,
        ledger_id=log.writer.ledger_id,
        reply=True,
        overtaken=True,
    )


async def until_stored(sim: Simulation, writer: LedgerWriter) -> None:
    """Until a ledger has confirmed everything that it was given."""
    await sim.until(lambda: writer.last_add_confirmed + 1 >= writer.entries_added)


async def outcomes(batches: Sequence[Batch]) -> list[bytes]:
    """The payloads of batches of one once all are appended, in the order of their positions."""
    for batch in batches:
        await batch.outcome
    return [batch.payloads[0] for batch in sorted(batches, key=lambda each: each.outcome.result())]


def ledger_ids(sim: Simulation) -> list[int]:
    """The ledgers that there are."""
    return sorted(sim.take_stock().metadata)
