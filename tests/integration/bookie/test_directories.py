"""A bookie on several directories: cookies, more of them, lost ones; how it starts and stops."""

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.cookie import Cookie, read_cookie
from magnetar.bookie.disks.disk_watch import DiskWatch
from magnetar.bookie.disks.state_files import StateFiles
from magnetar.bookie.engine.entry_storage import EntryStorage
from magnetar.bookie.errors import (
    CookieError,
    DirectoryLockedError,
    DirectoryUnusableError,
    StartError,
    StorageIOError,
)
from magnetar.bookie.journaling.checkpoint import Checkpointer
from magnetar.bookie.journaling.journal import JournalSet
from magnetar.bookie.server import BookieServer
from magnetar.ledger.registration import BookieRegistry
from magnetar.ledger.system import SystemDisk
from magnetar.ledger.wire import Status
from tests.bookie_parts import (
    BookieClient,
    FailingDisk,
    packets_in,
    packets_of,
    read_request,
)
from tests.integration.bookie.bookie_machine import BookieMachine, add, store_in

LEDGERS = range(12)


class Machine(BookieMachine):
    """With as many directories of a kind as a test says."""

    @property
    def data(self) -> Path:
        return self.place / "data"

    def directories(self, kind: str, count: int) -> list[Path]:
        return [self.place / f"{kind}{number}" for number in range(count)]

    def make(self, **options: Any) -> Bookie:
        """`journals`, `ledgers`: how many. Without them the settings say nothing of that kind."""
        journals, ledgers = options.pop("journals", 0), options.pop("ledgers", 0)
        directories = {
            "journal_directories": self.directories("journal", journals),
            "ledger_directories": self.directories("ledgers", ledgers),
        }
        return super().make(**{**directories, **options})


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with store_in(tmp_path) as store:
        yield Machine(store, tmp_path)


async def fill(client: BookieClient, entry: int = 0) -> None:
    for ledger in LEDGERS:
        assert (await add(client, ledger, entry)).status == Status.OK


async def check(client: BookieClient, entries: int = 1) -> None:
    for ledger in LEDGERS:
        found = await client.ask(lambda i: read_request(i, ledger, 0, entries - 1))  # noqa: B023
        assert packets_in(found) == [
            packet for entry in range(entries) for packet in packets_of(ledger, entry, 1)
        ]


# Cookies


async def test_every_directory_has_the_cookie_and_its_role(machine: Machine) -> None:
    async with machine.bookie(journals=2, ledgers=3) as (_, client):
        await fill(client)
    disk = SystemDisk()
    places = [
        machine.data,
        *machine.directories("journal", 2),
        *machine.directories("ledgers", 3),
    ]
    cookies = {read_cookie(disk, str(each)) for each in places}
    stored = await BookieRegistry(machine.store).read_cookie("b1")
    assert stored is not None
    (cookie,) = cookies
    assert cookie == Cookie.model_validate_json(stored.value)
    assert (cookie.journals, cookie.storage_shards) == (2, (3,))
    async with machine.bookie(journals=2, ledgers=3) as (_, client):
        await check(client)


@pytest.mark.parametrize("name", ["journal0", "journal1", "ledgers0", "ledgers2"])
async def test_b24_a_directory_that_was_exchanged_is_refused(machine: Machine, name: str) -> None:
    async with machine.bookie(journals=2, ledgers=3) as (_, client):
        await fill(client)
    shutil.rmtree(machine.place / name)
    assert str(machine.place / name) in await machine.refusal(CookieError, journals=2, ledgers=3)
    shutil.copytree(machine.place / "ledgers1", machine.place / name, dirs_exist_ok=True)
    assert "ledgers-1 of bookie b1" in await machine.refusal(CookieError, journals=2, ledgers=3)


async def test_directories_that_change_places_are_refused(machine: Machine) -> None:
    async with machine.bookie(ledgers=2) as (_, client):
        await fill(client)
    first, second = machine.directories("ledgers", 2)
    text = await machine.refusal(CookieError, ledger_directories=[second, first])
    assert "in their order" in text


async def test_a_directory_that_moved_as_a_whole_is_fine(machine: Machine) -> None:
    async with machine.bookie(ledgers=2) as (_, client):
        await fill(client)
    first, second = machine.directories("ledgers", 2)
    moved = machine.place / "elsewhere"
    os.rename(second, moved)
    async with machine.bookie(ledger_directories=[first, moved]) as (_, client):
        await check(client)


async def test_a_directory_of_another_running_bookie_is_refused(machine: Machine) -> None:
    async with machine.bookie(ledgers=2):
        shared = machine.directories("ledgers", 2)[1]
        text = await machine.refusal(
            DirectoryLockedError,
            bookie_id="b2",
            data_directory=machine.place / "other",
            ledger_directories=[machine.place / "new", shared],
        )
        assert str(shared) in text


async def test_a_directory_that_cannot_be_made_is_refused(machine: Machine) -> None:
    (machine.place / "file").write_text("")
    text = await machine.refusal(
        DirectoryUnusableError, ledger_directories=[machine.place / "file" / "ledgers"]
    )
    assert "permissions" in text


async def test_another_engine_is_refused(machine: Machine) -> None:
    async with machine.bookie(storage_engine="interleaved") as (_, client):
        await fill(client)
    async with machine.bookie(storage_engine="interleaved") as (_, client):
        await check(client)
    assert "convert" in await machine.refusal(CookieError, storage_engine="db")


# More directories


