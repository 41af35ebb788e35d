"""Carries out the plan of a scalable topic, heals everything, and lets the invariants judge.

*Trouble*: producers publish with keys, consumers of each kind take and acknowledge, while segments
are split and merged and the steps of the plan happen. *Healing*: every fault is undone; within a
bound of virtual time every message must be confirmed, no change may be left under way, and each
subscription must have acknowledged all. *Inspection*: the brokers stop, and somebody who owns
nothing reads all segments.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random

from magnetar.broker.base.errors import RequestError
from magnetar.broker.features.scalable import (
    Assignment,
    GroupId,
    SegmentCoordinators,
    WholeSubscriptions,
)
from magnetar.broker.features.scalable.coordinators import Member, _Coordinator
from magnetar.broker.protocol.segment_consumers import Registration
from magnetar.broker.topics.registry import Topics
from magnetar.broker.topics.segment_owners import OwnSegments
from magnetar.sdk.errors import BrokerUnavailableError
from magnetar.sdk.settings import InitialPosition
from magnetar.sdk.wire import TopicName
from tests.simulation.cluster.broker import PORT, SimBroker
from tests.simulation.cluster.clients import SimUser
from tests.simulation.history import Event, History, Said
from tests.simulation.loop import (
    CURRENT_PROCESS,
    ProcessState,
    SimLoop,
    SimulationStuckError,
)
from tests.simulation.mutations.mutation import replaced
from tests.simulation.plan import Step
from tests.simulation.record import Violation
from tests.simulation.scalable.checks import judge_scalable
from tests.simulation.scalable.clients import (
    CheckpointReader,
    QueueConsumer,
    StreamConsumer,
    V5Producer,
)
from tests.simulation.scalable.events import (
    CoordinatorEnded,
    Covered,
    Departed,
    Given,
    InOrder,
    Left,
    Moved,
    NotSettled,
    SeekBegan,
    SeekDone,
)
from tests.simulation.scalable.faults import ScalableFaults
from tests.simulation.scalable.plan import LATE, QUEUE, STREAM, ScalablePlan
from tests.simulation.scalable.run_history import SETTLED
from tests.simulation.scalable.world import NAME, SECONDS_MAX, ScalableCluster, hosts_of

TROUBLE_S_MAX = 10.0
"""Publishing may be waiting for what only healing brings back."""
HEALING_S_MAX = 40.0
_LOOK_S = 0.25
_RETRY_S = 0.2
_SPLIT_PLACES = 16
_BUCKETS_POWERS = 4
"""Segments get from 1 to 8 entry buckets."""
_STEP_PRIME = 40_503
"""Spreads the places where segments are split over their ranges."""

_ALONE = frozenset(
    {
        *("split", "merge", "rebucket", "prune", "seek", "restart_reader"),
        *("join", "leave", "kill", "return", "late", "late_away"),
    }
)
"""Steps that are no faults."""


@dataclass(frozen=True, slots=True)
class ScalableOutcome:
    """What became of a plan."""

    plan: ScalablePlan
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
        """Invariants that do not hold, or the kind of the error."""
        if self.error:
            return frozenset([self.error.partition(":")[0]])
        return frozenset(violation.invariant for violation in self.violations)

    def report(self) -> str:
        lines = [str(self.plan)]
        if self.error:
            lines.append(f"ERROR {self.error}")
        return "\n".join([*lines, *(f"VIOLATED {violation}" for violation in self.violations)])


@contextmanager
def recorded_decisions(history: History, loop: SimLoop) -> Iterator[None]:
    """Have the history tell what coordinators decide, and where subscriptions go back: what is on
    its way to a client says neither in time."""
    tell, register, seek = Registration.tell, SegmentCoordinators.register, OwnSegments.seek
    unregister, detach = _Coordinator.unregister, _Coordinator.detach
    close = _Coordinator.close

    def note(event: Event) -> None:
        process = CURRENT_PROCESS.get()
        if process is not None and not loop.is_ending:
            history.add(loop.time(), process.name, event)

    def given(group: GroupId, name: str, assignment: Assignment) -> None:
        ids = tuple(each.id for each in assignment.segments)
        note(Given(group.subscription, name, assignment.epoch, ids))

    def recorded_tell(self: Registration, assignment: Assignment) -> None:
        given(self.group, self.name, assignment)
        tell(self, assignment)

    async def recorded_register(
        self: SegmentCoordinators, group: GroupId, member: Member, *, is_wanted: Callable[[], bool]
    ) -> Assignment | None:
        assignment = await register(self, group, member, is_wanted=is_wanted)
        if assignment is not None:
            given(group, member.name, assignment)
        return assignment

    def recorded_unregister(self: _Coordinator, member: Member) -> None:
        note(Departed(self._group.subscription, member.name))
        unregister(self, member)

    def recorded_detach(self: _Coordinator, member: Member) -> None:
        note(Departed(self._group.subscription, member.name))
        detach(self, member)

    def recorded_close(self: _Coordinator) -> None:
        note(CoordinatorEnded(self._group.subscription))
        close(self)

    async def recorded_seek(
        self: OwnSegments, segment: TopicName, subscription: str, publish_ms: int | None
    ) -> bool:
        has_moved = await seek(self, segment, subscription, publish_ms)
        if has_moved:
            note(Moved(str(segment), subscription))
        return has_moved

    with (
        replaced(Registration, "tell", recorded_tell),
        replaced(SegmentCoordinators, "register", recorded_register),
        replaced(_Coordinator, "unregister", recorded_unregister),
        replaced(_Coordinator, "detach", recorded_detach),
        replaced(_Coordinator, "close", recorded_close),
        replaced(OwnSegments, "seek", recorded_seek),
    ):
        yield


def execute(plan: ScalablePlan) -> ScalableOutcome:
    """Run a plan to its end, and judge it."""
    runner = ScalableRunner(plan)
    error, violations = "", list[Violation]()
    try:
        with recorded_decisions(runner.sim.history, runner.sim.loop):
            runner.sim.run(runner.main())
        violations = judge_scalable(runner.sim.history, plan)
    except SimulationStuckError as stuck:
        violations = [Violation("L1", str(stuck)[:500])]
    except Exception as failure:  # noqa: BLE001  # whatever it is, it is the result of the run
        error = f"{type(failure).__name__}: {failure} {' '.join(getattr(failure, '__notes__', []))}"
    history, steps = runner.sim.history, runner.sim.loop.steps
    return ScalableOutcome(plan, history, tuple(violations), error, steps)


class ScalableRunner:
    """One run of one plan."""

    def __init__(self, plan: ScalablePlan) -> None:
        self.plan = plan
        self.sim = ScalableCluster(plan)
        # A client that leaves while it connects asks nobody for the outcome.
        self.sim.loop.tolerated = BrokerUnavailableError
        self._faults = ScalableFaults(self.sim, plan)
        self._random = Random(f"scalable/{plan.seed}/clients")
        self._subscriptions = [STREAM] + ([QUEUE] if plan.queues else [])
        self._acknowledged: dict[str, dict[bytes, None]] = {STREAM: {}, QUEUE: {}, LATE: {}}
        self._producers: list[V5Producer] = []
        self._publishing: list[asyncio.Task[None]] = []
        self._streams: list[StreamConsumer] = []
        self._gone: list[str] = []
        """Names of stream consumers that were killed, and may come back."""
        self._late_consumer: QueueConsumer | None = None
        self._is_covered = False
        self._before_late: frozenset[bytes] = frozenset()
        """What was published before the late subscription was there."""
        self._reader: CheckpointReader | None = None
        self._users_made = 0
        self._admin: list[asyncio.Task[None]] = []

    async def main(self) -> None:
        """The three parts."""
        sim, plan = self.sim, self.plan
        await sim.start()
        await sim.create(plan.segments, self._subscriptions)
        if plan.is_calm:
            self._note(InOrder())
        for number in range(1, plan.producers + 1):
            self._begin_publishing(f"p{number}")
        for _ in range(plan.streams):
            self._join()
        for _ in range(plan.queues):
            self._queue(QUEUE, InitialPosition.EARLIEST)
        if plan.has_reader:
            user, hosts = self._user("r")
            self._reader = user.call(lambda: CheckpointReader(user, hosts))
        await self._trouble()
        sim.say("everything is healed")
        self._faults.heal()
        await self._heal()
        await self._inspect()

    def _note(self, event: Event) -> None:
        self.sim.history.add(self.sim.loop.time(), "plan", event)

    # Trouble

    async def _trouble(self) -> None:
        sim, begin_s = self.sim, self.sim.loop.time()
        for step in self.plan.steps:
            await sim.sleep(max(0.0, begin_s + step.at_s - sim.loop.time()))
            if step.what in _ALONE:
                action: Callable[[Step], None] = getattr(self, f"_{step.what}")
                action(step)
            else:
                self._faults.do(step)
        try:
            await sim.until(
                lambda: all(task.done() for task in self._publishing),
                timeout_s=max(0.1, begin_s + TROUBLE_S_MAX - sim.loop.time()),
            )
        except SimulationStuckError:
            pass  # healing may help

    def _user(self, name: str = "") -> tuple[SimUser, list[str]]:
        """A client process, and the brokers that it knows. Each asks another one first."""
        self._users_made += 1
        name = name or f"c{self._users_made}"
        hosts = hosts_of(self.sim.brokers, self._users_made)
        url = ",".join(f"{host}:{PORT}" for host in hosts)
        return self.sim.user(name, url=f"pulsar://{url}"), hosts

    def _begin_publishing(self, name: str) -> None:
        user, hosts = self._user(name)
        producer = user.call(lambda: V5Producer(user, hosts))
        self._producers.append(producer)
        self._publishing.append(user.spawn(self._publish(producer), "publish"))

    async def _publish(self, producer: V5Producer) -> None:
        plan, random = self.plan, Random(f"scalable/{self.plan.seed}/{producer.user.name}")
        while producer.published < plan.messages:
            for _ in range(min(plan.messages - producer.published, random.choice((1, 1, 2, 4)))):
                producer.publish(f"k{random.randrange(plan.keys)}")
            await asyncio.sleep(plan.think_s * random.random())

    # Layouts

    def _ask(self, step: Step, work: Callable[[Topics], Awaitable[object]]) -> None:
        """Have a broker do something to the topic; what it says is written down."""
        machine = self._faults.broker_of(step.who)
        broker, process = machine.broker, machine.process
        if broker is None or process is None or process.state is not ProcessState.RUNNING:
            return
        topics = broker.services.topics

        async def act() -> None:
            try:
                await work(topics)
            except RequestError as error:
                machine.say(f"{step.what}: {type(error).__name__}: {error}")
            else:
                machine.say(f"{step.what}: done")

        process.spawn(act(), step.what)

    def _split(self, step: Step) -> None:
        record = self.sim.record
        if record is None:
            return
        at, place = divmod(step.number, _SPLIT_PLACES)
        segment = record.active[at % len(record.active)]
        width = segment.end - segment.start
        where = None
        if place and width:
            where = segment.start + 1 + place * _STEP_PRIME % width
        self._ask(step, lambda topics: topics.scalable.split(NAME, segment.id, at=where))

    def _merge(self, step: Step) -> None:
        record = self.sim.record
        if record is None or len(record.active) < 2:
            return
        at = step.number % (len(record.active) - 1)
        one, other = record.active[at], record.active[at + 1]
        self._ask(step, lambda topics: topics.scalable.merge(NAME, one.id, other.id))

    def _rebucket(self, step: Step) -> None:
        record = self.sim.record
        if record is None:
            return
        at, power = divmod(step.number, _BUCKETS_POWERS)
        segment = record.active[at % len(record.active)]
        buckets = 1 << power
        self._ask(step, lambda topics: topics.scalable.rebucket(NAME, segment.id, buckets))

    def _prune(self, step: Step) -> None:
        async def prune(topics: Topics) -> None:
            record = await topics.scalable.find(NAME)
            if record is not None:
                await topics.scalable.prune(NAME, record)

        self._ask(step, prune)

    def _seek(self, step: Step) -> None:
        """Go back to the beginning; asked again until it is done."""
        machine = self._faults.broker_of(step.who)

        async def seek(whole: WholeSubscriptions) -> bool:
            try:
                await whole.seek(NAME, STREAM, 0)
            except RequestError as error:
                machine.say(f"seek: {type(error).__name__}: {error}")
                return False
            return True

        async def keep_seeking() -> None:
            # What was acknowledged before counts in the end: a consumer may still hold such an
            # acknowledgement when the subscription goes back, and send it behind that.
            self._note(SeekBegan(STREAM))
            while True:
                if await self._run_on(machine, seek):
                    break
                await asyncio.sleep(_RETRY_S)
            self._note(SeekDone(STREAM))

        self._admin.append(self.sim.loop.create_task(keep_seeking(), name="seek"))

    async def _run_on(
        self, machine: SimBroker, work: Callable[[WholeSubscriptions], Awaitable[bool]]
    ) -> bool:
        """What a broker makes of it; False as well if it dies meanwhile, or does not run."""
        broker, process = machine.broker, machine.process
        if broker is None or process is None:
            return False

        async def act() -> bool:
            return await work(broker.services.topics.whole_subscriptions)

        task = process.spawn(act(), "admin")
        await self.sim.until(
            lambda: task.done() or not process.is_alive, timeout_s=SECONDS_MAX, what=task.get_name()
        )
        return task.done() and task.result()

    # Clients

    def _on_acknowledged(self, subscription: str, payload: bytes) -> None:
        self._acknowledged[subscription][payload] = None

    def _join(self, _step: Step | None = None, *, name: str = "") -> None:
        user, hosts = self._user()
        random = Random(f"scalable/{self.plan.seed}/{user.name}")
        consumer = user.call(
            lambda: StreamConsumer(
                user,
                hosts,
                STREAM,
                random,
                name=name or user.name,
                ack_share=self.plan.ack_share,
                on_acknowledged=self._on_acknowledged,
            )
        )
        self._streams.append(consumer)

    def _leave(self, step: Step) -> None:
        if len(self._streams) > 1:
            consumer = self._streams.pop(step.number % len(self._streams))
            consumer.user.record(Said("leaves"))
            consumer.user.spawn(consumer.end(), "leave")

    def _kill(self, step: Step) -> None:
        """A stream consumer is gone, and another one comes."""
        consumer = self._streams.pop(step.number % len(self._streams))
        consumer.user.crash()
        self._gone.append(consumer.name)
        self._join()

    def _return(self, _step: Step) -> None:
        """One that was killed comes back, by its name."""
        self._join(name=self._gone.pop(0) if self._gone else "")

    def _queue(self, subscription: str, start: InitialPosition) -> QueueConsumer:
        user, hosts = self._user()
        random = Random(f"scalable/{self.plan.seed}/{user.name}")
        return user.call(
            lambda: QueueConsumer(
                user,
                hosts,
                subscription,
                random,
                start=start,
                on_acknowledged=self._on_acknowledged,
            )
        )

    def _late(self, _step: Step) -> None:
        """A queue consumer with a subscription of its own begins with what comes from now on."""
        if self._late_consumer is None:
            consumer = self._late_consumer = self._queue(LATE, InitialPosition.LATEST)
            consumer.on_attached = self._look_for_cover

    def _late_away(self, step: Step) -> None:
        """Have the late queue consumer leave, and come back after a while."""
        consumer = self._late_consumer
        if consumer is None:
            return
        consumer.user.spawn(consumer.end(), "leave")

        def come() -> None:
            back = self._late_consumer = self._queue(LATE, InitialPosition.LATEST)
            back.on_attached = self._look_for_cover

        self.sim.loop.call_later(step.for_s, come)

    def _restart_reader(self, step: Step) -> None:
        """The checkpoint consumer goes back to its checkpoint, or takes one."""
        reader = self._reader
        if reader is None:
            return
        if step.number % 2:
            reader.take_checkpoint()
        else:
            reader.user.spawn(reader.go_back(), "go-back")

    def _look_for_cover(self) -> None:
        """Whether the late subscription is in every segment that takes messages just now."""
        consumer, record = self._late_consumer, self.sim.record
        if self._is_covered or consumer is None or record is None or consumer.known is None:
            return
        if consumer.known.epoch != record.epoch:
            return
        if all(each.name in consumer.attached for each in consumer.known.active):
            self._is_covered = True
            self._before_late = frozenset(
                payload for each in self._producers for payload in each.given
            )
            self._note(Covered(LATE))

    # Healing

    async def _heal(self) -> None:
        sim = self.sim
        await sim.until(
            lambda: all(each.is_running for each in sim.brokers.values()),
            timeout_s=HEALING_S_MAX,
            what="every broker serves",
        )
        await self._wait("L1", self._unfinished)
        await self._wait("L1", self._under_way)
        for subscription in self._subscriptions:
            await self._wait("S8", partial(self._undelivered, subscription))
        if self._is_covered:
            await self._wait("S7", partial(self._undelivered, LATE))
        self._note(Said(SETTLED))

    async def _wait(self, invariant: str, left: Callable[[], Iterable[str]]) -> None:
        """Wait until nothing is left, and write down what is in the end."""
        deadline_s = self.sim.loop.time() + HEALING_S_MAX
        while found := list(left()):
            if self.sim.loop.time() > deadline_s:
                self._note(NotSettled(invariant, "; ".join(found)[:500]))
                return
            await asyncio.sleep(_LOOK_S)

    def _unfinished(self) -> Iterable[str]:
        if not all(task.done() for task in self._publishing):
            yield "a producer is not done"
        if not all(task.done() for task in self._admin):
            yield "a seek is not done"
        for each in self._producers:
            if each.pending:
                yield f"{each.user.name} waits for {each.pending} receipts"

    def _under_way(self) -> Iterable[str]:
        record = self.sim.record
        if record is not None and record.change is not None:
            yield f"a change of {record.change[0]} is under way"

    def _undelivered(self, subscription: str) -> Iterable[str]:
        known = self._acknowledged[subscription]
        before = self._before_late if subscription == LATE else frozenset()
        for each in self._producers:
            for payload in each.confirmed:
                if payload not in known and payload not in before:
                    yield f"{subscription} has not acknowledged {payload!r}"

    # Inspection

    async def _inspect(self) -> None:
        sim = self.sim
        await sim.stop_brokers()
        for segment in sim.segments():
            self._note(Left(segment))
        await sim.read_all()
