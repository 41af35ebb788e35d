"""Defect D18: a negative answer to a fenced read, sent before the fence is durable."""

import pytest

from magnetar.ledger.wire import Op
from tests.simulation.clients import FAST
from tests.simulation.history import Sent
from tests.simulation.simulation import Simulation, scenario

PATIENT = FAST.model_copy(update={"request_timeout_s": 30.0, "connect_timeout_s": 30.0})


def _read_replies(sim: Simulation, bookie_id: str, client: str) -> list[Sent]:
    return [
        event
        for _, _, event in sim.history.of(Sent)
        if event.source == bookie_id
        and event.target == client
        and event.is_reply
        and event.op != Op.INFO
    ]


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d18_a_bookie_denies_nothing_before_its_fence_is_durable(sim: Simulation) -> None:
    # w sends e0: stored on b2, late to b1 and b3. It hears nothing from the metadata store.
    await sim.client("w", PATIENT)
    w = await sim.writer()
    sim.net.block("w", "b1")
    sim.net.block("w", "b3")
    sim.store.stall("w")
    w.append()
    await sim.until(lambda: sim.bookie("b2").has(w.ledger_id, 0))

    # 1. r fences b2 and b3; the LAC read to b1 is lost. b1 gets the fence with the read of e0,
    # which it does not have; its journal is slow.
    r = await sim.client("r", PATIENT)
    sim.net.drop(client="r", bookie="b1", op=Op.READ_LAC)
    late = sim.net.hold(client="r", bookie="b2", op=Op.READ, reply=True)
    sim.bookie("b1").journal_latency_s = 0.5
    recovering = r.spawn(r.recover(w.ledger_id))
    await sim.until(lambda: sim.bookie("b1").is_fenced(w.ledger_id))
    await sim.sleep(0.1)

    # 2. b1 has said nothing. 3. It crashes, and the fence is gone.
    assert not _read_replies(sim, "b1", "r")
    sim.bookie("b1").crash()
    sim.bookie("b1").journal_latency_s = 0.001
    await sim.bookie("b1").restart()
    assert not sim.bookie("b1").is_fenced(w.ledger_id)

    # 4. w's e0 reaches b1, and is acknowledged: r must not have counted b1 as a denial.
    sim.net.unblock("w", "b1")
    await sim.until(lambda: w.acked == [0])
    assert not recovering.done()
    late.release()
    assert (await recovering).last_add_confirmed == 0


@pytest.mark.parametrize("steps", [1, 2])
def test_d18_a_denial_that_was_heard_survives_any_crash(steps: int) -> None:
    """The crash comes right behind each of the journal's steps: written, synced."""

    async def story(sim: Simulation) -> None:
        w = await sim.writer()
        w.append()
        await sim.until(lambda: w.acked == [0])
        sim.store.stall("w")
        sim.bookie("b1").crash_at_step(steps)
        client = await sim.client("r")
        await client.recover(w.ledger_id)
        await sim.settle()
        assert sim.bookie("b1").process is None, "the crash took place"
        await sim.bookie("b1").restart()
        heard = _read_replies(sim, "b1", "r")
        assert sim.bookie("b1").is_fenced(w.ledger_id) or not heard

    scenario(bookies=3, quorum=(3, 3, 2))(story)()
