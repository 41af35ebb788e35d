"""Carries out the plan of a cluster, heals everything, and lets the invariants judge.

*Trouble*: producers publish, consumers take and acknowledge, readers follow, while the steps of the
plan happen. *Healing*: every fault is undone; within a bound of virtual time every message must be
confirmed, and delivered and acknowledged on every subscription. *Inspection*: the brokers stop,
every bookie loses its power once more, and somebody who owns nothing reads all topics.
"""

import asyncio
from dataclasses import dataclass
from random import Random

from magnetar.sdk.errors import SdkError
from magnetar.sdk.settings import SubscriptionType
from tests.simulation.cluster.broker import PORT
from tests.simulation.cluster.checks import judge_cluster
from tests.simulation.cluster.clients import SimConsumer, SimProducer, SimUser
from tests.simulation.cluster.cluster import Cluster
from tests.simulation.cluster.events import Calm
from tests.simulation.cluster.faults import ClusterFaults
from tests.simulation.cluster.plan import NAMESPACES, ClusterPlan
from tests.simulation.history import History, Said
from tests.simulation.loop import SimulationStuckError
from tests.simulation.plan import Step
from tests.simulation.record import FinalState, Record, Violation

TROUBLE_S_MAX = 12.0
"""Publishing may be waiting for what only healing brings back."""
HEALING_S_MAX = 60.0
SECONDS_MAX = 400.0
STEPS_MAX = 600_000
_SETTLING_S = 1.5
_RETRY_S = 0.1
_REPAIRED_S_MAX = 120.0
_MESSAGES_OF_LEAVERS = 2

_KINDS = {
    "exclusive": SubscriptionType.EXCLUSIVE,
    "failover": SubscriptionType.FAILOVER,
    "shared": SubscriptionType.SHARED,
}


@dataclass(frozen=True, slots=True)
class ClusterOutcome:
    """What became of a plan."""

    plan: ClusterPlan
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


def execute(plan: ClusterPlan) -> ClusterOutcome:
    """Run a plan to its end, and judge it."""
    runner = ClusterRunner(plan)
    error = ""
    try:
        runner.sim.run(runner.main())
    except Exception as failure:  # noqa: BLE001  # whatever it is, it is the result of the run
        error = f"{type(failure).__name__}: {failure} {' '.join(getattr(failure, '__notes__', []))}"
    record = Record(runner.sim.history, runner.final, is_complete=not error)
    return ClusterOutcome(
        plan, runner.sim.history, tuple(judge_cluster(record)), error, runner.sim.loop.steps
    )


