"""A log that is opened without a ledger: `prepare`, or the first append, brings it one."""

import asyncio

import pytest

from magnetar.ledger.errors import LogFencedError, LogTerminatedError, LogUnavailableError
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.position import EARLIEST, Position
from tests.simulation.cluster.events import NodeWrote
from tests.simulation.logs import (
    CONFIG,
    PATH,
    SimLog,
    client_of,
    ledger_ids,
    open_log,
    open_reader,
)
from tests.simulation.simulation import Simulation, play, scenario

IDLE = CONFIG.model_copy(update={"opens_without_ledger": True})
SPARING = IDLE.model_copy(update={"unused_ledger_s": 2.0})
IMPATIENT = IDLE.model_copy(update={"repair_timeout_s": 0.2, "unavailable_retry_s": 0.05})


@scenario(bookies=3)
async def test_a_log_that_is_only_read_gets_no_ledger(sim: Simulation) -> None:
    log = await open_log(sim, config=IDLE)
    assert log.log.last_confirmed == Position(-1, -1)
    assert await log.read_all() == []
    await log.close()
    assert ledger_ids(sim) == []


@scenario(bookies=3)
async def test_the_first_appends_wait_for_their_ledger_and_keep_their_order(
    sim: Simulation,
) -> None:
    log = await open_log(sim, config=IDLE)
    batches = [log.append(b"%d" % number) for number in range(50)]
    positions = [await batch.outcome for batch in batches]
    assert positions == [Position(0, number) for number in range(50)]
    assert await log.read_all() == [b"%d" % number for number in range(50)]
    await log.close()


@scenario(bookies=3)
async def test_the_first_append_of_a_prepared_log_writes_no_metadata(sim: Simulation) -> None:
    log = await open_log(sim, config=IDLE)
    log.log.prepare()
    log.log.prepare()
    await sim.settle()
    assert len(ledger_ids(sim)) == 1
    sim.store.records_nodes = True
    assert await log.add(b"one") == Position(0, 0)
    assert list(sim.history.of(NodeWrote)) == []
    await log.close()


@scenario(bookies=3)
async def test_appends_of_a_log_that_is_being_prepared_wait_for_the_same_ledger(
    sim: Simulation,
) -> None:
    log = await open_log(sim, config=IDLE)
    log.log.prepare()
    positions = [await each.outcome for each in [log.append(b"one"), log.append(b"two")]]
    assert positions == [Position(0, 0), Position(0, 1)]
    assert len(ledger_ids(sim)) == 1
    await log.close()


@scenario(bookies=3)
async def test_a_prepared_log_without_appends_gives_its_ledger_back(sim: Simulation) -> None:
    for is_listed in (True, False):
        log = await open_log(sim, config=IDLE)
        log.log.prepare()
        if is_listed:
            await sim.settle()
            assert len(ledger_ids(sim)) == 1
        await log.close()
        await sim.settle()
        assert ledger_ids(sim) == []
        assert await (await open_log(sim, "o", IDLE)).read_all() == []


@scenario(bookies=3)
async def test_a_log_that_could_not_be_prepared_has_its_append_wait_for_a_ledger(
    sim: Simulation,
) -> None:
    log = await open_log(sim, config=IMPATIENT)
    sim.store.refuse(client="w", kind="set", path=PATH, count=1 << 30)
    log.log.prepare()
    await asyncio.sleep(10 * IMPATIENT.repair_timeout_s)
    appended = log.append(b"one")
    await asyncio.sleep(IMPATIENT.repair_timeout_s / 2)
    assert not appended.outcome.done()
    sim.store.accidents.clear()
    assert await appended.outcome == Position(0, 0)
    await log.close()


@scenario(bookies=3)
async def test_m15_an_owner_that_opened_the_log_before_can_prepare_no_ledger(
    sim: Simulation,
) -> None:
    first = await open_log(sim, config=IDLE)
    second = await open_log(sim, "o", IDLE)
    first.log.prepare()
    await sim.settle()
    assert first.fences == 1
    assert (await second.add(b"mine")).entry_id == 0
    await first.close()
    await second.close()
    assert len(ledger_ids(sim)) == 1


@scenario(bookies=3)
async def test_a_ledger_that_nothing_was_appended_to_is_given_back(sim: Simulation) -> None:
    log = await open_log(sim, config=SPARING)
    for _ in range(3):
        log.log.prepare()
        await asyncio.sleep(SPARING.unused_ledger_s / 2)
        assert len(ledger_ids(sim)) == 1
        await asyncio.sleep(SPARING.unused_ledger_s)
        assert ledger_ids(sim) == []
        assert log.ledger_ids == []
    position = await log.add(b"one")
    await asyncio.sleep(2 * SPARING.unused_ledger_s)
    assert ledger_ids(sim) == [position.ledger_id]
    assert await log.read_all() == [b"one"]
    await log.close()


