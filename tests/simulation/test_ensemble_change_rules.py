"""The rules of an ensemble change that are no defect of their own (sections 4.2 and 5)."""

import pytest

from magnetar.ledger.errors import (
    LedgerFencedError,
    LedgerWriteError,
    NoSuchLedgerError,
    UnauthorizedError,
)
from magnetar.ledger.ledger_metadata import Fragment, LedgerState
from magnetar.ledger.wire import Op, Status
from tests.simulation.clients import FAST, SimClient, SimWriter
from tests.simulation.heard import asked, heard, until_heard
from tests.simulation.history import Proposed
from tests.simulation.mutations.noticing import assert_noticed
from tests.simulation.mutations.registry import mutation
from tests.simulation.simulation import Simulation, play, scenario

PATIENT = FAST.model_copy(update={"request_timeout_s": 30.0})
"""What is late in a story must not count as failed."""


async def _patient_writer(sim: Simulation, *replacements: str) -> SimWriter:
    client = await sim.client("w", PATIENT)
    client.placement.replacements += replacements
    return await sim.writer()


def _changes(sim: Simulation) -> int:
    """Ensemble changes that w has proposed so far."""
    return sum(
        event.metadata is not None and event.metadata.state is LedgerState.OPEN
        for _, actor, event in sim.history.of(Proposed)
        if actor == "w"
    )


def _bookies_noted(client: SimClient) -> list[str]:
    """The bookies that are noted as lacking entries, from now on."""
    noted: list[str] = []
    client.ledgers.repairs.on_noted.append(
        lambda ledger_id, first, last, bookie_id, reason: noted.append(bookie_id)
    )
    return noted


# Section 4.2, the table of replies


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (Status.UNAUTHORIZED, UnauthorizedError),
        (Status.BAD_REQUEST, LedgerWriteError),
        (Status.BAD_VERSION, LedgerWriteError),
    ],
)
def test_a_refusal_that_concerns_the_writer_ends_it_without_a_change(
    status: Status, error: type[Exception]
) -> None:
    async def story(sim: Simulation) -> None:
        w = await _patient_writer(sim)
        await w.add()
        sim.net.refuse(status, client="w", bookie="b1", op=Op.ADD)
        for bookie_id in ("b2", "b3"):
            sim.net.hold(client="w", bookie=bookie_id, op=Op.ADD)
        w.append(2)
        w.append()
        await sim.until(lambda: w.pending == 0)
        assert w.acked == [0]
        assert w.failed == [1, 2, 3]  # all that was pending
        assert isinstance(w.error, error)
        assert _changes(sim) == 0
        with pytest.raises(error):
            w.append()

    play(story, Simulation(bookies=4, quorum=(3, 3, 2)))


@scenario(bookies=4, quorum=(3, 3, 2))
async def test_a_writer_that_is_fenced_stops_for_good_and_changes_nothing(sim: Simulation) -> None:
    w = await _patient_writer(sim, "b4")
    await w.add()
    sim.store.stall("w")
    await sim.recover("r", w.ledger_id)
    for bookie_id in ("b2", "b3"):
        sim.net.hold(client="w", bookie=bookie_id, op=Op.ADD)
    w.append(2)
    w.append()
    await sim.until(lambda: w.pending == 0)
    assert heard(sim, client="w", op=Op.ADD, bookie="b1", status=Status.FENCED)
    assert w.acked == [0]
    assert w.failed == [1, 2, 3]
    assert isinstance(w.error, LedgerFencedError)
    assert _changes(sim) == 0
    with pytest.raises(LedgerFencedError):
        w.append()


@pytest.mark.parametrize(
    "status",
    [
        Status.READ_ONLY,
        Status.IO_ERROR,
        Status.TOO_MANY_REQUESTS,
        Status.NO_SUCH_ENTRY,  # nonsense, as from a bookie of another version
    ],
)
def test_a_bookie_that_fails_an_add_is_replaced(status: Status) -> None:
    async def story(sim: Simulation) -> None:
        w = await _patient_writer(sim, "b4")
        sim.net.refuse(status, client="w", bookie="b1", op=Op.ADD)
        await w.add(2)
        await w.add()
        assert sim.metadata(w.ledger_id).ensembles[-1].bookies == ("b4", "b2", "b3")

    play(story, Simulation(bookies=4, quorum=(3, 3, 2)))


