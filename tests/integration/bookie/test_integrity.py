"""Damage and loss on real bookies: nothing wrong is served, nothing is denied, all comes back."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import get_args

import pytest
from structlog.testing import capture_logs

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.errors import CookieError, StorageError
from magnetar.bookie.indexes.index_mark import EngineKind
from magnetar.bookie.indexes.open_index import index_path
from magnetar.bookie.indexes.rebuild import rebuild_index
from magnetar.bookie.settings import BookieSettings
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.digest import master_key, packet_codec
from magnetar.ledger.errors import NoNodeError, RecoveryUndecidedError
from magnetar.ledger.layouts.ledger_layout import LayoutName
from magnetar.ledger.ledger_metadata import DigestType, LedgerState
from magnetar.ledger.reading.bookie_requests import ask
from magnetar.ledger.system import SystemClock, SystemDisk
from magnetar.ledger.under_replication import Missing, decode_item, item_path
from magnetar.ledger.wire import Op, Status, encode_block, encode_read_body
from magnetar.ledger.wire_bodies import decode_entry_list, encode_list_entries
from magnetar.ledger.writer import LedgerWriter
from tests.integration.ledger.cluster import (
    CLIENT_SETTINGS,
    Cluster,
    cluster_of,
)
from tests.waiting import until

pytestmark = pytest.mark.timeout(120)

PAYLOADS = [f"entry {number:04} ".encode() * 60 for number in range(40)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(3, tmp_path) as made:
        yield made


async def write(client: LedgerClient, *, digest: DigestType = DigestType.CRC32C) -> int:
    """A closed ledger on all three bookies."""
    writer = await client.create(
        ensemble_size=3, write_quorum=3, ack_quorum=2, digest_type=digest, password=b"secret"
    )
    await asyncio.gather(*map(writer.add, PAYLOADS))
    await writer.close()
    return writer.ledger_id


def with_settings(cluster: Cluster, name: str, **changes: object) -> BookieSettings:
    return cluster.settings_of(name).model_copy(update=changes)


def logs_of(cluster: Cluster, name: str) -> list[Path]:
    directory = cluster.settings_of(name).data_directory / "ledgers" / "entry-logs"
    return sorted(directory.glob("*.log"))


def flip(path: Path, content: bytes) -> int:
    """Change one byte in the middle of `content`, which is there once; returns its offset."""
    data = bytearray(path.read_bytes())
    assert data.count(content) == 1
    at = data.index(content) + len(content) // 2
    data[at] ^= 0x40
    path.write_bytes(data)
    return at


async def flip_on(cluster: Cluster, name: str, entry_id: int, settings: BookieSettings) -> Path:
    """Restart a bookie with a byte of an entry changed in its entry log."""
    await cluster.stop_bookie(name)
    (log,) = logs_of(cluster, name)
    flip(log, PAYLOADS[entry_id])
    await cluster.start_bookie(name, settings)
    return log


async def key_of(client: LedgerClient, ledger_id: int) -> bytes:
    return master_key((await client.manager.read(ledger_id)).metadata.password)


async def read_at(client: LedgerClient, name: str, ledger_id: int, entry_id: int) -> int:
    """The status of one bookie's answer to a read of one entry."""
    key = await key_of(client, ledger_id)
    body = encode_read_body(last_entry_id=entry_id, bytes_max=1 << 20, master_key=key)
    channels = client.channels
    frame = await ask(channels, name, Op.READ, body, ledger_id=ledger_id, entry_id=entry_id)
    if frame.status == Status.OK:
        assert PAYLOADS[entry_id] in frame.body
    return Status(frame.status)


async def add_at(client: LedgerClient, name: str, ledger_id: int) -> int:
    """The status of one bookie's answer to an ordinary add of entry 0."""
    packets = packet_codec(ledger_id).seal(0, -1, 0, [PAYLOADS[0]])
    body = await key_of(client, ledger_id) + encode_block(packets).data
    frame = await ask(client.channels, name, Op.ADD, body, ledger_id=ledger_id, entry_id=0)
    return Status(frame.status)


async def all_at(client: LedgerClient, name: str, ledger_id: int) -> list[int]:
    """The entries that a bookie says it holds."""
    frame = await ask(
        client.channels,
        name,
        Op.LIST_ENTRIES,
        encode_list_entries(1024, master_key=await key_of(client, ledger_id)),
        ledger_id=ledger_id,
        entry_id=0,
    )
    assert frame.status == Status.OK, Status(frame.status)
    return decode_entry_list(frame.body).entry_ids()


