"""One run of the real bookie on a faithful disk: what a power loss leaves of it is what counts.

Real are the start (cookies, index, replay, registration), the server, the request handler, the
storage with its entry logs and index, journal files, checkpoints. Stand-ins are the thread of the
journal, the workers' threads, and what lies below the ports: disk, network, metadata store, and the
key-value store under the index. There is one client, whose requests need no time on the way.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal, TypeVar

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.engine.entry_storage import EntryStorage, StorageOptions
from magnetar.bookie.gc.finish_compactions import finish_compactions
from magnetar.bookie.indexes.key_value import KeyValueStore
from magnetar.bookie.journaling.journal import OnCommitted
from magnetar.bookie.journaling.journal_files import JournalFiles
from magnetar.bookie.journaling.journal_format import LastMark
from magnetar.bookie.parts import BackgroundService, BookieParts
from magnetar.bookie.requests.replies import BatchContext
from magnetar.bookie.settings import BookieSettings
from magnetar.ledger.ports import Listener
from tests.simulation.disk import PowerLossError, SimDisk
from tests.simulation.journal import SimJournal
from tests.simulation.loop import SimLoop
from tests.simulation.simulation import quiet_logs
from tests.simulation.storing.key_value import SimKeyValue
from tests.simulation.storing.metadata import Metadata
from tests.simulation.worker import SimClock, SimWorker

T = TypeVar("T")

_LATENCY_S = 0.001
_SECONDS_MAX = 1000.0
_STEPS_MAX = 100_000


class ProcessEndedError(Exception):
    """The bookie has ended itself."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What kind of bookie it is."""

    engine: Literal["db", "interleaved"] = "db"
    journals: int = 1
    shards: int = 1

    @property
    def label(self) -> str:
        """For tables."""
        parts: list[str] = [self.engine]
        if self.journals > 1:
            parts.append(f"{self.journals} journals")
        if self.shards > 1:
            parts.append(f"{self.shards} shards")
        return ", ".join(parts)

    @property
    def settings(self) -> BookieSettings:
        """Small in all sizes: everything is rolled, cut and full after a few entries."""
        return BookieSettings(
            data_directory=Path("/b"),
            journal_directories=tuple(Path(f"/j{n}") for n in range(self.journals)),
            ledger_directories=tuple(Path(f"/l{n}") for n in range(self.shards)),
            bookie_id="b",
            storage_engine=self.engine,
            journal_file_bytes_max=4096,
            journal_preallocate_bytes=1024,
            journal_backups=0,
            journal_spares=1,
            flush_interval_s=3600.0,
            flush_retry_s=0.05,
        )

    @property
    def options(self) -> StorageOptions:
        """Storage options of each shard."""
        return StorageOptions(
            write_buffer_bytes=6000,
            read_cache_bytes=4000,
            entry_log_bytes_max=3000,
            run_bytes_max=500,
            run_entries_max=5,
            open_files_max=2,
            engine=self.engine,
            index_page_bytes=64,
            index_cache_bytes=4000,
            index_open_files_max=2,
        )


class Machine:
    """A process on a disk. Run its coroutines with `run`."""

    def __init__(self, disk: SimDisk, metadata: Metadata, shape: Shape, *, seed: str) -> None:
        self.disk = disk
        self.metadata = metadata
        self.shape = shape
        self.loop = SimLoop(  # type: ignore[abstract]  # no sockets, signals, subprocesses
            seconds_max=_SECONDS_MAX, steps_max=_STEPS_MAX
        )
        self.random = Random(seed)
        self.network = _Network()
        self.bookie = _StoringBookie(self)
        self.parts: BookieParts | None = None

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run until `main` has ended.

        Raises:
            PowerLossError, ProcessEndedError: the process is over.
            BaseException: what a callback or `main` raised.
        """
        with quiet_logs():
            return self.loop.run(main)

    async def start(self) -> BookieParts:
        """Start the bookie; raises what `Bookie.start` raises."""
        await self.bookie.start()
        assert self.parts is not None
        return self.parts

    def close(self) -> None:
        """End what is left of the process, quietly."""
        self.disk.on_step = _nothing
        self.disk.on_call = _nothing
        with quiet_logs():
            self.loop.close()

    def make_worker(self, name: str) -> SimWorker:
        return SimWorker(self.loop, lambda: _LATENCY_S)

    def on_fatal(self, error: BaseException) -> None:
        self.loop.errors.append(ProcessEndedError(f"{type(error).__name__}: {error}"))


class _StoringBookie(Bookie):
    """The real bookie with the stand-ins in it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        super().__init__(
            machine.shape.settings,
            machine.metadata,
            clock=SimClock(machine.loop),
            network=machine.network,
            disk=machine.disk,
            random=machine.random,
            on_fatal=machine.on_fatal,
            worker=machine.make_worker,
        )

    def _make_shard(self, directory: str) -> EntryStorage:
        machine = self._machine

        def make_key_value(path: str, may_create: bool) -> KeyValueStore:
            return SimKeyValue.open(machine.disk, path, may_create)

        return EntryStorage(
            directory,
            disk=machine.disk,
            clock=self._clock,
            make_worker=machine.make_worker,
            options=machine.shape.options,
            make_key_value=make_key_value,
            finish_compactions=finish_compactions,
        )

    def _start_journal(
        self, files: JournalFiles, end: LastMark, on_committed: OnCommitted[BatchContext]
    ) -> SimJournal:
        machine = self._machine
        return SimJournal(
            machine.loop,
            files,
            mark=end,
            latency_s=lambda: _LATENCY_S,
            group_bytes_max=machine.shape.settings.journal_group_bytes_max,
            on_committed=on_committed,
            on_failed=self._on_fatal,
            on_power_loss=_no_power,
        )

    def _background(self, parts: BookieParts) -> list[BackgroundService]:
        """None: what they do is done when a workload says so."""
        self._machine.parts = parts
        return []


class _Network:
    """Nobody connects by it: clients are handed the connection."""

    async def connect(self, *args: object, **named: object) -> asyncio.Transport:
        raise AssertionError("a bookie does not connect")

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> Listener:
        self._factory = factory
        return _Listener()

    def connect_client(self, transport: asyncio.Transport) -> asyncio.Protocol:
        """A new connection to the bookie that listens."""
        protocol = self._factory()
        protocol.connection_made(transport)
        return protocol


class _Listener:
    @property
    def port(self) -> int:
        return 1

    async def close(self) -> None: ...


def _no_power() -> None:
    raise PowerLossError("in the journal")


def _nothing(*args: object) -> None:
    return None
