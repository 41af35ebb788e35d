"""Shrinking a log and ending it: what is gone is gone in the right order, what ended stays so."""

import asyncio

import pytest

from magnetar.ledger.errors import (
    FutureLogFormatError,
    InvalidLedgerMetadataError,
    LogClosedError,
    LogDataLossError,
    LogFencedError,
    LogTerminatedError,
    MetadataUnavailableError,
    UnauthorizedError,
    UnknownOutcomeError,
)
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.position import EARLIEST, LATEST, Position
from magnetar.ledger.wire import Op
from tests.simulation.history import Sent
from tests.simulation.logs import (
    CONFIG,
    PATH,
    SimLog,
    client_of,
    hold_answers,
    ledger_ids,
    open_log,
    open_reader,
    outcomes,
)
from tests.simulation.simulation import Simulation, scenario

ALWAYS = 1 << 30


async def log_of(sim: Simulation, ledgers: int) -> SimLog:
    """Two entries in each of so many closed ledgers, and an empty one behind them."""
    log = await open_log(sim)
    for number in range(ledgers):
        await log.add(b"%d-0" % number, b"%d-1" % number)
        await log.rotate()
    await log.rotate()  # which waits until the one before is closed
    return log


# Shrinking


@scenario(bookies=3)
async def test_shrink_removes_whole_ledgers_and_their_metadata(sim: Simulation) -> None:
    log = await log_of(sim, 4)
    ids = log.ledger_ids
    assert await log.shrink(Position(ids[0], 1)) == 0, "its last entry is not before this"
    assert await log.shrink(Position(ids[2], 1)) == 2
    assert await log.read_all() == [b"2-0", b"2-1", b"3-0", b"3-1"]
    assert log.ledger_ids == ids[2:]
    assert ledger_ids(sim) == ids[2:]
    assert log.log.first_position() == Position(ids[2], 0)
    assert log.log.entries_between(EARLIEST, log.log.last_confirmed) == 4
    await log.add(b"more")
    await log.close()
    again = await open_log(sim)
    assert await again.read_all() == [b"2-0", b"2-1", b"3-0", b"3-1", b"more"]
    await again.close()


@scenario(bookies=3)
async def test_shrink_never_removes_the_current_ledger_nor_the_draining_one(
    sim: Simulation,
) -> None:
    log = await log_of(sim, 1)
    await log.add(b"draining")
    hold = hold_answers(sim, log)
    held = log.append(b"held")
    await log.rotate()
    assert await log.shrink(LATEST) == 1
    assert [ledger.is_closed for ledger in log.log.ledgers] == [False, False]
    hold.release()
    await held.outcome
    await log.rotate()  # nothing to rotate; waits until the one before is closed
    assert await log.shrink(LATEST) == 1
    assert await log.shrink(LATEST) == 0, "the current ledger, empty as it is"
    assert await log.read_all() == []
    assert log.log.first_position() > log.log.last_confirmed
    await log.add(b"on")
    assert await log.read_all() == [b"on"]
    await log.close()


@scenario(bookies=3)
async def test_an_owners_read_of_what_a_shrink_removes_goes_on_at_the_first_entry_there_is(
    sim: Simulation,
) -> None:
    log = await log_of(sim, 3)
    ids = log.ledger_ids
    ledgers = log.client.ledgers
    inner = ledgers.open

    async def open_after_the_shrink(ledger_id: int, *, password: bytes | None = None) -> object:
        ledgers.open = inner  # type: ignore[method-assign]
        await log.shrink(Position(ids[2], 0))
        return await inner(ledger_id, password=password)

    ledgers.open = open_after_the_shrink  # type: ignore[method-assign, assignment]
    assert await log.read(EARLIEST) == [b"2-0", b"2-1"]
    await log.close()


