"""Defect D19: an add that passed the fence check slips past the fence inside one bookie."""

from magnetar.ledger.errors import LedgerFencedError
from magnetar.ledger.wire import Op
from tests.simulation.clients import FAST
from tests.simulation.simulation import Simulation, scenario

PATIENT = FAST.model_copy(update={"request_timeout_s": 30.0})


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d19_an_add_that_waited_for_room_is_checked_against_the_fence_again(
    sim: Simulation,
) -> None:
    await sim.client("w", PATIENT)
    w = await sim.writer()
    sim.store.stall("w")
    # 1. e0 is stored on b2, never reaches b3, and finds no room on b1: it was not fenced then.
    sim.net.hold(client="w", bookie="b3", op=Op.ADD)
    sim.bookie("b1").storage.is_full = True
    w.append()
    await sim.until(lambda: sim.bookie("b2").has(w.ledger_id, 0))
    await sim.sleep(0.01)
    assert not sim.bookie("b1").has(w.ledger_id, 0)

    # 2. r fences b1 and b3, and both deny e0; b2 is too slow to be heard.
    sim.net.partition("r", "b2")
    reader = await sim.recover("r", w.ledger_id)
    assert reader.last_add_confirmed == -1

    # 3. There is room on b1. e0 would be its second copy, the ack quorum.
    sim.bookie("b1").storage.is_full = False
    await sim.until(lambda: w.pending == 0)
    assert w.acked == []
    assert isinstance(w.error, LedgerFencedError)
    assert not sim.bookie("b1").has(w.ledger_id, 0)


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d19_an_add_that_came_before_the_fence_is_seen_by_the_read_behind_it(
    sim: Simulation,
) -> None:
    """The other order: e0 passes the check on b1 first, and is still on its way to the disk."""
    w = await sim.writer()
    sim.store.stall("w")
    sim.net.hold(client="w", bookie="b3", op=Op.ADD)
    sim.bookie("b1").journal_latency_s = 0.2
    w.append()
    await sim.until(lambda: sim.bookie("b1").has(w.ledger_id, 0))
    sim.net.partition("r", "b2")
    reader = await sim.recover("r", w.ledger_id)
    assert reader.last_add_confirmed == 0
    assert w.acked == [0]
