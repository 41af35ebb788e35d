"""One bookie on real files and sockets: adds, fences, reads, restarts, refusals to start."""

import asyncio
import errno
import json
import os
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.cookie import read_cookie
from magnetar.bookie.engine.entry_storage import EntryStorage
from magnetar.bookie.errors import (
    CookieError,
    DirectoryLockedError,
    JournalCorruptError,
    JournalFailedError,
    JournalFileMissingError,
    PortTakenError,
)
from magnetar.bookie.journaling.journal_format import file_ids, file_name, spare_names
from magnetar.bookie.server import BookieConnection, BookieServer
from magnetar.bookie.settings import BookieSettings
from magnetar.ledger.metadata.store import MetadataStore, SessionCallback, SessionState, Watch
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.registration import BookieRegistry
from magnetar.ledger.system import SystemClock, SystemDisk, SystemNetwork
from magnetar.ledger.wire import Flag, Frame, Op, Status
from tests.bookie_parts import (
    KEY,
    BookieClient,
    FailingDisk,
    add_request,
    encode_request,
    packets_in,
    packets_of,
    read_lac_request,
    read_request,
)

LEDGER = 7


@dataclass
class Machine:
    """A metadata store and a data directory; bookies come and go on them."""

    store: MetadataStore
    directory: Path
    disk: SystemDisk = field(default_factory=SystemDisk)
    options: dict[str, object] = field(default_factory=dict)
    fatal: list[BaseException] = field(default_factory=list)

    @property
    def data(self) -> Path:
        return self.directory / "b1"

    @property
    def journal(self) -> Path:
        return self.data / "journal"

    def journal_files(self) -> list[Path]:
        """Spares are not among them."""
        ids = file_ids(os.listdir(self.journal))
        return [self.journal / file_name(file_id) for file_id in ids]

    def make(self, **options: object) -> Bookie:
        values: dict[str, object] = {
            "bookie_id": "b1",
            "data_directory": self.data,
            "port": 0,
            "registration_wait_s": 0.2,
            **self.options,
            **options,
        }
        return Bookie(
            BookieSettings.model_validate(values),
            self.store,
            clock=SystemClock(),
            network=SystemNetwork(),
            disk=self.disk,
            random=random.Random(),
            on_fatal=self.fatal.append,
        )

    @asynccontextmanager
    async def bookie(self, **options: object) -> AsyncIterator[tuple[Bookie, BookieClient]]:
        bookie = self.make(**options)
        await bookie.start()
        client = await BookieClient.connect(bookie.port)
        try:
            yield bookie, client
        finally:
            client.close()
            await bookie.stop()


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    store = await open_store(f"embedded:{tmp_path / 'metadata.db'}")
    yield Machine(store, tmp_path)
    await store.close()


async def add(client: BookieClient, first: int, count: int = 1, ledger: int = LEDGER) -> Frame:
    return await client.ask(lambda i: add_request(i, ledger, first, count))


async def read(client: BookieClient, first: int, last: int, ledger: int = LEDGER) -> Frame:
    return await client.ask(lambda i: read_request(i, ledger, first, last))


async def fence(client: BookieClient, ledger: int = LEDGER) -> Frame:
    return await client.ask(lambda i: read_lac_request(i, ledger, fence_key=KEY))


# Service


async def test_what_was_added_is_read_back(machine: Machine) -> None:
    async with machine.bookie() as (_, client):
        assert (await add(client, 0, 10)).status == Status.OK
        assert packets_in(await read(client, 2, 5)) == packets_of(LEDGER, 0, 10)[2:6]


async def test_everything_survives_a_restart(machine: Machine) -> None:
    async with machine.bookie() as (_, client):
        await add(client, 0, 10)
        await fence(client)
    async with machine.bookie() as (_, client):
        assert packets_in(await read(client, 0, 9)) == packets_of(LEDGER, 0, 10)
        assert (await add(client, 10)).status == Status.FENCED
        reply = await client.ask(lambda i: read_lac_request(i, LEDGER))
        packet = packets_of(LEDGER, 0, 10)[9]
        assert reply.body == len(packet).to_bytes(4, "big") + packet + bytes(4)
        assert reply.flags == Flag.FENCED


async def test_an_orderly_stop_leaves_nothing_to_replay(machine: Machine) -> None:
    async with machine.bookie() as (bookie, client):
        await add(client, 0, 10)
        assert bookie.metrics.journal_groups == 1
    assert len(machine.journal_files()) == 1
    async with machine.bookie() as (bookie, _):
        assert bookie.metrics.checkpoints == 0


