"""Repairs of a log that meet late answers, other owners, and their own bugs."""

from typing import NamedTuple

import pytest

from magnetar.ledger.errors import LogFencedError, LogUnavailableError
from magnetar.ledger.position import Position
from magnetar.ledger.writer import LedgerWriter
from tests.simulation.frame_rules import Hold
from tests.simulation.logs import (
    CONFIG,
    PATH,
    Batch,
    SimLog,
    SimLogReader,
    hold_answers,
    open_log,
    open_reader,
)
from tests.simulation.simulation import Simulation, scenario
from tests.simulation.store_rules import StoreHold

ALL = [b"before", b"a0", b"a1", b"b0", b"b1"]


class Draining(NamedTuple):
    """A log with `before` confirmed, `a0 a1` held on its first ledger, `b0 b1` on the next."""

    log: SimLog
    held: Hold
    batches: list[Batch]
    first: LedgerWriter
    second: LedgerWriter


async def draining(sim: Simulation) -> Draining:
    log = await open_log(sim, apart=True)
    await log.add(b"before")
    held = hold_answers(sim, log)
    batches = [log.append(b"a0"), log.append(b"a1")]
    await log.rotate()
    second = log.writer
    for number in range(2):  # one by one: the second tells the bookies that the first is confirmed
        batches.append(log.append(b"b%d" % number))
        await sim.until(lambda: second.last_add_confirmed == number)  # noqa: B023
    return Draining(log, held, batches, log.draining, second)


def hold_list(sim: Simulation, *, reply: bool = False) -> StoreHold:
    """Hold what the owner writes as the list."""
    return sim.store.hold(client="w", kind="set", path=PATH, reply=reply)


async def read_exactly(reader: SimLogReader, count: int) -> list[bytes]:
    """So many entries, however long they take, and what comes at once behind them."""
    return await reader.read_on(count) + await reader.read(wait_s=0.1)


@scenario(bookies=3)
async def test_a_ledger_that_drains_while_its_follower_leaves_the_list_reports_nothing_of_it(
    sim: Simulation,
) -> None:
    state = await draining(sim)
    log = state.log
    log.log._changes._config = CONFIG.model_copy(update={"repair_timeout_s": 0.2})
    listed = hold_list(sim, reply=True)
    # The second ledger fails; the first neither drains nor fails until the repair is overdue.
    log.fail(state.second)
    batches = [*state.batches, log.append(b"c0")]
    await sim.until(lambda: bool(listed.operations))  # the list names the second no more
    state.held.release()  # the first drains now
    await sim.sleep(0.05)
    listed.release()
    outcomes = [await batch.outcome for batch in batches]
    assert outcomes == sorted(outcomes)
    everything = [*ALL, b"c0"]
    assert await log.read_all() == everything, "what was reported as appended is in the log"
    assert {position.ledger_id for position in outcomes} <= set(log.ledger_ids)
    await log.close()
    again = await open_log(sim, "o")
    assert await again.read_all() == everything
    await again.close()


@scenario(bookies=3)
async def test_a_reader_goes_on_behind_a_ledger_only_when_the_list_says_that_it_is_closed(
    sim: Simulation,
) -> None:
    state = await draining(sim)
    reader = await open_reader(sim, "o")
    # The owner drops the second ledger, and its write of the list is late.
    listing = hold_list(sim)
    state.log.fail(state.first)
    await sim.until(lambda: bool(listing.operations))
    # Meanwhile somebody who wants to take over closes the first one.
    await sim.recover("o", state.first.ledger_id)
    read = await read_exactly(reader, 3)
    sought = await open_reader(sim, "o", Position(state.second.ledger_id, 0))
    read_behind = await sought.read(wait_s=0.1)
    listing.release()  # the owner's write arrives; the other one must begin again
    for batch in state.batches:
        with pytest.raises(LogFencedError):
            await batch.outcome
    again = await open_log(sim, "o")
    final = await again.read_all()
    assert read == final[: len(read)], "nothing that was read has vanished"
    assert read == [b"before", b"a0", b"a1"]
    assert set(read_behind) <= set(final), "not even by one who sought behind the open ledger"
    for each in (reader, sought):
        await each.close()
    await again.close()
    await state.log.close()