class ClusterRunner:
    """One run of one plan."""

    def __init__(self, plan: ClusterPlan) -> None:
        self.plan = plan
        self.final = FinalState()
        self.sim = sim = Cluster(
            bookies=plan.bookies,
            brokers=plan.brokers,
            quorum=plan.quorum,
            seed=f"cluster/{plan.seed}",
            seconds_max=SECONDS_MAX,
            steps_max=STEPS_MAX,
            flush_interval_s=plan.flush_interval_s,
            broker_settings={
                "ledger_entries_max": plan.ledger_entries,
                "ack_persist_interval_ms": plan.ack_persist_ms,
                "namespaces": NAMESPACES[: plan.namespaces],
                **dict(plan.settings),
            },
        )
        sim.net.jitter_s = plan.net_jitter_s
        sim.net.keeps_frames = plan.keeps_frames
        sim.front.jitter_s = plan.front_jitter_s
        sim.front.keeps_frames = plan.keeps_frames
        sim.store.jitter_s = plan.store_jitter_s
        sim.store.watch_jitter_s = plan.watch_jitter_s
        self.is_healing = False
        self.is_over = False
        self._producers: dict[str, SimProducer] = {}
        """By the name of their process: "p1" is that of "t1"."""
        self._publishing: list[asyncio.Task[None]] = []
        self._consumers: dict[str, list[tuple[SimUser, asyncio.Task[None]]]] = {}
        self._users_made = 0
        self._users_begun = 0

    async def main(self) -> None:
        """The three parts."""
        sim = self.sim
        await sim.start()
        for number in range(1, self.plan.recoveries + 1):
            await sim.recovery(f"ar{number}").start()
        for bookie in sim.bookies.values():
            bookie.journal_jitter_s = self.plan.disk_jitter_s
        faults = ClusterFaults(sim, self.plan)
        await self._trouble(faults)
        self.is_healing = True
        sim.say("everything is healed")
        faults.heal()
        await self._heal()
        await self._inspect()

    # Trouble

    async def _trouble(self, faults: ClusterFaults) -> None:
        sim, plan = self.sim, self.plan
        for number in range(1, plan.topics + 1):
            topic = f"t{number}"
            self._consumers[topic] = []
            for _ in range(1 if plan.kinds[number - 1] == "exclusive" else plan.consumers):
                self._begin_consuming(topic)
            if plan.has_reader:
                reader = self._user(f"r{number}")
                reader.spawn(self._read(reader, topic), "read")
            producer = self._user(f"p{number}")
            self._publishing.append(
                producer.spawn(self._publish(producer, topic, plan.messages), "publish")
            )
            if plan.has_leavers:
                leaver = self._user(f"q{number}")
                self._publishing.append(
                    leaver.spawn(self._publish(leaver, topic, _MESSAGES_OF_LEAVERS), "publish")
                )
        if plan.is_calm:
            sim.history.add(sim.loop.time(), "plan", Calm())
        begin_s = sim.loop.time()
        for step in plan.steps:
            await sim.sleep(max(0.0, begin_s + step.at_s - sim.loop.time()))
            if step.what == "crash_consumer":
                self._crash_consumer(step)
            elif step.what == "publish":
                self._publish_more(step)
            else:
                faults.do(step)
        try:
            await sim.until(
                lambda: all(task.done() for task in self._publishing),
                timeout_s=max(0.1, begin_s + TROUBLE_S_MAX - sim.loop.time()),
            )
        except SimulationStuckError:
            pass  # healing may help

    async def _publish(self, user: SimUser, topic: str, messages: int) -> None:
        plan, random = self.plan, Random(f"cluster/{self.plan.seed}/{topic}")
        producer = None
        while producer is None:
            try:
                producer = await user.producer_here(plan.topic(topic), batching=plan.batching)
            except SdkError as error:
                user.record(Said(f"no producer: {type(error).__name__}: {error}"))
                await asyncio.sleep(_RETRY_S)
        self._producers[user.name] = producer
        while producer.published < messages:
            count = min(messages - producer.published, random.choice((1, 1, 2, 4)))
            producer.send_here(count)
            await asyncio.sleep(plan.think_s * random.random())

    def _publish_more(self, step: Step) -> None:
        """So many messages more, at this moment."""
        producer = self._producers.get(step.who.replace("t", "p"))
        if producer is not None:
            producer.send(step.number)

    def _user(self, name: str) -> SimUser:
        """A client process. Each asks another broker first, so that no broker's trouble stays
        unnoticed because all clients are with it."""
        hosts = list(self.sim.brokers)
        at = self._users_begun % len(hosts)
        self._users_begun += 1
        url = ",".join(f"{host}:{PORT}" for host in hosts[at:] + hosts[:at])
        return self.sim.user(name, url=f"pulsar://{url}")

    # Consumers

    def _begin_consuming(self, topic: str) -> None:
        self._users_made += 1
        user = self._user(f"c{self._users_made}")
        task = user.spawn(self._consume(user, topic), "consume")
        self._consumers[topic].append((user, task))

    def _crash_consumer(self, step: Step) -> None:
        """A consumer is gone, and another one comes."""
        users = self._consumers.get(step.who)
        if not users:
            return
        user, _ = users.pop(0)
        user.crash()

        def come() -> None:
            if not self.is_over:
                self._begin_consuming(step.who)

        self.sim.loop.call_later(step.for_s, come)

    async def _consume(self, user: SimUser, topic: str) -> None:
        plan, random = self.plan, Random(f"cluster/{self.plan.seed}/{user.name}")
        kind = _KINDS[plan.kinds[int(topic[1:]) - 1]]
        consumer: SimConsumer | None = None
        while not self.is_over:
            try:
                if consumer is None:
                    consumer = await user.consumer_here(
                        plan.topic(topic), kind=kind, queue=random.choice((1, 5, 100))
                    )
                message = await consumer.consumer.receive(timeout_s=1.0)
            except TimeoutError:
                if consumer is not None and self.is_healing:
                    consumer.consumer.redeliver_unacknowledged()
                continue
            except SdkError as error:
                user.record(Said(f"consuming: {type(error).__name__}: {error}"))
                await asyncio.sleep(_RETRY_S)
                continue
            consumer.note(message)
            if self.is_healing or random.random() < plan.ack_share:
                is_cumulative = kind is not SubscriptionType.SHARED and random.random() < 0.2
                # What stands before it and was passed over must come again.
                if is_cumulative and plan.ack_share < 1.0:
                    is_cumulative = False
                consumer.ack_here(message, cumulative=is_cumulative)
            elif random.random() < 0.5:
                consumer.consumer.negative_acknowledge(message)

    async def _read(self, user: SimUser, topic: str) -> None:
        reader = None
        while not self.is_over:
            try:
                if reader is None:
                    reader = await user.reader_here(self.plan.topic(topic))
                await reader.take_here(timeout_s=1.0)
            except TimeoutError:
                continue
            except SdkError as error:
                user.record(Said(f"reading: {type(error).__name__}: {error}"))
                await asyncio.sleep(_RETRY_S)

    # Healing

    async def _heal(self) -> None:
        sim = self.sim
        await sim.until(
            lambda: all(each.is_running or each.is_lost for each in sim.bookies.values()),
            what="every bookie runs",
        )
        for task in self._publishing:
            await task
        await sim.until(self._is_confirmed, timeout_s=HEALING_S_MAX, what="all is confirmed")
        await self._wait_drained()
        sim.count_backlogs()

    def _is_confirmed(self) -> bool:
        return all(each.pending == 0 for each in self._producers.values())

    async def _wait_drained(self) -> None:
        """Every subscription has acknowledged everything."""
        deadline_s = self.sim.loop.time() + HEALING_S_MAX
        while not all(self._is_drained(topic) for topic in self._consumers):
            if self.sim.loop.time() > deadline_s:
                backlogs = {topic: self._backlog(topic) for topic in self._consumers}
                raise SimulationStuckError(f"subscriptions are not drained: {backlogs}")
            await self.sim.sleep(0.2)
        await self.sim.sleep(_SETTLING_S)

    def _is_drained(self, topic: str) -> bool:
        return self._backlog(topic) == 0

    def _backlog(self, topic: str) -> int | None:
        name = self.plan.topic(topic)
        owner = self.sim.owner(name)
        loaded = owner.topic(name) if owner is not None else None
        if loaded is None or "s" not in loaded.subscriptions:
            return None
        subscription = loaded.subscriptions["s"]
        return subscription.cursor.backlog_entries if subscription.is_open else None

    # Inspection

    async def _inspect(self) -> None:
        sim = self.sim
        self.is_over = True
        await sim.stop_brokers()
        if self.plan.recoveries:
            await sim.wait_repaired(timeout_s=_REPAIRED_S_MAX)
            await sim.stop_recoveries()
        for bookie in sim.bookies.values():
            bookie.crash()
            bookie.settings = bookie.settings.model_copy(update={"flush_interval_s": 60.0})
        for task in [each.start_soon() for each in sim.bookies.values() if not each.is_lost]:
            await task
        # Before the last reading: a copy that rotted unread is found by that, when nobody repairs.
        items = sim.missing_copies() if self.plan.recoveries else None
        await sim.read_all()
        self.final = sim.take_stock()
        self.final.items = items