@scenario(bookies=3)
async def test_m9_rule_6_1_a_ledger_is_deleted_only_after_it_left_the_list(
    sim: Simulation,
) -> None:
    log = await log_of(sim, 3)
    ids = log.ledger_ids
    sim.store.refuse(client="w", kind="set", path=PATH, count=ALWAYS)
    with pytest.raises(MetadataUnavailableError):
        await log.shrink(LATEST)
    await log.client.run(log.log.delete_unlisted())
    assert ledger_ids(sim) == ids
    assert len(await log.read_all()) == 6
    sim.store.heal_all()
    sim.store.lose_reply(client="w", path=PATH)
    assert await log.shrink(LATEST) == 3, "its own update, found when it was read back"
    assert ledger_ids(sim) == ids[3:]
    await log.close()


@scenario(bookies=3)
async def test_m9_a_ledger_that_could_not_be_deleted_is_tried_again(sim: Simulation) -> None:
    log = await log_of(sim, 3)
    ids = log.ledger_ids
    sim.store.refuse(client="w", kind="delete", path="/ledgers", count=ALWAYS)
    assert await log.shrink(LATEST) == 3
    assert log.log.leftover_ledgers == 3
    assert ledger_ids(sim) == ids, "they left the list, and are there"
    assert log.ledger_ids == ids[3:]
    sim.store.heal_all()
    assert await log.shrink(LATEST) == 0
    assert log.log.leftover_ledgers == 0
    assert ledger_ids(sim) == ids[3:]
    await log.close()


@scenario(bookies=3)
async def test_m9_in_the_end_what_cannot_be_deleted_is_left_to_the_orphan_sweep(
    sim: Simulation,
) -> None:
    log = await log_of(sim, 1)
    attempts: list[int] = []

    async def fail(ledger_id: int) -> None:
        attempts.append(ledger_id)
        raise MetadataUnavailableError("the store is away")

    ledgers = log.client.ledgers
    inner, ledgers.delete = ledgers.delete, fail  # type: ignore[method-assign]
    await log.shrink(LATEST)
    while log.log.leftover_ledgers:
        await log.client.run(log.log.delete_unlisted())
    assert len(attempts) == 5
    ledgers.delete = inner  # type: ignore[method-assign]
    await log.close()


@scenario(bookies=3)
async def test_shrinking_a_log_that_was_taken_over_changes_nothing(sim: Simulation) -> None:
    log = await log_of(sim, 2)
    second = await open_log(sim, "o")
    with pytest.raises(LogFencedError):
        await log.shrink(LATEST)
    assert log.fences == 1
    with pytest.raises(LogFencedError):
        await log.shrink(LATEST)
    assert len(await second.read_all()) == 4
    await second.close()
    await log.close()
    closed = await open_log(sim)
    await closed.close()
    with pytest.raises(LogClosedError):
        await closed.shrink(LATEST)


# The end


@scenario(bookies=3)
async def test_a_terminated_log_has_what_was_appended_and_takes_no_more(sim: Simulation) -> None:
    log = await log_of(sim, 1)
    pending = log.append(b"pending")
    terminating = log.terminate()
    await sim.sleep(0)
    with pytest.raises(LogTerminatedError, match="only be read"):
        await log.add(b"too late")
    end = await terminating
    assert await pending.outcome == end
    assert log.log.terminated == log.log.last_confirmed == end
    assert await log.terminate() == end, "terminating again changes nothing"
    with pytest.raises(LogTerminatedError):
        await log.rotate()
    assert await log.read_all() == [b"0-0", b"0-1", b"pending"]
    await log.close()


@scenario(bookies=3)
async def test_the_end_survives_reopening_and_no_ledger_is_made(sim: Simulation) -> None:
    log = await log_of(sim, 2)
    end = await log.terminate()
    await log.close()
    before = ledger_ids(sim)
    for _ in range(2):
        again = await open_log(sim)
        assert again.log.terminated == again.log.last_confirmed == end
        assert await again.read_all() == [b"0-0", b"0-1", b"1-0", b"1-1"]
        with pytest.raises(LogTerminatedError):
            await again.add(b"no")
        assert ledger_ids(sim) == before
        await again.close()
    again = await open_log(sim)
    assert await again.shrink(LATEST) == 1, "the last ledger stays"
    assert await again.read_all() == [b"1-0", b"1-1"]
    await again.delete()
    assert ledger_ids(sim) == []


