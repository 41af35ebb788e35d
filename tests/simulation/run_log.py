"""The workload of a managed log: owners that take it over from one another, and its readers.

Each owner opens the log, appends batches with a bounded number of them unreported, rotates now
and then, and closes or is superseded. In the end a last owner takes over whatever is left, and the
log is read from its beginning: the invariants L1 to L4 compare that with what was confirmed.
"""

import asyncio
from random import Random

from magnetar.ledger.errors import LedgerError, LogClosedError, LogFencedError
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.log_reader import LogReader
from magnetar.ledger.settings import LogConfig
from tests.simulation.clients import SimClient
from tests.simulation.history import Began, LogRead, Said
from tests.simulation.logs import PATH, Batch
from tests.simulation.loop import SimProcess, SimulationStuckError
from tests.simulation.mover import Mover
from tests.simulation.plan import LOG_OWNERS, READERS, RECOVERERS, Plan, Step
from tests.simulation.run import HEALING_S_MAX, Runner

_OPEN_ATTEMPTS = 5
_RETRY_S = 0.05


class LogRunner(Runner):
    """One run of one plan with a managed log."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._logs: list[tuple[SimClient, ManagedLog]] = []

    async def begin(self) -> tuple[SimProcess, asyncio.Task[None]]:
        client = self.sim.clients[LOG_OWNERS[0]]
        return client.process, self.spawn(client, self._own_log(client, 0), "owner")

    def names(self) -> list[str]:
        wanted = {step.who for step in self.plan.steps}
        owners = [name for name in LOG_OWNERS[1:] if name in wanted]
        return [*super().names(), *owners]

    @property
    def _config(self) -> LogConfig:
        ensemble_size, write_quorum, ack_quorum = self.plan.quorum
        return LogConfig(
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            ledger_entries_max=self.plan.ledger_entries,
            ledger_age_min_s=0.0,
            unavailable_retry_s=0.5,
            repair_timeout_s=3.0,
            password=self.plan.password.encode(),
        )

    async def _open(self, client: SimClient) -> ManagedLog:
        opening = ManagedLog.open(
            client.ledgers,
            client.store,
            PATH,
            self._config,
            clock=client.clock,
            random=client.random,
        )
        return await client.operation("open log", -1, opening)

    # Owners

    async def _own(self, step: Step) -> None:
        await self._own_log(self.sim.clients[step.who], LOG_OWNERS.index(step.who))

    async def _own_log(self, client: SimClient, owner: int) -> None:
        plan, random = self.plan, Random(f"run/{self.plan.seed}/owner/{owner}")
        log = None
        for _ in range(_OPEN_ATTEMPTS):
            try:
                log = await self._open(client)
                self._logs.append((client, log))
                break
            except LogFencedError:
                return  # another was faster, and it is its log
            except LedgerError:
                await asyncio.sleep(_RETRY_S)
        if log is None:
            return
        payloads_made = 0
        while payloads_made < plan.entries and not self.is_healing:
            await self.sim.until(lambda: log.pending_batches < plan.window, timeout_s=120)
            count = random.randint(1, plan.batch)
            payloads = [f"{client.name}:{payloads_made + at}".encode() for at in range(count)]
            payloads_made += count
            log.append(Batch(client, payloads))
            await asyncio.sleep(plan.think_s * random.random())
            if random.random() < 0.1:
                self.spawn(client, self._rotate(client, log), "rotate")
        if plan.closes:
            await self._close(client, log)

    async def _rotate(self, client: SimClient, log: ManagedLog) -> None:
        try:
            await client.operation("rotate log", -1, log.rotate())
        except LedgerError:
            pass  # recorded

    async def _close(self, client: SimClient, log: ManagedLog) -> None:
        try:
            await client.operation("close log", -1, log.close())
        except LedgerError:
            pass  # recorded

    # Others

    async def _tail(self, step: Step) -> None:
        """Read the log from its beginning, and on as it grows."""
        client = self.sim.clients[step.who]
        reader: LogReader | None = None
        try:
            while not self.is_healing:
                try:
                    if reader is None:
                        reader = await LogReader.open(
                            client.ledgers, client.store, PATH, clock=client.clock
                        )
                    for entry in await reader.read(wait_s=0.1 if step.who == READERS[0] else 0.0):
                        position = entry.position
                        client.record(
                            LogRead(
                                client.name, position.ledger_id, position.entry_id, entry.payload
                            )
                        )
                except LogClosedError:
                    return
                except LedgerError as error:
                    client.record(Said(f"log read failed: {type(error).__name__}: {error}"))
                    await asyncio.sleep(_RETRY_S)
                else:
                    await asyncio.sleep(_RETRY_S / 10)
        finally:
            if reader is not None:
                await reader.close()

    def _some_ledger(self, number: int) -> int | None:
        known = sorted(set(self.sim.store.ledger_ids.values()))
        return known[number % len(known)] if known else None

    async def _recover(self, step: Step) -> None:
        """Somebody recovers a ledger of the log without owning it."""
        ledger_id = self._some_ledger(RECOVERERS.index(step.who))
        if ledger_id is not None:
            self.ledger_id = ledger_id
            await super()._recover(step)

    async def _move(self, step: Step) -> None:
        client = self.sim.clients[step.who]
        ledger_id = self._some_ledger(step.number)
        try:
            if ledger_id is not None:
                await Mover(client, self.settings).move(ledger_id, Random(step.number))
        except LedgerError as error:
            client.record(Said(f"the re-replicator gives up: {type(error).__name__}"))

    async def _die_unlisted(self, step: Step) -> None:
        """The owner is gone soon after it has called for a change of the list, which is lost."""
        owner = self.sim.clients[step.other]
        hold = None
        try:
            await self.sim.until(lambda: bool(self._logs) or self.is_healing)
            hold = self.sim.store.hold(client=owner.name, kind="set", path=PATH)
            await self.sim.until(lambda: bool(hold.operations) or self.is_healing)
            await self.sim.sleep(step.for_s)
            if not self.is_healing:
                owner.crash()
        except SimulationStuckError:
            pass  # it had no reason to change it
        finally:
            if hold in self.sim.store.holds:
                hold.drop()

    # The end

    async def close_clients(self) -> None:
        for client, log in self._logs:
            # The others are left as they are: nothing of them may run for ever.
            if self.plan.closes and client.process.is_alive:
                await client.run(self._close(client, log))
        await super().close_clients()

    async def recover_all(self, healer: SimClient) -> None:
        """A last owner takes over, and closes: every ledger of the list is closed then."""
        sim = self.sim
        deadline_s = sim.loop.time() + HEALING_S_MAX
        while sim.loop.time() < deadline_s:
            try:
                log = await healer.run(self._open(healer))
            except LedgerError:
                await sim.sleep(0.5)
                continue
            await healer.run(self._close(healer, log))
            return
        sim.say("the log could not be taken over although everything is healed")
        healer.record(Began(sim.store.next_number(), "take over the healed log", -1))

    async def read_all(self, inspector: SimClient) -> None:
        await inspector.run(self._read_all(inspector))

    async def _read_all(self, client: SimClient) -> None:
        reader = await LogReader.open(client.ledgers, client.store, PATH, clock=client.clock)
        try:
            while True:
                entries = await client.operation("read log", -1, reader.read())
                if not entries:
                    return
                for entry in entries:
                    ledger_id, entry_id = entry.position
                    client.record(LogRead(client.name, ledger_id, entry_id, entry.payload))
        except LedgerError as error:
            client.record(Said(f"log read failed: {type(error).__name__}: {error}"))
        finally:
            await reader.close()
