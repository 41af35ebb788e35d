"""Which replica a read goes to, and what becomes of it when replicas are bad, slow or gone."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.digest import master_key
from magnetar.ledger.errors import (
    BookieUnavailableError,
    DigestMismatchError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from magnetar.ledger.ledger_metadata import Fragment, LedgerMetadata
from magnetar.ledger.reading.bookie_requests import read_reply_block
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.wire import Flag, Frame, Op, Status, encode_block, encode_read_body
from tests.bookie_parts import BookieClient
from tests.integration.ledger.cluster import CLIENT_SETTINGS, Cluster, cluster_of, wait_until
from tests.integration.ledger.filtered_network import FilteredNetwork

# Who answers late is waited for: the tests count whom the client asks.
SETTINGS = CLIENT_SETTINGS.model_copy(update={"speculative_read_ms": 0})
PAYLOADS = [b"%03d" % number * 20 for number in range(30)]


class Replies:
    """A filter that counts READ replies by bookie, and does to them what the test says."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.by_bookie: dict[str, int] = {}
        self.lost: set[str] = set()
        self.damaged: set[str] = set()
        self.statuses: dict[str, Status] = {}

    def __call__(self, port: int, frame: Frame) -> Frame | None:
        if frame.op != Op.READ:
            return frame
        (name,) = (each for each, bookie in self._cluster.bookies.items() if bookie.port == port)
        self.by_bookie[name] = self.by_bookie.get(name, 0) + 1
        if name in self.lost:
            return None
        if name in self.statuses:
            return frame._replace(status=self.statuses[name], body=b"as the test says")
        if name in self.damaged:
            return frame._replace(body=frame.body[:-1] + bytes([frame.body[-1] ^ 1]))
        return frame


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(3, tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def replies(cluster: Cluster) -> Replies:
    return Replies(cluster)


def client_of(
    cluster: Cluster, replies: Replies, settings: LedgerSettings = SETTINGS
) -> AbstractAsyncContextManager[LedgerClient]:
    network = FilteredNetwork()
    network.filter = replies
    return cluster.client(network, settings)


async def write(client: LedgerClient, quorums: tuple[int, int, int] = (3, 3, 3)) -> LedgerMetadata:
    """A closed ledger with `PAYLOADS`."""
    writer = await client.create(
        ensemble_size=quorums[0], write_quorum=quorums[1], ack_quorum=quorums[2]
    )
    for payload in PAYLOADS:
        await writer.add(payload)
    return await writer.close()


# Order


async def test_a_handle_sticks_to_one_member(cluster: Cluster, replies: Replies) -> None:
    async with client_of(cluster, replies) as client:
        metadata = await write(client)
        reader = await client.open(metadata.ledger_id)
        for entry_id, payload in enumerate(PAYLOADS):
            assert await reader.read(entry_id, entry_id) == [payload]
    assert sorted(replies.by_bookie.values()) == [len(PAYLOADS)]


async def test_handles_stick_to_different_members(cluster: Cluster, replies: Replies) -> None:
    async with client_of(cluster, replies) as client:
        metadata = await write(client)
        for _ in range(30):
            await (await client.open(metadata.ledger_id)).read(0, 0)
    assert set(replies.by_bookie) == {"b1", "b2", "b3"}


async def test_a_sticky_handle_moves_on_failure_and_stays_there(
    cluster: Cluster, replies: Replies
) -> None:
    settings = SETTINGS.model_copy(update={"reorder_reads": False})
    async with client_of(cluster, replies, settings) as client:
        metadata = await write(client)
        reader = await client.open(metadata.ledger_id)
        await reader.read(0, 0)
        (member,) = replies.by_bookie
        replies.statuses[member] = Status.IO_ERROR
        for entry_id, payload in enumerate(PAYLOADS):
            assert await reader.read(entry_id, entry_id) == [payload]
        assert replies.by_bookie[member] == 2
        assert len(replies.by_bookie) == 2


async def test_without_stickiness_reads_begin_with_the_write_set(
    cluster: Cluster, replies: Replies
) -> None:
    settings = SETTINGS.model_copy(update={"sticky_reads": False})
    async with client_of(cluster, replies, settings) as client:
        metadata = await write(client)
        reader = await client.open(metadata.ledger_id)
        for entry_id in range(len(PAYLOADS)):
            await reader.read(entry_id, entry_id)
    assert list(replies.by_bookie.values()) == [10, 10, 10]


async def test_a_striped_ledger_is_read_from_its_write_sets(
    cluster: Cluster, replies: Replies
) -> None:
    async with client_of(cluster, replies) as client:
        metadata = await write(client, (3, 2, 2))
        reader = await client.open(metadata.ledger_id)
        for entry_id, payload in enumerate(PAYLOADS):
            assert await reader.read(entry_id, entry_id) == [payload]
    assert sum(replies.by_bookie.values()) == len(PAYLOADS)


async def test_who_failed_lately_is_asked_last(cluster: Cluster, replies: Replies) -> None:
    settings = SETTINGS.model_copy(update={"sticky_reads": False})
    async with client_of(cluster, replies, settings) as client:
        metadata = await write(client)
        reader = await client.open(metadata.ledger_id)
        replies.statuses["b1"] = Status.IO_ERROR
        for entry_id, payload in enumerate(PAYLOADS):
            assert await reader.read(entry_id, entry_id) == [payload]
    assert replies.by_bookie["b1"] == 1


async def test_an_unregistered_bookie_is_asked_last(cluster: Cluster, replies: Replies) -> None:
    async with client_of(cluster, replies) as client:
        metadata = await write(client)
        changed = asyncio.Event()
        client.registry.on_change(changed.set)
        await cluster.stop_bookie("b2")
        while client.registry.resolve("b2") is not None:
            changed.clear()
            await changed.wait()
        for _ in range(20):
            reader = await client.open(metadata.ledger_id)
            assert await reader.read(3, 3) == [PAYLOADS[3]]
        assert client.fetcher.facts_of("b2").has_failed is False


# Slow replicas


async def test_a_slow_replica_is_raced_by_the_next_one(cluster: Cluster, replies: Replies) -> None:
    settings = SETTINGS.model_copy(
        update={
            "speculative_read_ms": 1000,
            "bookie_failure_memory_s": 0,
            "sticky_reads": False,
        }
    )
    async with client_of(cluster, replies, settings) as client:
        metadata = await write(client)
        slow = metadata.last_fragment.bookies[0]
        replies.lost.add(slow)
        reader = await client.open(metadata.ledger_id)
        started_s = time.monotonic()
        assert await reader.read(0, 0) == [PAYLOADS[0]]
        assert 1.0 <= time.monotonic() - started_s < settings.request_timeout_s
        assert client.fetcher.counts.speculative_reads == 1
        assert replies.by_bookie[slow] == 1


async def test_without_speculation_a_slow_replica_is_waited_for(
    cluster: Cluster, replies: Replies
) -> None:
    impatient = SETTINGS.model_copy(update={"request_timeout_s": 0.5, "sticky_reads": False})
    async with (
        client_of(cluster, replies) as client,
        client_of(cluster, replies, impatient) as other,
    ):
        metadata = await write(client)
        replies.lost.add(metadata.last_fragment.bookies[0])
        reader = await other.open(metadata.ledger_id)
        assert await reader.read(0, 0) == [PAYLOADS[0]]
        assert other.fetcher.counts.speculative_reads == 0


# Errors


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        (Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER, NoSuchEntryError),
        (Status.NO_SUCH_ENTRY, Status.IO_ERROR, BookieUnavailableError),
        (Status.UNKNOWN_LEDGER_STATE, Status.NO_SUCH_LEDGER, BookieUnavailableError),
    ],
)
async def test_rule_9_1_an_outage_never_looks_like_absence(
    cluster: Cluster, replies: Replies, first: Status, second: Status, error: type[Exception]
) -> None:
    async with client_of(cluster, replies) as client:
        metadata = await write(client)
        replies.statuses = {"b1": first, "b2": second, "b3": Status.NO_SUCH_ENTRY}
        reader = await client.open(metadata.ledger_id)
        with pytest.raises(error):
            await reader.read(0, 0)
    assert sorted(replies.by_bookie.values()) == [1, 1, 1]


