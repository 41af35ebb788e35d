"""Carries out a plan on a cluster, heals everything, and lets the invariants judge what happened.

A run has three parts. *Trouble*: writer, recoverers, readers and the re-replicator work while the
steps of the plan happen. *Healing*: every fault is undone, every machine that is not lost runs
again, and the ledger must be closed within a bound of virtual time (I18). *Inspection*: every
bookie is crashed once more and comes back by replay, a fresh client reads everything, and the
stores are compared with the history.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from random import Random

from magnetar.ledger.errors import LedgerError
from magnetar.ledger.ledger_metadata import DigestType, LedgerState
from magnetar.ledger.settings import LedgerSettings
from tests.simulation.checks import judge
from tests.simulation.clients import FAST, SimClient, SimReader, SimWriter
from tests.simulation.faults import Faults
from tests.simulation.history import History, Said
from tests.simulation.loop import SimProcess, SimulationStuckError
from tests.simulation.mover import Mover
from tests.simulation.plan import MOVER, READERS, RECOVERERS, WRITER, Plan, Step
from tests.simulation.record import FinalState, Record, Violation
from tests.simulation.simulation import Simulation

TROUBLE_S_MAX = 4.0
"""The writer may be waiting for bookies that only healing brings back."""
HEALING_S_MAX = 40.0
SECONDS_MAX = 300.0
_SETTLING_S = 5.0
"""What is missing is published, and who lost a ledger has heard of it."""
STEPS_MAX = 100_000
_EVACUATED = 8
"""Replicas that an evacuation moves; few fragments have more members."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a plan."""

    plan: Plan
    history: History
    violations: tuple[Violation, ...]
    error: str
    """What ended the run before its end; empty if nothing did."""
    steps: int

    @property
    def has_failed(self) -> bool:
        return bool(self.violations or self.error)

    @property
    def reasons(self) -> frozenset[str]:
        """Invariants that do not hold, or the kind of the error: what makes two failures alike."""
        if self.error:
            return frozenset([self.error.partition(":")[0]])
        return frozenset(violation.invariant for violation in self.violations)

    def report(self) -> str:
        lines = [str(self.plan)]
        if self.error:
            lines.append(f"ERROR {self.error}")
        return "\n".join([*lines, *(f"VIOLATED {violation}" for violation in self.violations)])


def execute(plan: Plan) -> Outcome:
    """Run a plan to its end, and judge it."""
    # Late: the other workload is a kind of runner.
    from tests.simulation.run_log import LogRunner

    runner = LogRunner(plan) if plan.log_owners else Runner(plan)
    error = ""
    try:
        runner.sim.run(runner.main())
    except Exception as failure:  # noqa: BLE001  # whatever it is, it is the result of the run
        error = f"{type(failure).__name__}: {failure} {' '.join(getattr(failure, '__notes__', []))}"
    record = Record(runner.sim.history, runner.final, is_complete=not error)
    return Outcome(plan, runner.sim.history, tuple(judge(record)), error, runner.sim.loop.steps)


def settings_of(plan: Plan) -> LedgerSettings:
    return FAST.model_copy(
        update={
            "ensemble_change_mode": "delayed" if plan.delayed_changes else "eager",
            "explicit_lac_interval_ms": plan.explicit_lac_ms,
            "recovery_window": plan.recovery_window,
            # Shorter than the run goes on: what cannot be made up for is published before its end.
            "follow_up_time_s": 2.0,
            # With one entry per answer, writing back and reading on overlap in short tails too.
            "recovery_read_bytes_max": 1 if plan.recovery_window < 8 else 4096,
            **dict(plan.settings),
        }
    )