@scenario(bookies=3)
async def test_a_reader_goes_on_once_the_next_owner_has_recorded_the_end(sim: Simulation) -> None:
    state = await draining(sim)
    reader = await open_reader(sim, "o")
    await sim.recover("o", state.first.ledger_id)
    assert await read_exactly(reader, 3) == ALL[:3]
    waiting = sim.loop.create_task(reader.read(wait_s=10))
    again = await open_log(sim, "o")
    assert await waiting == ALL[3:]
    await reader.close()
    await again.close()
    await state.log.close()


@scenario(bookies=3)
async def test_a_ledger_that_fails_with_everything_reported_is_closed_and_skipped_by_nobody(
    sim: Simulation,
) -> None:
    log = await open_log(sim, apart=True)
    for number in range(5):
        await log.add(b"%d" % number)
    first = log.writer
    listing = hold_list(sim)
    rotating = log.rotate()
    await sim.until(lambda: bool(listing.operations))
    log.fail(first)  # nobody waits for anything of it
    listing.release()
    await rotating
    await sim.until(lambda: log.log.ledgers[0].is_closed)
    listing = hold_list(sim)
    late = await log.add(b"5")
    assert await log.read_all() == [b"%d" % number for number in range(6)]
    assert log.log.entries_between(Position(first.ledger_id, -1), late) == 6
    listing.release()
    await log.close()


@scenario(bookies=3)
async def test_who_waits_for_a_rotation_hears_at_once_that_the_log_was_fenced(
    sim: Simulation,
) -> None:
    state = await draining(sim)
    again = state.log.rotate()  # waits for the one that is under way
    await sim.sleep(0.001)
    assert not again.done()
    later = await open_log(sim, "o")
    with pytest.raises(LogFencedError):
        await again
    await state.log.close()
    await later.close()


@scenario(bookies=3)
async def test_an_owner_that_was_fenced_writes_no_list_any_more(sim: Simulation) -> None:
    log = await open_log(sim, apart=True)
    await log.add(b"one")
    go_on = sim.loop.create_future()
    create = log.log._ledgers.create

    async def create_later() -> object:
        await go_on
        return await create()

    log.log._ledgers.create = create_later  # type: ignore[method-assign, assignment]
    rotating = log.rotate()
    await sim.sleep(0.001)
    # Another owner has fenced the ledger, and is about to set the list.
    await sim.recover("o", log.ledger_ids[-1])
    with pytest.raises(LogFencedError):
        await log.add(b"two")
    version = sim.store.tree.version(PATH)
    go_on.set_result(None)
    with pytest.raises(LogFencedError):
        await rotating
    await log.close()
    await sim.settle()
    assert sim.store.tree.version(PATH) == version, "it would take the log from its new owner"


@scenario(bookies=3)
async def test_a_bug_in_a_change_of_ledgers_fails_appends_instead_of_keeping_them_for_ever(
    sim: Simulation,
) -> None:
    config = CONFIG.model_copy(update={"unavailable_retry_s": 0.05})
    log = await open_log(sim, config=config)
    await log.add(b"one")
    take_spare = log.log._ledgers.take_spare

    async def broken() -> object:
        raise KeyError("a bug")

    log.log._ledgers.take_spare = broken  # type: ignore[method-assign, assignment]
    log.fail(log.writer)
    with pytest.raises(LogUnavailableError):
        await log.add(b"two")
    log.log._ledgers.take_spare = take_spare  # type: ignore[method-assign]
    await sim.sleep(0.06)
    await log.add(b"three")
    assert await log.read_all() == [b"one", b"three"]
    await log.close()


@scenario(bookies=3)
async def test_nobody_waits_for_a_ledger_to_drain_when_the_log_has_given_up(
    sim: Simulation,
) -> None:
    state = await draining(sim)
    changes, appender = state.log.log._changes, state.log.log._appender
    # As after a ledger that failed long ago, and nothing was confirmed since.
    changes._confirmed_at_failure = appender.confirmed_batches
    changes._broken_since_s = -1e9
    state.log.fail(state.second)
    with pytest.raises(LogUnavailableError):
        await state.log.add(b"c0")
    for batch in state.batches:
        with pytest.raises(LogUnavailableError):
            await batch.outcome
    task = changes._task
    assert task is not None
    await sim.until(task.done)
    state.held.release()
    await state.log.close()
