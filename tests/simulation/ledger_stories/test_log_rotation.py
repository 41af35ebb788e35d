"""Changing ledgers while appends go on: order, exactly once, and two owners at once."""

import asyncio
from collections.abc import Iterable

import pytest

from magnetar.ledger.errors import (
    LogClosedError,
    LogError,
    LogFencedError,
    LogUnavailableError,
)
from magnetar.ledger.managed_log import log_changes
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.wire import Op
from magnetar.ledger.writer import LedgerWriter
from tests.simulation.frame_rules import Hold
from tests.simulation.history import Sent
from tests.simulation.logs import (
    CONFIG,
    PATH,
    ROLLING,
    Batch,
    SimLog,
    hold_answers,
    ledger_ids,
    open_log,
    open_reader,
    outcomes,
    until_stored,
)
from tests.simulation.simulation import Simulation, scenario

ALL = [b"before", b"a0", b"a1", b"b0", b"b1"]


async def rotating(sim: Simulation) -> tuple[SimLog, Hold, list[Batch]]:
    """`before` confirmed, `a0 a1` held on the first ledger, `b0 b1` confirmed on the second."""
    log = await open_log(sim)
    await log.add(b"before")
    held = hold_answers(sim, log)
    batches = [log.append(b"a0"), log.append(b"a1")]
    await log.rotate()
    batches += [log.append(b"b0"), log.append(b"b1")]
    await until_stored(sim, log.writer)
    return log, held, batches


def none_is_done(batches: Iterable[Batch]) -> bool:
    return not any(batch.outcome.done() for batch in batches)


@scenario(bookies=3)
async def test_rule_9_2_nothing_is_reported_before_what_was_appended_earlier(
    sim: Simulation,
) -> None:
    log, held, batches = await rotating(sim)
    await sim.settle()
    assert none_is_done(batches)
    assert log.log.last_confirmed.entry_id == 0
    assert await log.read_all() == [b"before"]
    order: list[bytes] = []
    for batch in batches:
        payload = batch.payloads[0]
        batch.outcome.add_done_callback(lambda _, payload=payload: order.append(payload))  # type: ignore[misc]
    held.release()
    assert await outcomes(batches) == ALL[1:]
    await sim.settle()
    assert order == ALL[1:]
    assert await log.read_all() == ALL
    await log.close()


@scenario(bookies=3)
async def test_rule_9_1_a_further_rotation_waits_until_the_ledger_before_is_closed(
    sim: Simulation,
) -> None:
    log, held, batches = await rotating(sim)
    again = log.rotate()
    late = log.append(b"late")
    await until_stored(sim, log.writer)
    await sim.settle()
    assert not again.done()
    assert [ledger.is_closed for ledger in log.log.ledgers] == [False, False]
    held.release()
    await again
    assert await outcomes([*batches, late]) == [*ALL[1:], b"late"]
    assert log.log.ledgers[0].entries == 3
    assert log.log.ledgers[0].is_closed
    await log.close()


@scenario(bookies=3)
async def test_rule_9_3_after_a_failure_of_the_draining_ledger_all_is_written_again_in_order(
    sim: Simulation,
) -> None:
    log, held, batches = await rotating(sim)
    first, second = log.draining.ledger_id, log.writer.ledger_id
    log.fail(log.draining)
    waiting = log.append(b"c0")
    assert await outcomes([*batches, waiting]) == [*ALL[1:], b"c0"]
    held.release()  # late answers change nothing
    await sim.settle()
    assert await log.read_all() == [*ALL, b"c0"]
    assert first in log.ledger_ids
    assert second not in log.ledger_ids, "it held what is written again behind"
    await log.close()
    again = await open_log(sim, "o")
    assert await again.read_all() == [*ALL, b"c0"]
    await again.close()


