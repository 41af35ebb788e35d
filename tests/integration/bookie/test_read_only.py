"""A bookie whose disks are full: read-only, and back. Real directories; the sizes are what a test
says of their file systems, except where a small file system is filled."""

import asyncio
import errno
import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from magnetar.bookie.disks.disk_states import DiskUse
from magnetar.bookie.engine.entry_storage import EntryStorage
from magnetar.bookie.errors import (
    BookieServiceError,
    DiskFullError,
    DiskLostError,
    StorageError,
    StorageIOError,
)
from magnetar.ledger.ports import File
from magnetar.ledger.registration import BookieRegistry
from magnetar.ledger.system import SystemDisk
from magnetar.ledger.wire import Flag, Frame, Op, Status
from tests.bookie_parts import (
    KEY,
    BookieClient,
    packets_in,
    packets_of,
    read_lac_request,
    read_request,
)
from tests.integration.bookie.bookie_machine import add
from tests.integration.bookie.sized_machine import (
    LOG_BYTES,
    TOTAL,
    SizedDisk,
    SizedMachine,
    sized_machine,
)
from tests.small_disk import SmallDisk

LEDGER = 7


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[SizedMachine]:
    async with sized_machine(tmp_path) as machine:
        yield machine


async def info(client: BookieClient) -> dict[str, Any]:
    reply = await client.ask(lambda i: Frame(Op.INFO, False, 0, 0, i, -1, -1, b""))
    facts: dict[str, Any] = json.loads(reply.body)
    return facts


# Read-only and back


async def test_a_full_disk_makes_the_bookie_read_only_and_room_makes_it_writable(
    machine: SizedMachine,
) -> None:
    async with machine.bookie(disk_low_water_share=0.8) as (bookie, client):
        assert (await add(client, LEDGER, 0)).status == Status.OK
        await machine.until_registered(readonly=False)
        machine.sized.used_percent = 95
        await bookie.disks.look()
        refused = await add(client, LEDGER, 1)
        assert refused.status == Status.READ_ONLY
        assert b"full" in refused.body
        facts = await info(client)
        assert facts["writable"] is False
        assert facts["read_only_reasons"] == ["a disk of the bookie is full"]
        assert [each["level"] for each in facts["directories"]] == ["", "", "full"]
        await machine.until_registered(readonly=True)

        machine.sized.used_percent = 85  # below the threshold, above the low-water mark
        await bookie.disks.look()
        assert (await add(client, LEDGER, 1)).status == Status.READ_ONLY

        machine.sized.used_percent = 79
        await bookie.disks.look()
        assert (await add(client, LEDGER, 1)).status == Status.OK
        facts = await info(client)
        assert facts["writable"] is True
        assert facts["free_bytes"] == round(TOTAL * 0.21)
        assert [each["use"] for each in facts["directories"]] == ["bookie", "journal", "ledgers"]
        ledgers = facts["directories"][-1]
        assert (ledgers["free_bytes"], ledgers["total_bytes"]) == (round(TOTAL * 0.21), TOTAL)
        assert ledgers["level"] == "free"
        await machine.until_registered(readonly=False)
        assert bookie.metrics.disks.refused_adds == 2
        assert bookie.metrics.disks.mode_changes == 2


async def test_a_read_only_bookie_serves_reads_fences_lacs_and_recovery(
    machine: SizedMachine,
) -> None:
    async with machine.bookie() as (bookie, client):
        assert (await add(client, LEDGER, 0)).status == Status.OK
        machine.sized.used_percent = 96
        await bookie.disks.look()
        found = await client.ask(lambda i: read_request(i, LEDGER, 0, 0))
        assert packets_in(found) == packets_of(LEDGER, 0, 1)
        fenced = await client.ask(lambda i: read_lac_request(i, LEDGER, fence_key=KEY))
        assert fenced.flags == Flag.FENCED
        # A ledger of another ensemble is recovered onto this bookie.
        assert (await add(client, 8, 0, flags=Flag.RECOVERY)).status == Status.OK
        assert (await add(client, LEDGER, 1, flags=Flag.RECOVERY)).status == Status.OK


