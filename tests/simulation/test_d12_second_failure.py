"""Defect D12: a second failure while a metadata write is outstanding."""

from random import Random

from magnetar.ledger.ledger_metadata import Fragment
from magnetar.ledger.wire import Op, Status
from tests.simulation.clients import FAST
from tests.simulation.history import Answered, Proposed
from tests.simulation.mover import Mover
from tests.simulation.mutations.mutation import Mutation
from tests.simulation.mutations.noticing import assert_noticed, mutations_param
from tests.simulation.simulation import Simulation, scenario

PATIENT = FAST.model_copy(update={"request_timeout_s": 30.0})


class _MoveLastToLast(Random):
    """Draws: the first fragment, its last member, the last bookie that is not in it."""

    def choice(self, seq):  # type: ignore[no-untyped-def]
        return seq[-1]

    def randrange(self, start, stop=None, step=1):  # type: ignore[no-untyped-def]
        return start - 1


def _proposals(sim: Simulation) -> list[Proposed]:
    return [event for _, actor, event in sim.history.of(Proposed) if actor == "w"]


@scenario(bookies=6, quorum=(3, 3, 2))
async def test_d12_changes_follow_one_another_and_keep_what_others_wrote(sim: Simulation) -> None:
    # Fragments 0:{b1,b2,b3} and 1:{b1,b2,b4}.
    await sim.client("w", PATIENT)
    w = await sim.writer()
    ledger_id = w.ledger_id
    w.client.placement.replacements += ["b4", "b5", "b6"]
    await w.add()
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b3", op=Op.ADD, count=1)
    await w.add()
    await sim.until(lambda: len(sim.metadata(ledger_id).ensembles) == 2)
    await sim.settle()

    # 1. b1 fails e2: 2:{b5,b2,b4} is proposed, and its CAS is outstanding.
    change = sim.store.hold_cas(client="w")
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b1", op=Op.ADD)
    late = sim.net.hold(client="w", bookie="b2", op=Op.ADD)
    before = len(_proposals(sim))
    w.append()
    await sim.until(lambda: bool(change.operations))
    # 2. b2 fails too. That has to wait: one change at a time.
    late.drop()
    await sim.sleep(0.1)
    assert len(_proposals(sim)) == before + 1  # I17

    # 3. A re-replicator has moved the first fragment's copies meanwhile: BADVERSION.
    m = await sim.client("m")
    assert await m.run(Mover(m, FAST).move(ledger_id, _MoveLastToLast()))
    moved = Fragment(0, ("b1", "b2", "b6"))
    assert sim.metadata(ledger_id).ensembles[0] == moved
    change.release()
    await sim.until(lambda: w.pending == 0)
    heard = [event.outcome for _, actor, event in sim.history.of(Answered) if actor == "w"]
    assert heard == ["done", "BadVersionError", "done", "done"]

    # 4. Both failures were made good in turn, and the move of the others is still there.
    assert w.acked == [0, 1, 2]
    assert sim.metadata(ledger_id).ensembles == (
        moved,
        Fragment(1, ("b1", "b2", "b4")),
        Fragment(2, ("b5", "b6", "b4")),
    )
    await w.close()
    assert len(await (await w.client.open(ledger_id)).read_all()) == 3


@mutations_param("D12")
def test_the_test_of_d12_notices_when_its_rule_is_off(mutation: Mutation) -> None:
    assert_noticed(mutation, test_d12_changes_follow_one_another_and_keep_what_others_wrote)
