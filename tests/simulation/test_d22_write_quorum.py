"""Defect D22: entries that were acknowledged at Qa only, and never healed."""

from magnetar.ledger.under_replication import decode_item, item_path
from magnetar.ledger.wire import Op
from tests.simulation.simulation import Simulation, scenario


def _missing(sim: Simulation, ledger_id: int) -> dict[str, list[tuple[int, int]]]:
    path = item_path("/ledgers", ledger_id)
    if sim.store.tree.version(path) is None:
        return {}
    return decode_item(sim.store.tree.get(path).value, path=path)[0]


@scenario(bookies=4, quorum=(3, 3, 2))
async def test_d22_what_a_slow_bookie_never_stored_is_published(sim: Simulation) -> None:
    # 1. e0 to e4 are acknowledged by b1 and b2; b3 is slow.
    w = await sim.writer()
    w.client.placement.replacements.append("b4")
    slow = sim.net.hold(client="w", bookie="b3", op=Op.ADD)
    for _ in range(5):
        await w.add()
    # 2. b3 times out, and is replaced from e5 on.
    await sim.settle()
    await w.add()
    await sim.until(lambda: len(sim.metadata(w.ledger_id).ensembles) == 2)
    assert sim.metadata(w.ledger_id).ensembles[1] == (5, ("b1", "b2", "b4"))
    # 3. The ledger closes; metadata claims three copies of e0 to e4.
    await w.close()
    # 4. The hole is on record, when it could not be filled in time.
    await sim.until(lambda: bool(_missing(sim, w.ledger_id)), timeout_s=120)
    assert _missing(sim, w.ledger_id) == {"b3": [(0, 4)]}
    slow.drop()


@scenario(bookies=4, quorum=(3, 3, 2))
async def test_d22_a_bookie_that_comes_back_in_time_gets_what_it_missed(sim: Simulation) -> None:
    w = await sim.writer()
    w.client.placement.replacements.append("b4")
    away = sim.net.hold(client="w", bookie="b3", op=Op.ADD)
    await w.add(3)
    sim.bookie("b3").crash()
    away.drop()
    await sim.settle()
    await w.add()
    assert sim.metadata(w.ledger_id).ensembles[1] == (3, ("b1", "b2", "b4"))
    assert not sim.bookie("b3").has(w.ledger_id, 0)
    await sim.bookie("b3").restart()
    await sim.until(lambda: all(sim.bookie("b3").has(w.ledger_id, each) for each in range(3)))
    await sim.sleep(60.0)
    assert _missing(sim, w.ledger_id) == {}


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d22_a_recovery_publishes_what_it_could_not_write_back(sim: Simulation) -> None:
    w = await sim.writer()
    w.append(2)
    await sim.until(lambda: w.acked == [0, 1])
    w.client.crash()
    sim.bookie("b3").lose()
    reader = await sim.recover("r", w.ledger_id)
    assert reader.last_add_confirmed == 1
    await sim.until(lambda: bool(_missing(sim, w.ledger_id)))
    assert _missing(sim, w.ledger_id) == {"b3": [(0, 1)]}
