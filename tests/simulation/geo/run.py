"""Carries out the plan of several clusters, heals everything, and lets the invariants judge.

*Trouble*: in each cluster a producer publishes to each topic, consumers take and acknowledge, and
the steps of the plan happen. *Healing*: every fault is undone, and the lists are as they were in
the beginning; within a bound of virtual time everything must be copied, consumed and told. Then an
idle topic must stay as it is. *Inspection*: the brokers stop, and somebody who owns nothing reads
all topics of all clusters.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random

from magnetar.broker.features.replication import receiving
from magnetar.broker.features.retention.expiry import advance
from magnetar.broker.topic.subscription import Subscription
from magnetar.broker.topics import opening
from magnetar.cursors import AckRange, BatchAck
from magnetar.ledger.position import Position
from magnetar.sdk.errors import SdkError
from magnetar.sdk.settings import SubscriptionType
from magnetar.sdk.wire import MessageMetadata
from tests.simulation.cluster.clients import SimConsumer, SimProducer, SimUser
from tests.simulation.cluster.events import Published
from tests.simulation.geo.checks import Identity, identity_of, judge_geo
from tests.simulation.geo.events import AckedElsewhere, Moved, NotSettled, Stored
from tests.simulation.geo.faults import GeoFaults
from tests.simulation.geo.plan import NOWHERE, SMALL_BYTES, GeoPlan
from tests.simulation.geo.world import SUBSCRIPTION, GeoCluster, World, senders_of
from tests.simulation.history import Event, History, Said
from tests.simulation.loop import CURRENT_PROCESS, SimLoop, SimulationStuckError
from tests.simulation.mutations.mutation import replaced
from tests.simulation.plan import Step
from tests.simulation.record import Violation

TROUBLE_S_MAX = 12.0
"""Publishing may be waiting for what only healing brings back."""
HEALING_S_MAX = 90.0
"""Everything is copied, consumed and told so long after the last fault."""
IDLE_S_MAX = 30.0
"""Markers that answer others may come so long after the last message."""
IDLE_S = 5.0
"""For so long nothing is stored when nothing happens."""
_LOOK_S = 0.25
_RETRY_S = 0.1

_KINDS = {"exclusive": SubscriptionType.EXCLUSIVE, "shared": SubscriptionType.SHARED}


@dataclass(frozen=True, slots=True)
class GeoOutcome:
    """What became of a plan."""

    plan: GeoPlan
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
def recorded_moves(history: History, loop: SimLoop) -> Iterator[None]:
    """Have the history tell where updates of other clusters move subscriptions to: a state that is
    not stored before consumers have acknowledged more would not be seen."""

    def recorded(subscription: Subscription, through: Position) -> int:
        dropped = advance(subscription, through)
        process, mark = CURRENT_PROCESS.get(), subscription.cursor.mark_delete
        if process is not None and not loop.is_ending:
            place = mark.ledger_id, mark.entry_id
            moved = Moved(subscription.topic, subscription.name, place)
            history.add(loop.time(), process.name, moved)
        return dropped

    acknowledge = Subscription.acknowledge_elsewhere

    def recorded_acks(
        self: Subscription, ranges: Iterable[AckRange], batches: Iterable[BatchAck]
    ) -> int:
        ranges = tuple(ranges)
        new = acknowledge(self, ranges, batches)
        process = CURRENT_PROCESS.get()
        if process is not None and not loop.is_ending and ranges:
            places = tuple(
                (each.ledger_id, each.first_entry_id, each.last_entry_id) for each in ranges
            )
            acked = AckedElsewhere(self.topic, self.name, places)
            history.add(loop.time(), process.name, acked)
        return new

    with (
        replaced(opening, "advance", recorded),
        replaced(Subscription, "acknowledge_elsewhere", recorded_acks),
    ):
        yield


def execute(plan: GeoPlan) -> GeoOutcome:
    """Run a plan to its end, and judge it."""
    runner = GeoRunner(plan)
    error, violations = "", list[Violation]()
    try:
        with (
            replaced(receiving, "SNAPSHOT_ENTRIES", plan.snapshot_entries),
            recorded_moves(runner.world.history, runner.world.loop),
        ):
            runner.world.first.run(runner.main())
        violations = judge_geo(runner.world.history, plan)
    except SimulationStuckError as stuck:
        # Nothing can happen any more, or it never ends, as where a message goes round and round.
        violations = [Violation("GL1", str(stuck)[:500])]
    except Exception as failure:  # noqa: BLE001  # whatever it is, it is the result of the run
        error = f"{type(failure).__name__}: {failure} {' '.join(getattr(failure, '__notes__', []))}"
    history, steps = runner.world.history, runner.world.loop.steps
    return GeoOutcome(plan, history, tuple(violations), error, steps)


class GeoProducer(SimProducer):
    """A producer whose messages have keys, and may say which clusters they are for."""

    def send_to(self, clusters: tuple[str, ...], *, is_big: bool) -> None:
        """Publish a message for these clusters; none: for all."""
        filling = "." * SMALL_BYTES if is_big else ""
        payload = f"{self.name}:{self.published}{filling}".encode()
        key = f"k{self.published % 3}"
        self.published += 1
        self.user.record(Published(self.name, self.producer.topic, payload))
        on_sent = partial(self._on_sent, payload)
        if clusters:
            metadata = MessageMetadata(replicate_to=clusters, partition_key=key)
            self.producer.send_encoded_nowait(payload, metadata, on_sent=on_sent)
        else:
            self.producer.send_nowait(payload, key=key, on_sent=on_sent)


class GeoRunner:
    """One run of one plan."""

    def __init__(self, plan: GeoPlan) -> None:
        self.plan = plan
        self.world = World(plan)
        self._faults = GeoFaults(self.world)
        self._is_healing = False
        self._is_over = False
        self._producers: list[GeoProducer] = []
        self._publishing: list[asyncio.Task[None]] = []
        self._consumers: dict[str, list[SimUser]] = {}
        """By cluster: those of all topics."""
        self._users_made = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def main(self) -> None:
        """The three parts."""
        await self.world.start()
        for cluster in self.world.clusters.values():
            for topic in self.world.topics:
                self._begin_publishing(cluster, topic)
        for name in self.plan.consumers:
            self._begin_consuming(name)
        await self._trouble()
        await self._heal()
        await self._inspect()

    def _spawn(self, work: Coroutine[object, object, None], name: str) -> None:
        self._tasks.append(self.world.loop.create_task(work, name=name))

    # Trouble

    async def _trouble(self) -> None:
        loop, begin_s = self.world.loop, self.world.loop.time()
        for step in self.plan.steps:
            await asyncio.sleep(max(0.0, begin_s + step.at_s - loop.time()))
            match step.what:
                case "unlist":
                    self._change_list(step, {step.other})
                case "no_list":
                    self._change_list(step, set(self.plan.clusters))
                case "small_limit":
                    self._limit_size(step)
                case "move_consumer":
                    self._move_consumers(step)
                case _:
                    self._faults.do(step)
        try:
            await loop.until(
                lambda: all(task.done() for task in self._publishing),
                timeout_s=max(0.1, begin_s + TROUBLE_S_MAX - loop.time()),
            )
        except SimulationStuckError:
            pass  # healing may help

    def _change_list(self, step: Step, without: set[str]) -> None:
        """A cluster's list lacks some clusters for a while."""
        cluster = self.world.clusters[step.who]
        listed = self.plan.lists[step.who]

        async def change() -> None:
            await cluster.set_list(tuple(each for each in listed if each not in without))
            await asyncio.sleep(step.for_s)
            await cluster.set_list(listed)
            await cluster.begun(self.world.topics)

        self._spawn(change(), f"list-{cluster.name}")

    def _limit_size(self, step: Step) -> None:
        """A cluster refuses big messages for a while."""
        cluster = self.world.clusters[step.who]

        async def change() -> None:
            await cluster.limit_size(self.world.topics, SMALL_BYTES)
            await asyncio.sleep(step.for_s)
            await cluster.limit_size(self.world.topics, None)

        self._spawn(change(), f"limit-{cluster.name}")

    def _begin_publishing(self, cluster: GeoCluster, topic: str) -> None:
        user = cluster.user(f"{cluster.name}-p{len(self._publishing) + 1}")
        self._publishing.append(user.spawn(self._publish(user, cluster, topic), "publish"))

    async def _publish(self, user: SimUser, cluster: GeoCluster, topic: str) -> None:
        plan, random = self.plan, Random(f"geo/{self.plan.seed}/{user.name}")
        producer = None
        while producer is None:
            try:
                made = await user.producer_here(topic, batching=plan.batching)
                producer = GeoProducer(user, made.producer)
            except SdkError as error:
                user.record(Said(f"no producer: {type(error).__name__}: {error}"))
                await asyncio.sleep(_RETRY_S)
        self._producers.append(producer)
        others = [(each,) for each in plan.clusters if each != cluster.name]
        is_first = cluster.name == plan.clusters[0]
        while producer.published < plan.messages:
            for _ in range(min(plan.messages - producer.published, random.choice((1, 1, 2, 4)))):
                is_limited = random.random() < plan.limited_share
                producer.send_to(
                    random.choice([*others, (NOWHERE,)]) if is_limited else (),
                    is_big=is_first and random.random() < plan.big_share,
                )
            await asyncio.sleep(plan.think_s * random.random())

    # Consumers

    def _begin_consuming(self, name: str) -> None:
        cluster = self.world.clusters[name]
        for topic in self.world.topics:
            self._users_made += 1
            user = cluster.user(f"{name}-c{self._users_made}")
            self._consumers.setdefault(name, []).append(user)
            user.spawn(self._consume(user, cluster, topic), "consume")

    def _move_consumers(self, step: Step) -> None:
        """The consumers of a cluster are gone, and others begin at another one."""
        gone = self._consumers.pop(step.who, [])
        for user in gone:
            user.crash()
        if not gone:
            return

        async def come() -> None:
            await asyncio.sleep(step.for_s)
            if step.other not in self._consumers:
                self._begin_consuming(step.other)

        self._spawn(come(), "come")

    async def _consume(self, user: SimUser, cluster: GeoCluster, topic: str) -> None:
        plan, random = self.plan, Random(f"geo/{self.plan.seed}/{user.name}")
        kind = _KINDS[plan.kind]
        consumer: SimConsumer | None = None
        is_replicated = False
        while not self._is_over:
            try:
                if consumer is None:
                    queue = random.choice((1, 5, 100))
                    consumer = await user.consumer_here(topic, SUBSCRIPTION, kind=kind, queue=queue)
                if not is_replicated:
                    is_replicated = await cluster.replicate_subscription(topic)
                message = await consumer.consumer.receive(timeout_s=0.5)
            except TimeoutError:
                if consumer is not None and self._is_healing:
                    consumer.consumer.redeliver_unacknowledged()
                continue
            except SdkError as error:
                user.record(Said(f"consuming: {type(error).__name__}: {error}"))
                await asyncio.sleep(_RETRY_S)
                continue
            consumer.note(message)
            if plan.is_kept(message.data):
                continue
            if self._is_healing or random.random() < plan.ack_share:
                is_cumulative = (
                    kind is SubscriptionType.EXCLUSIVE
                    and plan.ack_share == 1.0
                    and random.random() < 0.2
                )
                consumer.ack_here(message, cumulative=is_cumulative)
            elif random.random() < 0.5:
                consumer.consumer.negative_acknowledge(message)

    # Healing

    async def _heal(self) -> None:
        world = self.world
        self._is_healing = True
        world.first.say("everything is healed")
        self._faults.heal()
        for task in self._tasks:
            if not task.done():
                await asyncio.wait([task], timeout=HEALING_S_MAX)
        for name, cluster in world.clusters.items():
            if cluster.listed != self.plan.lists[name]:
                await cluster.set_list(self.plan.lists[name])
        await self._wait("GL1", self._unpublished)
        await self._wait("GL1", self._uncopied)
        if self.plan.consumers:
            if self.plan.keeps_holes:
                await self._wait_until_none("GL1", self._not_consumed)
            else:
                await self._wait("GL1", self._unconsumed)
            if not self.plan.changes_lists:
                await self._wait_until_none("GS2", self._not_told)
                if self.plan.keeps_holes:
                    await self._wait_until_none("GS3", self._not_told_singly)
        await self._wait_idle()

    async def _wait(self, invariant: str, left: Callable[[], Iterable[str]]) -> None:
        """Wait until nothing is left, and write down what is in the end."""
        deadline_s = self.world.loop.time() + HEALING_S_MAX
        while found := list(left()):
            if self.world.loop.time() > deadline_s:
                self._record(NotSettled(invariant, "; ".join(found)))
                return
            await asyncio.sleep(_LOOK_S)

    def _record(self, event: Event) -> None:
        self.world.history.add(self.world.loop.time(), "plan", event)

    def _unpublished(self) -> Iterable[str]:
        if not all(task.done() for task in self._publishing):
            yield "a producer is not done"
        for each in self._producers:
            if each.pending:
                yield f"{each.name} waits for {each.pending} receipts"

    def _uncopied(self) -> Iterable[str]:
        for name, cluster in self.world.clusters.items():
            wanted = {*self.plan.lists[name]} - {name}
            for topic in self.world.topics:
                held = cluster.held(topic)
                if held is None:
                    yield f"nobody has {topic} at {name}"
                    continue
                senders = senders_of(held)
                if {each.remote for each in senders} != wanted:
                    yield f"{topic} of {name} is copied to {[each.remote for each in senders]}"
                for each in senders:
                    if each.cursor.backlog_entries:
                        backlog = each.cursor.backlog_entries
                        yield f"{backlog} of {topic} from {name} to {each.remote}: {each.problem}"

    def _unconsumed(self) -> Iterable[str]:
        for name in self._consumers:
            for topic in self.world.topics:
                subscription = self.world.clusters[name].subscription(topic)
                if subscription is None:
                    yield f"{name} has no subscription of {topic}"
                elif subscription.cursor.backlog_entries:
                    yield f"{subscription.cursor.backlog_entries} of {topic} at {name}"

    async def _not_consumed(self) -> list[str]:
        """What consumers have not acknowledged, and do not keep either."""
        found: list[str] = []
        for name in self._consumers:
            for topic in self.world.topics:
                unacked = await self._unacked(name, topic)
                if unacked is None:
                    found.append(f"{topic} of {name} cannot be read")
                    continue
                found += [
                    f"{name} has not acknowledged {each}"
                    for each in unacked
                    if not any(map(self.plan.is_kept, each.messages))
                ]
        return found

    async def _unacked(self, name: str, topic: str) -> list[Stored] | None:
        """The messages that the subscription has not acknowledged; None: they cannot be read."""
        cluster = self.world.clusters[name]
        entries, subscription = await cluster.entries_of(topic), cluster.subscription(topic)
        if entries is None or subscription is None:
            return None
        is_acked = subscription.cursor.is_acked
        return [each for each in entries if not (each.is_marker or is_acked(Position(*each.place)))]

    async def _wait_until_none(
        self, invariant: str, left: Callable[[], Awaitable[list[str]]]
    ) -> None:
        """Wait until nothing is left, and write down what is in the end."""
        deadline_s = self.world.loop.time() + HEALING_S_MAX
        while found := await left():
            if self.world.loop.time() > deadline_s:
                self._record(NotSettled(invariant, "; ".join(found)))
                return
            await asyncio.sleep(_LOOK_S)

    async def _not_told_singly(self) -> list[str]:
        """Subscriptions without a consumer have no other holes than those that have one."""
        found: list[str] = []
        for topic in self.world.topics:
            there: set[Identity] = set()
            kept: set[Identity] = set()
            for name in self._consumers:
                entries = await self.world.clusters[name].entries_of(topic)
                unacked = await self._unacked(name, topic)
                if entries is None or unacked is None:
                    return [f"{topic} of {name} cannot be read"]
                there |= {identity_of(name, each) for each in entries}
                kept |= {identity_of(name, each) for each in unacked}
            for name, cluster in self.world.clusters.items():
                if name in self._consumers or not self._is_told(name):
                    continue
                subscription = cluster.subscription(topic)
                if subscription is not None and not subscription.is_replicated:
                    continue
                for each in await self._unacked(name, topic) or ():
                    identity = identity_of(name, each)
                    if identity not in there:
                        break  # an update stops before it
                    if identity not in kept:
                        found.append(f"{name} has not acknowledged {each}")
        return found

    async def _not_told(self) -> list[str]:
        found: list[str] = []
        for topic in self.world.topics:
            consumed: set[Identity] = set()
            contents: dict[str, list[Stored]] = {}
            for name, cluster in self.world.clusters.items():
                entries = await cluster.entries_of(topic)
                if entries is None:
                    return [f"{topic} of {name} cannot be read"]
                contents[name] = entries
                if name in self._consumers:
                    unacked = await self._unacked(name, topic) if self.plan.keeps_holes else ()
                    consumed |= {
                        identity_of(name, each) for each in entries if each not in (unacked or ())
                    }
            for name, cluster in self.world.clusters.items():
                if name in self._consumers or not self._is_told(name):
                    continue
                subscription = cluster.subscription(topic)
                if subscription is None:
                    found.append(f"{name} has no subscription of {topic}")
                    continue
                if not subscription.is_replicated:
                    continue  # its consumer died before it had asked for that: it is left alone
                for each in contents[name]:
                    is_acked = subscription.cursor.is_acked(Position(*each.place))
                    if each.is_marker or is_acked:
                        continue
                    if identity_of(name, each) in consumed:
                        found.append(f"{name} has not acknowledged {each}")
                    break  # nothing behind what no consumer had is told
        return found

    def _is_told(self, name: str) -> bool:
        return all(
            self.plan.are_both_ways(name, each) for each in self.plan.clusters if each != name
        )

    async def _wait_idle(self) -> None:
        """Nothing is stored any more (GL2); markers that answer others may be on their way."""
        deadline_s = self.world.loop.time() + IDLE_S_MAX
        before, since_s = self._ends(), self.world.loop.time()
        while self.world.loop.time() < since_s + IDLE_S:
            await asyncio.sleep(_LOOK_S)
            now_s = self.world.loop.time()
            if (after := self._ends()) != before:
                if now_s > deadline_s:
                    self._record(NotSettled("GL2", f"topics grow without end: {after}"))
                    return
                before, since_s = after, now_s

    def _ends(self) -> list[str]:
        return [
            f"{name}: {held.log.last_confirmed if held is not None else 'nobody has it'}"
            for name, cluster in self.world.clusters.items()
            for topic in self.world.topics
            for held in [cluster.held(topic)]
        ]

    # Inspection

    async def _inspect(self) -> None:
        self._is_over = True
        for cluster in self.world.clusters.values():
            cluster.count_backlogs()
        for cluster in self.world.clusters.values():
            await cluster.stop_brokers()
        for cluster in self.world.clusters.values():
            await cluster.read_all()
