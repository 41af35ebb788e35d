"""A bookie of a simulation: a machine with a disk, on which the real bookie runs, again and again.

Real are the start (cookie, replay, registration), the server, the request handler, fences, journal
files and checkpoints. Stand-ins are the thread of the journal (`journal.py`), the storage behind it
(`storage.py`), and the ports. A crash ends the process at any moment; what the disk had synced and
what was flushed is all that the next start finds.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypeVar

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.cookie import Cookie
from magnetar.bookie.engine.entry_storage import EntryStorage
from magnetar.bookie.journaling.journal import OnCommitted
from magnetar.bookie.journaling.journal_files import JournalFiles
from magnetar.bookie.journaling.journal_format import LastMark
from magnetar.bookie.requests.replies import BatchContext
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.storage import LedgerStorage
from magnetar.ledger.errors import MetadataError
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Worker
from tests.simulation.disk import PowerLossError, SimDisk
from tests.simulation.history import Corrupted, Event, Fault, History, Lost
from tests.simulation.journal import SimJournal
from tests.simulation.loop import SimLoop, SimProcess
from tests.simulation.network import Fabric, SimNetwork
from tests.simulation.storage import Flushed, SimStorage
from tests.simulation.store import MetadataServer, SimStore
from tests.simulation.worker import SimClock, SimWorker

T = TypeVar("T")

PORT = 3181
_START_RETRY_S = 0.2


class _DiskWorker(SimWorker):
    """A worker whose calls use the machine's disk: power may be lost in the middle of one."""

    def __init__(self, machine: "SimBookie") -> None:
        super().__init__(machine.loop, machine.disk_latency_s)
        self._machine = machine

    def submit(
        self, call: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        def guarded() -> T:
            try:
                return call()
            except PowerLossError:
                self._machine.on_power_loss()
                raise OSError("the power is gone") from None

        super().submit(guarded, done)


class SimBookieProcess(Bookie):
    """The real bookie with the stand-ins in it. One run of one process."""

    def __init__(self, machine: "SimBookie", process: SimProcess, store: MetadataStore) -> None:
        self._machine = machine
        loop = machine.loop
        super().__init__(
            machine.settings,
            store,
            clock=SimClock(loop),
            network=SimNetwork(machine.fabric, process),
            disk=machine.disk,
            random=Random(f"{machine.seed}/process/{machine.starts}"),
            on_fatal=machine.on_fatal,
            worker=self._sim_worker,
        )

    def _sim_worker(self, name: str) -> Worker:
        return _DiskWorker(self._machine)

    def _make_storage(self, cookie: Cookie) -> tuple[LedgerStorage, tuple[EntryStorage, ...]]:
        machine = self._machine
        machine.storage = SimStorage(machine.flushed, flush_latency_s=machine.flush_latency_s)
        if machine.keeps_healed:
            machine.storage.rotten = machine.rotten
        else:
            machine.storage.rotten.update(machine.rotten)
        return machine.storage, ()

    def _start_journal(
        self, files: JournalFiles, end: LastMark, on_committed: OnCommitted[BatchContext]
    ) -> SimJournal:
        machine = self._machine
        return SimJournal(
            machine.loop,
            files,
            mark=end,
            latency_s=machine.disk_latency_s,
            group_bytes_max=machine.settings.journal_group_bytes_max,
            on_committed=on_committed,
            on_failed=self._on_fatal,
            on_power_loss=machine.on_power_loss,
        )


class SimBookie:
    """One machine. The attributes are for tests; `process` is the run that is under way."""

    def __init__(
        self,
        bookie_id: str,
        loop: SimLoop,
        fabric: Fabric,
        server: MetadataServer,
        history: History,
        *,
        seed: str,
        journal_file_bytes_max: int = 4096,
        flush_interval_s: float = 5.0,
    ) -> None:
        self.bookie_id = bookie_id
        self.loop = loop
        self.fabric = fabric
        self._server = server
        self._history = history
        self.seed = seed
        self.disk = SimDisk(seed=f"{seed}/disk")
        self.flushed = Flushed()
        self.rotten: dict[tuple[int, int], int] = {}
        self.keeps_healed = False
        """Whether a replica that was written again stays sound over restarts."""
        self.storage = SimStorage(self.flushed, flush_latency_s=0.0)
        self.settings = BookieSettings(
            data_directory=Path(f"/{bookie_id}"),
            bookie_id=bookie_id,
            host=bookie_id,
            insecure=True,  # in a network without strangers
            port=PORT,
            journal_file_bytes_max=journal_file_bytes_max,
            journal_preallocate_bytes=1024,
            flush_interval_s=flush_interval_s,
        )
        self._random = Random(f"{seed}/latency")
        self.journal_latency_s = 0.001
        self.journal_jitter_s = 0.0
        self.flush_latency_s = 0.01
        self.starts = 0
        self.process: SimProcess | None = None
        self._bookie: SimBookieProcess | None = None
        self._starting: asyncio.Task[None] | None = None
        self.is_lost = False
        """The machine will never come back."""

    # For a test

    @property
    def is_running(self) -> bool:
        """Whether a process runs here that has come through its start."""
        return (
            self._bookie is not None
            and self._starting is not None
            and self._starting.done()
            and not self._starting.cancelled()
            and self._starting.exception() is None
        )

    async def start(self) -> None:
        """Start a process, and wait until it serves.

        Raises:
            StartError, JournalError, MetadataError: as `Bookie.start`.
        """
        await asyncio.shield(self.start_soon())

    def start_soon(self) -> "asyncio.Task[None]":
        """Start a process; the task ends when it serves."""
        assert self.process is None, f"{self.bookie_id} runs already"
        assert not self.is_lost, f"the disks of {self.bookie_id} are gone"
        self.starts += 1
        process = self.process = SimProcess(self.loop, self.bookie_id)
        store = self._server.open(process)
        self.say("starts")
        self._starting = process.spawn(self._start(process, store), f"start-{self.bookie_id}")
        return self._starting

    async def restart(self) -> None:
        """Start again after a crash, with what the disk kept."""
        await self.start()

    def crash(self, *, power: bool = True) -> None:
        """End the process at once. With `power` off and on, what was not synced is lost."""
        process = self._end_process()
        if process is None:
            return
        self.say("crashes (power loss)" if power else "is killed")
        if power:
            self.disk.crash()
        else:
            self.disk.locked.clear()

    async def stop(self) -> None:
        """End the process in order: what was taken is answered and flushed."""
        bookie, process = self._bookie, self.process
        if bookie is None or process is None:
            return
        self.say("stops")
        self._bookie = None  # it does not run any more, and is not stopped twice
        await process.finish(bookie.stop(), f"stop-{self.bookie_id}")
        if self.process is process:  # else it ended otherwise, and another one may run by now
            self._end_process()

    def lose(self) -> None:
        """The machine and its disks are gone for good; its id is never used again."""
        self._end_process()
        self.is_lost = True
        self._record(Lost(self.bookie_id))

    def pause(self) -> None:
        """The process gets no time; its connections stay."""
        if self.process is not None:
            self.say("is paused")
            self.process.pause()

    def resume(self) -> None:
        if self.process is not None:
            self.say("goes on")
            self.process.resume()

    @property
    def has_disk_trouble(self) -> bool:
        """Whether a start may fail for a reason that the simulation made."""
        disk = self.disk
        return disk.bytes_left is not None or disk.sync_error is not None

    def end_start(self) -> None:
        """A start that failed leaves no process behind."""
        self._end_process()
        self.disk.locked.clear()

    def clear_steps(self) -> None:
        """Forget a crash that was ordered."""
        self.disk.on_step = _nothing

    def crash_at_step(self, steps: int) -> None:
        """Crash right behind the `steps`-th write or sync from now on."""
        wanted = self.disk.steps + steps

        def on_step(kind: str, number: int) -> None:
            if number == wanted:
                self.disk.on_step = _nothing
                raise PowerLossError(kind)

        self.disk.on_step = on_step

    def has(self, ledger_id: int, entry_id: int) -> bool:
        """Whether the entry is in the storage of the process now, durable or not."""
        return entry_id in self.storage.packets.get(ledger_id, {})

    def is_fenced(self, ledger_id: int) -> bool:
        state = self.storage.states.get(ledger_id)
        return state is not None and state.fenced

    def corrupt(self, ledger_id: int, entry_id: int, *, at: int = 40) -> None:
        """The replica is read with one byte changed from now on, until it is written again."""
        if self.has(ledger_id, entry_id):
            self.rotten[ledger_id, entry_id] = at
            self.storage.rotten[ledger_id, entry_id] = at
            self._record(Corrupted(self.bookie_id, ledger_id, entry_id))

    def move_to(self, host: str) -> None:
        """The next process listens at another address, such as that of another machine."""
        assert self.process is None, f"{self.bookie_id} runs"
        self.say(f"moves to the address {host}")
        self.fabric.hosts[self.bookie_id] = host
        self.settings = self.settings.model_copy(update={"host": host})

    def say(self, what: str) -> None:
        self._record(Fault(what))

    # For the process

    def disk_latency_s(self) -> float:
        return self.journal_latency_s + self._random.random() * self.journal_jitter_s

    def on_fatal(self, error: BaseException) -> None:
        """The bookie ends itself; the files stay as they are."""
        self.say(f"ends: {type(error).__name__}: {error}")
        self._end_process()
        self.disk.locked.clear()

    def on_power_loss(self) -> None:
        self.crash()

    async def _start(self, process: SimProcess, store: SimStore) -> None:
        bookie = SimBookieProcess(self, process, store)
        while True:
            try:
                await bookie.start()
            except MetadataError:
                await asyncio.sleep(_START_RETRY_S)  # the store is away: as a supervisor would
            except PowerLossError:
                self.on_power_loss()
                raise asyncio.CancelledError from None
            else:
                break
        self._bookie = bookie
        self.say("serves")

    def _end_process(self) -> SimProcess | None:
        process, self.process, self._bookie = self.process, None, None
        self.disk.on_step = _nothing
        if process is not None:
            process.kill()
            self.fabric.on_process_gone(process)
            self._server.forget(process)
        return process

    def _record(self, event: Event) -> None:
        self._history.add(self.loop.time(), self.bookie_id, event)


def _nothing(kind: str, number: int) -> None:
    return None