@scenario(bookies=3)
async def test_a_ledger_that_is_dropped_leaves_the_list_before_readers_may_go_on_to_it(
    sim: Simulation,
) -> None:
    log, _, batches = await rotating(sim)
    first, second = log.draining, log.writer
    reader = await open_reader(sim)
    reading = sim.loop.create_task(reader.read_on(5))
    close = first.close
    listed_at_close: list[list[int]] = []

    async def close_noting(*, force: bool = False) -> object:
        metadata = LogMetadata.from_json(sim.store.tree.get(PATH).value, path=PATH)
        listed_at_close.append([ledger.ledger_id for ledger in metadata.ledgers])
        return await close(force=force)

    first.close = close_noting  # type: ignore[method-assign, assignment]
    log.fail(first)
    assert await outcomes(batches) == ALL[1:]
    [listed] = listed_at_close
    assert first.ledger_id in listed
    assert second.ledger_id not in listed
    await log.close()  # its last entry is readable then
    assert await reading == ALL
    await reader.close()


@scenario(bookies=3)
async def test_rule_9_3_after_a_failure_of_the_later_ledger_the_earlier_one_ends_first(
    sim: Simulation,
) -> None:
    log, held, batches = await rotating(sim)
    log.fail(log.writer)
    waiting = log.append(b"c0")
    await sim.settle()
    assert none_is_done([*batches, waiting])
    held.release()
    assert await outcomes([*batches, waiting]) == [*ALL[1:], b"c0"]
    assert await log.read_all() == [*ALL, b"c0"]
    await log.close()


@scenario(bookies=3)
async def test_rule_9_3_when_both_ledgers_fail_all_is_written_again_in_order(
    sim: Simulation,
) -> None:
    log, _, batches = await rotating(sim)
    first, second = log.draining, log.writer
    log.fail(second)
    log.fail(first)
    assert await outcomes(batches) == ALL[1:]
    assert await log.read_all() == ALL
    await log.close()


@scenario(bookies=3)
async def test_m3_a_takeover_fences_the_draining_ledger_as_well(sim: Simulation) -> None:
    log, held, batches = await rotating(sim)
    first, second = log.draining.ledger_id, log.writer.ledger_id
    later = await open_log(sim, "o")
    # Stored on all bookies, though the old owner never heard of it.
    assert await later.read_all() == ALL
    await later.add(b"later")
    late = log.append(b"too late")
    held.release()
    with pytest.raises(LogFencedError):
        await late.outcome
    for batch in batches:
        await sim.until(batch.outcome.done)
        failure = batch.outcome.exception()
        assert failure is None or isinstance(failure, LogFencedError)  # in the log either way
    assert await later.read_all() == [*ALL, b"later"]
    assert later.ledger_ids[:2] == [first, second]
    await later.close()
    with pytest.raises(LogFencedError):
        await log.add(b"dead")
    await log.close()


@scenario(bookies=3)
async def test_m4_nothing_is_written_again_before_the_failed_ledger_is_closed(
    sim: Simulation,
) -> None:
    log = await open_log(sim)
    await log.add(b"one")
    failed = log.writer
    go_on = sim.loop.create_future()
    close = failed.close

    async def close_later(*, force: bool = False) -> object:
        await go_on
        return await close(force=force)

    failed.close = close_later  # type: ignore[method-assign, assignment]
    hold_answers(sim, log)
    batch = log.append(b"two")
    await sim.sleep(0.0001)
    log.fail(failed)
    await sim.settle()  # for what should not happen
    assert {event.ledger_id for _, _, event in sim.history.of(Sent) if event.op == Op.ADD} == {
        failed.ledger_id
    }
    go_on.set_result(None)
    assert await outcomes([batch]) == [b"two"]
    assert await log.read_all() == [b"one", b"two"]
    await log.close()


