"""A bookie fails while a ledger is written: others take its place, and nothing is lost."""

import pytest

from magnetar.ledger.errors import LedgerFencedError, LedgerWriteError, NoSuchLedgerError
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.wire import Flag, Op, Status
from tests.simulation.clients import FAST, SimWriter, payload_of
from tests.simulation.heard import heard
from tests.simulation.record import write_set_of
from tests.simulation.simulation import Simulation, scenario

IMPATIENT = FAST.model_copy(
    update={
        "follow_up_time_s": 0.0,
        "follow_up_retry_delay_s": 0.01,
        "repair_publish_delay_s": 0.0,
    }
)
DELAYED = IMPATIENT.model_copy(update={"ensemble_change_mode": "delayed"})


def holders(sim: Simulation, ledger_id: int, entry_id: int) -> list[str]:
    """The bookies that the metadata names for the entry, and that have it."""
    named = write_set_of(sim.metadata(ledger_id), entry_id)
    return [each for each in named if sim.bookie(each).has(ledger_id, entry_id)]


async def add_each(w: SimWriter, count: int) -> None:
    """Each in a frame of its own."""
    for _ in range(count):
        await w.add()


@scenario(bookies=5)
async def test_every_confirmed_entry_is_where_the_metadata_says(sim: Simulation) -> None:
    client = await sim.client("w")
    for number, quorum in enumerate([(3, 3, 2), (2, 2, 2), (2, 1, 1), (3, 2, 2), (4, 3, 2)]):
        first = tuple(f"b{each}" for each in range(1, quorum[0] + 1))
        w = await client.create(*quorum, ensemble=first)
        for _ in range(100):
            w.append()
            await sim.sleep(0.0001)
        for at in range(100):
            w.append()
            await sim.sleep(0.0001)
            if at == 20:
                sim.bookie("b1").crash(power=False)
        await sim.until(lambda: w.pending == 0)  # noqa: B023
        await add_each(w, 100)
        metadata = await w.close()
        assert w.acked == list(range(300)), number
        assert len(metadata.ensembles) == 2
        assert "b1" not in metadata.last_fragment.bookies
        assert metadata.last_fragment.bookies[1:] == first[1:], "the others keep their places"
        start = metadata.last_fragment.first_entry_id
        assert 100 <= start < 200
        for entry_id in range(start, 300):
            assert len(holders(sim, w.ledger_id, entry_id)) >= quorum[2]
        read = await client.run(w.writer.read(start, 299))
        assert read == [payload_of("w", entry) for entry in range(start, start + len(read))]
        await sim.bookie("b1").start()
        await sim.sleep(3.0)


@scenario(bookies=5)
async def test_a_second_failure_during_the_change_is_part_of_it(sim: Simulation) -> None:
    await sim.client("w", IMPATIENT)
    w = await sim.writer()
    await w.add()
    for bookie_id in ("b1", "b2"):
        sim.net.refuse(Status.IO_ERROR, client="w", bookie=bookie_id, op=Op.ADD)
    w.append()
    w.append()
    await sim.until(lambda: w.pending == 0)
    metadata = await w.close()
    assert w.acked == [0, 1, 2]
    assert [fragment.first_entry_id for fragment in metadata.ensembles] == [0, 1]
    assert not set(metadata.last_fragment.bookies) & {"b1", "b2"}


@scenario(bookies=3)
async def test_without_a_spare_bookie_adds_go_on_and_the_hole_is_published(
    sim: Simulation,
) -> None:
    await sim.client("w", IMPATIENT)
    w = await sim.writer()
    await w.add()
    sim.bookie("b2").crash()
    await add_each(w, 2)
    assert len(w.writer.metadata.ensembles) == 1
    await sim.until(lambda: sim.missing_copies() == {w.ledger_id: {"b2": [(1, 2)]}})


@scenario(bookies=3)
async def test_a_bookie_that_joins_takes_the_place_that_is_empty(sim: Simulation) -> None:
    client = await sim.client("w", IMPATIENT)
    w = await sim.writer()
    sim.bookie("b2").crash()
    await w.add()
    assert len(w.writer.metadata.ensembles) == 1
    await sim.make_bookie().start()
    await sim.until(lambda: client.ledgers.registry.resolve("b4") is not None)
    await w.add()
    fragment = w.writer.metadata.last_fragment
    assert fragment.first_entry_id == 1
    assert fragment.bookies == ("b1", "b4", "b3")


@scenario(bookies=3)
async def test_too_few_bookies_for_the_ack_quorum_fail_the_handle(sim: Simulation) -> None:
    await sim.client("w", IMPATIENT)
    w = await sim.writer()
    await w.add()
    for bookie_id in ("b2", "b3"):
        sim.bookie(bookie_id).crash()
    with pytest.raises(LedgerWriteError, match="no other bookie can take the place"):
        await w.add()
    assert w.writer.last_add_confirmed == 0


@scenario(bookies=3)
async def test_a_bookie_that_is_back_in_time_gets_what_it_missed(sim: Simulation) -> None:
    patient = FAST.model_copy(update={"follow_up_retry_delay_s": 0.05})
    client = await sim.client("w", patient)
    w = await sim.writer()
    sim.bookie("b2").crash()
    await add_each(w, 2)
    assert holders(sim, w.ledger_id, 1) == ["b3", "b1"]
    await sim.bookie("b2").start()
    await sim.until(lambda: len(holders(sim, w.ledger_id, 1)) == 3)
    await sim.until(lambda: len(holders(sim, w.ledger_id, 0)) == 3)
    await w.close()
    assert client.ledgers.repairs.noted == 0