async def test_rule_9_2_bad_replicas_are_counted_and_noted_for_repair(
    cluster: Cluster, replies: Replies
) -> None:
    async with client_of(cluster, replies) as client:
        metadata = await write(client)
        noted: list[tuple[int, int, int, str]] = []
        client.repairs.on_noted.append(lambda *note: noted.append(note[:4]))
        replies.damaged = {"b1", "b3"}
        last = len(PAYLOADS) - 1
        for _ in range(10):
            reader = await client.open(metadata.ledger_id)
            assert await reader.read(last, last) == [PAYLOADS[-1]]
        assert {note[3] for note in noted} == set(client.fetcher.digest_mismatches)
        assert set(client.fetcher.digest_mismatches) <= {"b1", "b3"}
        assert all(note[:3] == (metadata.ledger_id, last, last) for note in noted)
        replies.damaged.add("b2")
        with pytest.raises(DigestMismatchError):
            await reader.read(last, last)


async def test_good_entries_in_front_of_a_bad_one_are_returned(
    cluster: Cluster, replies: Replies
) -> None:
    async with client_of(cluster, replies) as client:
        metadata = await write(client)
        reader = await client.open(metadata.ledger_id)
        replies.damaged = {"b1", "b2"}
        seen: list[bytes] = []
        while len(seen) < len(PAYLOADS):
            seen += await reader.read(len(seen), len(PAYLOADS) - 1)
        assert seen == PAYLOADS


