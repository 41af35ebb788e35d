"""Readers that follow a ledger while somebody else writes it."""

import asyncio

import pytest

from magnetar.ledger.digest import codec_for, master_key
from magnetar.ledger.errors import (
    BeyondLastConfirmedError,
    BookieUnavailableError,
    LedgerClosedError,
    NoSuchLedgerError,
)
from magnetar.ledger.ledger_metadata import DigestType, LedgerState
from magnetar.ledger.metadata.store import Watch, WatchCallback
from magnetar.ledger.reading.bookie_requests import ask
from magnetar.ledger.wire import Frame, Op, Status
from tests.simulation.clients import FAST, SimReader, SimWriter, payload_of
from tests.simulation.heard import heard
from tests.simulation.simulation import Simulation, scenario

EXPLICIT = FAST.model_copy(update={"explicit_lac_interval_ms": 1.0})
ALL = ("b1", "b2", "b3")


async def reader_of(sim: Simulation, writer: SimWriter) -> SimReader:
    """A handle of another process."""
    client = sim.clients.get("c") or await sim.client("c")
    return await client.open(writer.ledger_id)


async def read_lac(reader: SimReader) -> int:
    found = await reader.client.run(reader.reader.read_last_add_confirmed())
    reader.note_bound()
    return found


def wait_beyond(reader: SimReader, entry_id: int, timeout_s: float) -> asyncio.Task[int]:
    return reader.client.spawn(reader.reader.wait_beyond(entry_id, timeout_s=timeout_s))


async def close(reader: SimReader) -> None:
    await reader.client.run(reader.reader.close())


def long_polls(sim: Simulation) -> int:
    """Requests that wait for news at the bookies."""
    running = [each._bookie for each in sim.bookies.values() if each._bookie is not None]
    return sum(each.metrics.long_polls for each in running)


async def until_polled(sim: Simulation) -> None:
    await sim.until(lambda: long_polls(sim) == 2)


async def write_lac(
    sim: Simulation, writer: SimWriter, last_add_confirmed: int, *bookies: str
) -> list[Frame]:
    """Tell bookies an explicit LAC, as the ledger's writer would; returns their answers."""
    x = sim.clients.get("x") or await sim.client("x")
    metadata = sim.metadata(writer.ledger_id)
    body = master_key(metadata.password) + codec_for(metadata).seal_lac(last_add_confirmed)
    return [
        await x.run(
            ask(
                x.ledgers.channels,
                bookie_id,
                Op.WRITE_LAC,
                body,
                ledger_id=writer.ledger_id,
                entry_id=last_add_confirmed,
            )
        )
        for bookie_id in bookies or ALL
    ]


# The LAC


@scenario(bookies=3)
async def test_the_lac_is_piggy_backed_and_lags_one_entry(sim: Simulation) -> None:
    w = await sim.writer()
    for _ in range(3):
        await w.add()
    reader = await reader_of(sim, w)
    assert reader.last_add_confirmed == -1
    assert await read_lac(reader) == 1
    assert await reader.read(0, 1) == [payload_of("w", 0), payload_of("w", 1)]
    with pytest.raises(BeyondLastConfirmedError):
        await reader.read(0, 2)
    await close(reader)


@scenario(bookies=3)
async def test_an_explicit_lac_shows_the_last_entry(sim: Simulation) -> None:
    client = await sim.client("w")
    c = await sim.client("c")
    for digest_type in DigestType:
        w = await client.create(3, 3, 2, digest_type=digest_type, password=b"secret")
        await w.add()
        replies = await write_lac(sim, w, 0)
        assert [reply.status for reply in replies] == [Status.OK] * 3
        opened = await c.run(c.ledgers.open(w.ledger_id, password=b"secret"))
        reader = SimReader(c, opened)
        assert await read_lac(reader) == 0
        assert await reader.read(0, 0) == [payload_of("w", 0)]
        await close(reader)