@scenario(bookies=3)
async def test_a_log_that_is_terminated_empty_is_empty_for_good(sim: Simulation) -> None:
    log = await open_log(sim)
    assert await log.terminate() == Position(-1, -1)
    await log.close()
    again = await open_log(sim)
    assert again.log.terminated == Position(-1, -1)
    assert await again.read_all() == []
    assert again.log.entries_between(EARLIEST, LATEST) == 0
    assert again.log.previous_position(LATEST) == Position(-1, -1)
    await again.close()


@scenario(bookies=3)
async def test_a_termination_of_unknown_outcome_can_be_asked_for_again(sim: Simulation) -> None:
    log = await log_of(sim, 1)
    await log.add(b"last")
    sim.store.lose_request(client="w", path=PATH, count=ALWAYS)
    with pytest.raises(UnknownOutcomeError):
        await log.terminate()
    (lost,) = sim.store.accidents
    assert ALWAYS - lost.count < 10, "an outcome that stays unknown is not asked about for ever"
    with pytest.raises(LogTerminatedError):
        await log.add(b"no")
    sim.store.heal_all()
    end = await log.terminate()
    await log.close()
    again = await open_log(sim)
    assert again.log.terminated == end
    assert await again.read_all() == [b"0-0", b"0-1", b"last"]
    await again.close()


@scenario(bookies=3)
async def test_of_a_termination_and_a_takeover_the_later_one_decides(sim: Simulation) -> None:
    log = await log_of(sim, 1)
    second = await open_log(sim, "o")
    with pytest.raises(LogFencedError, match="not terminated"):
        await log.terminate()
    await second.add(b"on")
    assert second.log.terminated is None
    await second.close()
    await log.close()


# Values that are not for us


@scenario(bookies=3)
async def test_a_list_of_the_future_or_of_nonsense_is_refused_and_left_as_it_is(
    sim: Simulation,
) -> None:
    cases: list[tuple[bytes, type[Exception]]] = [
        (b'{"format":3,"ledgers":[],"properties":{}}', FutureLogFormatError),
        (b"{}", InvalidLedgerMetadataError),
        (b"", InvalidLedgerMetadataError),
        (b'{"format":1,"ledgers":[{"id":1}],"properties":{}}', InvalidLedgerMetadataError),
    ]
    x = await client_of(sim, "x")
    for value, error in cases:
        await x.run(x.store.create(PATH, value))
        opening = ManagedLog.open(x.ledgers, x.store, PATH, CONFIG, clock=x.clock, random=x.random)
        with pytest.raises(error, match=PATH):
            await x.run(opening)
        assert sim.store.tree.get(PATH).value == value
        await x.run(x.store.delete(PATH))


@scenario(bookies=3)
async def test_a_log_that_is_deleted_under_its_owner_says_so(sim: Simulation) -> None:
    log = await log_of(sim, 1)
    await log.add(b"more")
    x = await client_of(sim, "x")
    await x.run(x.store.delete(PATH))
    with pytest.raises(LogFencedError, match="the log was deleted"):
        await log.shrink(LATEST)
    with pytest.raises(LogFencedError):
        await log.add(b"no")
    await log.close()


@scenario(bookies=3)
async def test_a_wrong_password_opens_nothing_and_fences_nothing(sim: Simulation) -> None:
    secret = CONFIG.model_copy(update={"password": b"secret"})
    log = await open_log(sim, config=secret)
    await log.add(b"one")
    for wrong in (b"guess", b""):
        with pytest.raises(UnauthorizedError):
            await open_log(sim, "o", config=CONFIG.model_copy(update={"password": wrong}))
    reader = await open_reader(sim, "o", password=b"guess")
    with pytest.raises(UnauthorizedError):
        await reader.read()
    await reader.close()
    await log.add(b"two")
    assert await log.read_all() == [b"one", b"two"]
    await log.close()
    again = await open_log(sim, config=secret)
    assert await again.read_all() == [b"one", b"two"]
    await again.close()