@scenario(bookies=4, quorum=(3, 3, 2))
async def test_a_failure_of_what_is_acknowledged_is_acted_on_before_the_next_add(
    sim: Simulation,
) -> None:
    w = await _patient_writer(sim, "b4")
    late = sim.net.hold(client="w", bookie="b1", op=Op.ADD)
    await w.add()
    late.drop()  # b1 has failed e0, which is acknowledged
    await sim.settle()
    assert _changes(sim) == 0
    await w.add()
    assert sim.metadata(w.ledger_id).ensembles == (
        Fragment(0, ("b1", "b2", "b3")),
        Fragment(1, ("b4", "b2", "b3")),
    )
    assert not asked(sim, client="w", op=Op.ADD, bookie="b1", entry=1)


@scenario(bookies=4, quorum=(3, 3, 2))
async def test_being_fenced_during_a_change_ends_the_writer(sim: Simulation) -> None:
    w = await _patient_writer(sim, "b4")
    change = sim.store.hold_cas(client="w")
    slow = sim.net.hold(client="w", bookie="b2", op=Op.ADD)
    sim.net.hold(client="w", bookie="b3", op=Op.ADD)
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b1", op=Op.ADD)
    w.append()
    await sim.until(lambda: bool(change.operations))
    reader = await sim.recover("r", w.ledger_id)
    assert reader.last_add_confirmed == -1
    slow.release()
    await sim.until(lambda: w.pending == 0)
    assert heard(sim, client="w", op=Op.ADD, bookie="b2", status=Status.FENCED)
    assert w.failed == [0]
    assert isinstance(w.error, LedgerFencedError)
    change.release()
    await sim.settle()
    assert sim.metadata(w.ledger_id).ensembles == (Fragment(0, ("b1", "b2", "b3")),)
    assert not sim.bookie("b4").has(w.ledger_id, 0)


@scenario(bookies=3, quorum=(3, 2, 2))
async def test_rule_4_1_an_add_waits_for_those_before_it(sim: Simulation) -> None:
    """Recovery stops at the first missing entry: what was acknowledged behind it would be lost."""
    await sim.client("w", PATIENT)
    w = await sim.writer()
    late = sim.net.hold(client="w", bookie="b1", op=Op.ADD)
    w.append()
    w.append()
    for bookie_id in ("b2", "b3"):
        await until_heard(sim, client="w", op=Op.ADD, bookie=bookie_id, status=Status.OK, entry=1)
    assert w.acked == []
    w.client.crash()
    late.drop()
    # e0 is on b2 alone, and whoever does not hear b2 ends the ledger before it.
    sim.net.hold(client="r", bookie="b2", op=Op.READ, reply=True)
    assert (await sim.recover("r", w.ledger_id)).last_add_confirmed == -1


def test_the_test_of_rule_4_1_notices_when_it_is_off() -> None:
    assert_noticed(mutation("release_out_of_order"), test_rule_4_1_an_add_waits_for_those_before_it)


# Section 5, "Consequences worth testing"


@scenario(bookies=5, quorum=(3, 3, 2))
async def test_two_changes_without_an_ack_between_yield_one_fragment(sim: Simulation) -> None:
    """And a failure of the replacement itself is a failure like any other."""
    w = await _patient_writer(sim, "b4", "b5")
    await w.add(2)
    for bookie_id in ("b1", "b4"):
        sim.net.refuse(Status.IO_ERROR, client="w", bookie=bookie_id, op=Op.ADD)
    late = sim.net.hold(client="w", bookie="b3", op=Op.ADD)
    w.append()
    await sim.until(lambda: sim.bookie("b5").has(w.ledger_id, 2))
    await sim.until(lambda: w.acked == [0, 1, 2])
    assert _changes(sim) == 2
    assert sim.metadata(w.ledger_id).ensembles == (
        Fragment(0, ("b1", "b2", "b3")),
        Fragment(2, ("b5", "b2", "b3")),
    )
    late.release()


