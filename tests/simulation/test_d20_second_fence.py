"""Defect D20: a second fence, answered before the first is durable."""

import pytest

from magnetar.ledger.errors import RecoveryUndecidedError
from magnetar.ledger.wire import Op
from tests.simulation.clients import FAST
from tests.simulation.history import Sent
from tests.simulation.simulation import Simulation, scenario

PATIENT = FAST.model_copy(update={"request_timeout_s": 30.0, "connect_timeout_s": 30.0})


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d20_a_second_fence_waits_for_the_write_of_the_first(sim: Simulation) -> None:
    # w's e0 is on b2, late to b1, and lost to b3.
    await sim.client("w", PATIENT)
    w = await sim.writer()
    sim.net.block("w", "b1")
    sim.net.block("w", "b3")
    sim.store.stall("w")
    w.append()
    await sim.until(lambda: sim.bookie("b2").has(w.ledger_id, 0))

    # r1 fences b1, whose journal is slow, and nobody else.
    sim.net.partition("r1", "b2")
    sim.net.partition("r1", "b3")
    sim.bookie("b1").journal_latency_s = 0.3
    r1 = await sim.client("r1")
    first = r1.spawn(r1.recover(w.ledger_id))
    await sim.until(lambda: sim.bookie("b1").is_fenced(w.ledger_id))

    # r2 asks b1 and b3, and both would deny e0; it does not reach b2.
    sim.net.partition("r2", "b2")
    r2 = await sim.client("r2")
    second = r2.spawn(r2.recover(w.ledger_id))

    def asked() -> bool:
        return any(
            event.source == "r2" and event.target == "b1" and event.op == Op.READ_LAC
            for _, _, event in sim.history.of(Sent)
        )

    await sim.until(asked)
    await sim.sleep(0.05)

    # b1 loses power: nobody may have heard of a fence that is gone.
    answered = [e for _, _, e in sim.history.of(Sent) if e.source == "b1" and e.target == "r2"]
    assert all(each.op == Op.INFO for each in answered)
    sim.bookie("b1").crash()
    sim.bookie("b1").journal_latency_s = 0.001
    await sim.bookie("b1").restart()
    sim.net.unblock("w", "b1")
    await sim.until(lambda: w.acked == [0])
    for recovery in (first, second):
        with pytest.raises(RecoveryUndecidedError):
            await recovery

    # Whoever tries again finds e0.
    sim.net.heal_all()
    assert (await sim.recover("r3", w.ledger_id)).last_add_confirmed == 0