async def append_until_refused(log: SimLog) -> None:
    while True:
        await log.add(b"more")


@scenario(bookies=3)
async def test_an_owner_whose_ledger_was_deleted_by_hand_is_told_so(sim: Simulation) -> None:
    log = await open_log(sim)
    await log.add(b"one")
    lost = log.log.last_confirmed.ledger_id
    other = await client_of(sim, "o")
    await other.run(other.ledgers.delete(lost))
    outcomes = []
    for _ in range(2):
        with pytest.raises(LogFencedError) as caught:
            await append_until_refused(log)
        outcomes.append(str(caught.value))
    assert outcomes[0] == outcomes[1]
    assert f"ledger {lost}" in outcomes[0]
    assert "close this handle" in outcomes[0]
    await log.close()
    with pytest.raises(LogDataLossError, match=f"ledger {lost} is listed"):
        await open_log(sim, "o")


# An owner that may have lost the log


@scenario(bookies=3)
async def test_m13_an_abandoned_log_is_closed_without_a_write(sim: Simulation) -> None:
    """Neither its list nor its ledger changes, what is pending fails, the next owner has it all."""
    log = await open_log(sim)
    await log.add(b"kept")
    (ledger_id,) = log.ledger_ids
    list_before = sim.store.tree.get(PATH)
    ledger_before = sim.metadata(ledger_id)
    log.here(log.log.abandon, "the lease has run out")
    await sim.sleep(0)
    assert log.fences == 1
    with pytest.raises(LogFencedError, match="the lease has run out"):
        await log.add(b"refused")
    await log.close()
    log.here(log.log.abandon, "again")
    await sim.settle()
    assert sim.store.tree.get(PATH) == list_before
    assert sim.metadata(ledger_id) == ledger_before
    next_owner = await open_log(sim)
    assert await next_owner.read_all() == [b"kept"]
    await next_owner.close()


@scenario(bookies=3)
async def test_an_abandoned_log_does_not_send_what_was_appended_in_the_same_turn(
    sim: Simulation,
) -> None:
    """A broker that was paused reads what clients sent, then learns that its lease is gone."""
    log = await open_log(sim)
    await log.add(b"kept")
    await sim.settle()
    before = len(sim.history.entries)
    batch = log.append(b"late")
    log.here(log.log.abandon, "the lease has run out")
    with pytest.raises(LogFencedError, match="the lease has run out"):
        await batch.outcome
    await sim.settle()
    added = [seen for at, _, seen in sim.history.of(Sent) if at >= before and seen.op == Op.ADD]
    assert added == []


@scenario(bookies=3)
async def test_m13_a_log_that_is_abandoned_while_its_close_drains_writes_nothing_more(
    sim: Simulation,
) -> None:
    """The lease is lost during an orderly close."""
    log = await open_log(sim)
    await log.add(b"kept")
    hold_answers(sim, log)
    batch = log.append(b"pending")
    (ledger_id,) = log.ledger_ids
    list_before = sim.store.tree.get(PATH)
    ledger_before = sim.metadata(ledger_id)
    closing = log.close()
    await sim.sleep(0.1)
    log.here(log.log.abandon, "the lease has run out")
    await closing
    with pytest.raises(LogFencedError, match="the lease has run out"):
        await batch.outcome
    await sim.settle()
    assert sim.store.tree.get(PATH) == list_before
    assert sim.metadata(ledger_id) == ledger_before


