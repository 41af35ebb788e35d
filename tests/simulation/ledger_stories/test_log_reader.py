"""Reading a log without owning it: everything in order, nothing that could vanish, no gap."""

import pytest

from magnetar.ledger.errors import (
    BeyondLastConfirmedError,
    LogClosedError,
    LogDataLossError,
    LogTrimmedError,
    NoSuchLogError,
)
from magnetar.ledger.position import EARLIEST, LATEST, Position
from magnetar.ledger.wire import Op, Status
from tests.simulation.logs import hold_answers, open_log, open_reader
from tests.simulation.simulation import Simulation, scenario


@scenario(bookies=3)
async def test_a_reader_follows_appends_over_rotations_and_takeovers(sim: Simulation) -> None:
    log = await open_log(sim)
    reader = await open_reader(sim)
    assert await reader.read() == []
    written = [b"%d" % number for number in range(12)]
    for at in range(0, 12, 4):
        for payload in written[at : at + 4]:
            await log.add(payload)
        if at == 0:
            await log.rotate()
        else:
            log = await open_log(sim)  # as after a crash of the owner
    assert await reader.read_on(12) == written
    assert len(set(log.ledger_ids)) == 4
    assert await reader.read() == []
    await reader.close()
    await log.close()


@scenario(bookies=3)
async def test_a_waiting_reader_gets_an_entry_that_is_appended_later(sim: Simulation) -> None:
    log = await open_log(sim)
    reader = await open_reader(sim)
    reading = sim.loop.create_task(reader.read_on(2))
    await sim.settle()
    await log.add(b"one")
    await log.rotate()
    await log.add(b"two")
    assert await reading == [b"one", b"two"]
    await reader.close()
    await log.close()


@scenario(bookies=3)
async def test_a_reader_waits_through_the_close_and_reopening_of_a_log(sim: Simulation) -> None:
    log = await open_log(sim)
    await log.add(b"one")
    await log.close()
    reader = await open_reader(sim)
    reading = sim.loop.create_task(reader.read_on(2))
    await sim.settle()
    log = await open_log(sim)
    await log.add(b"two")
    assert await reading == [b"one", b"two"]
    await reader.close()
    await log.close()


@scenario(bookies=3)
async def test_rule_9_4_a_reader_does_not_cross_a_ledger_that_is_still_draining(
    sim: Simulation,
) -> None:
    log = await open_log(sim)
    await log.add(b"one")
    first = log.writer.ledger_id
    held = hold_answers(sim, log)
    two = log.append(b"two")  # stored, but no answer arrives
    await log.rotate()
    three = log.append(b"three")
    reader = await open_reader(sim)
    assert await reader.read_on(1) == [b"one"]
    assert await reader.read(wait_s=3) == []
    assert reader.reader.position.ledger_id == first
    assert not two.outcome.done()
    assert not three.outcome.done(), "rule 9.2: not before what was appended earlier"
    log.fail(log.draining)
    for batch in (two, three):
        await batch.outcome
    assert await reader.read_on(2) == [b"two", b"three"]
    held.release()
    await reader.close()
    await log.close()


@scenario(bookies=3)
async def test_seek_to_any_entry_and_read_from_there(sim: Simulation) -> None:
    log = await open_log(sim)
    positions = []
    for number in range(6):
        positions.append(await log.add(b"%d" % number))
        if number in (1, 3):
            await log.rotate()
    reader = await open_reader(sim)
    for number in (5, 0, 3, 1, 4, 2):
        await reader.seek(positions[number])
        assert await reader.read_on(1) == [b"%d" % number]
    await reader.seek(Position(positions[1].ledger_id, 2))  # behind its last entry
    assert await reader.read_on(1) == [b"2"]
    await reader.seek(LATEST)
    assert await reader.read() == []
    await log.add(b"6")
    assert await reader.read_on(1) == [b"6"]
    await reader.seek(EARLIEST)
    assert await reader.read_on(7) == [b"%d" % number for number in range(7)]
    await reader.close()
    await log.close()


@scenario(bookies=3)
async def test_a_seek_beyond_the_end_says_what_to_do_and_moves_nothing(sim: Simulation) -> None:
    log = await open_log(sim)
    await log.add(b"one")
    await log.rotate()
    last = await log.add(b"two")
    reader = await open_reader(sim)
    for beyond in (
        Position(last.ledger_id, last.entry_id + 2),
        Position(last.ledger_id + 1, 0),
        Position(log.log.first_position().ledger_id, 2),
    ):
        with pytest.raises(BeyondLastConfirmedError, match="seek to LATEST"):
            await reader.seek(beyond)
    assert await reader.read_on(2) == [b"one", b"two"]
    await reader.seek(Position(last.ledger_id, last.entry_id + 1))
    assert await reader.read() == []
    await reader.close()
    await log.close()


