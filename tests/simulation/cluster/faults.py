"""The troubles of a cluster's plan: those of `tests/simulation/faults.py`, and those of brokers."""

from typing import Protocol

from magnetar.cursors.node import NO_LEDGER, decode_node
from magnetar.ledger.wire import Flag, Op, Status
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


class NamesTopics(Protocol):
    """Knows what steps call a topic; plans do."""

    def topic(self, name: str, /) -> str: ...


class ClusterFaults(Faults):
    """Does what the steps of a plan say that goes wrong."""

    def __init__(self, sim: Cluster, plan: NamesTopics) -> None:
        super().__init__(sim)
        self._cluster = sim
        self._plan = plan

    def _resolve(self, name: str) -> str:
        """The owner of a topic: "^t1"; otherwise as before."""
        if not name.startswith("^"):
            return super()._resolve(name)
        owner = self._cluster.owner(self._plan.topic(name[1:]))
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
        topic = self._plan.topic(step.who)
        owner = self._cluster.owner(topic)
        if owner is not None:
            owner.unload_soon(topic, step.number)

    def _slow_answers(self, step: Step) -> None:
        """Bookies have what the broker appends, and their answers take their time."""
        hold = self._cluster.net.hold(client=step.who, op=Op.ADD, reply=True)
        self._later(step, hold.release)

    # Cursors

    def _refuse_cursor(self, step: Step) -> None:
        """For a while nobody can read what the topic's subscription has stored on bookies."""
        sim = self._cluster
        path = sim.cursor_path(self._plan.topic(step.who))
        if sim.store.tree.version(path) is None:
            return
        ledger_id = decode_node(sim.store.tree.get(path).value).cursor_ledger_id
        if ledger_id == NO_LEDGER:
            return
        sim.net.say("net", f"nobody can read the cursor ledger L{ledger_id}")
        refusals = [
            sim.net.refuse(Status.IO_ERROR, ledger_id=ledger_id, op=op)
            for op in (Op.READ, Op.READ_LAC)
        ]

        def undo() -> None:
            for refusal in refusals:
                refusal.count = 0

        self._later(step, undo)

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
