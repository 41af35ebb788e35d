"""Defect D23: a read handle that keeps asking bookies from which everything was moved."""

from random import Random

from tests.simulation.clients import FAST, SimReader
from tests.simulation.mover import Mover
from tests.simulation.simulation import Simulation, scenario


async def _move_away(sim: Simulation, ledger_id: int) -> None:
    """b1, b2 and b3 leave one by one; what they hold moves to b4, b5 and b6 before the next."""
    mover_client = await sim.client("m")
    mover = Mover(mover_client, FAST)
    random = Random("d23")
    for bookie_id in ("b1", "b2", "b3"):
        sim.bookie(bookie_id).lose()
        await sim.sleep(3.0)  # its session has ended: nothing new is put there
        while any(bookie_id in each.bookies for each in sim.metadata(ledger_id).ensembles):
            await mover_client.run(mover.move(ledger_id, random))
    (fragment,) = sim.metadata(ledger_id).ensembles
    assert sorted(fragment.bookies) == ["b4", "b5", "b6"]


async def _closed_ledger(sim: Simulation) -> SimReader:
    w = await sim.writer()
    await w.add(3)
    await w.close()
    reader = await (await sim.client("c")).open(w.ledger_id)
    assert len(await reader.read_all()) == 3
    return reader


@scenario(bookies=6, quorum=(3, 3, 2))
async def test_d23_a_failed_read_looks_where_the_replicas_are_now(sim: Simulation) -> None:
    reader = await _closed_ledger(sim)
    await _move_away(sim, reader.ledger_id)
    assert reader.reader.metadata.last_fragment.bookies == ("b1", "b2", "b3")
    assert len(await reader.read_all()) == 3


@scenario(bookies=6, quorum=(3, 3, 2))
async def test_d23_a_handle_that_watches_knows_before_it_reads(sim: Simulation) -> None:
    reader = await _closed_ledger(sim)
    reader.client.process.context.copy().run(reader.reader.watch)
    await _move_away(sim, reader.ledger_id)
    await sim.settle()
    assert sorted(reader.reader.metadata.last_fragment.bookies) == ["b4", "b5", "b6"]
    assert len(await reader.read_all()) == 3
    await reader.client.run(reader.reader.close())