@scenario(bookies=4, quorum=(3, 3, 2))
async def test_what_is_released_is_never_moved(sim: Simulation) -> None:
    w = await _patient_writer(sim, "b4")
    await w.add(3)
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b2", op=Op.ADD)
    await w.add(2)
    await sim.settle()
    assert [event.entries for event in asked(sim, client="w", op=Op.ADD, bookie="b4")] == [(3, 4)]
    assert sim.metadata(w.ledger_id).last_fragment == Fragment(3, ("b1", "b4", "b3"))


@scenario(bookies=4, quorum=(3, 2, 2))
async def test_an_add_that_had_its_quorum_and_loses_an_ack_waits_again(sim: Simulation) -> None:
    w = await _patient_writer(sim, "b4")
    # e1 has its quorum, b2 and b3, behind e0, which is late at b1.
    e0 = sim.net.hold(client="w", bookie="b1", op=Op.ADD)
    w.append()
    w.append()
    for bookie_id in ("b2", "b3"):
        await until_heard(sim, client="w", op=Op.ADD, bookie=bookie_id, entry=1)
    # b3 fails e2, and b4 takes its place: for e0 nothing changes, e1 has lost an ack.
    e1 = sim.net.hold(client="w", bookie="b4", op=Op.ADD)
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b3", op=Op.ADD)
    w.append()
    await sim.until(lambda: bool(e1.messages))
    e0.release()
    await until_heard(sim, client="w", op=Op.ADD, bookie="b1", entry=2)
    assert w.acked == [0]
    assert len(asked(sim, client="w", op=Op.ADD, entry=0)) == 2
    e1.release()
    await sim.until(lambda: w.pending == 0)
    assert w.acked == [0, 1, 2]
    assert sim.metadata(w.ledger_id).ensembles == (Fragment(0, ("b1", "b2", "b4")),)


@scenario(bookies=4, quorum=(3, 3, 2))
async def test_copies_that_a_former_member_lacks_are_not_missed(sim: Simulation) -> None:
    """The former member's late failure concerns an entry that its successor has stored in its
    place."""
    w = await _patient_writer(sim, "b4")
    noted = _bookies_noted(w.client)
    late = sim.net.hold(client="w", bookie="b1", op=Op.ADD)
    sim.net.hold(client="w", bookie="b3", op=Op.ADD)
    w.append()
    await until_heard(sim, client="w", op=Op.ADD, bookie="b2", entry=0)
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b1", op=Op.ADD)
    w.append()
    await sim.until(lambda: w.acked == [0, 1])
    assert sim.metadata(w.ledger_id).ensembles == (Fragment(0, ("b4", "b2", "b3")),)

    late.drop()  # b1 has failed e0 now
    await sim.sleep(60.0)
    assert len(asked(sim, client="w", op=Op.ADD, bookie="b1")) == 2  # nor is it asked again
    assert set(noted) <= {"b3"}  # which was silent all the time


@scenario(bookies=4, quorum=(3, 3, 2))
async def test_a_recovery_does_not_miss_what_a_former_member_lacks(sim: Simulation) -> None:
    w = await sim.writer()
    await w.add(2)
    w.client.crash()
    r = await sim.client("r", PATIENT.model_copy(update={"recovery_read_bytes_max": 1}))
    noted = _bookies_noted(r)
    late = sim.net.hold(client="r", bookie="b1", op=Op.ADD, entry=0)
    sim.net.refuse(Status.IO_ERROR, client="r", bookie="b1", op=Op.ADD, entry=1)
    await r.recover(w.ledger_id)
    assert sim.metadata(w.ledger_id).ensembles == (Fragment(0, ("b4", "b2", "b3")),)
    late.drop()
    await sim.settle()
    assert noted == []


# Section 5, step 6: what the metadata may say after a conflict


@scenario(bookies=4, quorum=(3, 3, 2))
async def test_a_change_of_a_ledger_that_was_deleted_ends_the_writer(sim: Simulation) -> None:
    w = await _patient_writer(sim, "b4")
    await w.add()
    change = sim.store.hold_cas(client="w")
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b1", op=Op.ADD)
    w.append()
    await sim.until(lambda: bool(change.operations))
    c = await sim.client("c")
    await c.run(c.ledgers.delete(w.ledger_id))
    change.release()
    await sim.until(lambda: w.pending == 0)
    assert isinstance(w.error, NoSuchLedgerError)
    assert w.failed == [1]
