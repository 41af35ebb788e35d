"""A process of auto-recovery: the real worker and the real auditor, against simulated bookies."""

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import TypeVar

from magnetar.ledger.autorecovery.auditor import Auditor
from magnetar.ledger.autorecovery.controls import Controls
from magnetar.ledger.autorecovery.settings import AuditorSettings
from magnetar.ledger.autorecovery.worker import Worker
from magnetar.ledger.autorecovery.worker_settings import WorkerSettings
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import MetadataError
from magnetar.ledger.settings import LedgerSettings
from tests.simulation.clients import FAST
from tests.simulation.cluster.events import Stopped
from tests.simulation.history import Event, Fault, History
from tests.simulation.loop import SimLoop, SimProcess
from tests.simulation.network import Fabric, SimNetwork
from tests.simulation.store import MetadataServer, SimStore
from tests.simulation.worker import SimClock

T = TypeVar("T")

WORKER = WorkerSettings(
    open_ledger_grace_s=3.0,
    retry_delay_s=0.5,
    retry_delay_s_max=8.0,
    copy_retry_delay_s=0.1,
    rescan_s=5.0,
)
AUDITOR = AuditorSettings(
    gather_s=0.8,
    settle_s=1.0,
    mass_loss_wait_s=4.0,
    audit_again_s=3.0,
    retry_delay_s=0.5,
    replicas_check_interval_s=6.0,
    bookie_check_interval_s=20.0,
    first_check_delay_s=2.0,
    second_look_delay_s=0.5,
    check_ledger_timeout_s=8.0,
)
"""Short, so that a story stays short."""

_START_RETRY_S = 0.2


class RecoveryProcess:
    """What runs in one process: a client, a worker, and a candidate for auditor."""

    def __init__(self, machine: "SimRecovery", process: SimProcess, store: SimStore) -> None:
        random = Random(f"{machine.seed}/process/{machine.starts}")
        clock = SimClock(machine.loop)
        self.store = store
        self.controls = Controls(store)
        self.ledgers = LedgerClient(
            store,
            network=SimNetwork(machine.back, process),
            clock=clock,
            random=random,
            settings=machine.ledger_settings,
        )
        self.worker = Worker(
            self.ledgers,
            store,
            clock=clock,
            random=random,
            holder=machine.name,
            settings=machine.worker_settings,
        )
        self.auditor = Auditor(
            store,
            self.ledgers,
            name=machine.name,
            clock=clock,
            random=random,
            ledger_settings=machine.ledger_settings,
            settings=machine.auditor_settings,
        )

    async def start(self, *, has_worker: bool, has_auditor: bool) -> None:
        await self.ledgers.start()
        if has_worker:
            await self.worker.start()
        if has_auditor:
            await self.auditor.start()

    async def stop(self) -> None:
        await self.auditor.close()
        await self.worker.stop()
        await self.ledgers.close()
        await self.store.close()


class SimRecovery:
    """One machine. The attributes are for tests; `process` is the run that is under way."""

    def __init__(
        self,
        name: str,
        loop: SimLoop,
        back: Fabric,
        server: MetadataServer,
        history: History,
        *,
        seed: str,
        worker_settings: WorkerSettings = WORKER,
        auditor_settings: AuditorSettings = AUDITOR,
        ledger_settings: LedgerSettings = FAST,
        has_worker: bool = True,
        has_auditor: bool = True,
    ) -> None:
        self.name = name
        self.loop = loop
        self.back = back
        self.server = server
        self._history = history
        self.seed = seed
        self.worker_settings = worker_settings
        self.auditor_settings = auditor_settings
        self.ledger_settings = ledger_settings
        self._has_worker = has_worker
        self._has_auditor = has_auditor
        self.starts = 0
        self.process: SimProcess | None = None
        self.running: RecoveryProcess | None = None

    async def start(self) -> None:
        """Start a process, and wait until it works."""
        await asyncio.shield(self.start_soon())

    def start_soon(self) -> "asyncio.Task[None]":
        assert self.process is None, f"{self.name} runs already"
        self.starts += 1
        process = self.process = SimProcess(self.loop, self.name)
        store = self.server.open(process)
        self.say("starts")
        return process.spawn(self._start(process, store), f"start-{self.name}")

    async def _start(self, process: SimProcess, store: SimStore) -> None:
        running = RecoveryProcess(self, process, store)
        while True:
            try:
                await running.start(has_worker=self._has_worker, has_auditor=self._has_auditor)
            except MetadataError:
                # As a supervisor would: a new process.
                await asyncio.sleep(_START_RETRY_S)
                running = RecoveryProcess(self, process, store)
            else:
                break
        self.running = running

    @property
    def is_auditor(self) -> bool:
        return self.running is not None and self.running.auditor.election.is_leader

    def crash(self) -> None:
        """kill -9."""
        if self._end() is not None:
            self.say("crashes")

    def _end(self) -> SimProcess | None:
        process, self.process, self.running = self.process, None, None
        if process is not None:
            process.kill()
            self.back.on_process_gone(process)
            self.server.forget(process)
        return process

    async def stop(self) -> None:
        """SIGTERM."""
        running, process = self.running, self.process
        if running is None or process is None:
            return
        began_s = self.loop.time()
        await process.finish(running.stop(), f"stop-{self.name}")
        if self.process is process:
            self._end()
            self.record(Stopped(self.loop.time() - began_s))

    def pause(self) -> None:
        if self.process is not None:
            self.say("is paused")
            self.process.pause()

    def resume(self) -> None:
        if self.process is not None:
            self.say("goes on")
            self.process.resume()

    async def run(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run something in the process, and wait for it."""
        assert self.process is not None
        return await self.process.spawn(coroutine)

    def say(self, text: str) -> None:
        self.record(Fault(text))

    def record(self, event: Event) -> None:
        self._history.add(self.loop.time(), self.name, event)