async def test_recovery_adds_end_when_their_room_is_used_up(machine: SizedMachine) -> None:
    least = LOG_BYTES * 6 // 5
    async with machine.bookie() as (bookie, client):
        for free, status in ((least, Status.OK), (least - 1000, Status.READ_ONLY)):
            machine.sized.used_percent = 100 * (1 - free / TOTAL)
            await bookie.disks.look()
            assert (await add(client, LEDGER, 0, flags=Flag.RECOVERY)).status == status


async def test_b22_a_change_of_mode_registers_the_new_kind_before_it_removes_the_old(
    machine: SizedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every step of the change, in both directions, the bookie is registered."""
    store, steps = machine.store, list[tuple[str, str, bool]]()
    paths = ("/ledgers/available/b1", "/ledgers/available/readonly/b1")
    create, delete = store.create, store.delete

    done = asyncio.Event()

    async def look(what: str, path: str) -> None:
        is_there = [await store.exists(each) is not None for each in paths]
        steps.append((what, path, any(is_there)))
        done.set()

    async def watched_create(path: str, value: bytes = b"", **named: bool) -> str:
        made = await create(path, value, **named)
        await look("create", path)
        return made

    async def watched_delete(path: str, *, version: int | None = None) -> None:
        await delete(path, version=version)
        await look("delete", path)

    async with machine.bookie() as (bookie, _):
        monkeypatch.setattr(store, "create", watched_create)
        monkeypatch.setattr(store, "delete", watched_delete)
        for percent, is_readonly in ((96, True), (10, False)):
            machine.sized.used_percent = percent
            await bookie.disks.look()
            await machine.until_registered(readonly=is_readonly)
            async with asyncio.timeout(30):
                while steps[-1][:2] != ("delete", paths[not is_readonly]):
                    done.clear()
                    await done.wait()
        assert steps == [
            ("create", paths[1], True),
            ("delete", paths[0], True),
            ("create", paths[0], True),
            ("delete", paths[1], True),
        ]
        monkeypatch.undo()


async def test_a_full_bookie_starts_read_only(machine: SizedMachine) -> None:
    async with machine.bookie() as (_, client):
        await add(client, LEDGER, 0)
    machine.sized.used_percent = 99
    async with machine.bookie() as (_, client):
        assert (await add(client, LEDGER, 1)).status == Status.READ_ONLY
        found = await client.ask(lambda i: read_request(i, LEDGER, 0, 0))
        assert found.status == Status.OK
        assert await machine.store.exists("/ledgers/available/b1") is None
        await machine.until_registered(readonly=True)


async def test_the_mode_is_remembered_if_that_is_asked_for(machine: SizedMachine) -> None:
    options = {"read_only_persisted": True, "disk_low_water_share": 0.8}
    async with machine.bookie(**options) as (bookie, _):
        machine.sized.used_percent = 96
        await bookie.disks.look()
    machine.sized.used_percent = 85  # no start from nothing would call that full
    async with machine.bookie(**options) as (bookie, client):
        assert (await add(client, LEDGER, 0)).status == Status.READ_ONLY
        machine.sized.used_percent = 79
        await bookie.disks.look()
        assert (await add(client, LEDGER, 0)).status == Status.OK
    machine.sized.used_percent = 85
    async with machine.bookie(**options) as (bookie, client):
        assert (await add(client, LEDGER, 1)).status == Status.OK
        machine.sized.used_percent = 96
        await bookie.disks.look()
    # It gets room while it does not run: nothing is left to remember.
    for percent in (79, 85):
        machine.sized.used_percent = percent
        async with machine.bookie(**options) as (_, client):
            assert (await add(client, LEDGER, 2)).status == Status.OK


async def test_too_many_open_files_at_a_look_are_no_broken_disk(
    machine: SizedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 0
    free_bytes = SizedDisk.free_bytes

    def fail_once(self: SizedDisk, path: str) -> int:
        nonlocal failures
        failures += 1
        if failures == 1:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return free_bytes(self, path)

    async with machine.bookie(disk_check_interval_s=0.01) as (_, client):
        monkeypatch.setattr(SizedDisk, "free_bytes", fail_once)
        machine.sized.used_percent = 96
        await machine.until_registered(readonly=True)
        assert (await add(client, LEDGER, 0)).status == Status.READ_ONLY
    assert machine.fatal == []


async def test_a_bookie_that_is_forced_to_be_read_only_stays_so(machine: SizedMachine) -> None:
    async with machine.bookie(read_only_forced=True) as (bookie, client):
        await bookie.disks.look()
        assert (await add(client, LEDGER, 0)).status == Status.READ_ONLY
        assert (await info(client))["read_only_reasons"] == ["the bookie is set to be read-only"]
        await machine.until_registered(readonly=True)


async def test_an_operator_makes_a_running_bookie_read_only(machine: SizedMachine) -> None:
    async with machine.bookie() as (bookie, client):
        bookie.set_read_only(True)
        assert (await add(client, LEDGER, 0)).status == Status.READ_ONLY
        await machine.until_registered(readonly=True)
        bookie.set_read_only(False)
        assert (await add(client, LEDGER, 0)).status == Status.OK
        await machine.until_registered(readonly=False)


async def test_a_bookie_that_stops_refuses_adds_before_it_is_no_longer_registered(
    machine: SizedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses: list[int] = []
    unregister = BookieRegistry.unregister

    async with machine.bookie() as (bookie, client):

        async def look(self: BookieRegistry, bookie_id: str) -> None:
            statuses.append((await add(client, LEDGER, 0)).status)
            await unregister(self, bookie_id)

        monkeypatch.setattr(BookieRegistry, "unregister", look)
        await bookie.stop()
    assert statuses == [Status.READ_ONLY]


async def test_a_bookie_that_may_not_be_read_only_ends(machine: SizedMachine) -> None:
    async with machine.bookie(read_only_enabled=False, disk_check_interval_s=0.01) as (_, client):
        machine.sized.used_percent = 96
        await client.wait_closed()
        assert [type(error) for error in machine.fatal] == [DiskFullError]
    with pytest.raises(DiskFullError, match="make room"):
        await machine.make(read_only_enabled=False).start()


async def test_compactions_stop_before_the_disk_is_full(machine: SizedMachine) -> None:
    async with machine.bookie() as (bookie, _):
        ledgers = str(machine.data / "ledgers")
        for percent, allowed in ((89, {*DiskUse}), (95, set[DiskUse]())):
            machine.sized.used_percent = percent
            await bookie.disks.look()
            assert {use for use in DiskUse if bookie.disks.allows(ledgers, use)} == allowed


async def test_a_flush_without_room_makes_the_bookie_read_only_whatever_the_sizes_say(
    machine: SizedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inodes or a quota are used up; the next flush that succeeds makes it writable again."""
    is_acknowledged, room = asyncio.Event(), asyncio.Event()
    flush = EntryStorage.flush

    async def flush_with_room(self: EntryStorage, *, is_gentle: bool = False) -> None:
        await is_acknowledged.wait()
        if not room.is_set():
            cause = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
            raise StorageIOError(f"the flush failed: {cause}") from cause
        await flush(self)

    monkeypatch.setattr(EntryStorage, "flush", flush_with_room)
    async with machine.bookie(flush_interval_s=0.02, flush_retry_s=0.02) as (_, client):
        assert (await add(client, LEDGER, 0)).status == Status.OK
        is_acknowledged.set()
        await machine.until_registered(readonly=True)
        assert (await add(client, LEDGER, 1)).status == Status.READ_ONLY
        room.set()
        await machine.until_registered(readonly=False)
        assert (await add(client, LEDGER, 1)).status == Status.OK
    assert machine.fatal == []


class QuotaDisk(SizedDisk):
    """A quota of one directory may be used up: no file can be made there."""

    def __init__(self) -> None:
        super().__init__()
        self.without_room: str | None = None

    def create(self, path: str) -> File:
        if self.without_room is not None and path.startswith(self.without_room):
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), path)
        return super().create(path)


