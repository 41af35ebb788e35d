"""Defect D28: batch recovery with a gap in the tail."""

from magnetar.ledger.wire import Flag, Op
from tests.simulation.history import Sent
from tests.simulation.simulation import Simulation, scenario


def _written_back(sim: Simulation, client: str) -> list[int]:
    """Entries that the client sent as recovery adds, in order, each once."""
    seen: dict[int, None] = {}
    for _, _, event in sim.history.of(Sent):
        if event.source == client and event.op == Op.ADD and event.request_flags & Flag.RECOVERY:
            seen.update(dict.fromkeys(event.entries))
    return list(seen)


@scenario(bookies=3, quorum=(3, 2, 2))
async def test_d28_nothing_behind_a_gap_is_recovered_though_it_is_read_first(
    sim: Simulation,
) -> None:
    # Striped: e0 b1 b2, e1 b2 b3, e2 b3 b1, e3 b1 b2, e4 b2 b3.
    w = await sim.writer()
    await w.add(3)
    # e3 is on nobody; e4 and e5 reach b3, which has neither e3 nor anything to do with it.
    sim.net.hold(client="w", bookie="b1", op=Op.ADD)
    sim.net.hold(client="w", bookie="b2", op=Op.ADD)
    w.append(3)
    await sim.until(lambda: sim.bookie("b3").has(w.ledger_id, 4))
    assert sim.bookie("b3").has(w.ledger_id, 5)
    w.client.crash()

    # Reads of e3 are answered late, those of e4 and e5 at once.
    late = sim.net.hold(client="r", op=Op.READ, entry=3)
    client = await sim.client("r")
    recovering = client.spawn(client.recover(w.ledger_id))
    await sim.until(lambda: late.seen == 2)
    await sim.sleep(0.1)
    late.release()
    reader = await recovering
    assert reader.last_add_confirmed == 2
    assert all(entry_id <= 2 for entry_id in _written_back(sim, "r"))
    assert len(await reader.read_all()) == 3


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d28_a_bookie_that_holds_a_later_run_does_not_fill_the_gap(sim: Simulation) -> None:
    # e1 reaches nobody at all, e2 reaches b3 alone: its connection broke in between.
    w = await sim.writer()
    await w.add()
    sim.store.stall("w")
    holds = [sim.net.hold(client="w", bookie=each, op=Op.ADD) for each in ("b1", "b2")]
    lost = sim.net.drop(client="w", bookie="b3", op=Op.ADD, entry=1)
    w.append()
    await sim.until(lambda: lost.count == 0)
    await sim.sleep(0.2)
    w.append()
    await sim.until(lambda: sim.bookie("b3").has(w.ledger_id, 2))
    assert not sim.bookie("b3").has(w.ledger_id, 1)
    w.client.crash()
    for hold in holds:
        hold.drop()
    reader = await sim.recover("r", w.ledger_id)
    assert reader.last_add_confirmed == 0