@scenario(bookies=3)
async def test_m13_a_log_that_is_abandoned_while_it_closes_a_ledger_leaves_the_rest_as_it_is(
    sim: Simulation,
) -> None:
    """The close of the first of two open ledgers is on its way; nothing may follow it."""
    log = await open_log(sim)
    held = hold_answers(sim, log)
    batches = [log.append(b"first")]
    await log.rotate()
    batches.append(log.append(b"second"))
    await sim.settle()
    _, second = log.ledger_ids
    list_before = sim.store.tree.get(PATH)
    ledger_before = sim.metadata(second)
    change = sim.store.hold_cas(client="w")
    closing = log.close()
    held.release()
    await outcomes(batches)
    await sim.until(lambda: bool(change.operations))
    log.here(log.log.abandon, "the lease has run out")
    change.release()
    await closing
    await sim.settle()
    assert sim.store.tree.get(PATH) == list_before
    assert sim.metadata(second) == ledger_before


@scenario(bookies=3)
async def test_m13_a_log_that_is_abandoned_while_it_closes_its_only_ledger_leaves_its_list(
    sim: Simulation,
) -> None:
    """The close of the ledger is under way, and succeeds; the list is the next owner's."""
    log = await open_log(sim)
    await log.add(b"kept")
    list_before = sim.store.tree.get(PATH)
    change = sim.store.hold_cas(client="w")
    closing = log.close()
    await sim.until(lambda: bool(change.operations))
    log.here(log.log.abandon, "the lease has run out")
    change.release()
    await closing
    await sim.settle()
    assert sim.store.tree.get(PATH) == list_before


@scenario(bookies=3)
async def test_a_log_that_is_abandoned_while_it_ends_is_not_terminated(sim: Simulation) -> None:
    log = await open_log(sim)
    await log.add(b"kept")
    held = hold_answers(sim, log)
    batch = log.append(b"pending")
    terminating = log.terminate()
    await sim.sleep(0.1)
    log.here(log.log.abandon, "the lease has run out")
    with pytest.raises(LogFencedError, match="not terminated"):
        await terminating
    with pytest.raises(LogFencedError, match="the lease has run out"):
        await batch.outcome
    await log.close()
    held.release()
    next_owner = await open_log(sim)
    assert next_owner.log.terminated is None
    await next_owner.close()


async def cut_off(sim: Simulation, log: SimLog) -> None:
    """Begin to close the log, and give up: the owner has no more time."""
    closing = log.close()
    await sim.sleep(0.1)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    log.here(log.log.abandon, "it could not be closed in time")


def watched_ledgers(log: SimLog) -> list[str]:
    """The metadata of ledgers that handles of the log's process watch."""
    return [path for path in log.client.store._watches.paths if "/L" in path]


@scenario(bookies=3)
async def test_a_log_whose_close_was_cut_off_in_a_rotation_writes_nothing_more(
    sim: Simulation,
) -> None:
    log = await open_log(sim)
    await log.add(b"kept")
    list_before = sim.store.tree.get(PATH)
    creation = sim.store.hold(client="w", kind="create")
    rotation = log.rotate()
    await sim.until(lambda: bool(creation.operations))
    await cut_off(sim, log)
    with pytest.raises(LogClosedError):
        await rotation
    creation.release()
    await sim.settle()
    assert sim.store.tree.get(PATH) == list_before
    assert not watched_ledgers(log)
    next_owner = await open_log(sim, "o")
    assert await next_owner.read_all() == [b"kept"]
    await next_owner.close()


@scenario(bookies=3)
async def test_a_log_whose_close_was_cut_off_in_a_repair_writes_nothing_more(
    sim: Simulation,
) -> None:
    log = await open_log(sim)
    await log.add(b"kept")
    list_before = sim.store.tree.get(PATH)
    creation = sim.store.hold(client="w", kind="create")
    log.fail(log.writer)
    batch = log.append(b"pending")
    await sim.until(lambda: bool(creation.operations))
    await cut_off(sim, log)
    with pytest.raises(LogClosedError):
        await batch.outcome
    creation.release()
    await sim.settle()
    assert sim.store.tree.get(PATH) == list_before
    assert not watched_ledgers(log)
    next_owner = await open_log(sim, "o")
    assert await next_owner.read_all() == [b"kept"]
    await next_owner.close()