@scenario(bookies=3)
async def test_m5_an_owner_whose_empty_ledger_was_deleted_is_never_told_that_it_appended(
    sim: Simulation,
) -> None:
    first = await open_log(sim)
    (empty,) = first.ledger_ids
    second = await open_log(sim, "o")
    assert ledger_ids(sim) == second.ledger_ids[-1:]
    assert empty not in second.ledger_ids
    with pytest.raises(LogFencedError):
        await first.add(b"into nowhere")
    assert await second.read_all() == []
    await first.close()
    await second.close()


@scenario(bookies=3)
async def test_m18_appends_that_race_with_changes_of_ledgers_and_close_have_one_outcome(
    sim: Simulation,
) -> None:
    log = await open_log(sim, config=ROLLING)
    batches: list[Batch] = []

    async def appending() -> None:
        while True:
            batches.append(log.append(b"%06d" % len(batches)))
            await sim.sleep(0.0001)

    task = sim.loop.create_task(appending())
    for _ in range(5):
        await log.rotate()
    await log.close()
    await sim.sleep(0.001)
    task.cancel()
    appended: list[bytes] = []
    for batch in batches:
        try:
            await batch.outcome
        except LogClosedError:
            continue
        appended.append(batch.payloads[0])
    assert len(appended) < len(batches), "some came too late"
    assert appended == [b"%06d" % number for number in range(len(appended))], (
        "no gap before the end"
    )
    again = await open_log(sim)
    assert await again.read_all() == appended
    await again.close()


@scenario(bookies=3)
async def test_appends_go_on_where_they_are_while_the_metadata_store_is_away(
    sim: Simulation,
) -> None:
    """A rotation that is asked for when it is back does not wait for the next attempt."""
    config = ROLLING.model_copy(update={"repair_timeout_s": 0.2, "unavailable_retry_s": 3600})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_changes, "_RETRY_DELAY_S", 3600)
        log = await open_log(sim, config=config)
        sim.store.refuse(client="w", count=1 << 30)
        payloads = [b"%d" % number for number in range(20)]
        for payload in payloads:
            await log.add(payload)
        with pytest.raises(LogUnavailableError, match="no new ledger"):
            await log.rotate()
        sim.store.heal_all()
        log.log._config = ROLLING  # what can be done has the usual time
        await log.rotate()
        assert len(log.log.ledgers) == 2
        assert await log.read_all() == payloads
        await log.close()


@scenario(bookies=3)
async def test_a_ledger_that_is_empty_is_not_followed_by_another(sim: Simulation) -> None:
    log = await open_log(sim)
    before = log.log.ledgers
    await log.rotate()
    assert log.log.ledgers == before
    await log.close()
    with pytest.raises(LogClosedError, match="open it again"):
        await log.rotate()


@scenario(bookies=3)
async def test_a_rotation_that_the_close_cuts_short_says_so(sim: Simulation) -> None:
    log, held, batches = await rotating(sim)
    again = log.rotate()  # waits for the one that is under way
    await sim.sleep(0.0001)
    closing = log.close()
    with pytest.raises(LogClosedError):
        await again
    held.release()
    await closing
    assert await outcomes(batches) == ALL[1:]


@scenario(bookies=3)
async def test_a_next_ledger_that_was_sealed_before_it_was_listed_is_not_used(
    sim: Simulation,
) -> None:
    log = await open_log(sim)
    await log.add(b"one")
    # As by a rotation that could not list it,
    spare = await log.client.run(log.log._ledgers.take_spare())
    # and then by an orphan sweep.
    await sim.recover("o", spare.ledger_id)
    await sim.until(lambda: spare.has_failed)  # it hears of it by its watch
    await log.rotate()
    await log.add(b"two")
    assert spare.ledger_id not in log.ledger_ids
    assert await log.read_all() == [b"one", b"two"]
    await log.close()


