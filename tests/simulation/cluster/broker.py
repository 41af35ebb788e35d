"""A broker of a simulation: a machine on which the real broker runs, again and again.

Real are the binary server, connections, topics, subscriptions, dispatchers, cursors, the managed
log and the ledger client below it. What is missing is the HTTP service. A broker has no state of
its own, so a crash needs no disk; a machine can be suspended, which stops its monotonic clock.
"""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import TypeVar

from magnetar.broker.base.errors import RequestError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.broker import Broker
from magnetar.broker.cluster.balance.bundles import BundleId, middle_of_range
from magnetar.broker.cluster.ownership import Destination
from magnetar.broker.cluster.ownership.cluster_ownership import ClusterOwnership
from magnetar.broker.topic import Topic
from magnetar.broker.topics.ending import TopicEnds
from magnetar.ledger.errors import MetadataError
from magnetar.ledger.settings import LedgerSettings
from magnetar.sdk.wire import parse_topic_name
from tests.simulation.clients import FAST
from tests.simulation.cluster.events import Closed, Closing, Dropped, Place, Stopped
from tests.simulation.cluster.front import Front
from tests.simulation.cluster.recorded import RecordedClient
from tests.simulation.history import Event, Fault, History
from tests.simulation.loop import SimLoop, SimProcess
from tests.simulation.network import Fabric, SimNetwork
from tests.simulation.store import MetadataServer, SimStore
from tests.simulation.worker import SimClock

T = TypeVar("T")

PORT = 6650
_START_RETRY_S = 0.2


class _NoHttp:
    """In the place of the HTTP service."""

    port = 8080

    async def start(self) -> None:
        return None

    async def stop(self) -> None:
        return None


class SimBrokerProcess(Broker):
    """The real broker without its HTTP service. One run of one process."""

    def __init__(self, machine: "SimBroker", process: SimProcess, store: SimStore) -> None:
        self.process = process
        self.store = store
        random = Random(f"{machine.seed}/process/{machine.starts}")
        self.ledgers = RecordedClient(
            store,
            network=SimNetwork(machine.back, process),
            clock=machine.clock,
            random=random,
            settings=machine.ledger_settings,
        )
        self.ledgers.record_to(machine.history, machine.loop, machine.name)
        super().__init__(
            machine.settings,
            self.ledgers,
            store,
            clock=machine.clock,
            network=SimNetwork(machine.front, process),
            random=random,
            is_clustered=machine.is_clustered,
        )
        self._remotes.network = SimNetwork(machine.front, process)
        self._http = _NoHttp()  # type: ignore[assignment]  # no sockets here
        self._machine = machine
        self._record_ends(self.services.topics.ends)

    def _record_ends(self, ends: TopicEnds) -> None:
        """Have the history tell how topics end here."""
        fence, start_closing = ends.fence, ends._start_closing

        def recorded_fence(topic: Topic, reason: str = "it is lost") -> None:
            if ends._table.is_served(topic):
                self._machine.record(Dropped(str(topic.name)))
            fence(topic, reason)

        def recorded_closing(
            topic: Topic, destination: Destination | None = None, *, dropped: str = ""
        ) -> None:
            self._machine.record(Closing(str(topic.name), _acknowledged_in(topic)))
            start_closing(topic, destination, dropped=dropped)
            task = ends._table.closing[topic.name].task
            task.add_done_callback(lambda _: self._machine.record(Closed(str(topic.name))))

        ends.fence = recorded_fence  # type: ignore[method-assign]
        ends._start_closing = recorded_closing  # type: ignore[method-assign]


def _acknowledged_in(topic: Topic) -> tuple[tuple[str, Place, tuple[Place, ...]], ...]:
    """What the durable cursors of a topic have in memory."""
    found = []
    for subscription in topic.subscriptions.values():
        if not subscription.is_open or not subscription.is_durable:
            continue
        cursor, log = subscription.cursor, topic.log
        singly, at = [], log.first_position()
        while at <= log.last_confirmed:
            if at > cursor.mark_delete and cursor.is_acked(at):
                singly.append((at.ledger_id, at.entry_id))
            at = log.next_position(at)
        mark_delete = cursor.mark_delete.ledger_id, cursor.mark_delete.entry_id
        found.append((subscription.name, mark_delete, tuple(singly)))
    return tuple(found)


