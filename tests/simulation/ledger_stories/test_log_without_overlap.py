"""A log that rotates without overlap is at every moment a prefix of its appends."""

import pytest

from magnetar.ledger.errors import LogFencedError, LogUnavailableError
from tests.simulation.frame_rules import Hold
from tests.simulation.logs import (
    CONFIG,
    Batch,
    SimLog,
    hold_answers,
    open_log,
    outcomes,
)
from tests.simulation.simulation import Simulation, scenario

ONE_AFTER_ANOTHER = CONFIG.model_copy(update={"overlaps_ledgers": False})


async def rotating(sim: Simulation) -> tuple[SimLog, Hold, list[Batch]]:
    """`a0 a1` are held on the first ledger; `b0 b1` came when the second was there."""
    log = await open_log(sim, config=ONE_AFTER_ANOTHER)
    await log.add(b"before")
    held = hold_answers(sim, log)
    batches = [log.append(b"a0"), log.append(b"a1")]
    await log.rotate()
    batches += [log.append(b"b0"), log.append(b"b1")]
    return log, held, batches


@scenario(bookies=3)
async def test_nothing_goes_into_the_next_ledger_before_the_one_before_has_drained(
    sim: Simulation,
) -> None:
    log, held, batches = await rotating(sim)
    await sim.settle()
    assert log.draining.entries_added == 3
    assert log.writer.entries_added == 0
    assert log.log.pending_batches == 4
    held.release()
    assert await outcomes(batches) == [b"a0", b"a1", b"b0", b"b1"]
    assert await log.read_all() == [b"before", b"a0", b"a1", b"b0", b"b1"]
    await log.add(b"c")
    await log.close()
    assert [ledger.entries for ledger in log.log.ledgers] == [3, 3]


@scenario(bookies=3)
async def test_what_waits_is_written_in_order_when_the_draining_ledger_fails(
    sim: Simulation,
) -> None:
    log, held, batches = await rotating(sim)
    log.fail(log.draining)
    batches.append(log.append(b"c"))
    assert await outcomes(batches) == [b"a0", b"a1", b"b0", b"b1", b"c"]
    held.release()
    await sim.settle()
    assert await log.read_all() == [b"before", b"a0", b"a1", b"b0", b"b1", b"c"]
    await log.close()


@scenario(bookies=3)
async def test_the_next_owner_finds_a_prefix(sim: Simulation) -> None:
    log, held, batches = await rotating(sim)
    second = await open_log(sim, "o")
    assert (await second.read_all()) in (
        [b"before"],
        [b"before", b"a0"],
        [b"before", b"a0", b"a1"],
    )
    held.release()
    for batch in batches:
        with pytest.raises(LogFencedError):
            await batch.outcome
    await second.close()
    await log.close()


@scenario(bookies=3)
async def test_close_finishes_what_waits_for_the_next_ledger(sim: Simulation) -> None:
    log, held, batches = await rotating(sim)
    closing = log.close()
    await sim.sleep(0.001)
    held.release()
    await closing
    assert await outcomes(batches) == [b"a0", b"a1", b"b0", b"b1"]


@scenario(bookies=3)
async def test_nothing_is_taken_behind_an_append_that_was_refused_and_has_not_heard_of_it(
    sim: Simulation,
) -> None:
    small = ONE_AFTER_ANOTHER.model_copy(update={"pending_bytes_max": 1 << 20})
    log = await open_log(sim, config=small)
    await log.add(b"before")
    hold = hold_answers(sim, log)
    held = log.append(b"a")
    await log.rotate()
    too_large, fits = log.append(bytes(2 << 20)), log.append(b"b")
    for refused in (too_large, fits):
        with pytest.raises(LogUnavailableError):
            await refused.outcome
    taken = log.append(b"c")
    hold.release()
    assert await outcomes([held, taken]) == [b"a", b"c"]
    assert await log.read_all() == [b"before", b"a", b"c"]
    await log.close()


@scenario(bookies=3)
async def test_properties_survive_the_owner_and_belong_to_the_owner_alone(
    sim: Simulation,
) -> None:
    first = await open_log(sim)
    log, run = first.log, first.client.run
    await run(log.update_properties({"epoch": "1", "other": "x"}))
    await run(log.update_properties({"epoch": "2", "other": None}))
    assert log.properties == {"epoch": "2"}
    await first.add(b"a")
    second = await open_log(sim)
    assert second.log.properties == {"epoch": "2"}
    with pytest.raises(LogFencedError):
        await run(log.update_properties({"epoch": "3"}))
    await first.close()
    await second.close()
