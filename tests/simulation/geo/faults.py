"""The troubles of a plan of several clusters: each method does one step, and undoes it in time.

Whatever is still wrong when the trouble is over is undone by `heal`.
"""

from collections.abc import Callable

from magnetar.ledger.wire import Op
from tests.simulation.cluster.broker import SimBroker
from tests.simulation.geo.plan import topic_name
from tests.simulation.geo.world import GeoCluster, World
from tests.simulation.plan import Step

FAR_COMMANDS = ("SEND", "SEND_RECEIPT", "PRODUCER", "PRODUCER_SUCCESS", "LOOKUP_RESPONSE")
"""Commands between clusters that are lost, or late."""

STORED = ("/managed-ledgers", "/ledgers", "/namespace", None)
"""Paths of nodes whose writes have an outcome that is lost."""


class GeoFaults:
    """Does what the steps of a plan say that goes wrong."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_over = False

    def do(self, step: Step) -> None:
        """One step, now."""
        action: Callable[[Step], None] = getattr(self, f"_{step.what}")
        action(step)

    def _cluster(self, name: str) -> GeoCluster:
        return self._world.clusters[name]

    def _owner(self, name: str) -> SimBroker:
        """The owner of the first topic at a cluster; if there is none just now, some broker."""
        cluster = self._cluster(name)
        holder = cluster.holder(topic_name(1))
        return holder or next(iter(cluster.brokers.values()))

    def _later(self, step: Step, undo: Callable[[], object]) -> None:
        def act() -> None:
            if not self._is_over:
                undo()

        self._world.loop.call_later(step.for_s, act)

    # Brokers

    def _crash_broker(self, step: Step) -> None:
        broker = self._owner(step.who)
        broker.crash()
        self._later(step, lambda: self._start(broker))

    def _stop_broker(self, step: Step) -> None:
        broker = self._owner(step.who)

        async def stop() -> None:
            await broker.stop()
            self._start(broker)

        self._world.loop.create_task(stop(), name=f"stop-{broker.name}")

    def _start(self, broker: SimBroker) -> None:
        if broker.process is None:
            broker.start_soon()

    def _pause_broker(self, step: Step) -> None:
        broker = self._owner(step.who)
        process = broker.process
        if process is None:
            return
        broker.pause()

        def go_on() -> None:
            if broker.process is process:
                broker.resume()

        self._later(step, go_on)

    def _unload(self, step: Step) -> None:
        broker = self._owner(step.who)
        if broker.is_running:
            broker.unload_soon(topic_name(1), 2 * (step.number % 2))

    def _expire(self, step: Step) -> None:
        self._cluster(step.who).store.expire_session(self._owner(step.who).name)

    # Between clusters

    def _cut(self, step: Step) -> None:
        """Nothing moves from one cluster to another one; with number 0, nor back."""
        front = self._world.front
        links = list(self._world.links(step.who, step.other))
        if step.number == 0:
            links += [(target, source) for source, target in links]
        for link in links:
            front.block(*link)

        def undo() -> None:
            for link in links:
                front.unblock(*link)

        self._later(step, undo)

    def _reset(self, step: Step) -> None:
        for one, other in self._world.links(step.who, step.other):
            self._world.front.reset(one, other)

    def _lose_far(self, step: Step) -> None:
        """The next frames of a kind between two owners are lost, with their connection."""
        command, count = self._command(step)
        self._world.front.drop_command(
            command,
            source=self._owner(step.who).name,
            target=self._owner(step.other).name,
            count=count,
        )

    def _hold_far(self, step: Step) -> None:
        """Frames of a kind between two owners wait, and all that is behind them."""
        command, _ = self._command(step)
        hold = self._world.front.hold_command(
            command, source=self._owner(step.who).name, target=self._owner(step.other).name
        )
        self._later(step, hold.release)

    @staticmethod
    def _command(step: Step) -> tuple[str, int]:
        count, at = divmod(step.number, len(FAR_COMMANDS))
        return FAR_COMMANDS[at], 1 + count

    # Storage

    def _no_bookies(self, step: Step) -> None:
        cluster, broker = self._cluster(step.who), self._owner(step.who)
        links = [(broker.name, bookie) for bookie in cluster.bookies]
        for link in links:
            cluster.net.partition(*link)

        def undo() -> None:
            for link in links:
                cluster.net.heal(*link)

        self._later(step, undo)

    def _slow_answers(self, step: Step) -> None:
        """Bookies have what the owner appends, and their answers take their time."""
        net = self._cluster(step.who).net
        hold = net.hold(client=self._owner(step.who).name, op=Op.ADD, reply=True)
        self._later(step, hold.release)

    def _slow_bookies(self, step: Step) -> None:
        """What the owner appends takes its time to arrive."""
        net = self._cluster(step.who).net
        hold = net.hold(client=self._owner(step.who).name, op=Op.ADD)
        self._later(step, hold.release)

    def _store_lose(self, step: Step) -> None:
        store, name = self._cluster(step.who).store, self._owner(step.who).name
        path = STORED[step.number % len(STORED)]
        if step.other == "reply lost":
            store.lose_reply(client=name, path=path)
        elif step.other == "request lost":
            store.lose_request(client=name, path=path)
        else:
            store.refuse(client=name, count=1 + step.number % 3)

    # The end

    def heal(self) -> None:
        """Undo everything; start every broker."""
        self._is_over = True
        for cluster in self._world.clusters.values():
            cluster.heal()
            for broker in cluster.brokers.values():
                self._start(broker)