@scenario(bookies=3)
async def test_d5b_one_bookie_without_the_ledger_does_not_make_it_empty(sim: Simulation) -> None:
    """Rule 9.5."""
    w = await sim.writer()
    await w.add()
    await w.add()
    sim.net.refuse(Status.NO_SUCH_LEDGER, client="c", bookie="b1", op=Op.READ_LAC)
    reader = await reader_of(sim, w)
    for _ in range(10):
        assert await read_lac(reader) == 0
    await close(reader)


@scenario(bookies=3)
async def test_the_lac_needs_coverage(sim: Simulation) -> None:
    """D5a, D5c: an error is no answer; one of three may be away, two may not."""
    w = await sim.writer()
    await w.add()
    await w.add()
    sim.bookie("b2").crash()
    reader = await reader_of(sim, w)
    assert await read_lac(reader) == 0
    await close(reader)
    sim.bookie("b3").crash()
    reader = await reader_of(sim, w)
    with pytest.raises(BookieUnavailableError, match="only 1 of 3 bookies told"):
        await read_lac(reader)
    assert await reader.client.run(reader.reader.try_read_last_add_confirmed()) == 0
    await close(reader)


@scenario(bookies=3)
async def test_a_damaged_lac_reply_is_no_answer_and_moves_nothing(sim: Simulation) -> None:
    w = await sim.writer()
    for _ in range(3):
        await w.add()

    def damage(body: bytes) -> bytes:
        at = 4 + 16 + 6  # the LAC in the header of the last packet
        return body[:at] + b"\x09" + body[at + 1 :] if len(body) >= 40 else body

    sim.net.alter(damage, client="c", op=Op.READ_LAC)
    reader = await reader_of(sim, w)
    with pytest.raises(BookieUnavailableError, match="only 0 of 3"):
        await read_lac(reader)
    with pytest.raises(BookieUnavailableError):
        await wait_beyond(reader, -1, 0.2)
    assert reader.last_add_confirmed == -1
    await close(reader)


@scenario(bookies=3)
async def test_the_lac_in_a_read_reply_moves_nothing(sim: Simulation) -> None:
    """No digest protects it (invariant I5)."""
    w = await sim.writer()
    for _ in range(4):
        await w.add()
    reader = await reader_of(sim, w)
    assert await read_lac(reader) == 2
    sim.net.alter(lambda body: (1000).to_bytes(8, "big") + body[8:], client="c", op=Op.READ)
    assert len(await reader.read(0, 2)) == 3
    assert reader.last_add_confirmed == 2
    await close(reader)


@scenario(bookies=4)
async def test_what_earlier_fragments_hold_is_readable_without_asking(sim: Simulation) -> None:
    w = await sim.writer()
    await w.add()
    sim.bookie("b1").crash()
    while w.writer.metadata.last_fragment.first_entry_id == 0:
        await w.add()
    reader = await reader_of(sim, w)
    begin = w.writer.metadata.last_fragment.first_entry_id
    assert 0 < begin <= w.acked[-1]
    assert reader.last_add_confirmed >= begin - 1


# Waiting


@scenario(bookies=3)
async def test_a_waiting_reader_hears_of_the_next_entry(sim: Simulation) -> None:
    w = await sim.writer()
    await w.add()
    reader = await reader_of(sim, w)
    waiting = wait_beyond(reader, -1, 10)
    await until_polled(sim)
    assert not waiting.done()
    await w.add()
    assert await waiting == 0
    assert await reader.read(0, 0) == [payload_of("w", 0)]
    await close(reader)


@scenario(bookies=3)
async def test_the_end_of_a_wait_needs_enough_members_that_know_of_nothing(
    sim: Simulation,
) -> None:
    """E - Qa + 1 of them: two of three."""
    w = await sim.writer()
    await w.add()
    reader = await reader_of(sim, w)
    assert await wait_beyond(reader, -1, 0.1) == -1
    sim.bookie("b1").crash()
    assert await wait_beyond(reader, -1, 0.1) == -1
    sim.bookie("b2").crash()
    with pytest.raises(BookieUnavailableError, match="only 1 of 3 bookies told, 2 are needed"):
        await wait_beyond(reader, -1, 0.1)
    await close(reader)