@scenario(bookies=3)
async def test_a_ledger_that_was_used_in_time_stays(sim: Simulation) -> None:
    log = await open_log(sim, config=SPARING)
    log.log.prepare()
    await asyncio.sleep(SPARING.unused_ledger_s / 2)
    position = await log.add(b"one")
    await asyncio.sleep(2 * SPARING.unused_ledger_s)
    assert (await log.add(b"two")).ledger_id == position.ledger_id
    await log.close()


@scenario(bookies=3)
async def test_appends_while_a_ledger_is_given_back_go_to_the_next_one(sim: Simulation) -> None:
    log = await open_log(sim, config=SPARING)
    log.log.prepare()
    await sim.settle()
    (unused,) = ledger_ids(sim)
    writing = sim.store.hold(client="w", kind="set", path=PATH)
    await sim.until(lambda: len(writing.operations) == 1)
    batches = [log.append(b"%d" % number) for number in range(10)]
    writing.release()
    positions = [await batch.outcome for batch in batches]
    assert [each.entry_id for each in positions] == list(range(10))
    assert {each.ledger_id for each in positions} != {unused}
    await sim.settle()
    assert ledger_ids(sim) == log.ledger_ids == [positions[0].ledger_id]
    assert await log.read_all() == [b"%d" % number for number in range(10)]
    await log.close()


@pytest.mark.parametrize("accident", ["lose_reply", "lose_request", "refuse"])
def test_a_ledger_that_was_given_back_in_doubt_is_in_no_later_list(accident: str) -> None:
    async def story(sim: Simulation) -> None:
        log = await open_log(sim, config=SPARING)
        log.log.prepare()
        await sim.settle()
        (unused,) = ledger_ids(sim)
        getattr(sim.store, accident)(client="w", kind="set", path=PATH)
        await asyncio.sleep(2 * SPARING.unused_ledger_s)
        assert sim.store.accidents[0].count == 0
        position = await log.add(b"one")
        assert log.ledger_ids == [position.ledger_id]
        assert position.ledger_id != unused
        await log.close()
        await sim.settle()
        assert ledger_ids(sim) == [position.ledger_id]
        assert await (await open_log(sim, "o", IDLE)).read_all() == [b"one"]

    play(story, Simulation(bookies=3))


@scenario(bookies=3)
async def test_m15_a_former_owner_gives_no_ledger_back(sim: Simulation) -> None:
    first = await open_log(sim, config=SPARING)
    first.log.prepare()
    await sim.settle()
    second = await open_log(sim, "o", IDLE)
    position = await second.add(b"mine")
    await asyncio.sleep(2 * SPARING.unused_ledger_s)
    assert first.fences == 1
    assert await second.read_all() == [b"mine"]
    await first.close()
    await second.close()
    await sim.settle()
    assert ledger_ids(sim) == [position.ledger_id]


@scenario(bookies=3)
async def test_m1_no_entry_is_written_before_the_list_names_its_ledger(sim: Simulation) -> None:
    log = await open_log(sim, config=IMPATIENT)
    # From the second write of the list on, the store is away.
    sim.store.refuse(client="w", kind="set", path=PATH, count=1 << 30)
    with pytest.raises(LogUnavailableError):
        await log.add(b"one")
    (ledger_id,) = ledger_ids(sim)
    assert (await sim.recover("o", ledger_id)).last_add_confirmed == -1
    await log.close()


@scenario(bookies=3)
async def test_an_idle_log_costs_one_write_to_open_and_none_to_close(sim: Simulation) -> None:
    log = await open_log(sim, config=IDLE)
    await log.add(b"one")
    await log.close()
    await sim.settle()
    sim.store.records_nodes = True

    def writes() -> list[str]:
        return [event.path for _, _, event in sim.history.of(NodeWrote)]

    log = await open_log(sim, config=IDLE)
    assert await log.read_all() == [b"one"]
    assert writes() == [PATH]
    await log.close()
    await sim.settle()
    assert writes() == [PATH]
    assert len(ledger_ids(sim)) == 1


@scenario(bookies=3)
async def test_m15_an_owner_that_opened_the_log_before_can_begin_no_ledger(
    sim: Simulation,
) -> None:
    first = await open_log(sim, config=IDLE)
    second = await open_log(sim, "o", IDLE)
    with pytest.raises(LogFencedError):
        await first.add(b"too late")
    assert first.fences == 1
    assert (await second.add(b"mine")).entry_id == 0
    assert await second.read_all() == [b"mine"]
    await first.close()
    await second.close()
    # What the first one had created is no part of the log, and was removed.
    assert len(ledger_ids(sim)) == 1


