"""Defect D29: unbounded memory with a slow bookie. Every bound of rule 4.6, at its limit."""

import pytest

from magnetar.ledger.errors import LedgerError, LedgerWriteError
from magnetar.ledger.under_replication import decode_item, item_path
from magnetar.ledger.wire import Op
from tests.simulation.clients import FAST, SimWriter
from tests.simulation.history import Acked, AddFailed, Appended
from tests.simulation.simulation import Simulation, scenario

_BOUND = 1 << 20
_ENTRY = 100_000


def _append(w: SimWriter, size_bytes: int) -> None:
    """Append one entry of this size."""
    entry_id = w.writer.entries_added
    payload = bytes(size_bytes)

    def on_done(error: LedgerError | None) -> None:
        if error is None:
            w.acked.append(entry_id)
            w.client.record(Acked(w.ledger_id, entry_id))
        else:
            w.failed.append(entry_id)
            w.client.record(AddFailed(w.ledger_id, entry_id, str(error)))

    w.client.process.context.copy().run(w.writer.append, [payload], on_done)
    w.client.record(Appended(w.ledger_id, entry_id, payload))


@scenario(bookies=4, quorum=(3, 3, 2))
async def test_d29_what_a_slow_bookie_has_not_answered_is_bounded(sim: Simulation) -> None:
    patient = FAST.model_copy(update={"request_timeout_s": 30.0, "channel_bytes_max": _BOUND})
    await sim.client("w", patient)
    w = await sim.writer()
    w.client.placement.replacements.append("b4")
    stuck = sim.net.hold(client="w", bookie="b3", op=Op.ADD)
    # b1 and b2 acknowledge everything, so that nothing pushes back but the bound.
    for count in range(1, 31):
        _append(w, _ENTRY)
        await sim.until(lambda: len(w.acked) == count)  # noqa: B023  # judged at once
        held_bytes = sum(len(message.raw) for message in stuck.messages)
        assert held_bytes <= _BOUND
    # Up to the bound b3 was waited for; beyond it, it was replaced, and the adds went on.
    assert held_bytes > _BOUND - 2 * _ENTRY
    assert sim.metadata(w.ledger_id).last_fragment.bookies == ("b1", "b2", "b4")
    assert sim.bookie("b4").has(w.ledger_id, 29)
    stuck.release()
    await w.close()


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d29_a_ledger_takes_no_adds_beyond_its_pending_bytes(sim: Simulation) -> None:
    patient = FAST.model_copy(update={"request_timeout_s": 30.0, "pending_bytes_max": _BOUND})
    await sim.client("w", patient)
    w = await sim.writer()
    holds = [sim.net.hold(client="w", bookie=each, op=Op.ADD) for each in ("b2", "b3")]
    _append(w, _ENTRY)
    while w.writer.pending_bytes + _ENTRY <= _BOUND:
        _append(w, _ENTRY)
        await sim.sleep(0.001)  # sent, with what a packet adds to it
    room = _BOUND - w.writer.pending_bytes
    with pytest.raises(LedgerWriteError, match="pending_bytes_max"):
        _append(w, room + 1)
    _append(w, room)  # at the limit
    with pytest.raises(LedgerWriteError, match="pending_bytes_max"):
        _append(w, 1)
    # Nothing was dropped, and there is room again when the bookies have caught up.
    for hold in holds:
        hold.release()
    await sim.until(lambda: w.pending == 0)
    assert w.acked == list(range(w.writer.entries_added))
    _append(w, _ENTRY)
    await sim.until(lambda: w.pending == 0)
    assert not w.failed


@scenario(bookies=4, quorum=(3, 3, 2))
async def test_d29_what_is_kept_for_a_second_try_is_bounded(sim: Simulation) -> None:
    bound = 3 * (_ENTRY + 100)
    settings = FAST.model_copy(update={"follow_up_bytes_max": bound, "follow_up_time_s": 600.0})
    await sim.client("w", settings)
    w = await sim.writer()
    away = sim.net.hold(client="w", bookie="b3", op=Op.ADD)
    for count in range(1, 6):
        _append(w, _ENTRY)
        await sim.until(lambda: len(w.acked) == count)  # noqa: B023  # judged at once
    # b3 fails all five. Three are kept for it; the other two are published at once.
    await sim.sleep(5.0)
    path = item_path("/ledgers", w.ledger_id)
    assert decode_item(sim.store.tree.get(path).value, path=path)[0] == {"b3": [(3, 4)]}
    away.release()
    await sim.until(lambda: all(sim.bookie("b3").has(w.ledger_id, each) for each in range(3)))