async def test_more_directories_are_added_if_that_is_allowed(machine: Machine) -> None:
    async with machine.bookie(journals=1, ledgers=2) as (_, client):
        await fill(client)
    assert "allow_storage_expansion" in await machine.refusal(CookieError, journals=2, ledgers=3)
    allowed = {"allow_storage_expansion": True}
    async with machine.bookie(journals=2, ledgers=3, **allowed) as (bookie, client):
        await check(client)
        await fill(client, 1)
        for ledger in range(100, 106):
            assert (await add(client, ledger, 0)).status == Status.OK
        shards = bookie.parts.shards
        # What was there stays where it was; what is new is spread over all of them.
        assert [len(shard.ledger_ids()) for shard in shards] == [8, 8, 2]
    async with machine.bookie(journals=2, ledgers=3) as (_, client):
        await check(client, 2)
    assert "name all of them" in await machine.refusal(CookieError, journals=1, ledgers=2)


async def test_a_directory_that_is_not_empty_is_not_added(machine: Machine) -> None:
    async with machine.bookie(ledgers=2):
        pass
    new = machine.directories("ledgers", 3)[2]
    new.mkdir()
    (new / "photos").mkdir()
    text = await machine.refusal(CookieError, ledgers=3, allow_storage_expansion=True)
    assert str(new) in text


# Start and stop


async def test_b21_a_bookie_is_registered_when_everything_acknowledged_is_readable(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of a start with a journal to replay: replay, listen, register."""
    disk = machine.disk = FailingDisk()
    async with machine.bookie(flush_interval_s=3600) as (_, client):
        await fill(client)
        disk.sync_error = errno.EIO  # as a crash: nothing is flushed at the end
        with pytest.raises(ConnectionError):
            await add(client, 0, 1)
    machine.disk = SystemDisk()
    register = BookieRegistry.register

    async def look_and_register(self: BookieRegistry, *args: object, **named: object) -> None:
        reader = await BookieClient.connect(bookie.port)
        await check(reader)
        reader.close()
        seen.append("read all")
        await register(self, *args, **named)  # type: ignore[arg-type]  # passed through

    seen: list[str] = []
    monkeypatch.setattr(BookieRegistry, "register", look_and_register)
    bookie = machine.make()
    assert await machine.store.exists("/ledgers/available/b1") is None
    await bookie.start()
    assert seen == ["read all"]
    await bookie.stop()


async def test_a_start_that_fails_leaves_no_registration(machine: Machine) -> None:
    async with machine.bookie():
        pass
    (machine.data / "ledgers" / "last-mark").write_bytes(b"nonsense")
    with pytest.raises(Exception, match="last-mark"):
        await machine.make().start()
    assert await machine.store.exists("/ledgers/available/b1") is None


async def test_the_mark_of_a_run_tells_how_it_ended(machine: Machine) -> None:
    mark = machine.data / "running"
    async with machine.bookie() as (bookie, _):
        assert mark.exists()
        assert not bookie.parts.was_unclean
    assert not mark.exists()

    disk = machine.disk = FailingDisk()
    async with machine.bookie() as (_, client):
        disk.sync_error = errno.EIO
        with pytest.raises(ConnectionError):
            await add(client, 0, 0)
    assert mark.exists()
    machine.disk = SystemDisk()

    # A start that fails does not make up for it.
    assert await machine.refusal(CookieError, storage_engine="interleaved")
    assert await machine.refusal(StartError, host="192.0.2.1")
    assert mark.exists()
    async with machine.bookie() as (bookie, _):
        assert bookie.parts.was_unclean
        assert bookie.metrics.disks.unclean_starts == 1
    async with machine.bookie() as (bookie, _):
        assert not bookie.parts.was_unclean


async def test_an_orderly_stop_goes_from_the_outside_to_the_inside(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registration, sockets, journals, checkpoint, storage, the mark of the run, the locks."""
    steps: list[str] = []

    def note(kind: type, method: str, step: str) -> None:
        call: Callable[..., object] = getattr(kind, method)

        def noting(*args: object, **named: object) -> object:
            steps.append(step)
            return call(*args, **named)

        monkeypatch.setattr(kind, method, noting)

    note(DiskWatch, "close", "services")
    note(BookieRegistry, "unregister", "unregister")
    note(BookieServer, "stop_reading", "stop reading")
    note(JournalSet, "wait_drained", "drain journals")
    note(BookieServer, "close_connections", "close connections")
    note(Checkpointer, "checkpoint", "checkpoint")
    note(JournalSet, "close", "close journals")
    note(EntryStorage, "close", "close storage")
    note(StateFiles, "mark_stopped", "remove the mark of the run")
    bookie = machine.make()
    await bookie.start()
    client = await BookieClient.connect(bookie.port)
    await fill(client)
    steps.clear()
    await bookie.stop()
    assert steps == [
        "services",
        "unregister",
        "stop reading",
        "drain journals",
        "close connections",
        "checkpoint",
        "close journals",
        "close storage",
        "remove the mark of the run",
    ]
    await client.wait_closed()


# Broken disks


async def test_b18_an_io_error_of_a_flush_ends_the_bookie(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_acknowledged = asyncio.Event()

    async def flush(self: EntryStorage, *, is_gentle: bool = False) -> None:
        await is_acknowledged.wait()
        cause = OSError(errno.EIO, os.strerror(errno.EIO))
        raise StorageIOError(f"the flush failed: {cause}") from cause

    monkeypatch.setattr(EntryStorage, "flush", flush)
    async with machine.bookie(flush_interval_s=0.02) as (_, client):
        assert (await add(client, 0, 0)).status == Status.OK
        is_acknowledged.set()
        async with asyncio.timeout(30):
            await client.wait_closed()
    assert [type(error) for error in machine.fatal] == [StorageIOError]
    monkeypatch.undo()
    async with machine.bookie() as (_, client):
        found = await client.ask(lambda i: read_request(i, 0, 0, 0))
        assert packets_in(found) == packets_of(0, 0, 1)
