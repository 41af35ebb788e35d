"""One bookie on real files and sockets: adds, fences, reads, restarts, a failing disk."""

import asyncio
import errno
import json

import pytest

from magnetar.bookie.engine.entry_storage import EntryStorage
from magnetar.bookie.errors import (
    JournalFailedError,
)
from magnetar.bookie.journaling.journal_format import spare_names
from magnetar.ledger.hello import HELLO_ID, BookieIdentity, decode_identity, encode_hello
from magnetar.ledger.wire import Flag, Frame, Op, Status
from tests.bookie_parts import (
    BookieClient,
    FailingDisk,
    add_request,
    encode_request,
    packets_in,
    packets_of,
    read_lac_request,
)
from tests.integration.bookie.bookie_machine import BookieMachine, add, fence, read

LEDGER = 7


async def test_what_was_added_is_read_back(machine: BookieMachine) -> None:
    async with machine.bookie() as (_, client):
        assert (await add(client, LEDGER, 0, 10)).status == Status.OK
        assert packets_in(await read(client, LEDGER, 2, 5)) == packets_of(LEDGER, 0, 10)[2:6]


async def test_everything_survives_a_restart(machine: BookieMachine) -> None:
    async with machine.bookie() as (_, client):
        await add(client, LEDGER, 0, 10)
        await fence(client, LEDGER)
    async with machine.bookie() as (_, client):
        assert packets_in(await read(client, LEDGER, 0, 9)) == packets_of(LEDGER, 0, 10)
        assert (await add(client, LEDGER, 10)).status == Status.FENCED
        reply = await client.ask(lambda i: read_lac_request(i, LEDGER))
        packet = packets_of(LEDGER, 0, 10)[9]
        assert reply.body == len(packet).to_bytes(4, "big") + packet + bytes(4)
        assert reply.flags == Flag.FENCED


async def test_an_orderly_stop_leaves_nothing_to_replay(machine: BookieMachine) -> None:
    async with machine.bookie() as (bookie, client):
        await add(client, LEDGER, 0, 10)
        assert bookie.metrics.journal_groups == 1
    assert len(machine.journal_files()) == 1
    async with machine.bookie() as (bookie, _):
        assert bookie.metrics.checkpoints == 0


async def test_a_stop_waits_until_its_connections_are_gone(machine: BookieMachine) -> None:
    async with machine.bookie() as (bookie, _):
        await bookie.stop()
        assert bookie.metrics.connections == 0


async def test_b4_a_checkpoint_with_only_a_fence_flushes_it(machine: BookieMachine) -> None:
    async with machine.bookie() as (bookie, client):
        await fence(client, LEDGER)
    assert bookie.metrics.checkpoints == 1
    # What is before the mark must not be needed: spoil it, and start.
    (path,) = machine.journal_files()
    data = bytearray(path.read_bytes())
    data[80:90] = bytes(10)
    path.write_bytes(data)
    async with machine.bookie() as (_, client):
        assert (await add(client, LEDGER, 0)).status == Status.FENCED


