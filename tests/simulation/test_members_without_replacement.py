"""A member that failed while nobody could take its place: when the place is tried again."""

from magnetar.ledger.wire import Op, Status
from tests.simulation.clients import FAST
from tests.simulation.simulation import Simulation, scenario


@scenario(bookies=4, quorum=(3, 3, 2))
async def test_a_place_is_tried_again_when_a_bookie_that_failed_before_has_rested(
    sim: Simulation,
) -> None:
    w = await sim.writer()
    await w.add()
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b1", op=Op.ADD, count=1)
    w.client.placement.replacements += ["b4"]
    await w.add()
    await w.add()
    assert sim.metadata(w.ledger_id).last_fragment.bookies == ("b4", "b2", "b3")

    # b4 takes nothing from now on; b1, which would, failed a moment ago.
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b4", op=Op.ADD, count=1000)
    await w.add(2)
    await w.add()
    assert sim.metadata(w.ledger_id).last_fragment.bookies == ("b4", "b2", "b3")

    await sim.sleep(FAST.failed_member_rest_s)
    await w.add()
    await w.add()
    assert sim.metadata(w.ledger_id).last_fragment.bookies == ("b1", "b2", "b3")
