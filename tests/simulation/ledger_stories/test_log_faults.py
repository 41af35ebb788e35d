"""A managed log whose ledgers fail at bad moments: every batch hears its outcome, once."""

import asyncio

import pytest

from magnetar.ledger.errors import (
    LedgerFencedError,
    LogClosedError,
    LogFencedError,
    LogUnavailableError,
    UnknownOutcomeError,
)
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.wire import Op, Status
from tests.simulation.logs import (
    CONFIG,
    PATH,
    ROLLING,
    client_of,
    hold_answers,
    ledger_ids,
    open_log,
)
from tests.simulation.simulation import Simulation, scenario


async def reopened(sim: Simulation, name: str = "o") -> list[bytes]:
    """What the next owner finds in the log."""
    log = await open_log(sim, name)
    payloads = await log.read_all()
    await log.close()
    return payloads


@scenario(bookies=3)
async def test_a_ledger_that_fails_while_its_change_begins_is_replaced(sim: Simulation) -> None:
    log = await open_log(sim, config=ROLLING)
    batch = log.append(b"one", b"two", b"three")  # the ledger is full: a change begins
    log.fail(log.writer)
    await batch.outcome
    assert await log.read_all() == [b"one", b"two", b"three"]
    await log.close()


@scenario(bookies=3)
async def test_an_owner_whose_empty_ledger_was_deleted_by_the_next_is_fenced(
    sim: Simulation,
) -> None:
    first = await open_log(sim)
    second = await open_log(sim, "o")
    batch = first.append(b"too late")
    first.fail(first.writer)
    with pytest.raises(LogFencedError):
        await batch.outcome
    assert first.fences == 1
    await first.close()
    await second.close()


@scenario(bookies=3)
async def test_a_fence_that_is_heard_when_nothing_is_pending_fences_the_log(
    sim: Simulation,
) -> None:
    log = await open_log(sim)
    await log.add(b"one")  # by two of three; the third answers "fenced" later
    log.here(log.writer._pipeline._lose, LedgerFencedError("b3: fenced by another client"))
    for _ in range(2):
        with pytest.raises(LogFencedError):
            await log.add(b"two")
    assert log.fences == 1
    await log.close()


@scenario(bookies=3)
async def test_a_writer_that_failed_when_nothing_was_pending_is_replaced(sim: Simulation) -> None:
    log = await open_log(sim)
    await log.add(b"one")
    log.fail(log.writer)
    await log.add(b"two")
    assert await log.read_all() == [b"one", b"two"]
    await log.close()


@scenario(bookies=3)
async def test_closing_with_unanswered_appends_leaves_a_log_that_can_be_opened(
    sim: Simulation,
) -> None:
    log = await open_log(sim)
    await log.add(b"one")
    listing = sim.store.hold(client="w", kind="set", path=PATH)
    hold_answers(sim, log)
    batch = log.append(b"two")
    closing = log.close()
    await sim.until(lambda: bool(listing.operations))
    listing.release()
    await closing
    with pytest.raises(LogClosedError):
        await batch.outcome
    tasks = [each for each in sim.loop.tasks_of([log.client.process]) if PATH in each]
    assert tasks == [], "a closed log does nothing any more"
    assert await reopened(sim) == [b"one"]


@scenario(bookies=3)
async def test_closing_twice_at_once_closes_once(sim: Simulation) -> None:
    log = await open_log(sim)
    batch = log.append(b"one")
    await asyncio.gather(log.close(), log.close())
    await batch.outcome
    assert await reopened(sim) == [b"one"]


@scenario(bookies=3)
async def test_an_append_while_the_log_closes_is_refused(sim: Simulation) -> None:
    log = await open_log(sim)
    first = log.append(b"one")
    closing = log.close()
    await asyncio.sleep(0)
    with pytest.raises(LogClosedError):
        await log.add(b"two")
    await closing
    await first.outcome


