"""Defect D27: a wrong ledger length after a close with pending adds."""

from magnetar.ledger.errors import LedgerClosedError
from magnetar.ledger.wire import Op
from tests.simulation.clients import payload_of
from tests.simulation.simulation import Simulation, scenario


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d27_a_forced_close_does_not_count_what_it_fails(sim: Simulation) -> None:
    w = await sim.writer()
    await w.add(2)
    # e2 is stored on b3 alone: pending, and one copy lies on a bookie behind the end.
    sim.net.hold(client="w", bookie="b1", op=Op.ADD)
    sim.net.hold(client="w", bookie="b2", op=Op.ADD)
    w.append()
    await sim.until(lambda: sim.bookie("b3").has(w.ledger_id, 2))
    sim.store.lose_reply(client="w")  # it reads back, and compares length and last entry
    metadata = await w.close(force=True)
    assert w.failed == [2]
    assert isinstance(w.error, LedgerClosedError)
    assert metadata.last_entry_id == 1
    assert metadata.length == len(payload_of("w", 0)) + len(payload_of("w", 1))
    # Whoever recovers it agrees, and e2 is out of reach.
    reader = await sim.recover("r", w.ledger_id)
    assert reader.reader.metadata.length == metadata.length
    assert len(await reader.read_all()) == 2


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d27_a_recovery_restores_the_length(sim: Simulation) -> None:
    w = await sim.writer()
    await w.add(3)
    w.client.crash()
    reader = await sim.recover("r", w.ledger_id)
    assert reader.reader.metadata.length == sum(len(payload_of("w", each)) for each in range(3))
