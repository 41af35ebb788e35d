"""Reading a log without owning it: everything in order, nothing that could vanish, no gap."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import (
    BeyondLastConfirmedError,
    LedgerWriteError,
    LogClosedError,
    LogDataLossError,
    LogTrimmedError,
    NoSuchLogError,
)
from magnetar.ledger.position import EARLIEST, LATEST, Position
from magnetar.ledger.wire import Frame, Op
from tests.integration.ledger.cluster import CLIENT_SETTINGS, Cluster, cluster_of
from tests.integration.ledger.filtered_network import FilteredNetwork
from tests.integration.ledger.log_parts import append, open_log, open_reader, read_on
from tests.waiting import until

# The writer tells of its last entry even if no other follows.
SETTINGS = CLIENT_SETTINGS.model_copy(update={"explicit_lac_interval_ms": 2.0})


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(3, tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[LedgerClient]:
    async with cluster.client(settings=SETTINGS) as client:
        yield client


@pytest.fixture
async def other(cluster: Cluster) -> AsyncIterator[LedgerClient]:
    """The client of those who do not own the log."""
    async with cluster.client(settings=SETTINGS) as client:
        yield client


async def test_a_reader_follows_appends_over_rotations_and_takeovers(
    cluster: Cluster, client: LedgerClient, other: LedgerClient
) -> None:
    log = await open_log(cluster, client)
    reader = await open_reader(cluster, other)
    assert await reader.read() == []
    written = [b"%d" % number for number in range(12)]
    for at in range(0, 12, 4):
        for payload in written[at : at + 4]:
            await append(log, [payload]).outcome
        if at == 0:
            await log.rotate()
        else:
            log = await open_log(cluster, client)  # as after a crash of the owner
    assert await read_on(reader, 12) == written
    assert len({ledger.ledger_id for ledger in log.ledgers}) == 4
    assert await reader.read() == []
    await reader.close()
    await log.close()


async def test_a_waiting_reader_gets_an_entry_that_is_appended_later(
    cluster: Cluster, client: LedgerClient, other: LedgerClient
) -> None:
    log = await open_log(cluster, client)
    reader = await open_reader(cluster, other)
    reading = asyncio.ensure_future(read_on(reader, 2))
    await append(log, [b"one"]).outcome
    await log.rotate()
    await append(log, [b"two"]).outcome
    assert await reading == [b"one", b"two"]
    await reader.close()
    await log.close()


async def test_a_reader_waits_through_the_close_and_reopening_of_a_log(
    cluster: Cluster, client: LedgerClient, other: LedgerClient
) -> None:
    log = await open_log(cluster, client)
    await append(log, [b"one"]).outcome
    await log.close()
    reader = await open_reader(cluster, other)
    reading = asyncio.ensure_future(read_on(reader, 2))
    log = await open_log(cluster, client)
    await append(log, [b"two"]).outcome
    assert await reading == [b"one", b"two"]
    await reader.close()
    await log.close()


async def test_rule_9_4_a_reader_does_not_cross_a_ledger_that_is_still_draining(
    cluster: Cluster, other: LedgerClient
) -> None:
    network = FilteredNetwork()
    async with cluster.client(network, SETTINGS) as client:
        log = await open_log(cluster, client)
        await append(log, [b"one"]).outcome
        first = log.last_confirmed.ledger_id

        def hold_first(port: int, frame: Frame) -> Frame | None:
            is_held = frame.op == Op.ADD and frame.ledger_id == first
            return None if is_held else frame

        held: list[Frame] = []
        network.filter = hold_first
        two = append(log, [b"two"])  # stored, but no answer arrives
        await log.rotate()
        three = append(log, [b"three"])
        reader = await open_reader(cluster, other)
        assert await read_on(reader, 1) == [b"one"]
        assert await reader.read(wait_s=0.3) == []
        assert reader.position.ledger_id == first
        assert not two.outcome.done()
        assert not three.outcome.done(), "rule 9.2: not before what was appended earlier"
        assert held == []
        assert log._appender.draining is not None
        log._appender.draining._fail(LedgerWriteError("two bookies are gone"))
        await asyncio.wait([two.outcome, three.outcome])
        network.filter = lambda port, frame: frame
        assert await read_on(reader, 2) == [b"two", b"three"]
        await reader.close()
        await log.close()


async def test_seek_to_any_entry_and_read_from_there(
    cluster: Cluster, client: LedgerClient, other: LedgerClient
) -> None:
    log = await open_log(cluster, client)
    positions = []
    for number in range(6):
        positions.append(await append(log, [b"%d" % number]).outcome)
        if number in (1, 3):
            await log.rotate()
    reader = await open_reader(cluster, other)
    for number in (5, 0, 3, 1, 4, 2):
        await reader.seek(positions[number])
        assert await read_on(reader, 1) == [b"%d" % number]
    await reader.seek(Position(positions[1].ledger_id, 2))  # behind its last entry
    assert await read_on(reader, 1) == [b"2"]
    await reader.seek(LATEST)
    assert await reader.read() == []
    await append(log, [b"6"]).outcome
    assert await read_on(reader, 1) == [b"6"]
    await reader.seek(EARLIEST)
    assert await read_on(reader, 7) == [b"%d" % number for number in range(7)]
    await reader.close()
    await log.close()


async def test_a_seek_beyond_the_end_says_what_to_do_and_moves_nothing(
    cluster: Cluster, client: LedgerClient, other: LedgerClient
) -> None:
    log = await open_log(cluster, client)
    await append(log, [b"one"]).outcome
    await log.rotate()
    last = await append(log, [b"two"]).outcome
    reader = await open_reader(cluster, other)
    for beyond in (
        Position(last.ledger_id, last.entry_id + 2),
        Position(last.ledger_id + 1, 0),
        Position(log.first_position().ledger_id, 2),
    ):
        with pytest.raises(BeyondLastConfirmedError, match="seek to LATEST"):
            await reader.seek(beyond)
    assert await read_on(reader, 2) == [b"one", b"two"]
    await reader.seek(Position(last.ledger_id, last.entry_id + 1))
    assert await reader.read() == []
    await reader.close()
    await log.close()


async def test_a_reader_of_a_terminated_log_comes_to_its_end(
    cluster: Cluster, client: LedgerClient, other: LedgerClient
) -> None:
    log = await open_log(cluster, client)
    await append(log, [b"one", b"two"]).outcome
    reader = await open_reader(cluster, other)
    assert await read_on(reader, 1) == [b"one"]
    reading = asyncio.ensure_future(read_on(reader, 1))
    await log.terminate()
    assert await reading == [b"two"]
    assert not reader.is_at_end
    assert await reader.read(wait_s=60) == []
    assert reader.is_at_end
    await reader.close()


async def test_a_reader_whose_next_entry_was_shrunk_away_is_told_where_the_log_begins(
    cluster: Cluster, client: LedgerClient, other: LedgerClient
) -> None:
    log = await open_log(cluster, client)
    for number in range(3):
        await append(log, [b"%d" % number]).outcome
        await log.rotate()
    late, early, done = [await open_reader(cluster, other) for _ in range(3)]
    assert await read_on(early, 1) == [b"0"]
    assert await read_on(done, 2) == [b"0", b"1"]
    await log.rotate()  # not before the change of ledgers that is under way has ended
    begin = Position(log.ledgers[2].ledger_id, 0)
    assert await log.shrink(begin) == 2
    assert await read_on(done, 1) == [b"2"], "it missed nothing"
    with pytest.raises(LogTrimmedError) as caught:
        await read_on(early, 2)
    assert caught.value.first == begin
    await early.seek(begin)
    assert await read_on(early, 1) == [b"2"]
    with pytest.raises(LogTrimmedError):
        await read_on(late, 2)
    with pytest.raises(LogTrimmedError):
        await open_reader(cluster, other, Position(begin.ledger_id - 1, 0))
    fresh = await open_reader(cluster, other)
    assert await read_on(fresh, 1) == [b"2"]
    for reader in (late, early, done, fresh):
        await reader.close()
    await log.close()


async def test_a_reader_passes_over_ledgers_that_were_left_out_because_they_were_empty(
    cluster: Cluster, client: LedgerClient, other: LedgerClient
) -> None:
    await open_log(cluster, client)  # and crash, with an empty ledger
    reader = await open_reader(cluster, other)
    assert await reader.read() == []
    log = await open_log(cluster, client)
    await append(log, [b"one"]).outcome
    assert await read_on(reader, 1) == [b"one"]
    await reader.close()
    await log.close()


async def test_misuse_of_a_reader_is_answered_with_its_own_error(
    cluster: Cluster, client: LedgerClient, other: LedgerClient
) -> None:
    with pytest.raises(NoSuchLogError, match="check the path"):
        await open_reader(cluster, other)
    log = await open_log(cluster, client)
    await append(log, [b"one"]).outcome
    reader = await open_reader(cluster, other)
    waiting = asyncio.ensure_future(read_on(reader, 2))
    await until(lambda: reader.position > EARLIEST, "it has the first, and waits for the second")
    await reader.close()
    with pytest.raises(LogClosedError, match="open another"):
        await waiting
    with pytest.raises(LogClosedError):
        await reader.read()
    await log.close()
    lost = log.ledgers[0].ledger_id
    await client.delete(lost)
    reader = await open_reader(cluster, other)
    with pytest.raises(LogDataLossError, match=f"ledger {lost}"):
        await reader.read()
    await log.delete()
    with pytest.raises(NoSuchLogError, match="deleted"):
        await reader.seek(EARLIEST)
    await reader.close()
