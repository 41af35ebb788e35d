"""The troubles of a plan: each method does one step to the cluster, and undoes it in time.

Whatever is still wrong when the trouble is over is undone by `heal`.
"""

import errno
from collections.abc import Callable

from magnetar.bookie.errors import StartError
from magnetar.ledger.wire import Op, Status
from tests.simulation.bookie import SimBookie
from tests.simulation.loop import ProcessState
from tests.simulation.plan import WRITER, Step
from tests.simulation.simulation import Simulation

_HELD = (
    (Op.ADD, False),
    (Op.ADD, True),
    (Op.READ, False),
    (Op.READ, True),
    (Op.READ_LAC, False),
    (Op.READ_LAC, True),
)
REFUSALS = (
    Status.IO_ERROR,
    Status.READ_ONLY,
    Status.TOO_MANY_REQUESTS,
    Status.UNKNOWN_LEDGER_STATE,
)
"""What a bookie that is asked to store something may answer instead."""

_RETRY_S = 0.1


class Faults:
    """Does what the steps of a plan say that goes wrong."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._is_over = False

    def do(self, step: Step) -> None:
        """One step, now."""
        step = step._replace(who=self._resolve(step.who), other=self._resolve(step.other))
        action: Callable[[Step], None] = getattr(self, f"_{step.what}")
        action(step)

    def _resolve(self, name: str) -> str:
        """A member of the ensemble that is written to: "@1"."""
        if not name.startswith("@"):
            return name
        ledger_ids = sorted(set(self._sim.store.ledger_ids.values()), reverse=True)
        for ledger_id in ledger_ids:
            metadata = self._sim.store.metadata(ledger_id)
            if metadata is not None:
                bookies = metadata.last_fragment.bookies
                return bookies[int(name[1:]) % len(bookies)]
        return "b1"

    def _later(self, step: Step, undo: Callable[[], object]) -> None:
        def act() -> None:
            if not self._is_over:
                undo()

        self._sim.loop.call_later(step.for_s, act)

    # Network

    def _frames(self, step: Step) -> tuple[Op, bool, int | None]:
        """Operation, request or reply, entry: what the number of the step says."""
        entry, operation = divmod(step.number, len(_HELD))
        # A writer only adds; holding its reads would be a step for nothing.
        op, reply = _HELD[operation % 2 if step.who == WRITER else operation]
        return op, reply, entry - 1 if entry else None

    def _hold(self, step: Step) -> None:
        op, reply, entry = self._frames(step)
        hold = self._sim.net.hold(
            client=step.who, bookie=step.other, op=op, reply=reply, entry=entry
        )
        self._later(step, hold.release)

    def _lose_frame(self, step: Step) -> None:
        op, reply, entry = self._frames(step)
        self._sim.net.drop(client=step.who, bookie=step.other, op=op, reply=reply, entry=entry)

    def _block(self, step: Step) -> None:
        self._sim.net.block(step.who, step.other)
        self._later(step, lambda: self._sim.net.unblock(step.who, step.other))

    def _partition(self, step: Step) -> None:
        self._sim.net.partition(step.who, step.other)
        self._later(step, lambda: self._sim.net.heal(step.who, step.other))

    def _reset(self, step: Step) -> None:
        self._sim.net.reset(step.who, step.other)

    def _slow_bookie(self, step: Step) -> None:
        slowness = self._sim.net.slowness
        slowness[step.who] = step.number / 1000
        self._later(step, lambda: slowness.pop(step.who, None))

    def _refuse(self, step: Step) -> None:
        status = REFUSALS[step.number % len(REFUSALS)]
        op, _, entry = self._frames(step)
        is_any = entry is None and step.who != WRITER
        self._sim.net.refuse(
            status,
            client=step.who,
            bookie=step.other,
            op=None if is_any else op,
            entry=entry,
            count=1,
        )

    # Bookies

    def _crash(self, step: Step) -> None:
        bookie = self._sim.bookie(step.who)
        bookie.crash(power=step.number == 0)
        self._later(step, lambda: self._start(bookie))

    def _swap(self, step: Step) -> None:
        """Two bookies are killed, and come back at each other's addresses.

        The session of the first has ended by then: it is registered where the other one, which
        takes its time, is registered still.
        """
        one, other = self._sim.bookie(step.who), self._sim.bookie(step.other)
        if one is other or not (one.is_running and other.is_running):
            return
        self._sim.store.expire_session(one.bookie_id)
        for each in (one, other):
            each.crash(power=False)
        hosts = one.settings.host, other.settings.host
        one.move_to(hosts[1])
        other.move_to(hosts[0])
        self._start(one)
        self._later(step, lambda: self._start(other))

    def _crash_at_step(self, step: Step) -> None:
        bookie = self._sim.bookie(step.who)
        bookie.crash_at_step(step.number)
        self._later(step, lambda: self._start(bookie))

    def _stop(self, step: Step) -> None:
        bookie = self._sim.bookie(step.who)
        if not bookie.is_running:
            return

        async def stop() -> None:
            await bookie.stop()
            await self._sim.sleep(step.for_s)
            self._start(bookie)

        self._sim.loop.create_task(stop(), name=f"stop-{bookie.bookie_id}")

    def _pause_bookie(self, step: Step) -> None:
        bookie = self._sim.bookie(step.who)
        if bookie.process is None:
            return
        bookie.pause()
        if step.for_s > self._sim.store.session_timeout_s:
            self._expire_later(step)
        self._later(step, bookie.resume)

    def _lose(self, step: Step) -> None:
        bookie = self._sim.bookie(step.who)
        if not bookie.is_lost:
            bookie.lose()
            self._sim.loop.create_task(self._set_up_anew(bookie.bookie_id), name="set-up-anew")

    async def _set_up_anew(self, bookie_id: str) -> None:
        """Somebody puts an empty machine in its place, which must not start (rule 11.1)."""
        await self._sim.sleep(self._sim.store.session_timeout_s)
        machine = self._sim.make_empty(bookie_id)
        try:
            await machine.start()
        except StartError:
            machine.end_start()

    def _rot(self, step: Step) -> None:
        bookie = self._sim.bookie(step.who)
        stored = [
            (ledger_id, entry_id)
            for ledger_id, entries in sorted(bookie.storage.packets.items())
            for entry_id in sorted(entries)
        ]
        if stored:
            ledger_id, entry_id = stored[step.number % len(stored)]
            bookie.corrupt(ledger_id, entry_id, at=step.number * 7)

    def _new_bookie(self, step: Step) -> None:
        self._start(self._sim.make_bookie())

    def _start(self, bookie: SimBookie) -> None:
        """Start it, unless it runs or is lost."""
        if bookie.process is None and not bookie.is_lost:
            self._sim.loop.create_task(self._keep_starting(bookie), name="supervisor")

    async def _keep_starting(self, bookie: SimBookie) -> None:
        """As a supervisor: while the disk is in trouble, try again and again."""
        while bookie.process is None and not bookie.is_lost:
            had_trouble = bookie.has_disk_trouble
            crashes = bookie.disk.crashes
            try:
                await bookie.start()
            except BaseException:
                if bookie.process is not None:
                    bookie.end_start()
                had_trouble = had_trouble or bookie.has_disk_trouble
                if not had_trouble and crashes == bookie.disk.crashes and not bookie.is_lost:
                    raise
                await self._sim.sleep(_RETRY_S)

    # Disks

    def _slow_disk(self, step: Step) -> None:
        bookie = self._sim.bookie(step.who)
        before = bookie.journal_latency_s
        bookie.journal_latency_s = step.number / 1000

        def undo() -> None:
            bookie.journal_latency_s = before

        self._later(step, undo)

    def _disk_full(self, step: Step) -> None:
        bookie = self._sim.bookie(step.who)
        bookie.say("the disk is full")
        bookie.disk.bytes_left = 0
        self._later(step, lambda: self._mend(bookie))

    def _cache_full(self, step: Step) -> None:
        bookie = self._sim.bookie(step.who)
        bookie.say("the write cache is full")
        bookie.storage.is_full = True
        self._later(step, lambda: self._mend(bookie))

    def _sync_fails(self, step: Step) -> None:
        bookie = self._sim.bookie(step.who)
        bookie.say("syncs fail")
        bookie.disk.sync_error = errno.EIO
        self._later(step, lambda: self._mend(bookie))

    def _reads_fail(self, step: Step) -> None:
        bookie = self._sim.bookie(step.who)
        bookie.say("reads fail")
        bookie.storage.read_error = True
        self._later(step, lambda: self._mend(bookie))

    def _mend(self, bookie: SimBookie) -> None:
        bookie.say("the disk is well again")
        bookie.disk.bytes_left = None
        bookie.disk.sync_error = None
        bookie.storage.read_error = False
        bookie.storage.is_full = False
        self._start(bookie)

    # Clients

    def _pause_client(self, step: Step) -> None:
        client = self._sim.clients.get(step.who)
        if client is None or client.process.state is not ProcessState.RUNNING:
            return
        client.pause()
        if step.for_s > self._sim.store.session_timeout_s:
            self._expire_later(step)
        self._later(step, client.resume)

    def _crash_client(self, step: Step) -> None:
        client = self._sim.clients.get(step.who)
        if client is not None:
            client.crash()

    # Metadata

    def _store_stall(self, step: Step) -> None:
        who = step.who or None
        self._sim.store.stall(who)
        self._later(step, lambda: self._sim.store.resume(who))

    def _store_lose(self, step: Step) -> None:
        # The next write, or the one after so many; from 6 on: the next ledger that is made.
        is_create, skip = step.number >= 6, step.number % 3
        kind, path = ("create", "/ledgers/00") if is_create else ("set", None)
        if step.other == "reply lost":
            self._sim.store.lose_reply(client=step.who, kind=kind, path=path, skip=skip)
        elif step.other == "request lost":
            self._sim.store.lose_request(client=step.who, kind=kind, path=path, skip=skip)
        else:
            self._sim.store.refuse(client=step.who)

    def _store_hold(self, step: Step) -> None:
        hold = self._sim.store.hold(client=step.who, kind="set", reply=step.number == 1)
        self._later(step, hold.release)

    def _expire(self, step: Step) -> None:
        self._sim.store.expire_session(step.who)

    def _expire_later(self, step: Step) -> None:
        timeout_s = self._sim.store.session_timeout_s
        self._sim.loop.call_later(timeout_s, self._sim.store.expire_session, step.who)

    # The end

    def heal(self) -> None:
        """Undo everything; start every bookie that is not lost."""
        self._is_over = True
        self._sim.net.heal_all()
        self._sim.store.heal_all()
        for client in self._sim.clients.values():
            client.process.resume()
        for bookie in self._sim.bookies.values():
            if bookie.is_lost:
                continue
            if bookie.process is not None:
                bookie.process.resume()
            bookie.journal_latency_s = 0.001
            bookie.clear_steps()
            self._mend(bookie)
        # Who owns a log needs as many bookies as a new ledger does.
        alive = sum(not bookie.is_lost for bookie in self._sim.bookies.values())
        for _ in range(self._sim.quorum[0] - alive):
            self._start(self._sim.make_bookie())