async def published(cluster: Cluster, ledger_id: int) -> Missing:
    """What is listed for repair of a ledger, when there is something."""
    path = item_path("/ledgers", ledger_id)
    while True:
        try:
            return decode_item((await cluster.store.get(path)).value, path=path)[0]
        except NoNodeError:
            await asyncio.sleep(0)


async def read_all(client: LedgerClient, ledger_id: int) -> list[bytes]:
    reader = await client.open(ledger_id)
    found: list[bytes] = []
    while len(found) < len(PAYLOADS):
        found += await reader.read(len(found), reader.last_add_confirmed)
    return found


@pytest.mark.parametrize("digest", [DigestType.CRC32C, DigestType.HMAC, DigestType.DUMMY])
async def test_a_flipped_byte_is_reported_and_healed_from_another_bookie(
    cluster: Cluster, digest: DigestType
) -> None:
    async with cluster.client() as client:
        ledger_id = await write(client, digest=digest)
        with capture_logs() as logs:
            settings = with_settings(cluster, "b1", scrub_period_days=0)
            log = await flip_on(cluster, "b1", 17, settings)
            await cluster.wait_known(client, "b1")
            bookie = cluster.bookies["b1"]

            assert await read_at(client, "b1", ledger_id, 17) == Status.IO_ERROR
            assert await read_all(client, ledger_id) == PAYLOADS
            await until(lambda: bookie.metrics.integrity.healed_entries > 0)
        found = [each for each in logs if each["event"] == "damage_found"]
        assert found[0]["path"] == str(log)
        assert found[0]["ledger_id"] == ledger_id
        assert found[0]["first"] <= 17 <= found[0]["last"]
        assert abs(found[0]["offset"] - log.read_bytes().index(PAYLOADS[16])) < 8192
        await until(lambda: bookie.metrics.integrity.heals_waiting == 0)
        assert await read_at(client, "b1", ledger_id, 17) == Status.OK
        # It is the disk that has it, not a cache.
        await cluster.stop_bookie("b1")
        await cluster.start_bookie("b1", settings)
        await cluster.wait_known(client, "b1")
        for entry_id in range(len(PAYLOADS)):
            assert await read_at(client, "b1", ledger_id, entry_id) == Status.OK
        assert cluster.bookies["b1"].metrics.integrity.damages == 0


async def test_the_scrubber_finds_a_flip_that_nobody_read(cluster: Cluster) -> None:
    async with cluster.client() as client:
        ledger_id = await write(client)
        settings = with_settings(cluster, "b1", scrub_period_days=1e-9, heal_retry_s=0.05)
        await flip_on(cluster, "b1", 5, settings)
        metrics = cluster.bookies["b1"].metrics.integrity
        await until(lambda: metrics.healed_entries > 0 and metrics.heals_waiting == 0)
        # Each pass reports it until it is healed; the one under way then may be the last.
        passes = metrics.scrub_passes
        await until(lambda: metrics.scrub_passes > passes)
        damages = metrics.scrub_damages
        assert damages >= 1
        await until(lambda: metrics.scrub_passes > passes + 2)
        assert metrics.scrub_damages == damages, "what is healed is not reported again"
        await cluster.wait_known(client, "b1")
        assert await read_at(client, "b1", ledger_id, 5) == Status.OK


async def test_a_damaged_page_of_an_index_is_healed_and_denies_nothing(cluster: Cluster) -> None:
    async with cluster.client() as client:
        settings = with_settings(cluster, "b4", storage_engine="interleaved", scrub_period_days=0)
        await cluster.start_bookie("b4", settings)
        await cluster.wait_known(client, "b4")
        ledger_id = -1
        while ledger_id < 0:
            writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
            if "b4" in writer.metadata.last_fragment.bookies:
                ledger_id = writer.ledger_id
        await asyncio.gather(*map(writer.add, PAYLOADS))
        await writer.close()
        await cluster.stop_bookie("b4")
        directory = settings.data_directory / "ledgers" / "page-index"
        (path,) = [each for each in directory.rglob("*.idx") if each.stat().st_size > 1000]
        data = bytearray(path.read_bytes())
        data[-100] ^= 1
        path.write_bytes(data)

        bookie = await cluster.start_bookie("b4", settings)
        await cluster.wait_known(client, "b4")
        metrics = bookie.metrics.integrity
        status = {await read_at(client, "b4", ledger_id, entry_id) for entry_id in range(40)}
        assert Status.IO_ERROR in status
        assert status <= {Status.IO_ERROR, Status.OK}
        await until(lambda: metrics.healed_entries >= 40 and metrics.heals_waiting == 0)
        for entry_id in range(40):
            assert await read_at(client, "b4", ledger_id, entry_id) == Status.OK


