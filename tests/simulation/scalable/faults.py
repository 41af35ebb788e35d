"""The troubles of a scalable topic's plan: those of clusters, aimed at who has a part in it."""

from tests.simulation.cluster.broker import SimBroker
from tests.simulation.cluster.faults import ClusterFaults
from tests.simulation.loop import SimulationStuckError
from tests.simulation.plan import Step
from tests.simulation.scalable.drawing import COMMANDS
from tests.simulation.scalable.plan import ScalablePlan
from tests.simulation.scalable.stored import RECORD_PATH
from tests.simulation.scalable.world import ScalableCluster


class ScalableFaults(ClusterFaults):
    """Does what the steps of a plan say that goes wrong."""

    def __init__(self, sim: ScalableCluster, plan: ScalablePlan) -> None:
        super().__init__(sim, plan)
        self._world = sim

    def _resolve(self, name: str) -> str:
        """The coordinator's broker: "^c"; the owner of an active segment: "^0"."""
        if not name.startswith("^"):
            return name
        broker: SimBroker | None
        if name == "^c":
            broker = self._world.coordinator()
        else:
            segments = self._world.active()
            at = int(name[1:])
            broker = self._world.holder(segments[at % len(segments)]) if segments else None
        return broker.name if broker is not None else "br1"

    def broker_of(self, name: str) -> SimBroker:
        """The broker that a step names."""
        return self._world.broker(self._resolve(name))

    def _unload(self, step: Step) -> None:
        """The bundle of an active segment, or of the topic's own name."""
        segments = self._world.active()
        if step.number % 2:
            name, broker = self._plan.topic(""), self._world.coordinator()
        else:
            name = segments[step.number % len(segments)]
            broker = self._world.holder(name)
        (broker or self._world.broker(step.who)).unload_soon(name, 2)

    def _slow_frames(self, step: Step) -> None:
        command = COMMANDS[step.number % len(COMMANDS)]
        hold = self._world.front.hold_command(command)
        self._later(step, hold.release)

    def _cut_brokers(self, step: Step) -> None:
        """Two brokers cannot ask each other."""
        self._world.front.partition(step.who, step.other)
        self._later(step, lambda: self._world.front.heal(step.who, step.other))

    def _lose_record(self, step: Step) -> None:
        """The outcome of the next write of the topic's record is not known."""
        lose = self._world.store.lose_reply
        if step.other == "request lost":
            lose = self._world.store.lose_request
        lose(kind="set", path=RECORD_PATH)

    def _crash_writer(self, step: Step) -> None:
        """Crash the broker that writes the topic's record next, right after it."""
        tree = self._world.store.tree
        before = tree.version(RECORD_PATH)

        async def watch() -> None:
            try:
                await self._world.loop.until(
                    lambda: tree.version(RECORD_PATH) != before, timeout_s=step.for_s
                )
            except SimulationStuckError:
                return  # Nobody did.
            writer = next(
                entry.actor
                for entry in reversed(self._world.history.entries)
                if getattr(entry.event, "path", None) == RECORD_PATH
            )
            broker = self._world.brokers.get(writer)
            if broker is not None and not self._is_over:
                broker.crash()
                self._later(step, lambda: self._start_broker(broker))

        self._world.loop.create_task(watch(), name="crash-writer")
