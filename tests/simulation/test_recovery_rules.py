"""The rules of recovery that are no defect of their own (section 8.1)."""

from dataclasses import replace
from random import Random

import pytest

from magnetar.ledger.errors import RecoveryUndecidedError
from magnetar.ledger.ledger_metadata import Fragment, LedgerState
from magnetar.ledger.wire import Flag, Op, Status
from tests.simulation.clients import FAST, SimWriter
from tests.simulation.heard import asked, heard, until_heard
from tests.simulation.history import Answered, Proposed
from tests.simulation.mover import Mover
from tests.simulation.simulation import Simulation, scenario


def _proposed_states(sim: Simulation, client: str) -> list[LedgerState]:
    """The states that the client has tried to write, in order."""
    return [
        event.metadata.state
        for _, actor, event in sim.history.of(Proposed)
        if actor == client and event.metadata is not None
    ]


async def _two_fragments(sim: Simulation) -> SimWriter:
    """e0 on {b1,b2,b3}, e1 on {b1,b2,b4}; the writer is gone."""
    w = await sim.writer()
    w.client.placement.replacements.append("b4")
    await w.add()
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b3", op=Op.ADD)
    await w.add()
    w.client.crash()
    assert [each.first_entry_id for each in sim.metadata(w.ledger_id).ensembles] == [0, 1]
    return w


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_step_1_a_closed_ledger_is_left_alone(sim: Simulation) -> None:
    w = await sim.writer()
    await w.add(2)
    await w.close()
    reader = await sim.recover("r", w.ledger_id)
    assert reader.last_add_confirmed == 1
    assert not _proposed_states(sim, "r")
    assert not asked(sim, client="r", op=Op.READ_LAC)


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_step_2_a_close_that_was_faster_is_adopted(sim: Simulation) -> None:
    w = await sim.writer()
    await w.add()
    starting = sim.store.hold_cas(client="r")
    r = await sim.client("r")
    recovering = r.spawn(r.recover(w.ledger_id))
    await sim.until(lambda: bool(starting.operations))
    await w.close()
    starting.release()
    assert (await recovering).last_add_confirmed == 0
    assert _proposed_states(sim, "r") == [LedgerState.IN_RECOVERY]
    assert not asked(sim, client="r", op=Op.READ_LAC)


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_step_2_a_recovery_that_crashed_is_continued_without_a_write(
    sim: Simulation,
) -> None:
    w = await sim.writer()
    await w.add()
    w.client.crash()
    closing = sim.net.hold(client="r1", op=Op.READ_LAC)
    r1 = await sim.client("r1")
    r1.spawn(r1.recover(w.ledger_id))
    await sim.until(lambda: bool(closing.messages))
    r1.crash()
    closing.drop()
    assert sim.metadata(w.ledger_id).state is LedgerState.IN_RECOVERY
    reader = await sim.recover("r2", w.ledger_id)
    assert reader.last_add_confirmed == 0
    assert _proposed_states(sim, "r2") == [LedgerState.CLOSED]


@scenario(bookies=4, quorum=(4, 3, 2))
async def test_step_5_what_lies_behind_the_first_gap_is_discarded(sim: Simulation) -> None:
    """Rule 8.1: e1 is nowhere, e2 is on two bookies and was never acknowledged."""
    w = await sim.writer()
    await w.add()
    lost = sim.net.hold(client="w", op=Op.ADD, entry=1)
    w.append()
    await sim.until(lambda: lost.seen == 3)
    lost.drop()
    sim.net.refuse(Status.IO_ERROR, client="w", op=Op.ADD, entry=1)
    w.append()
    await sim.settle()
    w.client.crash()
    assert any(sim.bookie(each).has(w.ledger_id, 2) for each in sim.bookies)
    reader = await sim.recover("r", w.ledger_id)
    assert reader.last_add_confirmed == 0
    assert not asked(sim, client="r", op=Op.ADD, entry=2)
    assert len(await reader.read_all()) == 1


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_step_7_too_few_bookies_for_the_write_back_decide_nothing(sim: Simulation) -> None:
    w = await sim.writer()
    await w.add(2)
    w.client.crash()
    for bookie_id in ("b1", "b2"):
        sim.net.refuse(Status.IO_ERROR, client="r", bookie=bookie_id, op=Op.ADD, count=1)
    with pytest.raises(RecoveryUndecidedError, match="writing the tail back failed"):
        await sim.recover("r", w.ledger_id)
    assert sim.metadata(w.ledger_id).state is LedgerState.IN_RECOVERY
    assert _proposed_states(sim, "r") == [LedgerState.IN_RECOVERY]
    reader = await sim.recover("r", w.ledger_id)
    assert reader.last_add_confirmed == 1


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_step_8_the_ledger_is_closed_when_its_tail_is_written_back(sim: Simulation) -> None:
    w = await sim.writer()
    for bookie_id in ("b2", "b3"):
        sim.net.hold(client="w", bookie=bookie_id, op=Op.ADD)
    w.append()
    await sim.until(lambda: sim.bookie("b1").has(w.ledger_id, 0))
    w.client.crash()
    # b1 is heard before the other two deny the entry: it is recovered, though unacknowledged.
    deny = [sim.net.hold(client="r", bookie=each, op=Op.READ) for each in ("b2", "b3")]
    r = await sim.client("r")
    recovering = r.spawn(r.recover(w.ledger_id))
    await sim.until(lambda: all(hold.messages for hold in deny))
    for bookie_id in ("b2", "b3"):
        sim.bookie(bookie_id).journal_latency_s = 0.4
    await sim.until(lambda: bool(asked(sim, client="r", op=Op.ADD, flags=Flag.RECOVERY)))
    for hold in deny:
        hold.release()
    # That there is no e1 is known long before e0 has its copies.
    for bookie_id in ("b2", "b3"):
        await until_heard(sim, client="r", op=Op.READ, bookie=bookie_id, entry=1)
    await sim.sleep(0.1)
    assert not heard(sim, client="r", op=Op.ADD, bookie="b2")
    assert _proposed_states(sim, "r") == [LedgerState.IN_RECOVERY]
    assert (await recovering).last_add_confirmed == 0
    assert sum(sim.bookie(each).has(w.ledger_id, 0) for each in sim.bookies) >= 2


