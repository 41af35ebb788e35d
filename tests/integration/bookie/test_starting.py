"""What a bookie refuses to start on, and what it replays."""

import errno
import os
import socket

import pytest

from magnetar.bookie.cookie import read_cookie
from magnetar.bookie.errors import (
    CookieError,
    DirectoryLockedError,
    JournalCorruptError,
    JournalFileMissingError,
    PortTakenError,
)
from magnetar.bookie.journaling.journal_format import NEWEST_NAME, file_ids, file_name
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.system import SystemDisk
from magnetar.ledger.wire import Status
from tests.bookie_parts import (
    FailingDisk,
    packets_in,
)
from tests.integration.bookie.bookie_machine import BookieMachine, add, read

LEDGER = 7


async def test_a_locked_directory_is_refused(machine: BookieMachine) -> None:
    async with machine.bookie():
        assert str(machine.data) in await machine.refusal(DirectoryLockedError)


async def test_a_taken_port_is_refused_and_the_directory_is_free_again(
    machine: BookieMachine,
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert str(port) in await machine.refusal(PortTakenError, port=port)
    async with machine.bookie() as (_, client):
        assert (await add(client, LEDGER, 0)).status == Status.OK


async def test_b24_an_emptied_directory_is_refused(machine: BookieMachine) -> None:
    async with machine.bookie() as (_, client):
        await add(client, LEDGER, 0)
    os.rename(machine.data, machine.place / "elsewhere")
    assert "new bookie id" in await machine.refusal(CookieError)


async def test_a_directory_without_its_cookie_is_refused(machine: BookieMachine) -> None:
    async with machine.bookie() as (_, client):
        await add(client, LEDGER, 0)
    (machine.data / "cookie").unlink()
    assert "cookie" in await machine.refusal(CookieError)


async def test_another_bookie_id_is_refused(machine: BookieMachine) -> None:
    async with machine.bookie():
        pass
    assert "belongs to bookie b1" in await machine.refusal(CookieError, bookie_id="b2")


async def test_another_cluster_is_refused(machine: BookieMachine) -> None:
    async with machine.bookie():
        pass
    other = await open_store(f"embedded:{machine.place / 'other.db'}")
    try:
        elsewhere = BookieMachine(other, machine.place)
        assert "another cluster" in await elsewhere.refusal(CookieError)
    finally:
        await other.close()


async def test_the_cookie_can_be_read(machine: BookieMachine) -> None:
    assert read_cookie(SystemDisk(), str(machine.data)) is None
    async with machine.bookie():
        pass
    cookie = read_cookie(SystemDisk(), str(machine.data))
    assert cookie is not None
    assert cookie.bookie_id == "b1"


async def leave_to_replay(machine: BookieMachine) -> None:
    """Make a journal with records behind the mark, as a crash leaves it."""
    disk = machine.disk = FailingDisk()
    async with machine.bookie(flush_interval_s=3600, journal_file_bytes_max=2048) as (_, client):
        for i in range(10):
            await add(client, LEDGER, i)
        disk.sync_error = errno.EIO
        with pytest.raises(ConnectionError):
            await add(client, LEDGER, 10)
    machine.disk = SystemDisk()


async def test_records_behind_the_mark_are_replayed(machine: BookieMachine) -> None:
    await leave_to_replay(machine)
    async with machine.bookie() as (_, client):
        assert len(packets_in(await read(client, LEDGER, 0, 9))) == 10


async def test_a_damaged_journal_is_refused(machine: BookieMachine) -> None:
    await leave_to_replay(machine)
    path = min(machine.journal_files())
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    assert path.name in await machine.refusal(JournalCorruptError)


async def test_a_missing_journal_file_is_refused(machine: BookieMachine) -> None:
    async with machine.bookie() as (_, client):
        await add(client, LEDGER, 0)
    (file_id,) = file_ids(os.listdir(machine.journal))
    (machine.journal / file_name(file_id)).unlink()
    assert file_name(file_id) in await machine.refusal(JournalFileMissingError)


@pytest.mark.parametrize("engine", ["db", "interleaved"])
async def test_a_missing_newest_journal_file_is_refused(
    machine: BookieMachine, engine: str
) -> None:
    """After a kill nothing else names it, and what was in it looked as if never written."""
    machine.options["storage_engine"] = engine
    await leave_to_replay(machine)
    newest = max(machine.journal_files())
    kept = newest.rename(machine.place / newest.name)
    for _ in range(2):
        text = await machine.refusal(JournalFileMissingError)
        assert str(newest) in text
        assert "put it back" in text
    kept.rename(newest)
    async with machine.bookie() as (_, client):
        assert len(packets_in(await read(client, LEDGER, 0, 9))) == 10


async def test_a_directory_without_a_record_of_its_newest_journal_file_starts(
    machine: BookieMachine,
) -> None:
    """One of an older release; it gets the record at once."""
    await leave_to_replay(machine)
    record = machine.journal / NEWEST_NAME
    record.unlink()
    async with machine.bookie() as (_, client):
        assert record.exists()
        assert len(packets_in(await read(client, LEDGER, 0, 9))) == 10