async def test_a_start_that_checks_everything_heals_before_anybody_asks(cluster: Cluster) -> None:
    async with cluster.client() as client:
        ledger_id = await write(client)
        settings = with_settings(cluster, "b1", scrub_period_days=0, local_consistency_check=True)
        await flip_on(cluster, "b1", 31, settings)
        metrics = cluster.bookies["b1"].metrics.integrity
        assert metrics.damages == 1
        await until(lambda: metrics.heals_waiting == 0)
        assert metrics.healed_entries > 0
        await cluster.wait_known(client, "b1")
        assert await read_at(client, "b1", ledger_id, 31) == Status.OK


async def test_what_nobody_else_has_is_an_error_and_is_listed_for_repair(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with cluster.client() as client:
        ledger_id = await write(client)
        settings = with_settings(
            cluster, "b1", scrub_period_days=0, heal_retry_s=0.01, heal_attempts_max=2
        )
        await flip_on(cluster, "b1", 9, settings)
        await cluster.wait_known(client, "b1")
        await cluster.stop_bookie("b2")
        await cluster.stop_bookie("b3")
        metrics = cluster.bookies["b1"].metrics.integrity
        assert await read_at(client, "b1", ledger_id, 9) == Status.IO_ERROR
        await until(lambda: metrics.heals_failing == 1)
        assert await read_at(client, "b1", ledger_id, 9) == Status.IO_ERROR
        assert metrics.healed_entries == 0
        missing = await published(cluster, ledger_id)
        (first, last) = missing["b1"][0]
        assert first <= 9 <= last

        # One of them comes back: what could not be healed is.
        await cluster.start_bookie("b2")
        await until(lambda: metrics.heals_failing == 0 and metrics.heals_waiting == 0)
        assert await read_at(client, "b1", ledger_id, 9) == Status.OK


async def test_a_copy_that_is_damaged_itself_heals_nothing(cluster: Cluster) -> None:
    async with cluster.client() as client:
        ledger_id = await write(client)
        quiet = with_settings(cluster, "b2", scrub_period_days=0, heal_retry_s=600)
        await cluster.stop_bookie("b3")
        await flip_on(cluster, "b2", 9, quiet)
        settings = with_settings(cluster, "b1", scrub_period_days=0, heal_retry_s=0.05)
        await flip_on(cluster, "b1", 9, settings)
        await cluster.wait_known(client, "b1", "b2")
        metrics = cluster.bookies["b1"].metrics.integrity
        assert await read_at(client, "b1", ledger_id, 9) == Status.IO_ERROR
        await until(lambda: metrics.heal_attempts >= 2)
        assert await read_at(client, "b1", ledger_id, 9) == Status.IO_ERROR
        await cluster.start_bookie("b3")
        await until(lambda: metrics.heals_waiting == 0)
        assert await read_at(client, "b1", ledger_id, 9) == Status.OK


# Loss


def wipe(cluster: Cluster, name: str) -> None:
    shutil.rmtree(cluster.settings_of(name).data_directory)


async def wiped(cluster: Cluster, name: str, **changes: object) -> Bookie:
    """A bookie that comes back under its id with empty directories."""
    wipe(cluster, name)
    with pytest.raises(CookieError, match="integrity_stamp_missing_cookies"):
        await cluster.start_bookie(name)
    settings = with_settings(cluster, name, integrity_stamp_missing_cookies=True, **changes)
    return await cluster.start_bookie(name, settings)


async def test_b24_a_wiped_bookie_comes_back_complete_under_its_id(cluster: Cluster) -> None:
    async with cluster.client() as client:
        closed = await write(client)
        open_writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await asyncio.gather(*map(open_writer.add, PAYLOADS[:20]))
        left_open = open_writer.ledger_id
        await client.close()

    await cluster.stop_bookie("b1")
    bookie = await wiped(cluster, "b1", heal_retry_s=0.05)
    metrics = bookie.metrics.integrity
    mark = cluster.settings_of("b1").data_directory / "ledgers" / "integrity-check"
    async with cluster.client() as client:
        await until(lambda: metrics.check_needed == 0 and metrics.recovered_ledgers == 1)
        assert metrics.limbo_ledgers == 0
        assert metrics.copied_entries == 40, "recovery wrote the others back"
        assert not mark.exists()
        assert await all_at(client, "b1", closed) == list(range(40))
        assert await all_at(client, "b1", left_open) == list(range(20))
        metadata = (await client.manager.read(left_open)).metadata
        assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 19)
        await cluster.stop_bookie("b2")
        await cluster.stop_bookie("b3")
        assert await read_all(client, closed) == PAYLOADS