class Runner:
    """One run of one plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.final = FinalState()
        self.settings = settings_of(plan)
        self.sim = sim = Simulation(
            bookies=plan.bookies,
            quorum=plan.quorum,
            seed=f"run/{plan.seed}",
            seconds_max=SECONDS_MAX,
            steps_max=STEPS_MAX,
            flush_interval_s=plan.flush_interval_s,
        )
        sim.net.jitter_s = plan.net_jitter_s
        sim.net.skew_s = plan.net_skew_s
        sim.net.keeps_frames = plan.keeps_frames
        sim.store.jitter_s = plan.store_jitter_s
        sim.store.watch_jitter_s = plan.watch_jitter_s
        self._tasks: list[asyncio.Task[None]] = []
        self.ledger_id = -1
        self._writer: SimWriter | None = None
        self.is_healing = False
        self._kept: list[SimReader] = []
        """Handles that were opened before replicas moved."""

    async def main(self) -> None:
        """The three parts."""
        sim = self.sim
        await sim.start()
        for bookie in sim.bookies.values():
            bookie.journal_jitter_s = self.plan.disk_jitter_s
            bookie.disk.keeps_some = self.plan.keeps_torn_writes
        for name in self.names():
            await sim.client(name, self.settings)
        faults = Faults(sim)
        await self._trouble(faults)
        self.is_healing = True
        sim.say("everything is healed")
        faults.heal()
        await self._heal()
        await self._inspect()

    def names(self) -> list[str]:
        """The clients that take part."""
        wanted = {step.who for step in self.plan.steps}
        return [WRITER, *(n for n in (*RECOVERERS, *READERS, MOVER) if n in wanted)]

    # Trouble

    async def begin(self) -> tuple[SimProcess, asyncio.Task[None]]:
        """Start the main work; returns its process and task."""
        client = self.sim.clients[WRITER]
        writer = await client.create(
            *self.plan.quorum,
            digest_type=DigestType(self.plan.digest),
            password=self.plan.password.encode(),
        )
        self.ledger_id = writer.ledger_id
        self._writer = writer
        return client.process, self.spawn(client, self._write(writer), "writer")

    async def _trouble(self, faults: Faults) -> None:
        sim = self.sim
        process, writing = await self.begin()
        begin_s = sim.loop.time()
        for step in self.plan.steps:
            await sim.sleep(max(0.0, begin_s + step.at_s - sim.loop.time()))
            actor = getattr(self, f"_{step.what}", None)
            if actor is None:
                faults.do(step)
            elif sim.clients[step.who].process.is_alive:
                self.spawn(sim.clients[step.who], actor(step), step.what)
        rest_s = begin_s + TROUBLE_S_MAX - sim.loop.time()
        try:
            await sim.until(
                lambda: writing.done() or not process.is_alive,
                timeout_s=max(0.1, rest_s),
            )
        except SimulationStuckError:
            pass  # healing may help

    def spawn(
        self, client: SimClient, work: Coroutine[object, object, None], name: str
    ) -> asyncio.Task[None]:
        task = client.spawn(work, name)
        self._tasks.append(task)
        return task

    async def _write(self, writer: SimWriter) -> None:
        """Append entries at the full window, then close or leave."""
        plan, random = self.plan, Random(f"run/{self.plan.seed}/writer")
        left = plan.entries
        try:
            while left:
                await self.sim.until(lambda: writer.pending < plan.window, timeout_s=120)
                count = min(left, random.randint(1, plan.batch), plan.window)
                writer.append(count)
                left -= count
                await asyncio.sleep(plan.think_s * random.random())
            if plan.closes:
                await writer.close_here(force=random.random() < 0.3)
        except LedgerError as error:
            writer.client.record(Said(f"the writer gives up: {type(error).__name__}"))

    async def _recover(self, step: Step) -> None:
        client = self.sim.clients[step.who]
        try:
            reader = await client.recover_here(self.ledger_id)
            await reader.read_here(0, reader.last_add_confirmed)
        except LedgerError:
            pass  # recorded; the last recovery must succeed

    async def _tail(self, step: Step) -> None:
        """Follow the ledger until it is closed, and read all that may be read."""
        client = self.sim.clients[step.who]
        while not self.is_healing:
            try:
                reader = await client.open_here(self.ledger_id)
                await reader.read_behind_the_bound()
                await reader.follow(lambda: self.is_healing, polls=step.who == READERS[0])
                return
            except LedgerError:
                await asyncio.sleep(0.05)

    async def _move(self, step: Step) -> None:
        client = self.sim.clients[step.who]
        try:
            await Mover(client, self.settings).move(self.ledger_id, Random(step.number))
        except LedgerError as error:
            client.record(Said(f"the re-replicator gives up: {type(error).__name__}"))

    async def _cut_in(self, step: Step) -> None:
        """Move a replica of a finished fragment while the writer's next write of its metadata is
        on the way."""
        hold = None
        try:
            await self.sim.until(self._has_finished_fragment, timeout_s=HEALING_S_MAX)
            if self.is_healing:
                return
            hold = self.sim.store.hold_cas(client=WRITER)
            await self.sim.until(lambda: bool(hold.operations) or self.is_healing)
            await self._move(step)
        except SimulationStuckError:
            pass  # there was no such write
        finally:
            if hold in self.sim.store.holds:
                hold.release()

    def _has_finished_fragment(self) -> bool:
        metadata = self.sim.store.metadata(self.ledger_id)
        return self.is_healing or (metadata is not None and len(metadata.ensembles) > 1)

    def _is_closed(self) -> bool:
        metadata = self.sim.store.metadata(self.ledger_id)
        return metadata is not None and metadata.state is LedgerState.CLOSED

    async def _keep_open(self, step: Step) -> None:
        """Open the ledger when it is closed, and read it only in the end."""
        try:
            await self.sim.until(self._is_closed)
            self._kept.append(await self.sim.clients[step.who].open_here(self.ledger_id))
        except (LedgerError, SimulationStuckError):
            pass  # recorded

    async def _evacuate(self, step: Step) -> None:
        """Move many replicas, once a reader knows where they are."""
        try:
            await self.sim.until(lambda: bool(self._kept))
        except SimulationStuckError:
            return
        for number in range(_EVACUATED):
            await self._move(step._replace(number=step.number + number))

    # Healing

    async def _heal(self) -> None:
        sim = self.sim
        await self._wait_bookies()
        await self.recover_all(await sim.client("z", self.settings))
        await self._append_behind_the_end()
        # What was under way has had its chance: it must end now, one way or the other (I19).
        try:
            await sim.until(self._is_quiet, timeout_s=HEALING_S_MAX)
        except SimulationStuckError as error:
            sim.say(f"not everything has ended: {error}")

    async def recover_all(self, healer: SimClient) -> None:
        """Close what is open, within bounds: nothing keeps a recovery from it any more."""
        deadline_s = self.sim.loop.time() + HEALING_S_MAX
        while self.sim.loop.time() < deadline_s:
            try:
                await healer.recover(self.ledger_id)
                return
            except LedgerError:
                await self.sim.sleep(0.5)

    async def _append_behind_the_end(self) -> None:
        """The writer has had time to hear that its ledger is closed, and is asked for one more."""
        await self.sim.sleep(_SETTLING_S)
        if self._writer is not None and self._writer.client.process.is_alive:
            try:
                self._writer.append()
            except LedgerError:
                pass  # recorded

    def _is_quiet(self) -> bool:
        """Whether all actors have ended; those of dead processes never will."""
        alive = {client.process for client in self.sim.clients.values() if client.process.is_alive}
        owners = self.sim.loop.owners_of(self._tasks)
        return all(
            task.done() or owner not in alive
            for task, owner in zip(self._tasks, owners, strict=True)
        )

    async def _wait_bookies(self) -> None:
        sim = self.sim
        await sim.until(
            lambda: all(each.is_running or each.is_lost for each in sim.bookies.values()),
            what="every bookie runs",
        )

    # Inspection

    async def _inspect(self) -> None:
        sim = self.sim
        missing = sim.missing_copies()
        for bookie in sim.bookies.values():
            bookie.crash()
            # Nothing is written any more: fewer checkpoints, and less to do in vain.
            bookie.settings = bookie.settings.model_copy(update={"flush_interval_s": 60.0})
        starting = [each.start_soon() for each in sim.bookies.values() if not each.is_lost]
        for task in starting:
            await task
        await self.read_all(await sim.client("y", self.settings))
        await self._read_kept()
        self.final = self.sim.take_stock()
        self.final.missing = missing
        await self.close_clients()

    async def close_clients(self) -> None:
        """A client that is closed leaves nothing behind that runs on."""
        clients = [each for each in self.sim.clients.values() if each.process.is_alive]
        for client in clients:
            closing = client.operation("close client", -1, client.ledgers.close())
            self.spawn(client, closing, "close")
        try:
            await self.sim.until(self._is_quiet, timeout_s=HEALING_S_MAX)
        except SimulationStuckError:
            return  # I19 says who did not end
        await self.sim.sleep(_SETTLING_S)
        left = self.sim.loop.tasks_of({client.process for client in clients})
        assert not left, f"closed clients still run {left}"

    async def read_all(self, inspector: SimClient) -> None:
        """Read everything, after all faults and crashes."""
        metadata = self.sim.store.metadata(self.ledger_id)
        if metadata is not None and metadata.state is LedgerState.CLOSED:
            reader = await inspector.open(self.ledger_id)
            await self._read_everything(reader)

    async def _read_kept(self) -> None:
        """Bookies that the metadata names no more have forgotten the ledger, or are gone."""
        metadata = self.sim.store.metadata(self.ledger_id)
        if metadata is None:
            return
        named = {bookie for fragment in metadata.ensembles for bookie in fragment.bookies}
        for reader in self._kept:
            if reader.client.process.is_alive:
                await self._hear_of_bookies(reader.client)
                for bookie_id in sorted(set(self.sim.bookies) - named):
                    self.sim.net.block(reader.client.name, bookie_id)
                await self._read_everything(reader)

    async def _hear_of_bookies(self, client: SimClient) -> None:
        """A client that lives on hears of the bookies that were restarted, however late: until it
        does, a read of theirs fails, and may."""
        registry = client.ledgers.registry
        running = [each.bookie_id for each in self.sim.bookies.values() if each.is_running]
        try:
            await self.sim.until(
                lambda: all(registry.resolve(each) is not None for each in running),
                timeout_s=HEALING_S_MAX,
            )
        except SimulationStuckError:
            self.sim.say(f"{client.name} does not hear of all bookies")  # I20 judges its reads

    async def _read_everything(self, reader: SimReader) -> None:
        """Entry after entry, so that one that is gone hides no other."""
        reader.is_final = True
        for entry_id in range(reader.last_add_confirmed + 1):
            try:
                await reader.read(entry_id, entry_id)
            except LedgerError:
                pass  # recorded; I1 and I20 judge it