async def listed_unknowingly(sim: Simulation) -> tuple[SimLog, LedgerWriter, asyncio.Task[None]]:
    """A log whose next ledger is listed. Its rotation does not know; another check has found it."""
    log = await open_log(sim)
    await log.add(b"one")
    sim.store.lose_reply(client="w", path=PATH)
    sim.store.refuse(client="w", kind="get", path=PATH)
    rotation = log.rotate()
    await sim.until(lambda: all(each.count == 0 for each in sim.store.accidents))
    spare = await log.client.run(log.log._ledgers.take_spare())
    await log.client.run(log.log.check_owned())
    assert not rotation.done()
    assert spare.ledger_id in log.ledger_ids
    return log, spare, rotation


@scenario(bookies=3)
async def test_a_next_ledger_that_was_sealed_after_it_was_listed_is_replaced_and_no_hole(
    sim: Simulation,
) -> None:
    log, spare, rotation = await listed_unknowingly(sim)
    # As by a worker of re-replication: a bookie of it was lost.
    await sim.recover("o", spare.ledger_id)
    await sim.until(lambda: spare.has_failed)
    assert not rotation.done()
    await rotation
    await log.add(b"two")
    assert spare.ledger_id not in log.ledger_ids
    assert await log.read_all() == [b"one", b"two"]
    after = await open_log(sim, "o")
    assert await after.read_all() == [b"one", b"two"]
    await log.close()
    await after.close()


@scenario(bookies=3)
async def test_a_next_ledger_that_is_listed_stays_when_the_owner_gives_it_up(
    sim: Simulation,
) -> None:
    log, spare, rotation = await listed_unknowingly(sim)
    log.fence()
    with pytest.raises(LogFencedError):
        await rotation
    await log.client.run(log.log._changes._drop_spare())
    assert spare.ledger_id in ledger_ids(sim)
    after = await open_log(sim, "o")
    assert await after.read_all() == [b"one"]
    await log.close()
    await after.close()


@scenario(bookies=3)
async def test_bytes_that_wait_behind_the_draining_ledger_are_bounded(sim: Simulation) -> None:
    config = CONFIG.model_copy(update={"pending_bytes_max": 1 << 20})
    log = await open_log(sim, config=config)
    await log.add(b"before")
    held = hold_answers(sim, log)
    batches = [log.append(b"held")]
    await log.rotate()
    size = 1 << 19
    for number in range(3):
        batches.append(log.append(b"%d" % number * size))
        await until_stored(sim, log.writer)
    with pytest.raises(LogUnavailableError, match="wait for the ledger before"):
        await log.add(b"one too many")
    assert log.log.pending_bytes >= 3 * size
    held.release()
    for batch in batches:
        await batch.outcome
    assert log.log.pending_bytes == 0
    await log.close()


class Broken(Batch):
    """Of a caller that has a bug."""

    def on_appended(self, ledger_id: int, first_entry_id: int) -> None:
        raise KeyError("a bug")

    def on_failed(self, error: LogError) -> None:
        raise KeyError("a bug")


@scenario(bookies=3)
async def test_a_failing_caller_does_not_hold_up_those_behind_it_when_a_ledger_drains(
    sim: Simulation,
) -> None:
    log, held, batches = await rotating(sim)
    sim.loop.tolerated = KeyError
    log.append_batch(Broken(log.client, [b"broken"]))
    behind = log.append(b"behind")
    await until_stored(sim, log.writer)
    held.release()
    assert await outcomes([*batches, behind]) == [*ALL[1:], b"behind"]
    assert [type(bug) for bug in sim.loop.reported] == [KeyError]
    await log.close()


@scenario(bookies=3)
async def test_a_batch_that_breaks_does_not_keep_others_from_their_outcome(
    sim: Simulation,
) -> None:
    log = await open_log(sim)
    sim.loop.tolerated = KeyError
    log.append_batch(Broken(log.client, [b"one"]))
    await log.add(b"two")
    log.append_batch(Broken(log.client, [b"three"]))
    batch = log.append(b"four")
    log.fence()
    with pytest.raises(LogFencedError):
        await batch.outcome
    assert [type(error) for error in sim.loop.reported] == [KeyError, KeyError]
    await log.close()
