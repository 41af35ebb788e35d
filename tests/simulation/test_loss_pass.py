"""A bookie that lost its disks comes back under its id (defects D14, D16; storage sheet, 13)."""

import pytest

from magnetar.bookie.integrity.loss_mark import is_check_needed
from magnetar.ledger.errors import BookieUnavailableError, RecoveryUndecidedError
from magnetar.ledger.ledger_metadata import LedgerState
from magnetar.ledger.wire import Op, Status
from tests.simulation.bookie import SimBookie
from tests.simulation.clients import SimWriter
from tests.simulation.disk import SimDisk
from tests.simulation.heard import heard
from tests.simulation.mutations.mutation import Mutation
from tests.simulation.mutations.noticing import assert_noticed
from tests.simulation.mutations.storage_integrity import MUTATIONS
from tests.simulation.simulation import Simulation, scenario
from tests.simulation.storage import Flushed


def exchange_disks(machine: SimBookie) -> None:
    """Empty disks; the next start may use them."""
    machine.crash()
    machine.disk = SimDisk(seed=f"{machine.seed}/disk-{machine.starts}")
    machine.flushed = Flushed()
    machine.settings = machine.settings.model_copy(
        update={"integrity_stamp_missing_cookies": True, "heal_retry_s": 0.1}
    )


async def e0_on_b1_and_b3(sim: Simulation) -> SimWriter:
    """e0 is acknowledged by b1 and b3; b2 never got it. The writer is gone."""
    w = await sim.writer()
    sim.net.hold(client="w", bookie="b2", op=Op.ADD)
    await w.add()
    w.client.crash()
    return w


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d14_a_bookie_that_lost_its_disks_denies_nothing_and_is_made_whole(
    sim: Simulation,
) -> None:
    w = await e0_on_b1_and_b3(sim)
    b1 = sim.bookie("b1")
    exchange_disks(b1)
    slow = sim.net.hold(bookie="b3", op=Op.READ, reply=True)
    await b1.restart()

    # r hears one negative, from b2; b1 says that it does not know, b3 is slow.
    with pytest.raises(RecoveryUndecidedError, match="entry 0 is undecided"):
        await sim.recover("r", w.ledger_id)
    denied = heard(sim, client="r", op=Op.READ, status=Status.NO_SUCH_ENTRY, entry=0)
    assert {each.source for each in denied} == {"b2"}
    assert heard(sim, client="r", op=Op.READ, bookie="b1", status=Status.UNKNOWN_LEDGER_STATE)
    assert sim.metadata(w.ledger_id).state is LedgerState.IN_RECOVERY

    # b3 can be heard again: b1 closes the ledger by itself, and has what belongs to it.
    slow.drop()
    await sim.until(lambda: not b1.storage.states[w.ledger_id].limbo)
    assert sim.metadata(w.ledger_id).last_entry_id == 0
    assert b1.has(w.ledger_id, 0)
    reader = await sim.recover("r", w.ledger_id)
    assert len(await reader.read_all()) == 1


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d14_a_loss_that_is_being_noted_may_be_cut_at_any_step(sim: Simulation) -> None:
    w = await e0_on_b1_and_b3(sim)
    b1 = sim.bookie("b1")
    sim.net.hold(bookie="b3", op=Op.READ, reply=True)
    cuts = 0
    while True:
        exchange_disks(b1)
        b1.start_soon()
        b1.crash_at_step(cuts + 1)
        await sim.until(lambda: b1.process is None or b1.is_running)
        if b1.is_running:
            break
        cuts += 1
        await b1.restart()
        state = b1.storage.states.get(w.ledger_id)
        assert state is not None, f"cut at step {cuts}"
        assert (state.limbo, state.fenced) == (True, True), f"cut at step {cuts}"
        assert not b1.has(w.ledger_id, 0)
    assert cuts > 10, "cookies, mark, horizon and stamp are many steps"


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d14_the_check_after_a_loss_may_be_cut_at_any_step(sim: Simulation) -> None:
    """A ledger out of limbo is whole, whatever of that was durable when the power went."""
    w = await sim.writer()
    for _ in range(5):
        await w.add()
    await w.close()
    b1 = sim.bookie("b1")

    def is_whole() -> bool:
        return all(b1.has(w.ledger_id, entry_id) for entry_id in range(5))

    def is_over() -> bool:
        state = b1.storage.states.get(w.ledger_id)
        return b1.process is None or (
            b1.is_running and state is not None and not state.limbo and not is_checking(b1)
        )

    cuts = 0
    while True:
        exchange_disks(b1)
        await b1.restart()
        b1.crash_at_step(cuts + 1)
        await sim.until(is_over)
        if b1.process is not None:
            break
        cuts += 1
        await b1.restart()
        assert b1.storage.states[w.ledger_id].limbo or is_whole(), f"cut at step {cuts}"
        await sim.until(is_over)
        assert is_whole(), f"cut at step {cuts}"
    assert cuts > 3, "the journal, the flush and the mark are some steps"


def is_checking(machine: SimBookie) -> bool:
    """Whether the mark of the loss is still there."""
    return is_check_needed(machine.disk, [f"/{machine.bookie_id}/ledgers"])


@scenario(bookies=4, quorum=(2, 2, 2))
async def test_d16_bookies_that_lost_their_disks_take_no_add_of_a_writer_that_paused(
    sim: Simulation,
) -> None:
    # w has e0 on b2 and b3, and pauses. No watch would wake it: the store does not reach it.
    w = await sim.writer(ensemble=("b2", "b3"))
    await w.add()
    sim.store.stall("w")
    w.client.pause()

    # b2 is away: the ledger is recovered without it, and names it nowhere any more.
    b2, b3 = sim.bookie("b2"), sim.bookie("b3")
    b2.crash()
    await sim.settle()
    reader = await sim.recover("r", w.ledger_id)
    assert reader.last_add_confirmed == 0
    for machine in (b2, b3):
        exchange_disks(machine)
        await machine.restart()
    w.client.resume()
    w.append()
    await sim.settle()
    assert w.acked == [0]
    refused = heard(sim, client="w", op=Op.ADD, status=Status.FENCED, entry=1)
    assert {each.source for each in refused} == {"b2", "b3"}


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d14_a_reader_takes_no_lac_from_a_bookie_that_lost_its_disks(
    sim: Simulation,
) -> None:
    """Rule 9.5 counts the members that told theirs: this one has forgotten it."""
    w = await e0_on_b1_and_b3(sim)
    b1 = sim.bookie("b1")
    exchange_disks(b1)
    sim.net.hold(bookie="b3", reply=True)
    await b1.restart()
    reader = await (await sim.client("t")).open(w.ledger_id)
    with pytest.raises(BookieUnavailableError, match="told their last add confirmed"):
        await reader.reader.read_last_add_confirmed()


STORIES = (
    test_d14_a_bookie_that_lost_its_disks_denies_nothing_and_is_made_whole,
    test_d14_a_loss_that_is_being_noted_may_be_cut_at_any_step,
    test_d14_the_check_after_a_loss_may_be_cut_at_any_step,
    test_d14_a_reader_takes_no_lac_from_a_bookie_that_lost_its_disks,
    test_d16_bookies_that_lost_their_disks_take_no_add_of_a_writer_that_paused,
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[each.name for each in MUTATIONS])
def test_the_stories_of_a_loss_notice_when_a_rule_is_off(mutation: Mutation) -> None:
    assert_noticed(mutation, *STORIES)
