"""Misuse, and metadata that somebody broke: a typed error that names what it is about and says what
to do. Nothing is repaired by guess: what is stored stays as it is.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import (
    BeyondLastConfirmedError,
    EntryTooLargeError,
    FutureLogFormatError,
    FutureMetadataVersionError,
    InvalidLedgerMetadataError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    LogClosedError,
    LogDataLossError,
    LogFencedError,
    LogTerminatedError,
    MessageTooLargeError,
    NoSuchLedgerError,
    NoSuchLogError,
    NotEnoughBookiesError,
    UnauthorizedError,
)
from magnetar.ledger.layouts.ledger_layout_hierarchical import ledger_path
from magnetar.ledger.ledger_metadata import LedgerState
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.metadata.store import Versioned
from magnetar.ledger.position import EARLIEST
from magnetar.ledger.reader import LedgerReader
from magnetar.ledger.system import SystemClock
from magnetar.ledger.writer import LedgerWriter
from tests.integration.ledger.cluster import Cluster, cluster_of
from tests.integration.ledger.log_parts import CONFIG, PATH, append, open_log

TIMEOUT_S = 10.0


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(3, tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[LedgerClient]:
    async with cluster.client() as client:
        yield client


@pytest.fixture
async def other(cluster: Cluster) -> AsyncIterator[LedgerClient]:
    """A second client, with connections and state of its own."""
    async with cluster.client() as other:
        yield other


async def create(client: LedgerClient, password: bytes = b"") -> LedgerWriter:
    return await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2, password=password)


async def stored(cluster: Cluster, ledger_id: int) -> Versioned:
    return await cluster.store.get(ledger_path("/ledgers", ledger_id))


async def refused(call: Awaitable[object], kind: type[LedgerError], *words: str) -> None:
    """The call fails with exactly this error, and its text has all the words."""
    with pytest.raises(LedgerError) as raised:
        async with asyncio.timeout(TIMEOUT_S):
            await call
    assert type(raised.value) is kind, raised.value
    assert [word for word in words if word not in str(raised.value)] == [], raised.value


# --- the caller's mistakes -----------------------------------------------------------------------


async def test_a_wrong_password_is_refused_before_anything_is_fenced(
    cluster: Cluster, client: LedgerClient, other: LedgerClient
) -> None:
    writer = await create(client, b"right")
    await writer.add(b"one")
    before = await stored(cluster, writer.ledger_id)
    words = (f"ledger {writer.ledger_id}", "Pass the one that it was created with")
    for password in (b"wrong", b""):
        await refused(other.open(writer.ledger_id, password=password), UnauthorizedError, *words)
        await refused(
            other.open_and_recover(writer.ledger_id, password=password), UnauthorizedError, *words
        )
    assert await stored(cluster, writer.ledger_id) == before
    assert await writer.add(b"two") == 1
    reader = await other.open_and_recover(writer.ledger_id, password=b"right")
    assert await reader.read(0, 1) == [b"one", b"two"]


async def test_an_ensemble_larger_than_the_cluster_creates_nothing(client: LedgerClient) -> None:
    await refused(
        client.create(ensemble_size=4, write_quorum=3, ack_quorum=2),
        NotEnoughBookiesError,
        *("4 bookies", "3 are writable", "start more bookies", "smaller ensemble"),
    )
    writer = await create(client)
    assert [each async for each in client.manager.ledger_ids()] == [writer.ledger_id]


@pytest.mark.parametrize("quorums", [(3, 2, 3), (2, 3, 2), (3, 3, 0), (0, 0, 0)])
async def test_quorums_that_cannot_be_are_refused_with_the_rule(
    client: LedgerClient, quorums: tuple[int, int, int]
) -> None:
    with pytest.raises(ValueError, match="ensemble_size >= write_quorum >= ack_quorum >= 1"):
        await client.create(
            ensemble_size=quorums[0], write_quorum=quorums[1], ack_quorum=quorums[2]
        )


async def test_ids_beyond_the_last_add_confirmed_are_refused_by_every_handle(
    client: LedgerClient, other: LedgerClient
) -> None:
    writer = await create(client)
    await writer.add(b"one")
    name = f"ledger {writer.ledger_id}: entry 7 is above the last add confirmed"
    reader = await other.open(writer.ledger_id)
    await refused(reader.read(0, 7), BeyondLastConfirmedError, name, "wait_beyond")
    await refused(writer.read(0, 7), BeyondLastConfirmedError, name, "when it is confirmed")
    await writer.close()
    closed = await other.open(writer.ledger_id)
    await refused(closed.read(0, 7), BeyondLastConfirmedError, name, "is closed")


async def test_a_fenced_ledger_takes_no_more(client: LedgerClient, other: LedgerClient) -> None:
    writer = await create(client)
    await writer.add(b"one")
    await other.open_and_recover(writer.ledger_id)
    name = f"ledger {writer.ledger_id}"
    await refused(writer.add(b"two"), LedgerFencedError, name, "another client")
    await refused(writer.close(), LedgerFencedError, name, "another client")
    await refused(writer.close(force=True), LedgerFencedError, name, "another client")
    metadata = (await other.manager.read(writer.ledger_id)).metadata
    assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 0)


async def test_a_closed_ledger_takes_no_more(cluster: Cluster, client: LedgerClient) -> None:
    writer = await create(client)
    await writer.close()
    before = await stored(cluster, writer.ledger_id)
    name = f"ledger {writer.ledger_id} is closed"
    await refused(writer.add(b"two"), LedgerClosedError, name, "a new one")
    with pytest.raises(LedgerClosedError):
        writer.append([b"two"], lambda error: None)
    assert await stored(cluster, writer.ledger_id) == before


async def test_a_payload_beyond_the_bound_is_refused_and_the_handle_goes_on(
    client: LedgerClient,
) -> None:
    writer = await create(client)
    await refused(
        writer.add(bytes(8 << 20)),
        EntryTooLargeError,
        *(f"ledger {writer.ledger_id}", str(8 << 20), "entry_bytes_max"),
    )
    assert await writer.add(b"fits") == 0


async def test_a_reader_that_was_closed_follows_no_more(client: LedgerClient) -> None:
    writer = await create(client)
    reader = await client.open(writer.ledger_id)
    await reader.close()
    await refused(
        reader.wait_beyond(-1, timeout_s=5),
        LedgerClosedError,
        f"the reader of ledger {writer.ledger_id}",
    )


@pytest.mark.parametrize("ledger_id", [4711, -1])
async def test_a_ledger_that_is_not_there_is_named(client: LedgerClient, ledger_id: int) -> None:
    for call in (client.open, client.open_and_recover, client.delete):
        await refused(call(ledger_id), NoSuchLedgerError, str(ledger_id))


# --- metadata deleted under a handle -------------------------------------------------------------


async def test_a_writer_whose_metadata_is_deleted_withdraws(
    cluster: Cluster, client: LedgerClient, other: LedgerClient
) -> None:
    writer = await create(client)
    await writer.add(b"one")
    await other.delete(writer.ledger_id)
    name = f"ledger {writer.ledger_id}"

    async def add_until_refused() -> None:
        while True:  # the watch tells, and takes its time
            await writer.add(b"more")

    await refused(add_until_refused(), NoSuchLedgerError, name)
    await refused(writer.close(), NoSuchLedgerError, name)
    await refused(writer.close(force=True), NoSuchLedgerError, name)
    assert await cluster.store.exists(ledger_path("/ledgers", writer.ledger_id)) is None


async def test_a_reader_whose_ledger_is_deleted_hears_of_it(
    cluster: Cluster, client: LedgerClient, other: LedgerClient
) -> None:
    writer = await create(client)
    await writer.add(b"one")
    reader = await other.open(writer.ledger_id)
    await reader.read_last_add_confirmed()
    await client.delete(writer.ledger_id)
    name = f"ledger {writer.ledger_id}"
    await refused(reader.wait_beyond(7, timeout_s=TIMEOUT_S), NoSuchLedgerError, name)
    await refused(reader.read_last_add_confirmed(), NoSuchLedgerError, name)
    await refused(other.open_and_recover(writer.ledger_id), NoSuchLedgerError, name)
    assert await cluster.store.exists(ledger_path("/ledgers", writer.ledger_id)) is None
    await reader.close()


# --- metadata that is corrupt, or of a future version --------------------------------------------

Break = Callable[[dict[str, object]], bytes]


def changed(**changes: object) -> Break:
    return lambda fields: json.dumps({**fields, **changes}).encode()


def without(name: str) -> Break:
    return lambda fields: json.dumps({k: v for k, v in fields.items() if k != name}).encode()


CORRUPT: dict[str, Break] = {
    "empty": lambda fields: b"",
    "no JSON": lambda fields: b"\x00\xffgarbage",
    "cut short": lambda fields: json.dumps(fields).encode()[:-20],
    "no object": lambda fields: b"[1]",
    "unknown field": changed(surprise=1),
    "missing field": without("ack_quorum"),
    "unknown state": changed(state="SEALED"),
    "another ledger's": changed(ledger_id=77),
    "wrong ensemble": changed(ensembles=[[0, ["a", "b"]]]),
    "a bookie twice": changed(ensembles=[[0, ["a", "a", "b"]]]),
    "quorums": changed(ack_quorum=4),
    "version 0": changed(format_version=0),
}
FUTURE: dict[str, Break] = {
    "future version": changed(format_version=2),
    "future version and field": changed(format_version=3, terms=[1]),
}
BROKEN = [
    *(pytest.param(how, InvalidLedgerMetadataError, id=name) for name, how in CORRUPT.items()),
    *(pytest.param(how, FutureMetadataVersionError, id=name) for name, how in FUTURE.items()),
]


async def overwrite(cluster: Cluster, path: str, how: Break) -> bytes:
    node = await cluster.store.get(path)
    value = how(json.loads(node.value))
    await cluster.store.set(path, value, version=node.version)
    return value


@pytest.mark.parametrize(("how", "kind"), BROKEN)
async def test_broken_metadata_is_refused_by_every_way_in_and_left_as_it_is(
    cluster: Cluster,
    client: LedgerClient,
    other: LedgerClient,
    how: Break,
    kind: type[InvalidLedgerMetadataError],
) -> None:
    writer = await create(client)
    await writer.add(b"one")
    reader = await other.open(writer.ledger_id)
    reader.watch()
    path = ledger_path("/ledgers", writer.ledger_id)
    value = await overwrite(cluster, path, how)
    advice = "upgrade" if kind is FutureMetadataVersionError else "from a backup"
    words = (path, advice)
    await refused(other.open(writer.ledger_id), kind, *words)
    await refused(other.open_and_recover(writer.ledger_id), kind, *words)
    await refused(_add_until_refused(writer), kind, *words)
    await refused(writer.close(), kind, *words)
    await refused(writer.close(force=True), kind, *words)
    await refused(_wait_until_refused(reader), kind, *words)
    assert (await cluster.store.get(path)).value == value
    await reader.close()


async def _add_until_refused(writer: LedgerWriter) -> None:
    while True:  # the watch tells, and takes its time
        await writer.add(b"more")


async def _wait_until_refused(reader: LedgerReader) -> None:
    while True:
        await reader.wait_beyond(1 << 40, timeout_s=TIMEOUT_S)


# --- logs ----------------------------------------------------------------------------------------


async def test_a_log_that_was_taken_over_takes_no_more_from_the_old_owner(
    cluster: Cluster, client: LedgerClient, other: LedgerClient
) -> None:
    old = await open_log(cluster, client)
    await append(old, [b"one"]).outcome
    new = await open_log(cluster, other)
    words = (PATH, "another owner", "close this handle")
    await refused(append(old, [b"two"]).outcome, LogFencedError, *words)
    await refused(old.rotate(), LogFencedError, *words)
    await refused(old.terminate(), LogFencedError, PATH, "another owner")
    await append(new, [b"three"]).outcome
    await old.close()
    await new.close()


async def test_a_closed_log_and_a_terminated_one_take_no_more(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await open_log(cluster, client)
    await log.close()
    await refused(append(log, [b"two"]).outcome, LogClosedError, PATH, "open it again")
    await refused(log.rotate(), LogClosedError, PATH, "open it again")
    log = await open_log(cluster, client)
    await log.terminate()
    await refused(append(log, [b"two"]).outcome, LogTerminatedError, PATH, "only be read")
    await log.close()
    reopened = await open_log(cluster, client)
    await refused(append(reopened, [b"two"]).outcome, LogTerminatedError, PATH, "only be read")
    await reopened.close()


async def test_a_log_that_is_not_there_is_named(cluster: Cluster, client: LedgerClient) -> None:
    await refused(
        ManagedLog.open(
            client,
            cluster.store,
            "/logs/none",
            CONFIG,
            clock=SystemClock(),
            random=random.Random(1),
            must_exist=True,
        ),
        NoSuchLogError,
        *("/logs/none", "create it"),
    )
    assert await cluster.store.exists("/logs/none") is None


async def test_an_owner_whose_log_is_deleted_ends(cluster: Cluster, client: LedgerClient) -> None:
    log = await open_log(cluster, client)
    await append(log, [b"one"]).outcome
    await cluster.store.delete(PATH)
    await refused(log.rotate(), LogFencedError, PATH, "was deleted", "close this handle")
    await refused(append(log, [b"two"]).outcome, LogFencedError, PATH, "was deleted")
    await log.close()
    assert await cluster.store.exists(PATH) is None


@pytest.mark.parametrize(
    ("how", "kind", "advice"),
    [
        (lambda fields: b"", InvalidLedgerMetadataError, "from a backup"),
        (lambda fields: b"\x00garbage", InvalidLedgerMetadataError, "from a backup"),
        (changed(surprise=1), InvalidLedgerMetadataError, "from a backup"),
        (changed(ledgers=[{"id": 1}]), InvalidLedgerMetadataError, "from a backup"),
        (changed(format=3, terms=[]), FutureLogFormatError, "upgrade"),
    ],
    ids=["empty", "no JSON", "unknown field", "bad ledger", "future format"],
)
async def test_a_broken_ledger_list_is_refused_and_left_as_it_is(
    cluster: Cluster,
    client: LedgerClient,
    other: LedgerClient,
    how: Break,
    kind: type[InvalidLedgerMetadataError],
    advice: str,
) -> None:
    log = await open_log(cluster, client)
    await append(log, [b"one"]).outcome
    value = await overwrite(cluster, PATH, how)
    # The owner cannot tell who wrote this, or what it means: it withdraws.
    await refused(log.rotate(), LogFencedError, PATH, "overwritten", advice)
    await refused(append(log, [b"two"]).outcome, LogFencedError, PATH, "overwritten", advice)
    await log.close()
    await refused(open_log(cluster, other), kind, PATH, advice)
    assert (await cluster.store.get(PATH)).value == value


async def test_a_log_does_not_pass_over_a_ledger_that_is_gone(
    cluster: Cluster, client: LedgerClient, other: LedgerClient
) -> None:
    log = await open_log(cluster, client)
    await append(log, [b"one"]).outcome
    await log.rotate()
    await append(log, [b"two"]).outcome
    await log.close()
    first = log.ledgers[0].ledger_id
    await client.delete(first)
    before = await cluster.store.get(PATH)
    words = (PATH, f"ledger {first}", "from a backup")
    await refused(open_log(cluster, other), LogDataLossError, *words)
    await refused(log.read(EARLIEST, entries_max=10, bytes_max=1 << 20), LogDataLossError, *words)
    assert await cluster.store.get(PATH) == before


async def test_a_payload_beyond_the_bound_is_refused_by_a_log_for_good(
    cluster: Cluster, client: LedgerClient
) -> None:
    log = await open_log(cluster, client)
    await refused(
        append(log, [bytes(8 << 20)]).outcome, MessageTooLargeError, *(PATH, "entry_bytes_max")
    )
    await append(log, [b"small"]).outcome
    await log.close()
