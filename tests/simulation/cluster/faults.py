"""The troubles of a cluster's plan: those of `tests/simulation/faults.py`, and those of brokers."""

from magnetar.ledger.wire import Flag, Op
from tests.simulation.cluster.broker import SimBroker
from tests.simulation.cluster.cluster import Cluster
from tests.simulation.cluster.drawing import COMMANDS
from tests.simulation.cluster.recovery import SimRecovery
from tests.simulation.faults import REFUSALS, Faults
from tests.simulation.plan import Step

_LOST = (
    ("set", "/managed-ledgers"),
    ("set", "/managed-ledgers"),
    ("set", None),
    ("create", "/namespace"),
    ("delete", "/namespace"),
    ("create", "/ledgers"),
    ("delete", "/ledgers"),
    ("set", "/ledgers"),
    ("create", None),
    ("delete", None),
    ("create", "/loadbalance"),
    ("set", "/admin"),
)
"""Kinds and paths of operations whose outcome is lost."""


class ClusterFaults(Faults):
    """Does what the steps of a plan say that goes wrong."""

    def __init__(self, sim: Cluster) -> None:
        super().__init__(sim)
        self._cluster = sim

    def _resolve(self, name: str) -> str:
        """The owner of a topic: "^t1"; otherwise as before."""
        if not name.startswith("^"):
            return super()._resolve(name)
        owner = self._cluster.owner(name[1:])
        return owner.name if owner is not None else "br1"

    def _broker(self, step: Step) -> SimBroker:
        return self._cluster.broker(step.who)

    # Brokers

    def _crash_broker(self, step: Step) -> None:
        broker = self._broker(step)
        broker.crash()
        self._later(step, lambda: self._start_broker(broker))

    def _stop_broker(self, step: Step) -> None:
        broker = self._broker(step)

        async def stop() -> None:
            await broker.stop()
            await self._sim.sleep(step.for_s)
            self._start_broker(broker)

        self._sim.loop.create_task(stop(), name=f"stop-{broker.name}")

    def _start_broker(self, broker: SimBroker) -> None:
        if broker.process is None:
            broker.start_soon()

    def _pause_broker(self, step: Step) -> None:
        broker = self._broker(step)
        process = broker.process
        if process is None:
            return
        broker.pause()

        def go_on() -> None:
            if broker.process is process:
                broker.resume()

        self._later(step, go_on)

    def _suspend_broker(self, step: Step) -> None:
        broker = self._broker(step)
        if broker.process is not None:
            self._sim.loop.create_task(broker.suspend(step.for_s), name=f"suspend-{broker.name}")

    def _jump_clock(self, step: Step) -> None:
        broker = self._broker(step)
        broker.say(f"the wall clock jumps by {step.number} ms")
        broker.clock.wall_skew_ms += step.number

    def _no_bookies(self, step: Step) -> None:
        sim = self._cluster
        links = [(step.who, bookie) for bookie in sim.bookies]
        for broker, bookie in links:
            sim.net.partition(broker, bookie)

        def undo() -> None:
            for broker, bookie in links:
                sim.net.heal(broker, bookie)

        self._later(step, undo)

    def _no_clients(self, step: Step) -> None:
        self._cluster.front.isolate(step.who)
        self._later(step, lambda: self._cluster.front.join(step.who))

    def _unload(self, step: Step) -> None:
        owner = self._cluster.owner(step.who)
        if owner is not None:
            owner.unload_soon(step.who, step.number)

    # Auto-recovery

    def _crash_recovery(self, step: Step) -> None:
        recovery = self._cluster.recoveries.get(step.who)
        if recovery is None:
            return
        recovery.crash()
        self._later(step, lambda: self._start_recovery(recovery))

    def _start_recovery(self, recovery: SimRecovery) -> None:
        if recovery.process is None:
            recovery.start_soon()

    def _pause_recovery(self, step: Step) -> None:
        recovery = self._cluster.recoveries.get(step.who)
        if recovery is None or recovery.process is None:
            return
        process = recovery.process
        recovery.pause()

        def go_on() -> None:
            if recovery.process is process:
                recovery.resume()

        self._later(step, go_on)

    def _refuse_copies(self, step: Step) -> None:
        """Bookies answer the next copies of auto-recovery with an error."""
        kind, count = divmod(step.number, 4)
        self._sim.net.refuse(
            REFUSALS[kind % len(REFUSALS)],
            bookie=step.who or None,
            op=Op.ADD,
            flags=Flag.RECOVERY,
            count=1 + count,
        )

    # Metadata

    def _store_lose_of(self, step: Step) -> None:
        kind, path = _LOST[step.number % len(_LOST)]
        store = self._cluster.store
        if step.other == "reply lost":
            store.lose_reply(client=step.who, kind=kind, path=path)
        elif step.other == "request lost":
            store.lose_request(client=step.who, kind=kind, path=path)
        else:
            store.refuse(client=step.who, count=1 + step.number % 3)

    # Clients

    def _slow_frames(self, step: Step) -> None:
        command = COMMANDS[step.number % len(COMMANDS)]
        hold = self._cluster.front.hold_command(command, source=None)
        self._later(step, hold.release)

    def _reset_clients(self, step: Step) -> None:
        for user in self._cluster.users:
            self._cluster.front.reset(user, step.who)

    # The end

    def heal(self) -> None:
        super().heal()
        self._cluster.heal()
        for broker in self._cluster.brokers.values():
            self._start_broker(broker)
        for recovery in self._cluster.recoveries.values():
            self._start_recovery(recovery)
