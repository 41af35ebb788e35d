"""Defect D26: the success of our own compare-and-set taken for a conflict."""

from magnetar.ledger.ledger_metadata import LedgerState
from magnetar.ledger.wire import Op, Status
from tests.simulation.history import Wrote
from tests.simulation.simulation import Simulation, scenario


def _writes(sim: Simulation, ledger_id: int, actor: str) -> list[int]:
    """Versions of the ledger's metadata that the actor wrote."""
    return [
        event.version
        for _, who, event in sim.history.of(Wrote)
        if who == actor and event.ledger_id == ledger_id
    ]


@scenario(bookies=4, quorum=(3, 3, 2))
async def test_d26_an_ensemble_change_whose_reply_is_lost_is_not_repeated(
    sim: Simulation,
) -> None:
    w = await sim.writer()
    await w.add()
    w.client.placement.replacements.append("b4")
    sim.store.lose_reply(client="w")
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b1", op=Op.ADD)
    await w.add(2)
    assert sim.metadata(w.ledger_id).ensembles == (
        (0, ("b1", "b2", "b3")),
        (1, ("b4", "b2", "b3")),
    )
    assert _writes(sim, w.ledger_id, "w") == [0, 1]
    await w.close()


@scenario(bookies=4, quorum=(3, 3, 2))
async def test_d26_an_ensemble_change_whose_request_is_lost_is_done_again(
    sim: Simulation,
) -> None:
    w = await sim.writer()
    await w.add()
    sim.store.lose_request(client="w")
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b1", op=Op.ADD)
    await w.add(2)
    assert len(sim.metadata(w.ledger_id).ensembles) == 2
    await w.close()


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d26_a_close_whose_reply_is_lost_has_succeeded(sim: Simulation) -> None:
    w = await sim.writer()
    await w.add(2)
    sim.store.lose_reply(client="w")
    metadata = await w.close()
    assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 1)
    assert _writes(sim, w.ledger_id, "w") == [0, 1]


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d26_a_recovery_whose_replies_are_lost_has_succeeded(sim: Simulation) -> None:
    w = await sim.writer()
    await w.add(2)
    w.client.crash()
    sim.store.lose_reply(client="r", count=2)  # to IN_RECOVERY, and to CLOSED
    reader = await sim.recover("r", w.ledger_id)
    assert reader.last_add_confirmed == 1
    assert _writes(sim, w.ledger_id, "r") == [1, 2]


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d26_a_creation_whose_reply_is_lost_is_found_by_its_token(sim: Simulation) -> None:
    """Rule 3.1: and one whose request was lost takes another id."""
    await sim.client("w")
    sim.store.lose_reply(client="w", kind="create", path="/ledgers/00/")
    w = await sim.writer()
    await w.add()
    assert sim.metadata(w.ledger_id).state is LedgerState.OPEN
    created = [event.ledger_id for _, _, event in sim.history.of(Wrote) if event.version == 0]
    assert created == [w.ledger_id]
    sim.store.lose_request(client="w", kind="create", path="/ledgers/00/")
    other = await sim.writer()
    assert other.ledger_id > w.ledger_id
    await other.add()