async def test_a_flush_without_room_closes_only_its_own_directory_if_one_is_not_enough(
    machine: SizedMachine,
) -> None:
    """The other directory takes adds and compactions; the full one opens after its flush."""
    directories = [str(machine.place / name) for name in ("ledgers-0", "ledgers-1")]
    machine.disk = machine.sized = disk = QuotaDisk()
    machine.options |= {
        "ledger_directories": directories,
        "read_only_on_any_disk_full": False,
        "flush_interval_s": 0.02,
        "flush_retry_s": 0.02,
    }
    disk.without_room = directories[1]
    async with machine.bookie() as (bookie, client), asyncio.timeout(30):
        entry = 0
        while (await add(client, 1, entry)).status == Status.OK:
            assert (await add(client, 2, entry)).status == Status.OK
            entry += 1
        assert (await add(client, 1, entry)).status == Status.READ_ONLY
        assert (await add(client, 2, entry)).status == Status.OK
        assert bookie.disks.allows(directories[0], DiskUse.MAJOR_COMPACTION)
        assert not bookie.disks.allows(directories[1], DiskUse.ADDS)
        assert bookie.health.read_only_reasons == []
        disk.without_room = None
        while (await add(client, 1, entry)).status != Status.OK:
            pass
    assert machine.fatal == []