@scenario(bookies=3)
async def test_a_reader_of_a_terminated_log_comes_to_its_end(sim: Simulation) -> None:
    log = await open_log(sim)
    await log.add(b"one", b"two")
    reader = await open_reader(sim)
    assert await reader.read_on(1) == [b"one"]
    reading = sim.loop.create_task(reader.read_on(1))
    await log.terminate()
    assert await reading == [b"two"]
    assert not reader.reader.is_at_end
    assert await reader.read(wait_s=60) == []
    assert reader.reader.is_at_end
    await reader.close()


@scenario(bookies=3)
async def test_a_reader_whose_next_entry_was_shrunk_away_is_told_where_the_log_begins(
    sim: Simulation,
) -> None:
    log = await open_log(sim)
    for number in range(3):
        await log.add(b"%d" % number)
        await log.rotate()
    late, early, done = [await open_reader(sim) for _ in range(3)]
    assert await early.read_on(1) == [b"0"]
    assert await done.read_on(2) == [b"0", b"1"]
    await log.rotate()  # not before the change of ledgers that is under way has ended
    begin = Position(log.ledger_ids[2], 0)
    assert await log.shrink(begin) == 2
    assert await done.read_on(1) == [b"2"], "it missed nothing"
    with pytest.raises(LogTrimmedError) as caught:
        await early.read_on(2)
    assert caught.value.first == begin
    await early.seek(begin)
    assert await early.read_on(1) == [b"2"]
    with pytest.raises(LogTrimmedError):
        await late.read_on(2)
    with pytest.raises(LogTrimmedError):
        await open_reader(sim, start=Position(begin.ledger_id - 1, 0))
    fresh = await open_reader(sim)
    assert await fresh.read_on(1) == [b"2"]
    for reader in (late, early, done, fresh):
        await reader.close()
    await log.close()


@scenario(bookies=3)
async def test_a_reader_passes_over_ledgers_that_were_left_out_because_they_were_empty(
    sim: Simulation,
) -> None:
    await open_log(sim)  # and crash, with an empty ledger
    reader = await open_reader(sim)
    assert await reader.read() == []
    log = await open_log(sim)
    await log.add(b"one")
    assert await reader.read_on(1) == [b"one"]
    await reader.close()
    await log.close()


@scenario(bookies=3)
async def test_misuse_of_a_reader_is_answered_with_its_own_error(sim: Simulation) -> None:
    with pytest.raises(NoSuchLogError, match="check the path"):
        await open_reader(sim)
    log = await open_log(sim)
    await log.add(b"one")
    reader = await open_reader(sim)
    waiting = sim.loop.create_task(reader.read_on(2))
    # It has the first, and waits for the second.
    await sim.until(lambda: reader.reader.position > EARLIEST)
    await reader.close()
    with pytest.raises(LogClosedError, match="open another"):
        await waiting
    with pytest.raises(LogClosedError):
        await reader.read()
    await log.close()
    (lost,) = log.ledger_ids
    await log.client.run(log.client.ledgers.delete(lost))
    reader = await open_reader(sim)
    with pytest.raises(LogDataLossError, match=f"ledger {lost}"):
        await reader.read()
    await log.delete()
    with pytest.raises(NoSuchLogError, match="deleted"):
        await reader.seek(EARLIEST)
    await reader.close()


@scenario(bookies=3)
async def test_a_ledger_that_is_lost_while_it_is_read_is_named_at_every_call(
    sim: Simulation,
) -> None:
    log = await open_log(sim)
    await log.add(b"one")
    await log.add(b"two")
    await log.close()
    (lost,) = log.ledger_ids
    reader = await open_reader(sim)
    assert await reader.read_on(1) == [b"one"]
    await log.client.run(log.client.ledgers.delete(lost))
    sim.net.refuse(Status.NO_SUCH_LEDGER, client="r", op=Op.READ)
    for _ in range(2):
        with pytest.raises(LogDataLossError, match=f"ledger {lost} is listed.*seek behind it"):
            await reader.read()
    assert reader.reader.position == Position(lost, 1)
    await reader.close()
