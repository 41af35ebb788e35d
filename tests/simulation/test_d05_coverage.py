"""Defect D5: coverage counted wrongly. Known is OK or an explicit negative, nothing else."""

import pytest

from magnetar.ledger.errors import BookieUnavailableError, RecoveryUndecidedError
from magnetar.ledger.ledger_metadata import LedgerState
from magnetar.ledger.wire import Flag, Op, Status
from tests.simulation.heard import asked, heard, until_heard
from tests.simulation.mutations.mutation import Mutation
from tests.simulation.mutations.noticing import assert_noticed, mutations_param
from tests.simulation.simulation import Simulation, scenario

# (a) Too lax: an error, or a silence, counted as a reply.


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d05_bookies_that_cannot_be_heard_do_not_count_as_fenced(sim: Simulation) -> None:
    # e0 is acknowledged by b2 and b3; b1 never got it. Only the bookies can stop w.
    w = await sim.writer()
    sim.net.hold(client="w", bookie="b1", op=Op.ADD)
    await w.add()
    sim.store.stall("w")

    # r fences b1; of the others one errs and one is silent. That is not enough to go on.
    sim.net.refuse(Status.IO_ERROR, client="r", bookie="b2", op=Op.READ_LAC, count=1)
    silence = sim.net.hold(client="r", bookie="b3", op=Op.READ_LAC)
    with pytest.raises(RecoveryUndecidedError, match="1 of 3 bookies confirmed the fence"):
        await sim.recover("r", w.ledger_id)
    assert heard(sim, client="r", op=Op.READ_LAC, bookie="b1", flags=Flag.FENCE)
    assert not asked(sim, client="r", op=Op.READ)
    assert sim.metadata(w.ledger_id).state is LedgerState.IN_RECOVERY

    # b2 and b3 are an ack quorum that nobody has fenced: e1 is acknowledged, and must not be lost.
    await w.add()
    silence.drop()
    reader = await sim.recover("r", w.ledger_id)
    assert reader.last_add_confirmed == 1  # I1
    assert len(await reader.read_all()) == 2


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d05_bookies_that_cannot_be_heard_do_not_deny_an_entry(sim: Simulation) -> None:
    # e0 is acknowledged by b2 and b3; b1 never got it.
    w = await sim.writer()
    sim.net.hold(client="w", bookie="b1", op=Op.ADD)
    await w.add()
    w.client.crash()

    # All are fenced. b1 denies e0, b2 errs, b3 is silent: nobody knows whether there is an e0.
    sim.net.refuse(Status.IO_ERROR, client="r", bookie="b2", op=Op.READ, count=1)
    silence = sim.net.hold(client="r", bookie="b3", op=Op.READ)
    with pytest.raises(RecoveryUndecidedError, match="entry 0 is undecided"):
        await sim.recover("r", w.ledger_id)
    denied = heard(sim, client="r", op=Op.READ, status=Status.NO_SUCH_ENTRY, entry=0)
    assert [each.source for each in denied] == ["b1"]
    assert sim.metadata(w.ledger_id).state is LedgerState.IN_RECOVERY

    silence.drop()
    reader = await sim.recover("r", w.ledger_id)
    assert reader.last_add_confirmed == 0  # I1
    assert len(await reader.read_all()) == 1


# (b) One bookie that lags behind hides what the others know.


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d05_a_bookie_that_lags_behind_does_not_make_the_ledger_look_empty(
    sim: Simulation,
) -> None:
    # b1 has nothing of the ledger; b2 and b3 know that e0 is acknowledged.
    w = await sim.writer()
    sim.net.hold(client="w", bookie="b1", op=Op.ADD)
    await w.add()
    await w.add()
    w.client.crash()

    # A reader hears b1 first, then the others.
    late = [sim.net.hold(client="t", bookie=each, op=Op.READ_LAC) for each in ("b2", "b3")]
    t = await sim.client("t")
    tail = await t.open(w.ledger_id)
    asking = t.spawn(tail.reader.read_last_add_confirmed())
    await until_heard(sim, client="t", op=Op.READ_LAC, bookie="b1")
    assert not asking.done()  # one bookie that knows nothing proves nothing
    late[0].release()
    assert await asking == 0
    tail.note_bound()
    late[1].release()

    # So does a recovery, in the other order: what b2 told counts although b1 is the last to answer.
    slow = sim.net.hold(client="r", bookie="b1", op=Op.READ_LAC, reply=True)
    silent = sim.net.hold(client="r", bookie="b3", op=Op.READ_LAC)
    r = await sim.client("r")
    recovering = r.spawn(r.recover(w.ledger_id))
    await until_heard(sim, client="r", op=Op.READ_LAC, bookie="b2")
    slow.release()
    reader = await recovering
    assert [each.source for each in heard(sim, client="r", op=Op.READ_LAC)][:2] == ["b2", "b1"]
    assert {each.entry_id for each in asked(sim, client="r", op=Op.READ, flags=Flag.FENCE)} == {
        1,
        2,
    }
    assert reader.last_add_confirmed == 1
    silent.release()