@scenario(bookies=3)
async def test_polls_last_longer_each_time_and_are_few(sim: Simulation) -> None:
    settings = FAST.model_copy(update={"long_poll_first_ms": 50, "long_poll_ms_max": 200})
    await sim.client("c", settings)
    w = await sim.writer()
    await w.add()
    reader = await reader_of(sim, w)
    assert await wait_beyond(reader, -1, 0.8) == -1
    await close(reader)
    # Two members, each after 50, 150, 350, 550 and 750 ms at the earliest.
    assert 4 <= len(heard(sim, client="c", op=Op.READ_LAC)) <= 12


@scenario(bookies=3)
async def test_a_dead_member_makes_way_for_another(sim: Simulation) -> None:
    w = await sim.writer()
    await w.add()
    reader = await reader_of(sim, w)
    waiting = wait_beyond(reader, -1, 60)
    await until_polled(sim)
    sim.bookie("b1").crash()
    await w.add()
    assert await asyncio.wait_for(waiting, 30) == 0
    await close(reader)


@scenario(bookies=3)
async def test_a_reader_may_wait_before_the_first_entry(sim: Simulation) -> None:
    """No bookie knows the ledger yet."""
    w = await sim.writer()
    reader = await reader_of(sim, w)
    waiting = wait_beyond(reader, -1, 10)
    await until_polled(sim)
    await w.add()
    await w.add()
    assert await waiting >= 0
    await close(reader)


@scenario(bookies=3)
async def test_who_waits_hears_of_the_close(sim: Simulation) -> None:
    w = await sim.writer()
    await w.add()
    reader = await reader_of(sim, w)
    waiting = wait_beyond(reader, 0, 60)
    await until_polled(sim)
    await w.close()
    assert await asyncio.wait_for(waiting, 30) == 0
    assert reader.reader.is_ledger_closed
    assert await wait_beyond(reader, 0, 10) == 0
    await close(reader)


@scenario(bookies=3)
async def test_who_waits_hears_of_the_deletion(sim: Simulation) -> None:
    w = await sim.writer()
    await w.add()
    reader = await reader_of(sim, w)
    waiting = wait_beyond(reader, 0, 60)
    await until_polled(sim)
    await w.client.run(w.client.ledgers.delete(w.ledger_id))
    with pytest.raises(NoSuchLedgerError):
        await asyncio.wait_for(waiting, 30)
    await close(reader)


@scenario(bookies=3)
async def test_a_closed_handle_lets_nobody_wait(sim: Simulation) -> None:
    w = await sim.writer()
    reader = await reader_of(sim, w)
    waiting = wait_beyond(reader, -1, 10)
    await until_polled(sim)
    await close(reader)
    with pytest.raises(LedgerClosedError):
        await waiting
    with pytest.raises(LedgerClosedError):
        await read_lac(reader)
    await close(reader)


@scenario(bookies=3)
async def test_a_client_that_closes_ends_the_waits_of_its_readers(sim: Simulation) -> None:
    w = await sim.writer()
    await w.add()
    reader = await reader_of(sim, w)
    waiting = wait_beyond(reader, 5, 60)
    await until_polled(sim)
    began_s = sim.loop.time()
    await reader.client.run(reader.client.ledgers.close())
    with pytest.raises(LedgerClosedError):
        await waiting
    assert sim.loop.time() - began_s < 1.0


# Following


async def next_of(reader: SimReader, count: int) -> list[bytes]:
    """The next entries that somebody who follows hears of, until there are so many."""
    seen: list[bytes] = []
    async for batch in reader.reader.follow():
        seen += batch
        assert len(seen) <= reader.last_add_confirmed + 1
        if len(seen) == count:
            break
    return seen


@scenario(bookies=3)
async def test_a_tailing_reader_gets_every_entry_and_the_end(sim: Simulation) -> None:
    w = await sim.writer()
    reader = await reader_of(sim, w)
    following = reader.client.spawn(next_of(reader, -1))
    for _ in range(200):
        await w.add()
    await w.close()
    assert await asyncio.wait_for(following, 30) == [payload_of("w", n) for n in range(200)]
    await close(reader)