async def test_a_start_without_room_closes_only_the_directory_that_has_none(
    machine: SizedMachine,
) -> None:
    directories = [str(machine.place / name) for name in ("ledgers-0", "ledgers-1")]
    machine.disk = machine.sized = disk = QuotaDisk()
    machine.options |= {
        "ledger_directories": directories,
        "read_only_on_any_disk_full": False,
        "flush_interval_s": 3600,
    }
    disk.without_room = directories[1]
    async with machine.bookie() as (_, client):
        for ledger in (1, 2):
            assert (await add(client, ledger, 0)).status == Status.OK
    async with machine.bookie() as (_, client):  # its last checkpoint failed: it replays
        assert (await add(client, 1, 1)).status == Status.READ_ONLY
        assert (await add(client, 2, 1)).status == Status.OK


# Disks that are gone


@pytest.mark.parametrize("name", ["", "journal", "ledgers"])
async def test_an_error_at_a_look_ends_the_bookie(machine: SizedMachine, name: str) -> None:
    async with machine.bookie(disk_check_interval_s=0.01) as (_, client):
        machine.sized.ill = str(machine.data / name)
        await client.wait_closed()
    assert [type(error) for error in machine.fatal] == [DiskLostError]
    assert str(machine.data / name) in str(machine.fatal[0])


@pytest.mark.parametrize("name", ["journal", "ledgers"])
async def test_b24_a_directory_that_is_exchanged_under_a_running_bookie_ends_it(
    machine: SizedMachine, name: str
) -> None:
    async with machine.bookie(disk_check_interval_s=0.01) as (_, client):
        assert (await add(client, LEDGER, 0)).status == Status.OK
        os.rename(machine.data / name, machine.data / "elsewhere")
        os.mkdir(machine.data / name)
        await client.wait_closed()
        assert isinstance(machine.fatal[0], BookieServiceError)
        # Work that was under way may have found the new directory.
        shutil.rmtree(machine.data / name)
        os.rename(machine.data / "elsewhere", machine.data / name)


# A real small file system


async def test_a_file_system_that_fills_up_and_gets_room(machine: SizedMachine) -> None:
    """The disk of the ledgers is full to the last byte, not that of the journal."""
    with SmallDisk(machine.place / "small", size_bytes=64 << 20) as small:
        machine.disk = SystemDisk()
        ledgers = small.path_here / "ledgers"
        options = {
            "ledger_directories": [ledgers],
            "disk_check_interval_s": 0.02,
            "flush_interval_s": 3600,
            "recovery_add_free_bytes_min": 0,
        }
        async with machine.bookie(**options) as (bookie, client):
            assert (await add(client, LEDGER, 0)).status == Status.OK
            small.fill()
            await machine.until_registered(readonly=True)
            assert (await add(client, LEDGER, 1)).status == Status.READ_ONLY
            # Cannot be flushed now, and is safe in the journal.
            assert (await add(client, LEDGER, 1, flags=Flag.RECOVERY)).status == Status.OK
            with pytest.raises(StorageError):
                await bookie.parts.checkpointer.checkpoint()
            found = await client.ask(lambda i: read_request(i, LEDGER, 0, 1))
            assert packets_in(found) == [*packets_of(LEDGER, 0, 1), *packets_of(LEDGER, 1, 1)]
            small.make_room()
            await machine.until_registered(readonly=False)
            assert (await add(client, LEDGER, 2)).status == Status.OK
            await bookie.parts.checkpointer.checkpoint()
        assert machine.fatal == []
        async with machine.bookie(**options) as (_, client):
            found = await client.ask(lambda i: read_request(i, LEDGER, 0, 2))
            assert len(packets_in(found)) == 3