@scenario(bookies=5)
async def test_delayed_changes_wait_until_the_ack_quorum_is_at_stake(sim: Simulation) -> None:
    await sim.client("w", DELAYED)
    w = await sim.writer()
    await w.add()
    sim.bookie("b1").crash()
    await add_each(w, 2)
    assert len(w.writer.metadata.ensembles) == 1
    await sim.until(lambda: sim.missing_copies() == {w.ledger_id: {"b1": [(1, 2)]}})
    sim.bookie("b2").crash()
    await w.add()
    fragment = w.writer.metadata.last_fragment
    assert fragment.first_entry_id == 3
    assert "b2" not in fragment.bookies


@scenario(bookies=5, quorum=(2, 2, 2))
async def test_a_ledger_has_no_more_changes_than_allowed(sim: Simulation) -> None:
    await sim.client("w", IMPATIENT.model_copy(update={"ensemble_changes_max": 1}))
    w = await sim.writer()
    sim.bookie("b1").crash()
    await w.add()
    sim.bookie(w.writer.metadata.last_fragment.bookies[0]).crash()
    with pytest.raises(LedgerWriteError, match="ensemble_changes_max of 1"):
        await w.add()


@scenario(bookies=5, quorum=(3, 3, 3))
async def test_recovery_replaces_bookies_and_commits_that_with_the_end(sim: Simulation) -> None:
    """D3: the changes of a recovery become visible with the closing write, not before."""
    # Qa = 3: with less, recovery could be over before it hears of the failure.
    await sim.client("w", IMPATIENT)
    w = await sim.writer()
    await add_each(w, 2)
    await sim.client("r", IMPATIENT)
    sim.net.refuse(Status.IO_ERROR, client="r", bookie="b2", op=Op.ADD, flags=Flag.RECOVERY)
    closing = sim.store.hold_cas(client="r", ledger_id=w.ledger_id)
    recovering = sim.clients["r"].spawn(sim.clients["r"].recover_here(w.ledger_id))
    await sim.until(lambda: bool(closing.operations))  # IN_RECOVERY
    closing.release()
    closing = sim.store.hold_cas(client="r", ledger_id=w.ledger_id)
    await sim.until(lambda: bool(closing.operations))  # the end
    assert heard(sim, client="r", op=Op.ADD, bookie="b2"), "the tail was written back"
    assert len(sim.metadata(w.ledger_id).ensembles) == 1
    closing.release()
    metadata = (await recovering).reader.metadata
    assert metadata.last_entry_id == 1
    assert metadata.last_fragment.first_entry_id == 1
    assert "b2" not in metadata.last_fragment.bookies
    other = await (await sim.client("o")).open(w.ledger_id)
    assert await other.read(0, 0) == [payload_of("w", 0)]
    assert len(holders(sim, w.ledger_id, 1)) == 3


@scenario(bookies=3)
async def test_a_writer_withdraws_when_its_ledger_is_closed_by_others(sim: Simulation) -> None:
    w = await sim.writer()
    await w.add()
    reader = await sim.recover("r", w.ledger_id)
    await sim.until(lambda: w.writer.has_failed)
    with pytest.raises(LedgerFencedError):
        w.append()
    assert reader.last_add_confirmed == 0


@scenario(bookies=3)
async def test_d17_a_writer_withdraws_when_its_ledger_is_deleted(sim: Simulation) -> None:
    w = await sim.writer()
    x = await sim.client("x")
    await x.run(x.ledgers.delete(w.ledger_id))
    await sim.until(lambda: w.writer.has_failed)
    with pytest.raises(NoSuchLedgerError):
        w.append()


@scenario(bookies=3)
async def test_a_status_of_a_newer_bookie_counts_as_its_failure(sim: Simulation) -> None:
    w = await sim.writer()
    sim.net.refuse(99, client="w", op=Op.ADD)  # type: ignore[arg-type]
    with pytest.raises(LedgerWriteError, match="status 99"):
        await w.add()


@scenario(bookies=3)
async def test_a_tail_larger_than_a_channel_holds_is_recovered(sim: Simulation) -> None:
    client = await sim.client("w", FAST.model_copy(update={"request_timeout_s": 30.0}))
    w = await sim.writer()
    # No answer arrives.
    answers = sim.net.hold(client="w", op=Op.ADD, reply=True, overtaken=True)
    payloads = [b"%04d" % number * 4096 for number in range(300)]
    for payload in payloads:
        client.process.context.copy().run(w.writer.append, [payload], lambda error: None)
        await sim.sleep(0.0001)  # a frame each
    await sim.until(lambda: answers.seen == 3 * len(payloads))
    settings = FAST.model_copy(
        update={"channel_bytes_max": 1 << 20, "recovery_read_bytes_max": 64 << 10}
    )
    other = await sim.client("r", settings)
    reader = await other.run(other.ledgers.open_and_recover(w.ledger_id))
    assert reader.last_add_confirmed == len(payloads) - 1
    found: list[bytes] = []
    while len(found) < len(payloads):
        found += await other.run(reader.read(len(found), len(payloads) - 1))
    assert found == payloads


def test_the_settings_refuse_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="ensemble_change_mode"):
        LedgerSettings.model_validate({"ensemble_change_mode": "never"})