@scenario(bookies=5, quorum=(3, 3, 2))
async def test_step_9_moved_replicas_of_earlier_fragments_are_kept(sim: Simulation) -> None:
    w = await _two_fragments(sim)
    r = await sim.client("r")
    tail = sim.net.hold(client="r", op=Op.READ)
    recovering = r.spawn(r.recover(w.ledger_id))
    await sim.until(lambda: bool(tail.messages))
    m = await sim.client("m")
    assert await m.run(Mover(m, FAST).move(w.ledger_id, Random(1)))
    moved = sim.metadata(w.ledger_id).ensembles[0]
    assert moved != Fragment(0, ("b1", "b2", "b3"))
    tail.release()
    assert (await recovering).last_add_confirmed == 1
    outcomes = [event.outcome for _, actor, event in sim.history.of(Answered) if actor == "r"]
    assert outcomes == ["done", "BadVersionError", "done"]
    assert sim.metadata(w.ledger_id).ensembles == (moved, Fragment(1, ("b1", "b2", "b4")))


async def _somebody_changes_the_last_fragment(sim: Simulation) -> None:
    await sim.start()
    w = await _two_fragments(sim)
    r = await sim.client("r")
    tail = sim.net.hold(client="r", op=Op.READ)
    recovering = r.spawn(r.recover(w.ledger_id))
    await sim.until(lambda: bool(tail.messages))
    x = await sim.client("x")
    ledger = await x.run(x.ledgers.manager.read(w.ledger_id))
    first = ledger.metadata.ensembles[0]
    changed = replace(ledger.metadata, ensembles=(first, Fragment(1, ("b1", "b5", "b4"))))
    await x.run(x.ledgers.manager.write(changed, version=ledger.version))
    tail.release()
    with pytest.raises(RecoveryUndecidedError, match="its last fragment changed"):
        await recovering
    assert sim.metadata(w.ledger_id) == changed


def test_step_9_a_last_fragment_that_changed_aborts_the_recovery() -> None:
    """Nobody may do this, and the invariants are not asked: what was read proves nothing now."""
    sim = Simulation(bookies=5, quorum=(3, 3, 2))
    sim.run(_somebody_changes_the_last_fragment(sim))


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_step_9_the_recovery_that_closes_first_is_adopted_by_the_other(
    sim: Simulation,
) -> None:
    """Section 8.3: they saw different tails; e1 was never acknowledged."""
    w = await sim.writer()
    await w.add()
    for bookie_id in ("b1", "b2"):
        sim.net.hold(client="w", bookie=bookie_id, op=Op.ADD)
    w.append()
    await sim.until(lambda: sim.bookie("b3").has(w.ledger_id, 1))
    w.client.crash()
    sim.net.partition("r1", "b3")
    sim.net.partition("r2", "b1")
    r1, r2 = await sim.client("r1"), await sim.client("r2")
    first = r1.spawn(r1.recover(w.ledger_id))
    await sim.until(lambda: sim.metadata(w.ledger_id).state is LedgerState.IN_RECOVERY)
    late = sim.store.hold_cas(client="r1")
    await sim.until(lambda: bool(late.operations))  # r1 would close at e0
    assert _proposed_states(sim, "r1")[-1] is LedgerState.CLOSED
    second = await r2.recover(w.ledger_id)
    assert second.last_add_confirmed == 1
    late.release()
    assert (await first).last_add_confirmed == 1  # I3, I4
