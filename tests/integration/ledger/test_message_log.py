"""A log of messages without a broker: ids, batches, owners, and reading from any message."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import (
    LogClosedError,
    LogExistsError,
    LogFencedError,
    LogTerminatedError,
    MessageTooLargeError,
    NoSuchLogError,
    UnknownMessageFormatError,
)
from magnetar.ledger.log_message import ENTRY_BYTES_MAX, Message, MessageId
from magnetar.ledger.message_log import MessageLog, MessageReader
from magnetar.ledger.position import EARLIEST, LATEST, Position
from magnetar.ledger.system import SystemClock
from tests.integration.ledger.cluster import CLIENT_SETTINGS, Cluster, cluster_of
from tests.integration.ledger.log_parts import CONFIG, append

PATH = "/logs/orders"
SETTINGS = CLIENT_SETTINGS.model_copy(update={"explicit_lac_interval_ms": 2.0})


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(3, tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[LedgerClient]:
    async with cluster.client(settings=SETTINGS) as client:
        yield client


async def create(cluster: Cluster, client: LedgerClient) -> MessageLog:
    return await MessageLog.create(
        client, cluster.store, PATH, CONFIG, clock=SystemClock(), random=random.Random()
    )


async def open_log(cluster: Cluster, client: LedgerClient) -> MessageLog:
    return await MessageLog.open(
        client, cluster.store, PATH, CONFIG, clock=SystemClock(), random=random.Random(6)
    )


async def open_reader(
    cluster: Cluster, client: LedgerClient, start: MessageId | Position = EARLIEST
) -> MessageReader:
    return await MessageReader.open(client, cluster.store, PATH, clock=SystemClock(), start=start)


def numbered(first: int, last: int) -> list[Message]:
    return [Message(b"%d" % number, key=b"k") for number in range(first, last)]


async def payloads(reader: MessageReader, count: int, at_once: int = 1000) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            stored = await reader.read(messages_max=min(at_once, count - len(found)), wait_s=10)
            found += [each.message.payload for each in stored]
    return found


async def test_messages_come_back_under_ids_that_strictly_increase(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await create(cluster, client)
    batches = [numbered(at, at + at % 5 + 1) for at in range(40)]
    ids = await asyncio.gather(*(log.append(batch) for batch in batches))
    await log.rotate()
    batches.append([Message(b"", headers=(("trace", b"\x00\x01"),))])
    ids.append(await log.append(batches[-1]))
    reader = await open_reader(cluster, client)
    found: list[tuple[MessageId, Message]] = []
    async with asyncio.timeout(30):
        while len(found) < sum(map(len, batches)):
            found += await reader.read(messages_max=7, wait_s=10)
    assert [each for each, _ in found] == [each for group in ids for each in group]
    assert sorted(each for each, _ in found) == [each for each, _ in found]
    assert [message for _, message in found] == [each for group in batches for each in group]
    await reader.close()
    await log.close()


async def test_reading_starts_at_any_message_of_a_batch(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await create(cluster, client)
    ids = await log.append(numbered(0, 5))
    ids += await log.append(numbered(5, 10))
    reader = await open_reader(cluster, client, ids[3])
    for start in (3, 9, 0, 5):
        await reader.seek(ids[start])
        assert await payloads(reader, 10 - start, at_once=2) == [
            b"%d" % number for number in range(start, 10)
        ]
    await reader.seek(LATEST)
    assert await reader.read() == []
    await log.append(numbered(10, 11))
    assert await payloads(reader, 1) == [b"10"]
    await reader.close()
    await log.close()


async def test_a_log_is_created_once_and_opened_if_it_is_there(
    cluster: Cluster, client: LedgerClient
) -> None:
    with pytest.raises(NoSuchLogError, match="create it"):
        await open_log(cluster, client)
    log = await create(cluster, client)
    with pytest.raises(LogExistsError, match="open it"):
        await create(cluster, client)
    await log.append(numbered(0, 1))  # the failed creation took nothing over
    await log.close()
    with pytest.raises(LogClosedError, match="open it again"):
        await log.append(numbered(1, 2))


async def test_of_two_owners_only_the_later_one_appends(
    cluster: Cluster, client: LedgerClient
) -> None:
    first = await create(cluster, client)
    fenced: list[str] = []
    first.on_fenced(lambda: fenced.append("first"))
    await first.append(numbered(0, 1))
    async with cluster.client(settings=SETTINGS) as other:
        second = await open_log(cluster, other)
        with pytest.raises(LogFencedError):
            await first.append(numbered(99, 100))
        assert fenced == ["first"]
        await second.append(numbered(1, 2))
        await second.terminate()
        with pytest.raises(LogTerminatedError):
            await second.append(numbered(2, 3))
    await first.close()
    reader = await open_reader(cluster, client)
    assert await payloads(reader, 2) == [b"0", b"1"]
    assert await reader.read(wait_s=60) == []
    assert reader.is_at_end
    await reader.close()


async def test_messages_that_do_not_fit_an_entry_are_refused_and_nothing_is_appended(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await create(cluster, client)
    with pytest.raises(MessageTooLargeError, match="append fewer"):
        await log.append([Message(b"m" * (ENTRY_BYTES_MAX // 2))] * 2)
    largest = Message(b"m" * (ENTRY_BYTES_MAX - 6))
    assert [each.batch_index for each in await log.append([largest])] == [0]
    assert log.managed_log.last_confirmed.entry_id == 0
    await log.close()


async def test_an_entry_that_is_not_understood_is_named_and_can_be_passed_over(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await create(cluster, client)
    await log.append(numbered(0, 2))
    alien = await append(log.managed_log, [b"\xd9 of the future"]).outcome
    await log.append(numbered(2, 3))
    reader = await open_reader(cluster, client)
    assert await payloads(reader, 2) == [b"0", b"1"]
    for _ in range(2):
        with pytest.raises(UnknownMessageFormatError, match=f"entry {alien}: magic 0xd9"):
            await reader.read(wait_s=10)
    await reader.seek(Position(alien.ledger_id, alien.entry_id + 1))
    assert await payloads(reader, 1) == [b"2"]
    await reader.close()
    await log.close()


async def test_shrinking_removes_whole_ledgers_before_a_message(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await create(cluster, client)
    await log.append(numbered(0, 3))
    await log.rotate()
    ids = await log.append(numbered(3, 6))
    await log.rotate()
    await log.rotate()
    assert await log.shrink(ids[2]) == 1
    assert await log.shrink(ids[2]) == 0
    reader = await open_reader(cluster, client)
    assert await payloads(reader, 3) == [b"3", b"4", b"5"]
    await reader.close()
    await log.close()
