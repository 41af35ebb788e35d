"""Defect D21: a tailing reader sees entries that are not part of the closed ledger."""

import pytest

from magnetar.ledger.digest import codec_for
from magnetar.ledger.errors import LedgerFencedError
from magnetar.ledger.ledger_metadata import LedgerState
from magnetar.ledger.wire import Flag, Op
from tests.simulation.history import Sent
from tests.simulation.simulation import Simulation, scenario


def _bound_of(sim: Simulation, bookie_id: str, ledger_id: int) -> int:
    """The LAC that a reader would learn from the bookie's last entry."""
    packets = sim.bookie(bookie_id).storage.packets.get(ledger_id, {})
    if not packets:
        return -1
    codec = codec_for(sim.metadata(ledger_id))
    return codec.open_some_packet(packets[max(packets)]).last_add_confirmed


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d21_recovery_adds_do_not_advance_the_lac(sim: Simulation) -> None:
    # e0 is acknowledged; b3 alone holds e1 and e2, which are not.
    w = await sim.writer()
    await w.add()
    sim.store.stall("w")
    sim.net.hold(client="w", bookie="b1", op=Op.ADD)
    sim.net.hold(client="w", bookie="b2", op=Op.ADD)
    w.append()
    await sim.sleep(0.01)
    w.append()
    await sim.until(lambda: sim.bookie("b3").has(w.ledger_id, 2))
    w.client.crash()

    # 1. r1 hears negatives for e1 from b1 and b2, and is about to close at e0.
    closing = sim.store.hold_cas(client="r1", ledger_id=w.ledger_id)
    r1 = await sim.client("r1")
    sim.net.partition("r1", "b3")
    first = r1.spawn(r1.recover(w.ledger_id))
    await sim.until(lambda: bool(closing.operations))
    closing.release()  # its CAS to IN_RECOVERY
    closing = sim.store.hold_cas(client="r1", ledger_id=w.ledger_id)
    await sim.until(lambda: bool(closing.operations))

    # 2. r2 hears of e1 and e2 from b3, and writes them back to everybody.
    second_close = sim.store.hold_cas(client="r2", ledger_id=w.ledger_id)
    sim.net.hold(client="r2", bookie="b1", reply=True)
    r2 = await sim.client("r2")
    second = r2.spawn(r2.recover(w.ledger_id))
    await sim.until(lambda: bool(second_close.operations))
    written = [
        event
        for _, _, event in sim.history.of(Sent)
        if event.source == "r2" and event.op == Op.ADD and event.request_flags & Flag.RECOVERY
    ]
    assert {each for event in written for each in event.entries} == {1, 2}
    for bookie_id in ("b1", "b2"):
        assert sim.bookie(bookie_id).has(w.ledger_id, 2)

    # 3. What a tailing reader learns from any bookie is what the fence had found.
    assert {_bound_of(sim, each, w.ledger_id) for each in ("b1", "b2", "b3")} == {0}
    tail = await (await sim.client("t")).open(w.ledger_id)
    await tail.client.run(tail.reader.read_last_add_confirmed())
    tail.note_bound()
    assert tail.last_add_confirmed == 0

    # 4. r1's closing CAS wins: the ledger ends at e0, for r2 too.
    closing.release()
    assert (await first).last_add_confirmed == 0
    second_close.release()
    assert (await second).last_add_confirmed == 0
    await sim.until(lambda: tail.reader.is_ledger_closed)
    tail.note_bound()
    assert tail.last_add_confirmed == 0


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d21_a_writer_does_not_close_what_a_recovery_has_begun_to_expose(
    sim: Simulation,
) -> None:
    """Rule 6.1: the recovery may have shown readers more than the writer had confirmed."""
    w = await sim.writer()
    await w.add()
    sim.store.stall("w")
    closing = sim.store.hold_cas(client="r", ledger_id=w.ledger_id)
    r = await sim.client("r")
    recovering = r.spawn(r.recover(w.ledger_id))
    await sim.until(lambda: bool(closing.operations))
    closing.release()
    await sim.until(lambda: sim.metadata(w.ledger_id).state is LedgerState.IN_RECOVERY)
    closing = sim.store.hold_cas(client="r", ledger_id=w.ledger_id)
    await sim.until(lambda: bool(closing.operations))

    sim.store.resume("w")
    with pytest.raises(LedgerFencedError):
        await w.close()
    assert sim.metadata(w.ledger_id).state is LedgerState.IN_RECOVERY
    closing.release()
    assert (await recovering).last_add_confirmed == 0