async def test_a_stop_waits_until_its_connections_are_gone(machine: Machine) -> None:
    async with machine.bookie() as (bookie, _):
        await bookie.stop()
        assert bookie.metrics.connections == 0


async def test_b4_a_checkpoint_with_only_a_fence_flushes_it(machine: Machine) -> None:
    async with machine.bookie() as (bookie, client):
        await fence(client)
    assert bookie.metrics.checkpoints == 1
    # What is before the mark must not be needed: spoil it, and start.
    (path,) = machine.journal_files()
    data = bytearray(path.read_bytes())
    data[80:90] = bytes(10)
    path.write_bytes(data)
    async with machine.bookie() as (_, client):
        assert (await add(client, 0)).status == Status.FENCED


async def test_old_journal_files_are_deleted_or_kept_as_spares_by_checkpoints(
    machine: Machine,
) -> None:
    async with machine.bookie(
        journal_file_bytes_max=4096, journal_preallocate_bytes=0, write_cache_bytes_max=64 << 10
    ) as (bookie, client):
        for i in range(200):
            reply = await client.ask(lambda r: add_request(r, LEDGER, i, payload=b"x" * 1000))  # noqa: B023
            assert reply.status == Status.OK
        assert bookie.metrics.checkpoints >= 3
        names = [path.name for path in machine.journal.iterdir()]
        assert len(names) < 40
        assert len(spare_names(names)) <= 4
    async with machine.bookie() as (_, client):
        assert len(packets_in(await read(client, 0, 199))) == 200


async def test_an_idle_bookie_writes_nothing(machine: Machine) -> None:
    async with machine.bookie():
        assert machine.journal_files() == []


async def test_info(machine: Machine) -> None:
    async with machine.bookie() as (_, client):
        reply = await client.ask(lambda i: Frame(Op.INFO, False, 0, 0, i, -1, -1, b""))
        facts = json.loads(reply.body)
        assert facts["bookie_id"] == "b1"
        assert facts["writable"] is True
        assert facts["free_bytes"] > 0


async def test_a_bookie_is_registered_while_it_runs(machine: Machine) -> None:
    registry = BookieRegistry(machine.store)
    async with machine.bookie() as (bookie, _):
        await registry.start()
        info = registry.resolve("b1")
        assert info is not None
        assert (info.host, info.port, info.readonly) == ("127.0.0.1", bookie.port, False)
        await registry.close()
    await registry.start()
    assert registry.resolve("b1") is None
    await registry.close()