async def test_old_journal_files_are_deleted_or_kept_as_spares_by_checkpoints(
    machine: BookieMachine,
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
        assert len(packets_in(await read(client, LEDGER, 0, 199))) == 200


async def test_an_idle_bookie_writes_nothing(machine: BookieMachine) -> None:
    async with machine.bookie():
        assert machine.journal_files() == []


async def test_info(machine: BookieMachine) -> None:
    async with machine.bookie() as (_, client):
        reply = await client.ask(lambda i: Frame(Op.INFO, False, 0, 0, i, -1, -1, b""))
        facts = json.loads(reply.body)
        assert facts["bookie_id"] == "b1"
        assert facts["writable"] is True
        assert facts["free_bytes"] > 0


@pytest.mark.parametrize("meant", [BookieIdentity("b2", ""), BookieIdentity("b1", "0" * 32)])
async def test_who_means_another_bookie_is_refused_and_nothing_of_it_is_stored(
    machine: BookieMachine, meant: BookieIdentity
) -> None:
    """Although its add came in one piece with the hello."""
    async with machine.bookie() as (bookie, client):
        mistaken = await BookieClient.connect(bookie.port)
        mistaken.write(encode_hello(meant) + encode_request(add_request(1, LEDGER, 0)))
        reply = await mistaken.reply(HELLO_ID)
        assert reply.status == Status.WRONG_BOOKIE
        assert f"expected {meant}, but bookie b1 of cluster" in reply.body.decode()
        async with asyncio.timeout(30):
            await mistaken.wait_closed()
        assert (await read(client, LEDGER, 0, 0)).status == Status.NO_SUCH_LEDGER


async def test_who_means_this_bookie_or_says_nothing_is_served(machine: BookieMachine) -> None:
    async with machine.bookie() as (bookie, client):
        meant = BookieIdentity("b1", bookie.parts.instance_id)
        client.write(encode_hello(meant))
        assert decode_identity((await client.reply(HELLO_ID)).body) == meant
        assert (await add(client, LEDGER, 0)).status == Status.OK
        silent = await BookieClient.connect(bookie.port)
        assert (await read(silent, LEDGER, 0, 0)).status == Status.OK
        silent.close()


async def test_a_bookie_whose_checkpoints_have_a_bug_ends(
    machine: BookieMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def flush(self: EntryStorage, *, is_gentle: bool = False) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(EntryStorage, "flush", flush)
    async with machine.bookie(flush_interval_s=0.1) as (_, client):
        await add(client, LEDGER, 0)
        async with asyncio.timeout(30):
            await client.wait_closed()
    assert [str(error) for error in machine.fatal] == ["a bug"]


async def test_adds_wait_for_room_in_the_write_cache(machine: BookieMachine) -> None:
    """Far more than the cache holds, all at once: slower, but every add is stored."""
    async with machine.bookie(
        write_cache_bytes_max=64 << 10, write_cache_full_wait_ms_max=60_000
    ) as (bookie, client):
        for i in range(300):
            client.send(add_request(i, LEDGER, i, payload=b"x" * 4000))
        for i in range(300):
            assert (await client.reply(i)).status == Status.OK
        assert bookie.metrics.stalls > 0


async def test_a_full_journal_queue_only_slows_down(machine: BookieMachine) -> None:
    async with machine.bookie(journal_queue_bytes_max=20_000, journal_group_bytes_max=4_000) as (
        _,
        client,
    ):
        for i in range(500):
            client.send(add_request(i, LEDGER, i, payload=b"x" * 1000))
        for i in range(500):
            assert (await client.reply(i)).status == Status.OK


# A full or failing journal disk


async def test_a_full_journal_disk_fails_adds_and_loses_nothing(machine: BookieMachine) -> None:
    disk = machine.disk = FailingDisk()
    async with machine.bookie() as (_, client):
        assert (await add(client, LEDGER, 0, 5)).status == Status.OK
        disk.bytes_left = 100
        refused = await add(client, LEDGER, 5, 5)
        assert refused.status == Status.IO_ERROR
        assert b"no space left on the journal disk" in refused.body
        other = LEDGER + 1
        assert (await fence(client, other)).status == Status.IO_ERROR
        assert (await add(client, other, 0)).status == Status.IO_ERROR
        disk.bytes_left = 1 << 30
        assert (await add(client, LEDGER, 5, 5)).status == Status.OK
        assert (await fence(client, other)).flags == Flag.FENCED
    async with machine.bookie() as (_, client):
        assert packets_in(await read(client, LEDGER, 0, 9)) == packets_of(
            LEDGER, 0, 5
        ) + packets_of(LEDGER, 5, 5)
        assert (await add(client, LEDGER + 1, 0)).status == Status.FENCED


async def test_a_failed_sync_ends_the_bookie_without_an_answer(machine: BookieMachine) -> None:
    disk = machine.disk = FailingDisk()
    async with machine.bookie() as (bookie, client):
        assert (await add(client, LEDGER, 0)).status == Status.OK
        disk.sync_error = errno.EIO
        with pytest.raises(ConnectionError):
            await add(client, LEDGER, 1)
        assert [type(error) for error in machine.fatal] == [JournalFailedError]
        late = await BookieClient.connect(bookie.port)
        await late.wait_closed()
        disk.sync_error = None
    async with machine.bookie() as (_, client):
        assert (await read(client, LEDGER, 0, 0)).status == Status.OK
