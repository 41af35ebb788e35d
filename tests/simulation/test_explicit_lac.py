"""Explicit LACs that are lost on their way: readers still hear of the last entry."""

from magnetar.ledger.wire import Op
from tests.simulation.clients import FAST
from tests.simulation.simulation import Simulation, scenario

TELLING = FAST.model_copy(update={"explicit_lac_interval_ms": 20.0})


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_an_explicit_lac_is_told_until_an_ack_quorum_has_it(sim: Simulation) -> None:
    await sim.client("w", TELLING)
    w = await sim.writer()
    lost = [
        sim.net.hold(client="w", bookie=bookie_id, op=Op.WRITE_LAC) for bookie_id in ("b1", "b2")
    ]
    await w.add()
    await sim.until(lambda: all(hold.messages for hold in lost))
    for hold in lost:
        hold.drop()
    reader = await (await sim.client("c")).open(w.ledger_id)
    # b3, the only one that heard of it the first time, is away.
    sim.net.partition("c", "b3")
    assert await reader.client.run(reader.reader.wait_beyond(-1, timeout_s=2.0)) == 0
    await reader.client.run(reader.reader.close())


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_an_explicit_lac_that_an_ack_quorum_has_is_told_once(sim: Simulation) -> None:
    await sim.client("w", TELLING)
    w = await sim.writer()
    sim.net.partition("w", "b1")
    told = sim.net.hold(client="w", bookie="b3", op=Op.WRITE_LAC)
    await w.add()
    await sim.until(lambda: bool(told.messages))
    told.release()
    await sim.sleep(2.0)
    assert told.seen == 1


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_late_replies_to_an_earlier_explicit_lac_are_no_copies_of_the_next(
    sim: Simulation,
) -> None:
    await sim.client("w", TELLING)
    w = await sim.writer()
    late = sim.net.hold(client="w", op=Op.WRITE_LAC, entry=0, reply=True, overtaken=True)
    await w.add()
    await sim.until(lambda: len(late.messages) == 3)
    lost = [
        sim.net.hold(client="w", bookie=bookie_id, op=Op.WRITE_LAC, entry=1)
        for bookie_id in ("b1", "b2")
    ]
    await w.add()
    await sim.until(lambda: all(hold.messages for hold in lost))
    late.release()
    await sim.sleep(0.1)
    for hold in lost:
        hold.drop()
    reader = await (await sim.client("c")).open(w.ledger_id)
    # b3, the only one that heard of e1's confirmation the first time, is away.
    sim.net.partition("c", "b3")
    assert await reader.client.run(reader.reader.wait_beyond(0, timeout_s=2.0)) == 1
    await reader.client.run(reader.reader.close())