async def test_a_bookie_registers_again_when_its_session_was_lost(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    listeners: list[SessionCallback] = []
    subscribe = machine.store.on_session_change

    def remember(callback: SessionCallback) -> Watch:
        listeners.append(callback)
        return subscribe(callback)

    monkeypatch.setattr(machine.store, "on_session_change", remember)
    registry = BookieRegistry(machine.store)
    changed = asyncio.Event()
    registry.on_change(changed.set)
    async with machine.bookie():
        (tell,) = listeners
        await registry.start()
        tell(SessionState.EXPIRED)
        await registry.unregister("b1")
        tell(SessionState.SUSPENDED)
        tell(SessionState.CONNECTED)
        while registry.resolve("b1") is None:
            changed.clear()
            await changed.wait()
        await registry.close()


async def test_a_bookie_that_lost_its_identity_with_its_session_gives_up(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    listeners: list[SessionCallback] = []
    subscribe = machine.store.on_session_change

    def remember(callback: SessionCallback) -> Watch:
        listeners.append(callback)
        return subscribe(callback)

    monkeypatch.setattr(machine.store, "on_session_change", remember)
    async with machine.bookie() as (_, client):
        (tell,) = listeners
        await machine.store.delete("/ledgers/cookies/b1")
        tell(SessionState.EXPIRED)
        tell(SessionState.CONNECTED)
        await client.wait_closed()
        assert [type(error) for error in machine.fatal] == [CookieError]


async def test_a_bookie_whose_disk_is_out_of_order_for_a_moment_registers_later(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    listeners: list[SessionCallback] = []
    subscribe = machine.store.on_session_change

    def remember(callback: SessionCallback) -> Watch:
        listeners.append(callback)
        return subscribe(callback)

    read_file = machine.disk.read_file
    failures: list[str] = []

    def fail_once(path: str) -> bytes:
        if failures:
            return read_file(path)
        failures.append(path)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(machine.store, "on_session_change", remember)
    registry = BookieRegistry(machine.store)
    changed = asyncio.Event()
    registry.on_change(changed.set)
    async with machine.bookie():
        (tell,) = listeners
        await registry.start()
        await registry.unregister("b1")
        monkeypatch.setattr(machine.disk, "read_file", fail_once)
        tell(SessionState.EXPIRED)
        tell(SessionState.CONNECTED)
        async with asyncio.timeout(10):
            while registry.resolve("b1") is None or not failures:
                changed.clear()
                await changed.wait()
        await registry.close()


async def test_a_bookie_whose_checkpoints_have_a_bug_ends(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def flush(self: EntryStorage, *, is_gentle: bool = False) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(EntryStorage, "flush", flush)
    async with machine.bookie(flush_interval_s=0.1) as (_, client):
        await add(client, 0)
        async with asyncio.timeout(10):
            await client.wait_closed()
    assert [str(error) for error in machine.fatal] == ["a bug"]


async def test_adds_wait_for_room_in_the_write_cache(machine: Machine) -> None:
    """Far more than the cache holds, all at once: slower, but every add is stored."""
    async with machine.bookie(write_cache_bytes_max=64 << 10) as (bookie, client):
        for i in range(300):
            client.send(add_request(i, LEDGER, i, payload=b"x" * 4000))
        for i in range(300):
            assert (await client.reply(i)).status == Status.OK
        assert bookie.metrics.stalls > 0


async def test_a_full_journal_queue_only_slows_down(machine: Machine) -> None:
    async with machine.bookie(journal_queue_bytes_max=20_000, journal_group_bytes_max=4_000) as (
        _,
        client,
    ):
        for i in range(500):
            client.send(add_request(i, LEDGER, i, payload=b"x" * 1000))
        for i in range(500):
            assert (await client.reply(i)).status == Status.OK


async def test_a_client_that_does_not_take_its_replies_is_not_read(machine: Machine) -> None:
    async with machine.bookie(
        connection_buffer_bytes_max=10_000, connection_read_bytes_max=50_000
    ) as (bookie, client):
        for i in range(20):
            reply = await client.ask(lambda r: add_request(r, LEDGER, i, payload=b"x" * 100_000))  # noqa: B023
            assert reply.status == Status.OK
        reader, writer = await asyncio.open_connection("127.0.0.1", bookie.port)
        # 200 MB of replies are asked for at once, and nobody reads.
        requests = [read_request(i, LEDGER, 0, 19) for i in range(200)]
        writer.write(b"".join(map(encode_request, requests)))
        await client.ask(lambda i: read_request(i, LEDGER, 0))
        assert bookie.metrics.read_requests < 100
        received = 0
        while received < 200 * 1_000_000:
            received += len(await reader.read(1 << 20))
        writer.close()


async def test_b23_reads_of_many_connections_hold_a_bounded_amount_of_memory(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection alone is within its limits; together they ask for far more."""
    charges: list[int] = []
    held = BookieServer.on_reads_bytes

    def note(self: BookieServer, change: int) -> None:
        held(self, change)
        charges.append(self.metrics.reads_pending_bytes)

    monkeypatch.setattr(BookieServer, "on_reads_bytes", note)
    one = 1 << 20
    async with machine.bookie(reads_bytes_max=4 * one, read_cache_bytes_max=0) as (bookie, client):
        for i in range(20):
            reply = await client.ask(lambda r: add_request(r, LEDGER, i, payload=b"x" * 100_000))  # noqa: B023
            assert reply.status == Status.OK
        await bookie.parts.checkpointer.checkpoint()
        others = [await BookieClient.connect(bookie.port) for _ in range(20)]
        for other in others:
            for i in range(10):
                other.send(read_request(i, LEDGER, i, i, bytes_max=one))
        for other in others:
            for i in range(10):
                assert (await other.reply(i)).status == Status.OK
            other.close()
        assert 3 * one <= max(charges) <= 4 * one
        assert bookie.metrics.reads_pending_bytes == 0


async def test_b23_clients_that_take_no_replies_are_cut_when_they_hold_too_much(
    machine: Machine,
) -> None:
    """Many idle receivers, each within its buffer, are no way to use up the memory."""
    limits = {"connection_buffer_bytes_max": 100_000, "replies_bytes_max": 300_000}
    async with machine.bookie(**limits) as (bookie, client):
        for i in range(20):
            reply = await client.ask(lambda r: add_request(r, LEDGER, i, payload=b"x" * 100_000))  # noqa: B023
            assert reply.status == Status.OK
        request = b"".join(encode_request(read_request(i, LEDGER, 0, 19)) for i in range(20))
        lazy: list[asyncio.StreamWriter] = []
        for _ in range(5):
            _, writer = await asyncio.open_connection("127.0.0.1", bookie.port)
            writer.write(request)
            lazy.append(writer)
        async with asyncio.timeout(10):
            while bookie.metrics.slow_clients_cut < 2:
                assert (await add(client, 100)).status == Status.OK
        for writer in lazy:
            writer.close()
        assert (await add(client, 101)).status == Status.OK


# Bad input


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: bookie\r\n\r\n" + bytes(40),
        bytes(64),
        b"\xff" * 64,
        b"\0\0\0\x1e\x4d\x42\x09" + bytes(40),
        encode_request(Frame(Op.ADD, False, 0, 0, 1, 1, 0, KEY + b"\0\0\0\7")),
        encode_request(Frame(Op.ADD, False, 0, 0, 1, 1, 0, b"")),
        encode_request(Frame(Op.READ, False, 0, 0, 1, 1, 0, b"xx")),
        (100 << 20).to_bytes(4, "big") + b"\x4d\x42\x01" + bytes(40),
    ],
    ids=["http", "zeros", "ones", "version", "bad block", "no block", "bad read", "too large"],
)
async def test_a_malformed_frame_ends_its_connection_only(machine: Machine, data: bytes) -> None:
    async with machine.bookie() as (bookie, client):
        bad = await BookieClient.connect(bookie.port)
        bad.write(data)
        await bad.wait_closed()
        assert (await add(client, 0)).status == Status.OK
        assert bookie.metrics.malformed_frames == 1


async def test_a_request_of_another_version_is_answered_so_and_ends_its_connection(
    machine: Machine,
) -> None:
    async with machine.bookie() as (bookie, client):
        later = await BookieClient.connect(bookie.port)
        request = bytearray(encode_request(add_request(77, LEDGER, 0)))
        request[6] = 2  # the version, in the header
        later.write(bytes(request))
        reply = await later.reply(77)
        assert (reply.op, reply.status) == (Op.ADD, Status.BAD_VERSION)
        assert (reply.ledger_id, reply.entry_id) == (LEDGER, 0)
        assert reply.body == (
            b"a frame of the bookie protocol in version 2; this release speaks version 1"
        )
        await later.wait_closed()
        assert (await add(client, 0)).status == Status.OK


async def test_connections_beyond_the_limit_are_closed(machine: Machine) -> None:
    async with machine.bookie(connections_max=1) as (bookie, client):
        other = await BookieClient.connect(bookie.port)
        await other.wait_closed()
        assert (await add(client, 0)).status == Status.OK


async def test_a_client_whose_machine_is_gone_does_not_stay_connected_for_ever(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends no FIN, and a bookie has nothing to send to it: the system has to ask."""
    accepted: list[asyncio.BaseTransport] = []
    connection_made = BookieConnection.connection_made

    def noting(connection: BookieConnection, transport: asyncio.BaseTransport) -> None:
        accepted.append(transport)
        connection_made(connection, transport)

    monkeypatch.setattr(BookieConnection, "connection_made", noting)
    async with machine.bookie() as (_, client):
        assert (await add(client, 0)).status == Status.OK
        (transport,) = accepted
        beneath = transport.get_extra_info("socket")
        assert beneath.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


async def test_a_connection_that_ends_in_the_middle_of_a_frame_harms_nobody(
    machine: Machine,
) -> None:
    async with machine.bookie() as (bookie, client):
        half = await BookieClient.connect(bookie.port)
        half.write(encode_request(add_request(1, LEDGER, 0))[:50])
        half.close()
        assert (await add(client, 0)).status == Status.OK


async def test_a_client_that_leaves_with_adds_under_way_harms_nobody(machine: Machine) -> None:
    async with machine.bookie() as (bookie, client):
        leaver = await BookieClient.connect(bookie.port)
        for i in range(50):
            leaver.send(add_request(i, LEDGER + 1, i))
        await leaver.reply(0)
        leaver.close()
        assert (await add(client, 0)).status == Status.OK


# A full or failing journal disk


async def test_a_full_journal_disk_fails_adds_and_loses_nothing(machine: Machine) -> None:
    disk = machine.disk = FailingDisk()
    async with machine.bookie() as (_, client):
        assert (await add(client, 0, 5)).status == Status.OK
        disk.bytes_left = 100
        refused = await add(client, 5, 5)
        assert refused.status == Status.IO_ERROR
        assert b"no space left on the journal disk" in refused.body
        other = LEDGER + 1
        assert (await fence(client, other)).status == Status.IO_ERROR
        assert (await add(client, 0, ledger=other)).status == Status.IO_ERROR
        disk.bytes_left = 1 << 30
        assert (await add(client, 5, 5)).status == Status.OK
        assert (await fence(client, other)).flags == Flag.FENCED
    async with machine.bookie() as (_, client):
        assert packets_in(await read(client, 0, 9)) == packets_of(LEDGER, 0, 5) + packets_of(
            LEDGER, 5, 5
        )
        assert (await add(client, 0, ledger=LEDGER + 1)).status == Status.FENCED


async def test_a_failed_sync_ends_the_bookie_without_an_answer(machine: Machine) -> None:
    disk = machine.disk = FailingDisk()
    async with machine.bookie() as (bookie, client):
        assert (await add(client, 0)).status == Status.OK
        disk.sync_error = errno.EIO
        with pytest.raises(ConnectionError):
            await add(client, 1)
        assert [type(error) for error in machine.fatal] == [JournalFailedError]
        late = await BookieClient.connect(bookie.port)
        await late.wait_closed()
        disk.sync_error = None
    async with machine.bookie() as (_, client):
        assert (await read(client, 0, 0)).status == Status.OK


# Refusals to start


async def refusal(machine: Machine, kind: type[Exception], **options: object) -> str:
    """Start, expect the error, and check that nothing is left behind; returns its text."""
    bookie = machine.make(**options)
    with pytest.raises(kind) as raised:
        await bookie.start()
    await bookie.stop()
    text = str(raised.value)
    assert "\n" not in text
    return text


async def test_a_locked_directory_is_refused(machine: Machine) -> None:
    async with machine.bookie():
        assert str(machine.data) in await refusal(machine, DirectoryLockedError)


async def test_a_taken_port_is_refused_and_the_directory_is_free_again(machine: Machine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert str(port) in await refusal(machine, PortTakenError, port=port)
    async with machine.bookie() as (_, client):
        assert (await add(client, 0)).status == Status.OK


async def test_b24_an_emptied_directory_is_refused(machine: Machine) -> None:
    async with machine.bookie() as (_, client):
        await add(client, 0)
    os.rename(machine.data, machine.directory / "elsewhere")
    assert "new bookie id" in await refusal(machine, CookieError)


async def test_a_directory_without_its_cookie_is_refused(machine: Machine) -> None:
    async with machine.bookie() as (_, client):
        await add(client, 0)
    (machine.data / "cookie").unlink()
    assert "cookie" in await refusal(machine, CookieError)


async def test_another_bookie_id_is_refused(machine: Machine) -> None:
    async with machine.bookie():
        pass
    assert "belongs to bookie b1" in await refusal(machine, CookieError, bookie_id="b2")


async def test_another_cluster_is_refused(machine: Machine) -> None:
    async with machine.bookie():
        pass
    other = await open_store(f"embedded:{machine.directory / 'other.db'}")
    try:
        elsewhere = Machine(other, machine.directory)
        assert "another cluster" in await refusal(elsewhere, CookieError)
    finally:
        await other.close()


async def test_the_cookie_can_be_read(machine: Machine) -> None:
    assert read_cookie(SystemDisk(), str(machine.data)) is None
    async with machine.bookie():
        pass
    cookie = read_cookie(SystemDisk(), str(machine.data))
    assert cookie is not None
    assert cookie.bookie_id == "b1"


async def leave_to_replay(machine: Machine) -> None:
    """Make a journal with records behind the mark, as a crash leaves it."""
    disk = machine.disk = FailingDisk()
    async with machine.bookie(flush_interval_s=3600, journal_file_bytes_max=2048) as (_, client):
        for i in range(10):
            await add(client, i)
        disk.sync_error = errno.EIO
        with pytest.raises(ConnectionError):
            await add(client, 10)
    machine.disk = SystemDisk()


async def test_records_behind_the_mark_are_replayed(machine: Machine) -> None:
    await leave_to_replay(machine)
    async with machine.bookie() as (_, client):
        assert len(packets_in(await read(client, 0, 9))) == 10


async def test_a_damaged_journal_is_refused(machine: Machine) -> None:
    await leave_to_replay(machine)
    path = min(machine.journal_files())
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    assert path.name in await refusal(machine, JournalCorruptError)


async def test_a_missing_journal_file_is_refused(machine: Machine) -> None:
    async with machine.bookie() as (_, client):
        await add(client, 0)
    (file_id,) = file_ids(os.listdir(machine.journal))
    (machine.journal / file_name(file_id)).unlink()
    assert file_name(file_id) in await refusal(machine, JournalFileMissingError)