@pytest.mark.parametrize("layout", get_args(LayoutName))
async def test_a_wiped_bookie_is_made_whole_wherever_the_cluster_keeps_its_ledgers(
    cluster: Cluster, layout: LayoutName
) -> None:
    settings = CLIENT_SETTINGS.model_copy(update={"ledger_manager": layout})
    async with cluster.client(settings=settings) as client:
        ledger_id = await write(client)
        await cluster.stop_bookie("b1")
        bookie = await wiped(cluster, "b1", heal_retry_s=0.05)
        await until(lambda: bookie.metrics.integrity.check_needed == 0)
        await cluster.wait_known(client, "b1")
        assert await all_at(client, "b1", ledger_id) == list(range(40))


async def test_a_wiped_bookie_gets_back_its_share_of_striped_ledgers(cluster: Cluster) -> None:
    async with cluster.client() as client:
        writer = await client.create(ensemble_size=3, write_quorum=2, ack_quorum=2)
        await asyncio.gather(*map(writer.add, PAYLOADS))
        await writer.close()
        before = await all_at(client, "b1", writer.ledger_id)
        assert len(before) in (26, 27)
        await cluster.stop_bookie("b1")
        bookie = await wiped(cluster, "b1")
        await until(lambda: bookie.metrics.integrity.check_needed == 0)
        await cluster.wait_known(client, "b1")
        assert await all_at(client, "b1", writer.ledger_id) == before


async def test_d14_a_wiped_bookie_denies_nothing_while_it_is_not_complete(
    cluster: Cluster,
) -> None:
    """e0 to e4 were acknowledged by b1 and b3, b2 has none of them; b1 is wiped, b3 is away."""
    async with cluster.client() as client:
        writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await cluster.stop_bookie("b2")
        await asyncio.gather(*map(writer.add, PAYLOADS[:5]))
        ledger_id = writer.ledger_id
        await client.close()
    await cluster.start_bookie("b2")
    await cluster.stop_bookie("b3")
    await cluster.stop_bookie("b1")
    bookie = await wiped(cluster, "b1", heal_retry_s=0.02)
    metrics = bookie.metrics.integrity
    async with cluster.client() as client:
        await until(lambda: metrics.check_failures >= 2)
        assert await read_at(client, "b1", ledger_id, 0) == Status.UNKNOWN_LEDGER_STATE
        with pytest.raises(RecoveryUndecidedError):
            await client.open_and_recover(ledger_id)

        # A restart in the middle forgets nothing of it.
        await cluster.stop_bookie("b1")
        bookie = await cluster.start_bookie("b1")
        metrics = bookie.metrics.integrity
        await cluster.wait_known(client, "b1")
        assert await read_at(client, "b1", ledger_id, 0) == Status.UNKNOWN_LEDGER_STATE

        await cluster.start_bookie("b3")
        await until(lambda: metrics.check_needed == 0 and metrics.recovered_ledgers > 0)
        reader = await client.open_and_recover(ledger_id)
        assert reader.last_add_confirmed == 4
        assert await all_at(client, "b1", ledger_id) == [0, 1, 2, 3, 4]


async def test_d16_a_wiped_bookie_takes_no_ordinary_adds_for_what_it_may_have_fenced(
    cluster: Cluster,
) -> None:
    async with cluster.client() as client:
        writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=3)
        await writer.add(PAYLOADS[0])
        ledger_id = writer.ledger_id
        for name in ("b2", "b3"):
            await cluster.stop_bookie(name)
        await cluster.stop_bookie("b1")
        bookie = await wiped(cluster, "b1", heal_retry_s=600)
        state = bookie.parts.storage.state(ledger_id)
        assert state is not None
        assert (state.limbo, state.fenced) == (True, True)