@scenario(bookies=3)
async def test_m2_a_cancelled_change_of_ledgers_does_not_delete_what_the_list_may_name(
    sim: Simulation,
) -> None:
    config = ROLLING.model_copy(update={"repair_timeout_s": 0.05})
    log = await open_log(sim, config=config, apart=True)
    listing = sim.store.hold(client="w", kind="set", path=PATH)
    await log.add(b"one", b"two", b"three")
    await sim.until(lambda: bool(listing.operations))
    version = sim.store.tree.version(PATH)
    assert version is not None
    during = log.append(b"four")  # appends go on while the next ledger is being listed
    closing = log.close()  # cancels the change, whose update is under way
    await during.outcome
    store = sim.store.handles[-1]
    await sim.until(lambda: len(store.waiting) == 2)
    closing.cancel()  # and is cancelled as well, before it knows what the list names
    listing.release()
    await sim.settle()
    assert sim.store.tree.version(PATH) == version + 1
    assert len(ledger_ids(sim)) == 2
    assert await reopened(sim) == [b"one", b"two", b"three", b"four"]


@scenario(bookies=3)
async def test_d26_an_update_that_lands_after_it_was_asked_about_is_our_own(
    sim: Simulation,
) -> None:
    class LateStore:
        """The first write is reported as unknown at once, and lands before the second.

        As one that went to another server: those of a handle are in order here.
        """

        def __init__(self, inner: MetadataStore) -> None:
            self._inner = inner
            self.first: tuple[bytes, int] | None = None

        def __getattr__(self, name: str) -> object:
            return getattr(self._inner, name)

        async def set(self, path: str, value: bytes, *, version: int) -> int:
            if self.first is None:
                self.first = value, version
                raise UnknownOutcomeError("the connection broke")
            if self.first[1] >= 0:
                late, self.first = self.first, (b"", -1)
                await self._inner.set(path, late[0], version=late[1])
            return await self._inner.set(path, value, version=version)

    log = await open_log(sim, config=ROLLING)
    late = LateStore(log.client.store)
    log.log._list._store = late  # type: ignore[assignment]
    payloads = [b"%d" % number for number in range(5)]
    for payload in payloads:
        await log.add(payload)
    await sim.until(lambda: late.first == (b"", -1))
    assert await log.read_all() == payloads
    await log.close()
    assert await reopened(sim) == payloads


@scenario(bookies=3)
async def test_a_log_whose_every_new_ledger_fails_gives_up_in_time(sim: Simulation) -> None:
    config = CONFIG.model_copy(update={"repair_timeout_s": 1, "unavailable_retry_s": 0.05})
    log = await open_log(sim, config=config)
    await log.add(b"one")
    sim.net.refuse(Status.IO_ERROR, client="w", op=Op.ADD)
    began_s = sim.loop.time()
    with pytest.raises(LogUnavailableError, match="IO_ERROR"):
        await log.add(b"two")
    assert sim.loop.time() - began_s < 2.0
    assert len(ledger_ids(sim)) <= 3
    assert log.writer.ledger_id < 8, "new ledgers are made ever more slowly"
    sim.net.heal_all()
    while True:
        try:
            await log.add(b"three")
            break
        except LogUnavailableError:
            await sim.sleep(0.01)
    assert await log.read_all() == [b"one", b"three"]
    await log.close()


@scenario(bookies=3)
async def test_of_two_takeovers_the_slower_one_is_fenced_though_its_ledger_is_gone(
    sim: Simulation,
) -> None:
    await open_log(sim)  # and crash: its empty ledger stays open
    slow = await client_of(sim, "s")
    inner = slow.ledgers.open_and_recover

    async def recover_after_the_other(ledger_id: int, *, password: bytes) -> object:
        slow.ledgers.open_and_recover = inner  # type: ignore[method-assign]
        log = await open_log(sim, "o")
        await log.close()
        return await inner(ledger_id, password=password)

    slow.ledgers.open_and_recover = recover_after_the_other  # type: ignore[method-assign, assignment]
    with pytest.raises(LogFencedError):
        await open_log(sim, "s")
