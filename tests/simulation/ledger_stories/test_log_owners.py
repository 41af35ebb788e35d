"""Ownership of a log: takeovers that meet, owners in doubt, and updates whose outcome is
unknown."""

import asyncio

import pytest

from magnetar.ledger.errors import (
    LogClosedError,
    LogDataLossError,
    LogFencedError,
    LogUnavailableError,
)
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.position import EARLIEST
from magnetar.ledger.settings import LogConfig
from tests.simulation.logs import (
    CONFIG,
    PATH,
    SimLog,
    client_of,
    ledger_ids,
    open_log,
)
from tests.simulation.simulation import Simulation, play, scenario


@pytest.mark.parametrize(
    "config",
    [CONFIG, CONFIG.model_copy(update={"opens_without_ledger": True})],
    ids=["with a ledger", "without a ledger"],
)
@pytest.mark.parametrize("asked", [1, 2, 3], ids=["first", "second", "list"])
def test_an_opener_that_may_not_own_the_log_any_more_leaves_it_as_it_is(
    config: LogConfig, asked: int
) -> None:
    """The opener is asked before each of the last two ledgers is fenced, and before the list is
    set."""

    async def story(sim: Simulation) -> None:
        first = await open_log(sim)
        await first.add(b"one")
        await first.rotate()
        await first.add(b"two")
        await sim.until(lambda: first.log.ledgers[0].is_closed)
        if asked > 1:
            await first.close()  # from there on its ledgers end, as they should
        before, ledgers = sim.store.tree.get(PATH), ledger_ids(sim)
        answers = iter([True] * (asked - 1))
        other = await client_of(sim, "o")
        opening = ManagedLog.open(
            other.ledgers,
            other.store,
            PATH,
            config,
            clock=other.clock,
            random=other.random,
            may_own=lambda: next(answers, False),
        )
        with pytest.raises(LogFencedError, match="may no longer own the log"):
            await other.run(opening)
        await sim.settle()
        assert sim.store.tree.get(PATH) == before
        assert ledger_ids(sim) == ledgers, "what it made for itself is deleted"
        if asked == 1:
            await first.add(b"three")
            await first.close()

    play(story, Simulation(bookies=3))


@scenario(bookies=3)
async def test_of_two_owners_that_open_at_once_one_wins(sim: Simulation) -> None:
    opening = [sim.loop.create_task(open_log(sim, name)) for name in ("w", "o")]
    opened = await asyncio.gather(*opening, return_exceptions=True)
    logs = [each for each in opened if isinstance(each, SimLog)]
    acked = 0
    for log in logs:
        try:
            await log.add(b"mine")
            acked += 1
        except LogFencedError:
            pass
    assert acked == 1
    for log in logs:
        await log.close()


@scenario(bookies=3)
async def test_without_enough_bookies_appends_fail_with_a_clear_error_and_come_back(
    sim: Simulation,
) -> None:
    config = CONFIG.model_copy(update={"repair_timeout_s": 0.3, "unavailable_retry_s": 0.01})
    log = await open_log(sim, config=config)
    await log.add(b"one")
    for name in ("b1", "b2"):
        sim.bookie(name).crash()
    with pytest.raises(LogUnavailableError, match="no ledger can be written to"):
        await log.add(b"two")
    for name in ("b1", "b2"):
        await sim.bookie(name).restart()
    while True:
        try:
            await log.add(b"three")
            break
        except LogUnavailableError:
            await sim.sleep(0.01)
    assert [each for each in await log.read_all() if each != b"two"] == [b"one", b"three"]
    await log.close()


@scenario(bookies=3)
async def test_a_closed_log_refuses_appends(sim: Simulation) -> None:
    log = await open_log(sim)
    await log.close()
    with pytest.raises(LogClosedError):
        await log.add(b"late")


@scenario(bookies=3)
async def test_a_log_with_a_missing_ledger_is_not_opened(sim: Simulation) -> None:
    log = await open_log(sim)
    await log.add(b"one")
    ledger_id = log.log.last_confirmed.ledger_id
    await log.close()
    await log.client.run(log.client.ledgers.delete(ledger_id))
    with pytest.raises(LogDataLossError, match=f"ledger {ledger_id} is listed"):
        await open_log(sim)


@pytest.mark.parametrize("does_it", [True, False])
def test_m2_a_list_update_of_unknown_outcome_is_read_back(does_it: bool) -> None:
    async def story(sim: Simulation) -> None:
        config = CONFIG.model_copy(update={"ledger_entries_max": 5, "ledger_age_min_s": 0})
        log = await open_log(sim, config=config)
        lose = sim.store.lose_reply if does_it else sim.store.lose_request
        lose(client="w", path=PATH)
        payloads = [b"%d" % number for number in range(12)]
        for payload in payloads:
            await log.add(payload)
        await log.rotate()
        assert sim.store.accidents[0].count == 0
        assert await log.read_all() == payloads
        await log.close()
        again = await open_log(sim)
        assert await again.read_all() == payloads
        await again.close()

    play(story, Simulation(bookies=3))


@scenario(bookies=3)
async def test_reads_never_pass_the_last_confirmed_entry(sim: Simulation) -> None:
    log = await open_log(sim)
    assert await log.read(EARLIEST) == []
    await log.add(b"one", b"two")
    assert await log.read(EARLIEST, entries_max=1) == [b"one"]
    assert await log.read(log.log.next_position(log.log.last_confirmed)) == []
    await log.close()