@scenario(bookies=3)
async def test_m15_of_two_that_open_the_log_at_once_one_is_fenced(sim: Simulation) -> None:
    await (await open_log(sim, config=IDLE)).close()
    # The first write of each waits for that of the other.
    writing = sim.store.hold(kind="set", path=PATH)
    opening = [sim.loop.create_task(open_log(sim, name, IDLE)) for name in ("w", "o")]
    await sim.until(lambda: len(writing.operations) == 2)
    writing.release()
    opened = await asyncio.gather(*opening, return_exceptions=True)
    assert sorted(type(each).__name__ for each in opened) == ["LogFencedError", "SimLog"]
    (log,) = [each for each in opened if isinstance(each, SimLog)]
    await log.add(b"one")
    await log.close()


@scenario(bookies=3)
async def test_m2_a_claim_whose_reply_was_lost_is_ours(sim: Simulation) -> None:
    await client_of(sim, "w")
    sim.store.lose_reply(client="w", path=PATH)
    log = await open_log(sim, config=IDLE)
    assert sim.store.accidents[0].count == 0
    await log.add(b"one")
    assert await log.read_all() == [b"one"]
    await log.close()


@scenario(bookies=3)
async def test_what_an_owner_left_open_is_closed_when_the_log_is_opened(sim: Simulation) -> None:
    first = await open_log(sim, config=IDLE)
    await first.add(b"one")  # and crash
    second = await open_log(sim, "o", IDLE)
    assert all(ledger.is_closed for ledger in second.log.ledgers)
    with pytest.raises(LogFencedError):
        await first.add(b"late")
    position = await second.add(b"two")
    assert position.ledger_id != second.ledger_ids[0]
    assert await second.read_all() == [b"one", b"two"]
    await second.close()
    await first.close()


@scenario(bookies=3)
async def test_positions_hold_over_the_first_ledger(sim: Simulation) -> None:
    empty = await open_log(sim, config=IDLE)
    start = empty.log.next_position(EARLIEST)
    await empty.add(b"one")
    assert empty.log.next_position(EARLIEST) == empty.log.first_position() > start
    end = empty.log.last_confirmed
    await empty.close()

    again = await open_log(sim, config=IDLE)
    assert again.log.last_confirmed == end
    assert again.log.entries_between(EARLIEST, end) == 1
    waiting_at = again.log.next_position(end)  # a consumer that has read all there is
    second = await again.add(b"two")
    assert again.log.next_position(end) == second
    assert await again.read(waiting_at) == [b"two"]
    await again.close()


@scenario(bookies=3)
async def test_a_reader_of_its_own_follows_from_before_the_first_ledger(sim: Simulation) -> None:
    log = await open_log(sim, config=IDLE)
    reader = await open_reader(sim)
    assert await reader.read() == []
    await log.add(b"one")
    await log.close()
    log = await open_log(sim, config=IDLE)
    await log.add(b"two")
    await log.close()
    assert await reader.read_on(2) == [b"one", b"two"]
    await reader.close()


@scenario(bookies=3)
async def test_without_bookies_appends_fail_in_time_and_go_on_when_they_are_back(
    sim: Simulation,
) -> None:
    log = await open_log(sim, config=IMPATIENT)
    for name in ("b1", "b2"):
        sim.bookie(name).crash()
    await sim.until(lambda: len(log.client.ledgers.registry.writable()) == 1)
    began_s = sim.loop.time()
    with pytest.raises(LogUnavailableError):
        await log.add(b"one")
    assert sim.loop.time() - began_s < 1.0
    for name in ("b1", "b2"):
        await sim.bookie(name).restart()
    while True:
        try:
            await log.add(b"two")
            break
        except LogUnavailableError:
            await sim.sleep(0.05)
    assert await log.read_all() == [b"two"]
    await log.close()


@scenario(bookies=3)
async def test_rotating_shrinking_and_ending_need_no_ledger(sim: Simulation) -> None:
    log = await open_log(sim, config=IDLE)
    await log.rotate()
    assert await log.shrink(Position(100, 0)) == 0
    assert await log.terminate() == Position(-1, -1)
    with pytest.raises(LogTerminatedError):
        await log.add(b"one")
    await log.close()
    assert ledger_ids(sim) == []


@scenario(bookies=3)
async def test_a_log_closed_while_it_waits_for_its_ledger_leaves_none_behind(
    sim: Simulation,
) -> None:
    log = await open_log(sim, config=IDLE)
    batch = log.append(b"one")
    await log.close()
    await sim.until(batch.outcome.done)
    listed = LogMetadata.from_json(sim.store.tree.get(PATH).value, path=PATH).ledgers
    assert ledger_ids(sim) == [ledger.ledger_id for ledger in listed]
    log = await open_log(sim, config=IDLE)
    assert await log.read_all() == ([] if batch.outcome.exception() else [b"one"])
    await log.close()
