"""Random runs of offloading: owners of a log that follow each other, and a store with faults.

Each owner takes the log over, appends, and copies what is due to the object store, until it
crashes, pauses, loses its session, or hands the log over. Requests to both stores are lost before
and after they take effect; what is read of objects may be wrong. Then everything heals: the last
owner does what is due, and the log is read from its beginning.

In some of the runs, bits of objects change, or objects are deleted by hand, while bookies have the
ledgers. The owners scrub, and in the end each object must be whole again (OS1). Bookies forget
nothing before that: what rots after a last look is lost, and no rule can change it.

A run is a function of its seed: `execute(seed)` says what did not hold.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from magnetar.ledger.errors import LedgerError, LogFencedError, NoNodeError
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.log_reader import LogReader
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.managed_log.log_objects import ObjectState
from magnetar.ledger.offloading.log_offload import LogOffload
from magnetar.ledger.offloading.log_scrub import LogScrub
from magnetar.ledger.offloading.manifest_sweep import ManifestSweep
from magnetar.ledger.offloading.object_format import ObjectName
from magnetar.ledger.offloading.object_keys import ledgers_prefix, object_base
from magnetar.ledger.offloading.object_scrubber import ObjectScrubber
from magnetar.ledger.offloading.offload_choice import NEVER, OffloadRules
from magnetar.ledger.offloading.offloader import Offloader
from magnetar.ledger.offloading.scrub_plan import mark_in
from magnetar.ledger.offloading.sweeper import Sweeper
from magnetar.ledger.position import Position
from magnetar.ledger.settings import LogConfig
from tests.simulation.checks import judge
from tests.simulation.clients import FAST, SimClient
from tests.simulation.history import Fault, LogAppended, LogRead, Said
from tests.simulation.logs import PATH, Batch
from tests.simulation.offloading.checks import is_whole, problems
from tests.simulation.offloading.objects import ObjectFaults, ObjectServer, OneStore
from tests.simulation.offloading.plain_reads import PlainLedgers
from tests.simulation.record import Record
from tests.simulation.simulation import Simulation

CONFIG = LogConfig(
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    ledger_entries_max=4,
    ledger_age_min_s=0.0,
    unavailable_retry_s=0.5,
    repair_timeout_s=3.0,
)
RULES = OffloadRules(bytes_on_bookies=0, deletion_lag_s=0.1, small_bytes=0)
KEEPING = replace(RULES, deletion_lag_s=NEVER)
"""Every closed ledger is copied, and bookies keep everything."""
SCRUB_PERIOD_S = 0.5
PREFIXES = ("", "two/")
INSTANCE = "simulated"
BASES = tuple(object_base("bucket", prefix, INSTANCE, PATH) for prefix in PREFIXES)
GRACE_S = 0.5
_LOOK_S = 0.02
_OPEN_ATTEMPTS = 20
_DONE_S_MAX = 120.0
_LATE_S = 10.0


@dataclass(slots=True)
class OffloadRun:
    """One run."""

    seed: int
    sim: Simulation
    random: Random
    objects: ObjectServer
    problems: list[str] = field(default_factory=list)
    rots: bool = False
    """Whether objects rot, and are scrubbed."""
    reads_are_true: bool = True
    """Whether the store has no faults by which a whole object looks damaged or gone."""

    async def story(self) -> None:
        """Everything, until the log was read at the end."""
        self.sim.store.records_nodes = True
        await self.sim.start()
        self._draw_faults()
        sweeping = await self.sim.client("s", FAST)
        sweep = sweeping.spawn(self._sweep(sweeping))
        reading = await self.sim.client("r", FAST)
        read = reading.spawn(self._tail(reading))
        failing = [
            asyncio.get_running_loop().create_task(
                self._fail_bookies(Random(f"{self.seed}/{each}"))
            )
            for each in range(self.random.choice([0, 0, 1, 4]))
        ]
        rotting = asyncio.get_running_loop().create_task(self._rot())
        for number in range(self.random.randint(1, 4)):
            client = await self.sim.client(f"w{number}", FAST)
            life = client.spawn(self._own(client, number))
            await asyncio.sleep(self.random.uniform(0.05, 3.0))
            if self.random.random() < 0.5:
                client.pause()  # and nobody takes the log over meanwhile
                await asyncio.sleep(self.random.uniform(0.1, 3 * GRACE_S))
                client.resume()
                await asyncio.sleep(self.random.uniform(0.0, 0.5))
            self._end(client, life)
        sweep.cancel()
        read.cancel()
        for each in (*failing, rotting):
            each.cancel()
        await self._heal()
        client = await self.sim.client("y", FAST)
        await self._finish(client)
        await client.run(self._sweep_up(client))

    def _draw_faults(self) -> None:
        likely = self.random.choice([0.0, 0.02, 0.1, 0.3])
        names = ("unavailable", "reply_lost", "late", "cut", "flipped", "denied", "spoiled")
        chosen = self.random.sample(names, self.random.randint(0, 3))
        for name in chosen:
            setattr(self.objects.faults, name, likely)
        self.reads_are_true = not {"cut", "flipped", "denied"}.intersection(chosen)
        self.rots = Random(f"{self.seed}/rots").random() < 0.4

    def _end(self, client: SimClient, life: "asyncio.Task[None]") -> None:
        """What happens to an owner. It may be about anything just then."""
        match self.random.choice(["crash", "pause", "session", "cancel", "go on"]):
            case "crash":
                client.crash()
            case "pause":
                client.pause()
                self.sim.loop.call_later(self.random.uniform(0.1, 5.0), self._resume, client)
            case "session":
                self.sim.store.expire_session(client.name)
            case "cancel":
                life.cancel()
            case _:
                pass

    def _resume(self, client: SimClient) -> None:
        if client.process.is_alive:
            client.resume()

    async def _rot(self) -> None:
        """Spoil objects, one after the other, of ledgers that are copied and on bookies."""
        random = Random(f"{self.seed}/rotting")
        while self.rots:
            await asyncio.sleep(random.uniform(0.05, 0.6))
            keys = [
                key
                for ledger, key in self._named_by_node()
                if ledger.object is not None
                and ledger.object.state is ObjectState.COPIED
                and key in self.objects.objects
            ]
            if keys:
                spoil = random.choice([self.objects.rot, self.objects.lose])
                spoil(random.choice(keys))

    def _named_by_node(self) -> list[tuple[LogLedger, str]]:
        """The ledgers that the log's node has with an object, and the object's key."""
        try:
            node = LogMetadata.from_json(self.sim.store.tree.get(PATH).value, path=PATH)
        except NoNodeError:
            return []
        return [
            (each, node.object_bases[each.object.base].key(each.ledger_id, each.object.attempt))
            for each in node.ledgers
            if each.object is not None
        ]

    async def _fail_bookies(self, random: Random) -> None:
        """Bookies lose their power, one after the other, and come back."""
        while True:
            await asyncio.sleep(random.uniform(0.2, 1.5))
            bookie = self.sim.bookie(random.choice(sorted(self.sim.bookies)))
            if bookie.is_running:
                bookie.crash()
                await asyncio.sleep(random.uniform(0.1, 1.0))
                await bookie.restart()

    async def _heal(self) -> None:
        self.sim.history.add(self.sim.loop.time(), "plan", Fault("everything heals"))
        self.sim.store.heal_all()
        self.sim.net.heal_all()
        self.objects.faults = ObjectFaults()
        for bookie in self.sim.bookies.values():
            if not bookie.is_running:
                bookie.crash()  # its start may have been broken off
                await bookie.restart()

    # Owners

    async def _own(self, client: SimClient, number: int) -> None:
        random = Random(f"{self.seed}/owner/{number}")
        log = await self._open(client)
        if log is None:
            return
        looking = asyncio.get_running_loop().create_task(self._offload(client, log, random))
        try:
            for at in range(random.randint(5, 60)):
                log.append(Batch(client, [f"{client.name}:{at}".encode()]))
                await asyncio.sleep(random.uniform(0.0, 0.05))
                if random.random() < 0.05:
                    self._lose_something(client, random)
                if random.random() < 0.02:
                    self._cut_off(client, random.uniform(0.5, 4.0))
                if random.random() < 0.03:
                    await self._shrink(client, log, random)
            await looking
        finally:
            looking.cancel()

    async def _open(self, client: SimClient) -> ManagedLog | None:
        client.ledgers.objects = PlainLedgers(self.objects.open(client.process))
        for _ in range(_OPEN_ATTEMPTS):
            try:
                return await ManagedLog.open(
                    client.ledgers,
                    client.store,
                    PATH,
                    CONFIG,
                    clock=client.clock,
                    random=client.random,
                )
            except LedgerError as error:
                client.record(Said(f"not opened: {type(error).__name__}: {error}"))
                await asyncio.sleep(0.05)
        return None

    def _lose_something(self, client: SimClient, random: Random) -> None:
        store = self.sim.store
        lose = random.choice([store.lose_reply, store.lose_request])
        lose(client=client.name, kind=random.choice(["set", "delete"]), count=random.randint(1, 2))

    def _cut_off(self, client: SimClient, for_s: float) -> None:
        """The owner reaches no bookie for a while."""
        for bookie_id in self.sim.bookies:
            self.sim.net.partition(client.name, bookie_id)
            self.sim.loop.call_later(for_s, self.sim.net.heal, client.name, bookie_id)

    async def _shrink(self, client: SimClient, log: ManagedLog, random: Random) -> None:
        ledgers = [ledger for ledger in log.ledgers if ledger.is_closed]
        if not ledgers:
            return
        ledger = random.choice(ledgers[:2])
        try:
            await log.shrink(Position(ledger.ledger_id, ledger.entries))
        except LedgerError as error:
            client.record(Said(f"not shrunk: {type(error).__name__}"))

    async def _offload(self, client: SimClient, log: ManagedLog, random: Random) -> None:
        offload, scrub = self._steps(client, log)
        rules = KEEPING if self.rots else RULES
        while True:
            try:
                await offload.look(log.ledgers, rules, random.choice(BASES))
            except LogFencedError:
                return
            except LedgerError as error:
                client.record(Said(f"offloading: {type(error).__name__}: {error}"))
            try:
                if self.rots and scrub.is_due:
                    await scrub.run()
            except LogFencedError:
                return
            except LedgerError as error:
                client.record(Said(f"scrubbing: {type(error).__name__}: {error}"))
            await asyncio.sleep(_LOOK_S)

    def _steps(self, client: SimClient, log: ManagedLog) -> tuple[LogOffload, LogScrub]:
        """What an owner does with the objects of its log."""
        offload = LogOffload(
            log, self.offloader(client), client.clock, retry_s=_LOOK_S, retry_s_max=10 * _LOOK_S
        )
        store = OneStore(self.objects.open(client.process))
        scrubber = ObjectScrubber(store, bytes_per_s_max=0, clock=client.clock)
        scrub = LogScrub(log, scrubber, offload, period_s=SCRUB_PERIOD_S, clock=client.clock)
        return offload, scrub

    def offloader(self, client: SimClient) -> Offloader:
        """What copies in a client's process."""
        return Offloader(
            client.ledgers,
            OneStore(self.objects.open(client.process)),
            copy_read_bytes=64 << 10,
            find_instance_id=_instance_id,
            made_by=client.name,
            clock=client.clock,
            random=client.random,
        )

    # A reader that does not own the log

    async def _tail(self, client: SimClient) -> None:
        """Read the log from where it begins, again and again, each time to its end."""
        client.ledgers.objects = PlainLedgers(self.objects.open(client.process))
        while True:
            name = client.next_reader_name()
            reader: LogReader | None = None
            try:
                reader = await LogReader.open(
                    client.ledgers, client.store, PATH, clock=client.clock
                )
                while entries := await reader.read(entries_max=3, wait_s=0.1):
                    for entry in entries:
                        client.record(LogRead(name, *entry.position, entry.payload))
            except LedgerError as error:
                client.record(Said(f"reading: {type(error).__name__}: {error}"))
            finally:
                if reader is not None:
                    await reader.close()
            await asyncio.sleep(0.3)

    # The sweeper

    def _sweepers(self, client: SimClient) -> Sequence[Sweeper | ManifestSweep]:
        return [
            Sweeper(
                self.objects.open(client.process),
                client.store,
                ledgers_prefix(prefix, INSTANCE),
                clock=client.clock,
                grace_s=GRACE_S,
            )
            for prefix in PREFIXES
        ]

    async def _sweep(self, client: SimClient) -> None:
        sweepers = self._sweepers(client)
        random = Random(f"{self.seed}/sweeper")
        while True:
            if random.random() < 0.1:
                count = random.choice([1, 40])
                self.sim.store.refuse(client=client.name, kind="get", count=count)
            for sweeper in sweepers:
                try:
                    await sweeper.sweep(may_delete=lambda: True)
                except LedgerError as error:
                    client.record(Said(f"sweeping: {type(error).__name__}: {error}"))
            await asyncio.sleep(GRACE_S / 3)

    async def _sweep_up(self, client: SimClient) -> None:
        """Until nothing is left that the node does not name; it takes two passes."""
        await asyncio.sleep(_LATE_S)  # whoever was paused has gone on, and written what it had
        sweepers = self._sweepers(client)
        for _ in range(2):
            for sweeper in sweepers:
                await sweeper.sweep(may_delete=lambda: True)
            await asyncio.sleep(2 * GRACE_S)

    # The end

    async def _finish(self, client: SimClient) -> None:
        while True:
            log = await client.run(self._open(client))
            assert log is not None, "nobody can open the log any more"
            try:
                await self._settle(client, log)
            except LogFencedError:
                client.record(Said("an owner that was late has opened the log: once more"))
            else:
                break
        if not self._is_done(log):
            self.problems.append(f"OL1: in the end the list is {log.ledgers}")
        await self._read(client, log)

    async def _settle(self, client: SimClient, log: ManagedLog) -> None:
        """Have everything that is closed in objects only.

        Raises:
            LogFencedError: the log has a newer owner, one that was still about to open it.
        """
        offload, scrub = self._steps(client, log)
        deadline_s = self.sim.loop.time() + _DONE_S_MAX
        if self.rots:
            await self._scrub_up(client, log, scrub)
        while not self._is_done(log) and self.sim.loop.time() < deadline_s:
            try:
                await client.run(offload.look(log.ledgers, RULES, BASES[0]))
            except LogFencedError:
                raise
            except LedgerError as error:
                client.record(Said(f"offloading: {type(error).__name__}: {error}"))
            await asyncio.sleep(_LOOK_S)

    async def _scrub_up(self, client: SimClient, log: ManagedLog, scrub: LogScrub) -> None:
        """One pass that begins when nothing rots any more."""
        healed_ms = client.clock.wall_ms()
        deadline_s = self.sim.loop.time() + _DONE_S_MAX
        while self.sim.loop.time() < deadline_s and (
            scrub.is_due or mark_in(log.properties).began_ms <= healed_ms
        ):
            try:
                if scrub.is_due:
                    await client.run(scrub.run())
            except LogFencedError:
                raise
            except LedgerError as error:
                client.record(Said(f"scrubbing: {type(error).__name__}: {error}"))
            if not any(each.is_in_object for each in log.ledgers):
                return
            await asyncio.sleep(_LOOK_S)
        for ledger, key in self._named_by_node():
            metadata = self.sim.store.metadata(ledger.ledger_id)
            if not ledger.is_in_object or metadata is None or ledger.object is None:
                continue
            name = ObjectName(ledger.ledger_id, bytes.fromhex(ledger.object.attempt))
            if not is_whole(self.objects.objects.get(key), name, metadata):
                self.problems.append(f"OS1: {key} is not whole after the scrub")

    def _is_done(self, log: ManagedLog) -> bool:
        closed = [ledger for ledger in log.ledgers if ledger.is_closed and ledger.entries]
        gone = [self.sim.store.metadata(ledger.ledger_id) is None for ledger in closed]
        return all(ledger.is_in_object_only for ledger in closed) and all(gone)

    async def _read(self, client: SimClient, log: ManagedLog) -> None:
        position = log.first_position()
        while entries := await client.run(log.read(position, entries_max=100, bytes_max=1 << 20)):
            for entry in entries:
                client.record(LogRead("y", *entry.position, entry.payload))
            position = log.next_position(entries[-1].position)

    def judge(self) -> None:
        """Look at the history."""
        history = self.sim.history
        self.problems += problems(history, PATH, reads_are_true=self.reads_are_true)
        record = Record(history, self.sim.take_stock(), is_complete=False)
        self.problems += map(str, judge(record))
        events = [event for _, _, event in history.entries]
        read = {
            (event.ledger_id, event.entry_id): event.payload
            for event in events
            if isinstance(event, LogRead) and event.reader == "y"
        }
        node = LogMetadata.from_json(self.sim.store.tree.get(PATH).value, path=PATH)
        named = {key for _, key in self._named_by_node()}
        for key in self.objects.objects.keys() ^ named:
            self.problems.append(f"OL2: {key}, named: {key in named}")
        for event in events:
            if not isinstance(event, LogAppended) or event.error:
                continue
            if event.ledger_id <= node.removed_through:
                continue
            found = read.get((event.ledger_id, event.entry_id))
            if found != event.payload:
                self.problems.append(f"O1: {event}; in the end there is {found!r}")


async def _instance_id() -> str:
    return INSTANCE


def make(seed: int) -> OffloadRun:
    """The run of a seed; it was not run."""
    sim = Simulation(bookies=4, seed=f"offload/{seed}")
    objects = ObjectServer(sim.loop, sim.history, seed=f"offload/{seed}")
    return OffloadRun(seed, sim, Random(f"offload/{seed}"), objects)


def execute(seed: int) -> OffloadRun:
    """Run a seed to its end, and judge it."""
    run = make(seed)
    run.sim.run(run.story())
    run.judge()
    return run