@scenario(bookies=3)
async def test_a_striped_ledger_is_followed_too(sim: Simulation) -> None:
    client = await sim.client("w", EXPLICIT)
    for quorum in ((3, 2, 2), (2, 2, 2), (3, 3, 3), (1, 1, 1)):
        w = await client.create(*quorum, ensemble=ALL[: quorum[0]])
        reader = await reader_of(sim, w)
        seen: list[bytes] = []

        async def follow(reader: SimReader = reader, seen: list[bytes] = seen) -> None:
            async for batch in reader.reader.follow():
                seen += batch

        following = reader.client.spawn(follow())
        for number in range(20):
            await w.add()
            # Each by itself, though none follows: as an explicit LAC tells.
            await sim.until(lambda: len(seen) == number + 1)  # noqa: B023
        await w.close()
        await asyncio.wait_for(following, 30)
        assert seen == [payload_of("w", number) for number in range(20)]
        await close(reader)


@scenario(bookies=3)
async def test_a_bound_never_goes_back_through_recovery(sim: Simulation) -> None:
    """Rule 9.4."""
    w = await sim.writer()
    for _ in range(5):
        await w.add()
    reader = await reader_of(sim, w)
    bounds = [await read_lac(reader)]
    recovered = await sim.recover("r", w.ledger_id)
    while not reader.reader.is_ledger_closed:
        bounds.append(await wait_beyond(reader, bounds[-1], 5))
    assert bounds == sorted(bounds)
    assert bounds[-1] == recovered.last_add_confirmed == 4
    await close(reader)


@scenario(bookies=3)
async def test_a_lac_beyond_the_end_of_a_closed_ledger_moves_nothing(sim: Simulation) -> None:
    w = await sim.writer()
    await w.add()
    await w.close()
    await write_lac(sim, w, 7)
    reader = await reader_of(sim, w)
    assert await read_lac(reader) == 0
    assert await wait_beyond(reader, 0, 10) == 0
    await close(reader)


@scenario(bookies=3)
async def test_a_fenced_ledger_takes_no_explicit_lac(sim: Simulation) -> None:
    w = await sim.writer()
    await w.add()
    await sim.recover("r", w.ledger_id)
    (reply,) = await write_lac(sim, w, 5, "b1")
    assert reply.status == Status.FENCED


@scenario(bookies=4)
async def test_a_new_fragment_is_noticed_by_who_follows(sim: Simulation) -> None:
    await sim.client("w", EXPLICIT)
    w = await sim.writer()
    reader = await reader_of(sim, w)
    seen: list[bytes] = []

    async def follow() -> None:
        async for batch in reader.reader.follow():
            seen.extend(batch)

    reader.client.spawn(follow())
    for number in range(10):
        if number == 5:
            sim.bookie("b2").crash()
        await w.add()
        await sim.until(lambda: len(seen) == number + 1)  # noqa: B023
    assert seen == [payload_of("w", number) for number in range(10)]
    assert len(reader.reader.metadata.ensembles) == 2
    assert reader.reader.metadata.state is LedgerState.OPEN


# Watches


@scenario(bookies=3)
async def test_readers_that_never_close_leave_no_watch_behind(sim: Simulation) -> None:
    w = await sim.writer()
    await w.add()
    await w.close()
    c = await sim.client("c")
    watched: list[str] = []
    watch = c.store.watch

    def note(path: str, callback: WatchCallback) -> Watch:
        watched.append(path)
        return watch(path, callback)

    c.store.watch = note  # type: ignore[method-assign]
    reader = await reader_of(sim, w)
    assert await reader.read(0, 0) == [payload_of("w", 0)]
    assert watched == []
    c.process.context.copy().run(reader.reader.watch)
    c.process.context.copy().run(reader.reader.watch)
    assert len(watched) == 1
    await close(reader)