class SimBroker:
    """One machine. The attributes are for tests; `process` is the run that is under way."""

    def __init__(
        self,
        name: str,
        loop: SimLoop,
        front: Front,
        back: Fabric,
        server: MetadataServer,
        history: History,
        *,
        seed: str,
        settings: BrokerSettings,
        ledger_settings: LedgerSettings = FAST,
        is_clustered: bool = True,
    ) -> None:
        """`is_clustered`: it knows of other brokers; otherwise it takes every topic for its own,
        and nothing but the fences of ledgers keeps two of them apart."""
        self.is_clustered = is_clustered
        self.name = name
        self.loop = loop
        self.front = front
        self.back = back
        self.server = server
        self.history = history
        self.seed = seed
        self.settings = settings
        self.ledger_settings = ledger_settings
        self.clock = SimClock(loop)
        self.starts = 0
        self.process: SimProcess | None = None
        self.broker: SimBrokerProcess | None = None
        """While it serves."""
        self._starting: asyncio.Task[None] | None = None
        self.on_made: Callable[[SimBrokerProcess], None] = lambda _: None
        """Told of each process before it starts."""

    # Life

    @property
    def is_running(self) -> bool:
        return self.broker is not None

    async def start(self) -> None:
        """Start a process, and wait until it serves."""
        await asyncio.shield(self.start_soon())

    def start_soon(self) -> "asyncio.Task[None]":
        assert self.process is None, f"{self.name} runs already"
        self.starts += 1
        process = self.process = SimProcess(self.loop, self.name)
        store = self.server.open(process)
        self.say("starts")
        self._starting = process.spawn(self._start(process, store), f"start-{self.name}")
        return self._starting

    async def _start(self, process: SimProcess, store: SimStore) -> None:
        broker = SimBrokerProcess(self, process, store)
        self.on_made(broker)
        while True:
            try:
                await broker.ledgers.start()
                await broker.start()
            except MetadataError:
                await asyncio.sleep(_START_RETRY_S)  # the store is away: as a supervisor would
            else:
                break
        self.broker = broker
        self.say("serves")

    def crash(self) -> None:
        """kill -9."""
        process = self._end()
        if process is not None:
            self.say("crashes")

    def _end(self) -> SimProcess | None:
        process, self.process, self.broker = self.process, None, None
        if process is not None:
            process.kill()
            self.front.on_process_gone(process)
            self.back.on_process_gone(process)
            self.server.forget(process)
        return process

    async def stop(self) -> None:
        """SIGTERM: hand everything over, then end. It may be killed, or end otherwise, before."""
        broker, process = self.broker, self.process
        if broker is None or process is None:
            return
        self.say("stops")
        began_s = self.loop.time()
        await process.finish(self._stop(broker), f"stop-{self.name}")
        if self.process is process:
            self._end()
            self.record(Stopped(self.loop.time() - began_s))

    async def _stop(self, broker: SimBrokerProcess) -> None:
        await broker.stop()
        await broker.ledgers.close()
        await broker.store.close()

    def pause(self) -> None:
        """SIGSTOP: it gets no time, its connections stay."""
        if self.process is not None:
            self.say("is paused")
            self.process.pause()

    def resume(self) -> None:
        """SIGCONT."""
        if self.process is not None:
            self.say("goes on")
            self.process.resume()

    async def suspend(self, seconds: float) -> None:
        """The machine sleeps: its monotonic clock stands still meanwhile."""
        process = self.process
        self.pause()
        await asyncio.sleep(seconds)
        if self.process is process:
            self.clock.suspended_s += seconds
            self.resume()

    # Moving

    async def unload(self, topic: str, *, destination: str | None = None) -> None:
        """Give the bundle of a topic up, to that broker or to whoever is chosen."""
        await self.run(self._unload(topic, destination))

    async def _unload(self, topic: str, destination: str | None) -> None:
        await self._ownership.unload_bundle(await self._bundle_of(topic), destination)

    async def split(self, topic: str) -> None:
        """Cut the bundle of a topic in two."""
        await self.run(self._split(topic))

    async def _split(self, topic: str) -> None:
        bundle = await self._bundle_of(topic)
        await self._ownership.split_lease(bundle, middle_of_range(bundle.bundle))

    def unload_soon(self, topic: str, number: int) -> None:
        """The bundle of a topic, or the topic alone, or split it; what it says is written down."""

        async def work() -> None:
            try:
                if number == 0:
                    await self._ownership.unload_topic(parse_topic_name(topic))
                elif number == 1:
                    await self._split(topic)
                else:
                    await self._unload(topic, None)
            except RequestError as error:
                self.say(f"unloading: {type(error).__name__}: {error}")

        if self.broker is not None and self.process is not None:
            self.process.spawn(work(), f"unload-{topic}")

    @property
    def _ownership(self) -> ClusterOwnership:
        assert self.broker is not None, f"{self.name} does not serve"
        assert self.broker.cluster is not None, f"{self.name} knows of no others"
        return self.broker.cluster.ownership

    async def _bundle_of(self, topic: str) -> BundleId:
        return await self._ownership.bundle_of(parse_topic_name(topic))

    @property
    def is_valid(self) -> bool:
        """Whether its guard lets it serve at this moment."""
        return self.broker is not None and self.call(lambda: self._ownership.is_serving)

    # Looking into it

    def topic(self, name: str) -> Topic | None:
        """The topic as it is loaded here; without a namespace, that of `public/default`."""
        if self.broker is None:
            return None
        wanted = parse_topic_name(name)
        for topic in self.broker.services.topics.loaded:
            if topic.name == wanted:
                return topic
        return None

    async def run(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run something in the process that serves, and wait for it."""
        assert self.process is not None
        return await self.process.spawn(coroutine)

    def call(self, what: Callable[[], T]) -> T:
        """Call something in the process that serves."""
        assert self.process is not None
        return self.process.context.copy().run(what)

    def say(self, text: str) -> None:
        self.record(Fault(text))

    def record(self, event: Event) -> None:
        self.history.add(self.loop.time(), self.name, event)