# Moved replicas


async def copy_ledger(cluster: Cluster, metadata: LedgerMetadata, *, to: str) -> None:
    """Copy a closed ledger's entries from b1 to another bookie, as re-replication would."""
    source = await BookieClient.connect(cluster.bookies["b1"].port)
    target = await BookieClient.connect(cluster.bookies[to].port)
    body = encode_read_body(last_entry_id=metadata.last_entry_id, bytes_max=1 << 20)
    ledger_id = metadata.ledger_id
    read = await source.ask(
        lambda request_id: Frame(Op.READ, False, 0, 0, request_id, ledger_id, 0, body)
    )
    packets = read_reply_block(read, "b1").packets()
    assert len(packets) == len(PAYLOADS)
    add = master_key(metadata.password) + encode_block(packets).data
    added = await target.ask(
        lambda request_id: Frame(Op.ADD, False, Flag.RECOVERY, 0, request_id, ledger_id, 0, add)
    )
    assert added.status == Status.OK
    source.close()
    target.close()


@pytest.mark.parametrize("is_watching", [False, True])
async def test_d23_an_old_handle_finds_replicas_that_moved(
    tmp_path: Path, is_watching: bool
) -> None:
    """Rule 2.6: by a watch, or after the first read that failed."""
    async with cluster_of(3, tmp_path) as cluster, cluster.client() as client:
        writer = await client.create(ensemble_size=2, write_quorum=2, ack_quorum=2)
        while "b1" not in writer.metadata.last_fragment.bookies:
            writer = await client.create(ensemble_size=2, write_quorum=2, ack_quorum=2)
        for payload in PAYLOADS:
            await writer.add(payload)
        metadata = await writer.close()
        reader = await client.open(writer.ledger_id)
        assert await reader.read(0, 0) == [PAYLOADS[0]]
        if is_watching:
            reader.watch()
        gone = metadata.last_fragment.bookies
        (spare,) = {"b1", "b2", "b3"} - set(gone)
        await cluster.start_bookie("b4")
        for name in (spare, "b4"):
            await copy_ledger(cluster, metadata, to=name)
        ledger = await client.manager.read(writer.ledger_id)
        moved = replace(metadata, ensembles=(Fragment(0, (spare, "b4")),))
        await client.manager.write(moved, version=ledger.version)
        await cluster.wait_known(client, "b4")
        if is_watching:
            await wait_until(lambda: reader.metadata.last_fragment.bookies != gone)
        for name in gone:
            await cluster.stop_bookie(name)
        assert await reader.read(5, 5) == [PAYLOADS[5]]
        assert reader.metadata.last_fragment.bookies == (spare, "b4")
        await reader.close()


async def test_a_read_of_a_deleted_ledger_says_so_when_its_entries_are_gone(
    cluster: Cluster, replies: Replies
) -> None:
    async with client_of(cluster, replies) as client:
        metadata = await write(client)
        reader = await client.open(metadata.ledger_id)
        await client.delete(metadata.ledger_id)
        assert await reader.read(0, 0) == [PAYLOADS[0]]  # the bookies have it still
        replies.statuses = dict.fromkeys(("b1", "b2", "b3"), Status.NO_SUCH_LEDGER)
        with pytest.raises(NoSuchLedgerError):
            await reader.read(0, 0)