async def test_d16_a_wiped_bookie_refuses_writers_that_slept_through_a_recovery(
    cluster: Cluster,
) -> None:
    """The bookie was fenced for a ledger that does not even name it any more."""
    async with cluster.client() as client:
        elsewhere: list[LedgerWriter] = []
        while len(elsewhere) < 2:
            writer = await client.create(ensemble_size=2, write_quorum=2, ack_quorum=2)
            if "b1" not in writer.metadata.last_fragment.bookies:
                elsewhere.append(writer)
        closed, still_open = elsewhere
        await closed.close()
        await cluster.stop_bookie("b1")
        await wiped(cluster, "b1")
        await cluster.wait_known(client, "b1")
        new = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=3)
        assert await add_at(client, "b1", closed.ledger_id) == Status.FENCED
        assert await add_at(client, "b1", still_open.ledger_id) == Status.OK
        assert await add_at(client, "b1", new.ledger_id) == Status.OK

        # Also after another start, when nothing speaks of the loss any more.
        await cluster.stop_bookie("b1")
        await cluster.start_bookie("b1")
        await cluster.wait_known(client, "b1")
        assert await add_at(client, "b1", closed.ledger_id) == Status.FENCED


@pytest.mark.parametrize("lost", ["journal", "ledgers-2"])
async def test_b24_one_lost_disk_of_several_is_a_loss_and_is_made_good(
    cluster: Cluster, tmp_path: Path, lost: str
) -> None:
    """A ledger directory, or a journal that was still needed; the others are as they were."""
    disks = {name: tmp_path / "disks" / name for name in ("journal", "ledgers-1", "ledgers-2")}
    places = with_settings(
        cluster,
        "b4",
        journal_directories=(disks["journal"],),
        ledger_directories=(disks["ledgers-1"], disks["ledgers-2"]),
        heal_retry_s=0.05,
    )
    await cluster.start_bookie("b4", places)
    async with cluster.client() as client:
        await cluster.wait_known(client, "b4")
        ledgers: list[int] = []
        while len(ledgers) < 4:
            writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
            if "b4" in writer.metadata.last_fragment.bookies:
                await asyncio.gather(*map(writer.add, PAYLOADS))
                await writer.close()
                ledgers.append(writer.ledger_id)
        assert {each % 2 for each in ledgers} == {0, 1}
        await cluster.stop_bookie("b4")

        shutil.rmtree(disks[lost])
        with pytest.raises(CookieError, match=lost):
            await cluster.start_bookie("b4", places)
        restored = places.model_copy(update={"integrity_stamp_missing_cookies": True})
        bookie = await cluster.start_bookie("b4", restored)
        metrics = bookie.metrics.integrity
        await until(lambda: metrics.check_needed == 0)
        assert metrics.check_failures == 0
        await cluster.wait_known(client, "b4")
        for ledger_id in ledgers:
            assert await all_at(client, "b4", ledger_id) == list(range(40))
        copied = sum(each % 2 for each in ledgers) * 40 if lost == "ledgers-2" else 0
        assert metrics.copied_entries == copied, "what is there is not fetched again"
        await cluster.stop_bookie("b4")
        await cluster.start_bookie("b4", places)


@pytest.mark.parametrize("engine", ["db", "interleaved"])
async def test_an_index_made_anew_from_the_logs_denies_nothing_and_is_made_whole(
    cluster: Cluster, engine: EngineKind
) -> None:
    settings = with_settings(cluster, "b4", storage_engine=engine, heal_retry_s=0.05)
    await cluster.start_bookie("b4", settings)
    async with cluster.client() as client:
        await cluster.wait_known(client, "b4")
        ledgers: list[int] = []
        while len(ledgers) < 2:
            writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
            if "b4" in writer.metadata.last_fragment.bookies:
                await asyncio.gather(*map(writer.add, PAYLOADS))
                await writer.close()
                ledgers.append(writer.ledger_id)
        empty = await client.create(ensemble_size=4, write_quorum=4, ack_quorum=3)
        await empty.close()
        await cluster.stop_bookie("b4")
        directory = str(settings.data_directory / "ledgers")
        shutil.rmtree(index_path(directory, engine))
        with pytest.raises(StorageError):
            await cluster.start_bookie("b4", settings)
        rebuilt = rebuild_index(directory, engine, disk=SystemDisk(), clock=SystemClock())
        assert not rebuilt.are_states_complete
        bookie = await cluster.start_bookie("b4", settings)
        state = bookie.parts.storage.state(empty.ledger_id)
        assert state is not None, "the metadata knows what no log does"
        assert state.fenced
        metrics = bookie.metrics.integrity
        await until(lambda: metrics.check_needed == 0)
        assert metrics.copied_entries == 0
        await cluster.wait_known(client, "b4")
        for ledger_id in ledgers:
            assert await all_at(client, "b4", ledger_id) == list(range(40))
