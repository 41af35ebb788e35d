"""Every ledger has a password of its own, and nobody reads, adds or fences without its key."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.ledger.client import PASSWORD_BYTES, LedgerClient
from magnetar.ledger.digest import codec_for, master_key, read_key
from magnetar.ledger.errors import LedgerLayoutError, UnauthorizedError
from magnetar.ledger.layouts.ledger_layout import (
    passwords_are_on,
    turn_passwords_on,
)
from magnetar.ledger.ledger_manager import LAYOUT_LOOK_S, LedgerManager
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.reading.bookie_requests import ask
from magnetar.ledger.wire import Flag, Frame, Op, Status, encode_block, encode_read_body
from magnetar.ledger.wire_bodies import LongPoll, encode_list_entries, encode_long_poll
from magnetar.ledger.writer import LedgerWriter
from tests.integration.ledger.cluster import Cluster, cluster_of
from tests.integration.ledger.ledger_managers import ROOT, make
from tests.waiting import until

BOOKIE = "b1"
CONSTANT_KEY = master_key(b"")
WRONG_KEY = master_key(b"another")
OF_OLDER_RELEASES = b'{"manager":"hierarchical","manager_version":1,"format_version":1}'


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(1, tmp_path) as made:
        yield made


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[LedgerClient]:
    async with cluster.client() as made:
        yield made


async def written(client: LedgerClient, password: bytes | None = None) -> LedgerWriter:
    """An open ledger of two entries."""
    writer = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1, password=password)
    for payload in (b"zero", b"one"):
        await writer.add(payload)
    return writer


READS = ("read", "last confirmed", "long poll", "list")


async def asked(client: LedgerClient, ledger_id: int, what: str, key: bytes) -> Frame:
    """The answer to one kind of read that shows this key."""
    op, body, entry_id, flags = {
        "read": (
            Op.READ,
            encode_read_body(last_entry_id=1, bytes_max=1 << 20, master_key=key),
            0,
            0,
        ),
        "last confirmed": (Op.READ_LAC, key, -1, 0),
        "long poll": (
            Op.READ_LAC,
            encode_long_poll(LongPoll(-1, 1_000, 1 << 20, key)),
            -1,
            int(Flag.LONG_POLL),
        ),
        "list": (Op.LIST_ENTRIES, encode_list_entries(64, master_key=key), 0, 0),
    }[what]
    return await ask(
        client.channels, BOOKIE, op, body, ledger_id=ledger_id, entry_id=entry_id, flags=flags
    )


async def test_each_ledger_has_a_random_password_of_its_own(client: LedgerClient) -> None:
    passwords = {(await written(client)).metadata.password for _ in range(3)}
    assert {len(each) for each in passwords} == {PASSWORD_BYTES}
    assert len(passwords) == 3


@pytest.mark.parametrize("what", READS)
@pytest.mark.parametrize("key", [b"", CONSTANT_KEY, WRONG_KEY], ids=["none", "constant", "wrong"])
async def test_nobody_reads_without_the_ledgers_key(
    client: LedgerClient, what: str, key: bytes
) -> None:
    writer = await written(client)
    refused = await asked(client, writer.ledger_id, what, key)
    assert Status(refused.status) is Status.UNAUTHORIZED
    assert str(writer.ledger_id) in refused.body.decode()
    served = await asked(client, writer.ledger_id, what, master_key(writer.metadata.password))
    assert Status(served.status) is Status.OK


@pytest.mark.parametrize("op", [Op.READ, Op.READ_LAC])
@pytest.mark.parametrize("key", [b"", CONSTANT_KEY, WRONG_KEY], ids=["none", "constant", "wrong"])
async def test_nobody_fences_without_the_ledgers_key(
    client: LedgerClient, op: Op, key: bytes
) -> None:
    writer = await written(client)
    body = key
    if op is Op.READ:
        body = encode_read_body(last_entry_id=1, bytes_max=1, master_key=key)
    refused = await ask(
        client.channels,
        BOOKIE,
        op,
        body,
        ledger_id=writer.ledger_id,
        entry_id=0,
        flags=Flag.FENCE,
    )
    assert Status(refused.status) is Status.UNAUTHORIZED
    assert await writer.add(b"goes on") == 2


async def test_nobody_adds_for_recovery_with_the_constant_key(client: LedgerClient) -> None:
    metadata = (await written(client)).metadata
    packets = codec_for(metadata).seal(2, 1, 7, [b"forged"])
    refused = await ask(
        client.channels,
        BOOKIE,
        Op.ADD,
        CONSTANT_KEY + encode_block(packets).data,
        ledger_id=metadata.ledger_id,
        entry_id=2,
        flags=Flag.RECOVERY,
    )
    assert Status(refused.status) is Status.UNAUTHORIZED


async def test_a_poll_that_waited_before_the_ledger_was_known_shows_nothing_either(
    cluster: Cluster, client: LedgerClient
) -> None:
    writer = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
    body = encode_long_poll(LongPoll(-1, 20_000, 1 << 20))
    async with cluster.client() as stranger:
        waiting = asyncio.ensure_future(
            ask(
                stranger.channels,
                BOOKIE,
                Op.READ_LAC,
                body,
                ledger_id=writer.ledger_id,
                flags=Flag.LONG_POLL,
            )
        )
        bookie = cluster.bookies[BOOKIE]
        await until(lambda: bookie.metrics.long_polls > 0)
        await writer.add(b"zero")
        await writer.add(b"one")  # tells of the first
        answer = await waiting
    assert Status(answer.status) is Status.UNAUTHORIZED


@pytest.mark.parametrize("what", READS)
async def test_a_ledger_of_an_older_release_is_read_in_the_words_of_then(
    client: LedgerClient, what: str
) -> None:
    """An older ledger's password is empty, its readers show no key, and newer ones do as they
    did."""
    writer = await written(client, password=b"")
    assert read_key(writer.metadata.password) == b""
    for key in (b"", CONSTANT_KEY):
        assert Status((await asked(client, writer.ledger_id, what, key)).status) is Status.OK
    refused = await asked(client, writer.ledger_id, what, WRONG_KEY)
    assert Status(refused.status) is Status.UNAUTHORIZED


@pytest.mark.parametrize("password", [None, b"", b"given"], ids=["own", "none", "given"])
async def test_readers_followers_and_recoverers_find_the_password_in_the_metadata(
    cluster: Cluster, client: LedgerClient, password: bytes | None
) -> None:
    writer = await written(client, password)
    async with cluster.client() as other:
        following = await other.open(writer.ledger_id)
        assert await following.wait_beyond(-1, timeout_s=20) >= 0
        assert await following.read(0, 0) == [b"zero"]
        recovered = await other.open_and_recover(writer.ledger_id)
        assert await recovered.read(0, 1) == [b"zero", b"one"]
        await following.close()


async def test_a_key_that_does_not_fit_is_told_as_that(client: LedgerClient) -> None:
    """Not as a bookie that is away: to try again does not help."""
    writer = await written(client)
    await writer.close()
    found = await client.manager.read(writer.ledger_id)
    await client.manager.write(replace(found.metadata, password=b"wrong"), version=found.version)
    reader = await client.open(writer.ledger_id)
    with pytest.raises(UnauthorizedError, match=f"ledger {writer.ledger_id}.*does not fit") as info:
        await reader.read(0, 1)
    assert not info.value.retryable


# --- clusters that were begun by a release without passwords -------------------------------------


async def test_a_cluster_of_an_older_release_goes_on_without_passwords_until_it_is_told(
    tmp_path: Path,
) -> None:
    """While brokers and bookies of that release may be there: they could not read."""
    async with cluster_of(1, tmp_path) as cluster:
        await cluster.store.create(f"{ROOT}/LAYOUT", OF_OLDER_RELEASES)
        async with cluster.client() as client:
            before = await written(client)
            assert before.metadata.password == b""
            assert (await cluster.store.get(f"{ROOT}/LAYOUT")).value == OF_OLDER_RELEASES
            assert await passwords_are_on(cluster.store, ROOT) is False
            assert await turn_passwords_on(cluster.store, ROOT)
            assert not await turn_passwords_on(cluster.store, ROOT)
        async with cluster.client() as client:
            after = await written(client)
            assert len(after.metadata.password) == PASSWORD_BYTES
            for writer in (before, after):
                reader = await client.open_and_recover(writer.ledger_id)
                assert await reader.read(0, 1) == [b"zero", b"one"]


class HandClock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def boot_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return int(self.now_s * 1000)


async def test_who_runs_when_passwords_are_turned_on_notices(tmp_path: Path) -> None:
    store = await open_store(f"embedded:{tmp_path / 'metadata.db'}")
    await store.create(f"{ROOT}/LAYOUT", OF_OLDER_RELEASES)
    clock = HandClock()
    manager = LedgerManager(store, random=random.Random(1), clock=clock, root=ROOT)
    had: list[bool] = []

    def noting(ledger_id: int, creation_token: int) -> LedgerMetadata:
        had.append(manager.has_ledger_passwords)
        return make(ledger_id, creation_token)

    await manager.create(noting)
    await turn_passwords_on(store, ROOT)
    await manager.create(noting)
    clock.now_s += LAYOUT_LOOK_S
    await manager.create(noting)
    assert had == [False, False, True]
    await store.close()


async def test_a_root_from_before_there_were_layouts_is_of_an_older_release(
    tmp_path: Path,
) -> None:
    store = await open_store(f"embedded:{tmp_path / 'metadata.db'}")
    await store.create(f"{ROOT}/00/0000/L0000", make(0, 1).to_json())
    manager = LedgerManager(store, random=random.Random(1), clock=HandClock(), root=ROOT)
    await manager.create(make)
    assert not manager.has_ledger_passwords
    assert json.loads((await store.get(f"{ROOT}/LAYOUT")).value) == json.loads(OF_OLDER_RELEASES)
    await store.close()


async def test_passwords_are_not_turned_on_where_nothing_is(tmp_path: Path) -> None:
    store = await open_store(f"embedded:{tmp_path / 'metadata.db'}")
    assert await passwords_are_on(store, ROOT) is None
    with pytest.raises(LedgerLayoutError, match="no ledger was ever made there"):
        await turn_passwords_on(store, ROOT)
    await store.close()
