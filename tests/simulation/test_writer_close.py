"""The writer's close that has to be tried again (section 6): what it finds then is its own work."""

import pytest

from magnetar.ledger.errors import LedgerClosedError, MetadataUnavailableError
from magnetar.ledger.ledger_metadata import LedgerState
from magnetar.ledger.wire import Op, Status
from tests.simulation.clients import FAST
from tests.simulation.simulation import Simulation, scenario


@scenario(bookies=4, quorum=(3, 3, 2))
async def test_an_ensemble_change_that_the_close_gave_up_is_not_taken_for_a_second_writer(
    sim: Simulation,
) -> None:
    await sim.client("w", FAST.model_copy(update={"close_drain_timeout_s": 0.1}))
    w = await sim.writer()
    await w.add()
    change = sim.store.hold_cas(client="w")
    for bookie_id in ("b2", "b3"):
        sim.net.hold(client="w", bookie=bookie_id, op=Op.ADD)
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b1", op=Op.ADD)
    w.append()
    await sim.until(lambda: bool(change.operations))

    # The close waits for the change no longer. The store does the change after all, and is away
    # when it comes to the close.
    closing = w.client.spawn(w.writer.close())
    await sim.until(lambda: w.pending == 0)
    assert w.failed == [1]
    change.release()
    sim.store.refuse(client="w", kind="set")
    with pytest.raises(MetadataUnavailableError):
        await closing
    await sim.settle()
    assert len(sim.metadata(w.ledger_id).ensembles) == 2

    # The caller tries again, as it was told.
    metadata = await w.close()
    assert metadata.state is LedgerState.CLOSED
    assert metadata.last_entry_id == 0


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_a_close_whose_outcome_was_unknown_is_not_taken_for_another_clients(
    sim: Simulation,
) -> None:
    w = await sim.writer()
    await w.add()

    # The CAS is done, its answer is lost, and the store is away when w wants to look.
    sim.store.lose_reply(client="w", kind="set")
    sim.store.refuse(client="w", kind="get")
    with pytest.raises(MetadataUnavailableError):
        await w.close()
    assert sim.metadata(w.ledger_id).state is LedgerState.CLOSED
    await sim.settle()

    metadata = await w.close()
    assert metadata.last_entry_id == 0
    assert not w.writer.has_failed


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_a_writer_that_is_abandoned_while_its_close_drains_leaves_the_ledger_open(
    sim: Simulation,
) -> None:
    w = await sim.writer()
    await w.add()
    sim.net.hold(client="w", op=Op.ADD, reply=True)
    w.append()
    closing = w.client.spawn(w.writer.close())
    await sim.sleep(0.1)
    w.client.process.context.copy().run(w.writer.abandon)
    with pytest.raises(LedgerClosedError, match="given up"):
        await closing
    assert w.failed == [1]
    await sim.settle()
    assert sim.metadata(w.ledger_id).state is LedgerState.OPEN
