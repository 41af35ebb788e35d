"""A bookie that is told to stop ends, whatever its disk says by then."""

import errno

from tests.simulation.simulation import Simulation, scenario


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_a_bookie_whose_disk_fails_syncs_while_it_stops_ends_and_comes_back(
    sim: Simulation,
) -> None:
    w = await sim.writer()
    await w.add(2)
    await w.close()
    bookie = sim.bookie("b1")
    bookie.disk.sync_error = errno.EIO
    await bookie.stop()
    assert bookie.process is None
    bookie.disk.sync_error = None
    await bookie.restart()
    assert bookie.has(w.ledger_id, 1)
