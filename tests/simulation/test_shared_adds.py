"""Adds of several ledgers of one client that travel in one frame: each keeps its own rules."""

from magnetar.ledger.errors import LedgerFencedError
from magnetar.ledger.wire import Op, Status
from tests.simulation.clients import SimWriter
from tests.simulation.heard import heard
from tests.simulation.history import Delivered
from tests.simulation.simulation import Simulation, scenario


async def writers_of(sim: Simulation, count: int) -> list[SimWriter]:
    return [await sim.writer() for _ in range(count)]


def requests_with(sim: Simulation, bookie: str, ledger_id: int) -> list[Delivered]:
    """The adds to the ledger that reached the bookie."""
    return [
        event
        for _, _, event in sim.history.of(Delivered)
        if event.target == bookie and event.op == Op.ADD and event.ledger_id == ledger_id
    ]


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_a_fenced_ledger_disturbs_no_other(sim: Simulation) -> None:
    one, fenced, other = await writers_of(sim, 3)
    sim.store.stall("w")  # it must hear of the fence from the bookies
    await sim.recover("r", fenced.ledger_id)
    for writer in (one, fenced, other):
        writer.append()
    await sim.until(lambda: not (one.pending or fenced.pending or other.pending))
    assert one.acked == other.acked == [0]
    assert fenced.acked == []
    assert isinstance(fenced.error, LedgerFencedError)
    await sim.settle()
    assert [sim.bookie(f"b{n}").has(fenced.ledger_id, 0) for n in (1, 2, 3)] == [False] * 3


@scenario(bookies=4, quorum=(3, 3, 2))
async def test_each_ledger_replaces_a_member_that_failed_the_frame(sim: Simulation) -> None:
    one, other = await writers_of(sim, 2)
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b1", op=Op.ADD, count=1)
    one.append()
    other.append()
    await sim.until(lambda: not (one.pending or other.pending))
    await sim.settle()
    assert one.acked == other.acked == [0]
    for writer in (one, other):
        assert sim.metadata(writer.ledger_id).last_fragment.bookies == ("b4", "b2", "b3")
        assert sim.bookie("b4").has(writer.ledger_id, 0)


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_what_finds_no_room_waits_and_is_stored_once(sim: Simulation) -> None:
    writers = await writers_of(sim, 3)
    sim.bookie("b1").storage.is_full = True
    for writer in writers:
        writer.append()
    await sim.until(lambda: not any(writer.pending for writer in writers))
    assert not any(heard(sim, client="w", op=Op.ADD, bookie="b1"))
    sim.bookie("b1").storage.is_full = False
    await sim.settle()
    for writer in writers:
        assert sim.bookie("b1").has(writer.ledger_id, 0)
        assert len(requests_with(sim, "b1", writer.ledger_id)) == 1


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_a_bookie_that_crashes_with_the_frame_loses_no_confirmed_entry(
    sim: Simulation,
) -> None:
    writers = await writers_of(sim, 3)
    for bookie_id in ("b1", "b2"):
        sim.bookie(bookie_id).journal_latency_s = 0.1
    for writer in writers:
        writer.append()
    await sim.until(lambda: sim.bookie("b1").has(writers[2].ledger_id, 0))
    sim.bookie("b1").crash()
    await sim.until(lambda: not any(writer.pending for writer in writers))
    assert all(writer.acked == [0] for writer in writers)
    await sim.bookie("b1").restart()
    await sim.settle()
