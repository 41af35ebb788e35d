"""A process that dies at any moment of what it does: nothing acknowledged is lost (rule 8.4, I1).

Each story is played once to count the callbacks that it takes, and then once for every one of them,
with a crash there. The invariants are judged after each.
"""

from collections.abc import Awaitable, Callable

import pytest

from magnetar.ledger.errors import LedgerFencedError
from magnetar.ledger.ledger_metadata import LedgerState
from magnetar.ledger.wire import Op, Status
from tests.simulation.clients import SimWriter
from tests.simulation.simulation import Simulation, play

STRIDE = 1
"""Every so many callbacks."""

Play = Callable[[Simulation, int], Awaitable[int]]
"""A story with a crash so many steps behind its beginning; returns the steps that it took."""


def _at_every_step(story: Play, *, bookies: int, quorum: tuple[int, int, int]) -> int:
    """How many crashes were tried."""
    taken: list[int] = []

    def run(steps: int) -> None:
        async def one(sim: Simulation) -> None:
            taken.append(await story(sim, steps))

        play(one, Simulation(bookies=bookies, quorum=quorum))

    run(1_000_000)
    points = range(0, taken[0] + STRIDE, STRIDE)
    for steps in points:
        run(steps)
    return len(points)


async def _recover_and_compare(sim: Simulation, ledger_id: int, acked: list[int]) -> None:
    reader = await sim.recover("r2", ledger_id)
    assert reader.last_add_confirmed >= len(acked) - 1
    payloads = await reader.read_all()
    again = await sim.recover("r3", ledger_id)
    assert again.last_add_confirmed == reader.last_add_confirmed
    assert await again.read_all() == payloads
    assert sim.metadata(ledger_id).state is LedgerState.CLOSED


async def _recovery_crashes(sim: Simulation, steps: int) -> int:
    """e0 to e2 are acknowledged, e3 is on b3 alone; b2 fails during the write-back."""
    w = await sim.writer()
    await w.add(3)
    for bookie_id in ("b1", "b2"):
        sim.net.hold(client="w", bookie=bookie_id, op=Op.ADD)
    w.append()
    await sim.until(lambda: sim.bookie("b3").has(w.ledger_id, 3))
    w.client.crash()
    sim.net.refuse(Status.IO_ERROR, client="r1", bookie="b2", op=Op.ADD)
    r1 = await sim.client("r1")
    before = sim.loop.steps
    recovering = r1.spawn(r1.recover(w.ledger_id))
    await sim.until(lambda: sim.loop.steps - before >= steps or recovering.done())
    taken = sim.loop.steps - before
    r1.crash()
    await _recover_and_compare(sim, w.ledger_id, w.acked)
    return taken


def test_a_recovery_may_crash_at_any_step_and_be_run_again() -> None:
    assert _at_every_step(_recovery_crashes, bookies=4, quorum=(3, 3, 2)) > 20


async def _write_through_two_changes(sim: Simulation, w: SimWriter, steps: int) -> int:
    """b1 fails e2 and b2 fails e4: two ensemble changes, with adds before, during and after.

    Returns the steps that it took, at most `steps`.
    """
    await w.add(2)
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b1", op=Op.ADD, entry=2)
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b2", op=Op.ADD, entry=4)
    before = sim.loop.steps

    def is_due() -> bool:
        return sim.loop.steps - before >= steps

    for _ in range(4):
        if not is_due():
            w.append()
            await sim.until(lambda: is_due() or w.pending < 2)
    await sim.until(lambda: is_due() or w.pending == 0)
    return sim.loop.steps - before


async def _writer_crashes(sim: Simulation, steps: int) -> int:
    w = await sim.writer()
    taken = await _write_through_two_changes(sim, w, steps)
    w.client.crash()
    await _recover_and_compare(sim, w.ledger_id, w.acked)
    return taken


async def _writer_sleeps(sim: Simulation, steps: int) -> int:
    """The writer gets no time while another client takes its ledger over, and goes on then."""
    w = await sim.writer()
    taken = await _write_through_two_changes(sim, w, steps)
    w.client.pause()
    reader = await sim.recover("r2", w.ledger_id)
    w.client.resume()
    await sim.until(lambda: w.pending == 0)
    assert len(w.acked) - 1 <= reader.last_add_confirmed
    await sim.settle()
    with pytest.raises(LedgerFencedError):
        w.append()
    return taken


def test_a_writer_may_sleep_at_any_step_while_its_ledger_is_taken_over() -> None:
    assert _at_every_step(_writer_sleeps, bookies=5, quorum=(3, 3, 2)) > 10


def test_a_writer_may_crash_at_any_step_of_an_ensemble_change() -> None:
    assert _at_every_step(_writer_crashes, bookies=5, quorum=(3, 3, 2)) > 10


def test_a_striped_writer_may_crash_at_any_step_of_an_ensemble_change() -> None:
    assert _at_every_step(_writer_crashes, bookies=5, quorum=(3, 2, 2)) > 10


async def _bookie_crashes(sim: Simulation, steps: int) -> int:
    """b2 loses its power at any write or sync, while e0 to e5 are added; b1 is lost then too."""
    w = await sim.writer()
    b2 = sim.bookie("b2")
    before = b2.disk.steps
    b2.crash_at_step(steps + 1)
    for _ in range(6):
        await w.add()
    taken = b2.disk.steps - before
    b2.clear_steps()
    w.client.crash()
    if not b2.is_running:
        await b2.restart()
    sim.bookie("b1").pause()
    await _recover_and_compare(sim, w.ledger_id, w.acked)
    sim.bookie("b1").resume()
    return taken


def test_a_bookie_may_lose_its_power_at_any_write_or_sync() -> None:
    assert _at_every_step(_bookie_crashes, bookies=4, quorum=(3, 3, 2)) > 2