@scenario(bookies=4, quorum=(4, 3, 2))
async def test_d05_a_reader_asks_the_others_and_takes_no_outage_for_an_absence(
    sim: Simulation,
) -> None:
    """Rule 9.1."""
    w = await sim.writer()
    sim.net.hold(client="w", bookie="b1", op=Op.ADD)
    await w.add()
    await w.close()

    # b1 has nothing of the ledger, of the others nothing is heard.
    t = await sim.client("t")
    reader = await t.open(w.ledger_id)
    sim.net.partition("t", "b2")
    sim.net.partition("t", "b3")
    with pytest.raises(BookieUnavailableError):
        await reader.read_all()
    assert {each.source for each in heard(sim, client="t", op=Op.READ)} == {"b1"}

    # b1's denial is no reason not to ask the others.
    sim.net.heal("t", "b2")
    sim.net.heal("t", "b3")
    again = await sim.client("u")
    assert len(await (await again.open(w.ledger_id)).read_all()) == 1
    assert heard(sim, client="u", op=Op.READ, bookie="b1")[0].status != Status.OK


# (c) Too strict: an explicit negative is an answer.


@scenario(bookies=3, quorum=(2, 2, 2))
async def test_d05_recovery_completes_when_negatives_are_all_there_is(sim: Simulation) -> None:
    # e0 is acknowledged by both members. b2 is down, and will be for long.
    w = await sim.writer()
    await w.add()
    w.client.crash()
    sim.bookie("b2").crash()

    # b1 alone is enough to fence, to deny e1, and to give e0, which b3 takes instead of b2.
    reader = await sim.recover("r", w.ledger_id)
    answers = heard(sim, client="r", op=Op.READ, flags=Flag.FENCE)
    assert {each.source for each in answers} == {"b1"}
    assert [each.status for each in answers if each.entry_id == 1] == [Status.NO_SUCH_ENTRY]
    assert reader.last_add_confirmed == 0
    assert sim.metadata(w.ledger_id).last_fragment.bookies == ("b1", "b3")


@scenario(bookies=2, quorum=(2, 2, 2))
async def test_d05_a_bookie_that_never_heard_of_the_ledger_counts_as_fenced(
    sim: Simulation,
) -> None:
    w = await sim.writer()
    w.client.crash()
    sim.bookie("b2").crash()

    reader = await sim.recover("r", w.ledger_id)
    fenced = heard(sim, client="r", op=Op.READ_LAC, flags=Flag.FENCE)
    assert [each.source for each in fenced] == ["b1"]
    assert sim.bookie("b1").is_fenced(w.ledger_id)
    assert reader.last_add_confirmed == -1


@mutations_param("D5")
def test_the_test_of_d05_notices_when_its_rule_is_off(mutation: Mutation) -> None:
    assert_noticed(
        mutation,
        test_d05_bookies_that_cannot_be_heard_do_not_count_as_fenced,
        test_d05_bookies_that_cannot_be_heard_do_not_deny_an_entry,
        test_d05_a_bookie_that_lags_behind_does_not_make_the_ledger_look_empty,
        test_d05_a_reader_asks_the_others_and_takes_no_outage_for_an_absence,
        test_d05_recovery_completes_when_negatives_are_all_there_is,
        test_d05_a_bookie_that_never_heard_of_the_ledger_counts_as_fenced,
    )
