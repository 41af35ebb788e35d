"""Defect D10: acks from replaced members counted."""

from magnetar.ledger.ledger_metadata import Fragment
from magnetar.ledger.wire import Op, Status
from tests.simulation.clients import FAST
from tests.simulation.heard import until_heard
from tests.simulation.mutations.mutation import Mutation
from tests.simulation.mutations.noticing import assert_noticed, mutations_param
from tests.simulation.simulation import Simulation, scenario

PATIENT = FAST.model_copy(update={"request_timeout_s": 30.0})
"""What is late in this story must not count as failed."""


@scenario(bookies=4, quorum=(3, 3, 2))
async def test_d10_a_late_ok_of_a_former_member_is_not_credited_to_its_successor(
    sim: Simulation,
) -> None:
    await sim.client("w", PATIENT)
    w = await sim.writer()
    ledger_id = w.ledger_id
    w.client.placement.replacements.append("b4")

    # e0 is on b2; it is late on its way to b1 and b3.
    late = sim.net.hold(client="w", bookie="b1", op=Op.ADD)
    sim.net.hold(client="w", bookie="b3", op=Op.ADD)
    w.append()
    await until_heard(sim, client="w", op=Op.ADD, bookie="b2", entry=0)
    # b1 fails e1, and b4 takes its place at index 0. It has not got e0 yet.
    never = sim.net.hold(client="w", bookie="b4", op=Op.ADD)
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b1", op=Op.ADD, entry=1)
    w.append()
    await sim.until(lambda: bool(never.messages))
    assert sim.metadata(ledger_id).ensembles == (Fragment(0, ("b4", "b2", "b3")),)

    # b1's OK to e0 arrives now. With b2's it would make Qa.
    late.release()
    await until_heard(sim, client="w", op=Op.ADD, bookie="b1", status=Status.OK, entry=0)
    assert w.acked == []  # I2, I16
    never.release()
    await sim.until(lambda: w.pending == 0)
    assert w.acked == [0, 1]
    assert sim.bookie("b4").has(ledger_id, 0)


@scenario(bookies=4, quorum=(2, 2, 2))
async def test_d10_a_late_failure_of_a_former_member_is_not_held_against_its_successor(
    sim: Simulation,
) -> None:
    await sim.client("w", PATIENT)
    w = await sim.writer()
    w.client.placement.replacements += ["b3", "b4"]
    late = sim.net.hold(client="w", bookie="b1", op=Op.ADD)
    w.append()
    await until_heard(sim, client="w", op=Op.ADD, bookie="b2", entry=0)
    # b1 fails e1, and b3 takes its place.
    slow = sim.net.hold(client="w", bookie="b3", op=Op.ADD)
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b1", op=Op.ADD, entry=1)
    w.append()
    await sim.until(lambda: bool(slow.messages))

    # b1's connection breaks: e0 has failed there. Nobody waits for it there any more.
    late.drop()
    await sim.sleep(0.05)
    slow.release()
    await sim.until(lambda: w.pending == 0)
    assert w.acked == [0, 1]
    assert sim.metadata(w.ledger_id).ensembles == (Fragment(0, ("b3", "b2")),)


@mutations_param("D10")
def test_the_test_of_d10_notices_when_its_rule_is_off(mutation: Mutation) -> None:
    assert_noticed(
        mutation,
        test_d10_a_late_ok_of_a_former_member_is_not_credited_to_its_successor,
        test_d10_a_late_failure_of_a_former_member_is_not_held_against_its_successor,
    )
