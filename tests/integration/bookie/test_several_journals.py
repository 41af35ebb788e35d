"""A bookie with two journals and two ledger directories, on real files: what a crash leaves."""

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.errors import (
    JournalCorruptError,
    JournalFailedError,
    JournalFileMissingError,
    StorageError,
)
from magnetar.bookie.journaling.journal_files import JournalFiles
from magnetar.bookie.journaling.journal_format import (
    NEWEST_NAME,
    NO_MARK,
    NewRecord,
    RecordType,
    file_ids,
)
from magnetar.bookie.journaling.last_mark import LastMarks
from magnetar.bookie.journaling.replay import replay_journals
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import File
from magnetar.ledger.system import SystemDisk
from magnetar.ledger.wire import Flag, Status, encode_block
from tests.bookie_parts import (
    KEY,
    BookieClient,
    FailingDisk,
    MemoryStorage,
    add_request,
    packets_in,
    packets_of,
    read_lac_request,
    read_request,
)
from tests.integration.bookie.bookie_machine import (
    BookieMachine,
    add,
    fence,
    journal_files_in,
    read,
    store_in,
)
from tests.ledger_storage import HeldWorker, copy_as_after_a_crash

pytestmark = pytest.mark.disk

LEDGERS = range(4, 8)
"""Ledgers 4 and 6 have journal 0 and shard 0, ledgers 5 and 7 the others."""


class Machine(BookieMachine):
    """With two disks for journals and two for ledgers; its bookies can be killed."""

    def __init__(self, store: MetadataStore, place: Path) -> None:
        super().__init__(store, place)
        self.workers: list[tuple[str, HeldWorker]] = []
        self.worker = self._make_worker
        self.options = {
            "journal_directories": [self.journal_of(0), self.journal_of(1)],
            "ledger_directories": [self.shard(0), self.shard(1)],
            "flush_interval_s": 600,
        }

    @property
    def root(self) -> Path:
        return self.place / "disks"

    @property
    def data(self) -> Path:
        return self.root / "b1"

    def journal_of(self, number: int) -> Path:
        return self.root / f"j{number}"

    def shard(self, number: int) -> Path:
        return self.root / f"l{number}"

    def journal_files_of(self, number: int) -> list[Path]:
        return journal_files_in(self.journal_of(number))

    def marks(self) -> LastMarks:
        marks = LastMarks(SystemDisk(), [str(self.shard(0)), str(self.shard(1))], journals=2)
        marks.load()
        return marks

    def flush_worker(self, shard: int) -> HeldWorker:
        return [worker for name, worker in self.workers if name == "bookie-flush"][shard]

    def _make_worker(self, name: str) -> HeldWorker:
        worker = HeldWorker(name)
        self.workers.append((name, worker))
        return worker

    def make(self, **options: object) -> Bookie:
        self.workers = []
        return super().make(**options)

    @asynccontextmanager
    async def bookie(self, **options: object) -> AsyncIterator[tuple[Bookie, BookieClient]]:
        async with super().bookie(**options) as both:
            try:
                yield both
            finally:
                for _, worker in self.workers:
                    worker.let_go()

    @asynccontextmanager
    async def killed_bookie(self, **options: object) -> AsyncIterator[tuple[Bookie, BookieClient]]:
        """Run a bookie; at the end its files are those that kill -9 would have left."""
        async with self.bookie(**options) as (bookie, client):
            yield bookie, client
            copy = copy_as_after_a_crash(self.root, self.place / "copy")
        shutil.rmtree(self.root)
        copy.rename(self.root)


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with store_in(tmp_path) as store:
        yield Machine(store, tmp_path)


async def add_to_all(client: BookieClient, first: int, count: int) -> None:
    for ledger in LEDGERS:
        assert (await add(client, ledger, first, count)).status == Status.OK


async def check_all(client: BookieClient, *parts: tuple[int, int]) -> None:
    """`parts`: first and count, as they were added."""
    for ledger in LEDGERS:
        wanted = [each for first, count in parts for each in packets_of(ledger, first, count)]
        last = sum(parts[-1]) - 1
        assert packets_in(await read(client, ledger, 0, last)) == wanted


# What both journals hold


async def test_everything_survives_a_restart_and_a_kill(machine: Machine) -> None:
    async with machine.bookie() as (_, client):
        await add_to_all(client, 0, 10)
    async with machine.killed_bookie() as (_, client):
        await add_to_all(client, 10, 10)
        await check_all(client, (0, 10), (10, 10))
        assert [len(machine.journal_files_of(number)) for number in (0, 1)] == [2, 2]
    async with machine.killed_bookie() as (_, client):
        await check_all(client, (0, 10), (10, 10))
    async with machine.bookie() as (_, client):
        await check_all(client, (0, 10), (10, 10))
        await add_to_all(client, 20, 1)


async def test_one_network_read_may_concern_several_journals(machine: Machine) -> None:
    async with machine.killed_bookie() as (bookie, client):
        requests = [
            add_request(100 * ledger + i, ledger, i) for i in range(20) for ledger in LEDGERS
        ]
        for request in requests:
            client.send(request)
        for request in requests:
            assert (await client.reply(request.request_id)).status == Status.OK
        assert [journal.mark.file_id > 0 for journal in bookie.parts.journals.each] == [True] * 2
    async with machine.bookie() as (_, client):
        await check_all(client, *((i, 1) for i in range(20)))


async def test_an_orderly_stop_leaves_nothing_to_replay(machine: Machine) -> None:
    async with machine.bookie() as (bookie, client):
        await add_to_all(client, 0, 10)
        journals = bookie.parts.journals
    assert machine.marks().marks == journals.marks
    assert machine.marks().safe_marks == journals.marks


@pytest.mark.parametrize("ledger", [4, 5])
async def test_b01_a_fence_that_was_answered_holds_after_a_crash(
    machine: Machine, ledger: int
) -> None:
    """The fence holds even when nothing else was ever written for the ledger's journal and
    shard."""
    async with machine.killed_bookie() as (_, client):
        reply = await fence(client, ledger)
        assert (reply.status, reply.flags) == (Status.OK, Flag.FENCED)
    async with machine.killed_bookie() as (_, client):
        assert (await add(client, ledger, 0)).status == Status.FENCED
    async with machine.bookie() as (_, client):
        assert (await add(client, ledger, 0)).status == Status.FENCED
        assert (await add(client, ledger + 2, 0)).status == Status.OK


class PausedDisk(SystemDisk):
    """Syncs of files in one directory wait until they are let go."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.is_syncing = threading.Event()
        self.may_sync = threading.Event()
        self.may_sync.set()

    def create(self, path: str) -> File:
        file = super().create(path)
        if self._directory in path:
            datasync = file.datasync

            def wait_and_sync() -> None:
                self.is_syncing.set()
                assert self.may_sync.wait(20)
                datasync()

            file.datasync = wait_and_sync  # type: ignore[method-assign]
        return file


@pytest.mark.parametrize("what", ["read", "read_lac"])
async def test_b02_a_negative_fenced_read_waits_for_the_fence(machine: Machine, what: str) -> None:
    """Nothing is stored, so there is nothing to wait for but the sync of the fence. The other
    journal goes on meanwhile: its reply says that this one is not merely slow."""
    disk = machine.disk = PausedDisk("/j1/")
    async with machine.bookie() as (_, client):
        assert (await add(client, 5, 0)).status == Status.OK  # the journal has a file
        disk.may_sync.clear()
        disk.is_syncing.clear()
        if what == "read":
            client.send(read_request(1000, 7, 3, fence_key=KEY))
        else:
            client.send(read_lac_request(1000, 7, fence_key=KEY))
        await asyncio.to_thread(disk.is_syncing.wait, 20)
        assert (await add(client, 4, 0)).status == Status.OK
        assert 1000 not in client.replies
        disk.may_sync.set()
        reply = await client.reply(1000)
        assert reply.flags & Flag.FENCED
        assert reply.status == (Status.NO_SUCH_ENTRY if what == "read" else Status.OK)


@pytest.mark.parametrize("ledger", [4, 5])
async def test_b04_a_checkpoint_with_only_a_fence_flushes_it(machine: Machine, ledger: int) -> None:
    async with machine.killed_bookie() as (bookie, client):
        await add_to_all(client, 0, 1)
        await bookie.parts.checkpointer.checkpoint()
        await fence(client, ledger)
        await bookie.parts.checkpointer.checkpoint()
        assert machine.marks().marks == bookie.parts.journals.marks
    async with machine.bookie() as (_, client):
        assert (await add(client, ledger, 1)).status == Status.FENCED
        assert (await add(client, ledger ^ 1, 1)).status == Status.OK


async def test_b05_a_full_shard_completes_no_checkpoint(machine: Machine) -> None:
    """The full shard flushes again and again while the other one cannot; the journals keep
    everything."""
    async with machine.killed_bookie(
        write_cache_bytes_max=64 << 10,
        write_cache_full_wait_ms_max=60_000,
        journal_file_bytes_max=8 << 10,
    ) as (bookie, client):
        await add_to_all(client, 0, 1)
        machine.flush_worker(1).hold()
        payload = b"p" * 2000
        for entry_id in range(1, 100):
            client.send(add_request(entry_id + 1000, 4, entry_id, payload=payload))
            assert (await client.reply(entry_id + 1000)).status == Status.OK
        assert bookie.metrics.checkpoints == 0
        assert machine.marks().marks == ((0, 0), (0, 0))
        assert len(machine.journal_files_of(0)) > 10
    async with machine.bookie() as (_, client):
        await check_all(client, (0, 1))
        reply = await read(client, 4, 1, 99)
        assert packets_in(reply)[-1] == packets_of(4, 99, 1, payload)[0]


async def test_b06_b07_overlapping_checkpoints_leave_a_bookie_that_starts(
    machine: Machine,
) -> None:
    """Each is ahead in another journal, and the one that began first ends last."""
    async with machine.killed_bookie(journal_file_bytes_max=2 << 10, journal_spares=0) as (
        bookie,
        client,
    ):
        checkpointer = bookie.parts.checkpointer
        for first in range(0, 40, 4):
            for ledger in (4, 5) if first % 8 else (5, 4):
                assert (await add(client, ledger, first, 4)).status == Status.OK
                for shard in (0, 1):
                    machine.flush_worker(shard).hold()
                slow = asyncio.create_task(checkpointer.checkpoint())
                assert (await add(client, ledger ^ 1, first + 100, 4)).status == Status.OK
                fast = asyncio.create_task(checkpointer.checkpoint())
                for shard in (1, 0):
                    machine.flush_worker(shard).let_go()
                await asyncio.gather(slow, fast)
        marks = machine.marks().marks
        for number, mark in enumerate(marks):
            assert mark.file_id in file_ids(os.listdir(machine.journal_of(number)))
    async with machine.bookie() as (_, client):
        for ledger in (4, 5):
            assert len(packets_in(await read(client, ledger, 0, 39))) == 40


async def test_the_newest_file_of_each_journal_is_missed(machine: Machine) -> None:
    async with machine.killed_bookie() as (_, client):
        for ledger in LEDGERS:
            assert (await add(client, ledger, 0)).status == Status.OK
    for number in (0, 1):
        newest = max(machine.journal_files_of(number))
        kept = newest.rename(machine.root / "kept")
        assert str(newest) in await machine.refusal(JournalFileMissingError)
        kept.rename(newest)
    async with machine.bookie() as (_, client):
        for ledger in LEDGERS:
            assert len(packets_in(await read(client, ledger, 0, 0))) == 1


async def test_journals_and_ledger_directories_may_be_added(machine: Machine) -> None:
    """A ledger's journal changes then, its directory does not; a crash in between loses nothing."""
    l0, l1 = machine.shard(0), machine.shard(1)
    async with machine.killed_bookie(
        journal_directories=[machine.journal_of(0)], ledger_directories=[l0]
    ) as (bookie, client):
        await add_to_all(client, 0, 5)
        await bookie.parts.checkpointer.checkpoint()
        await add_to_all(client, 5, 5)
        await fence(client, 7)
    async with machine.killed_bookie(allow_storage_expansion=True) as (bookie, client):
        for ledger in (4, 5, 6):
            assert (await add(client, ledger, 10, 5)).status == Status.OK
        assert (await add(client, 7, 10, 5)).status == Status.FENCED
        assert (await add(client, 9, 0)).status == Status.OK
        assert [shard.ledger_ids() for shard in bookie.parts.shards] == [[4, 5, 6, 7], [9]]
        assert len(machine.journal_files_of(1)) == 1
    async with machine.bookie() as (bookie, client):
        for ledger in (4, 5, 6):
            assert len(packets_in(await read(client, ledger, 0, 14))) == 15
        assert (await add(client, 7, 10)).status == Status.FENCED
        assert [shard.ledger_ids() for shard in bookie.parts.shards] == [[4, 5, 6, 7], [9]]
    assert (l0 / "last-mark.1").read_bytes() == (l1 / "last-mark.1").read_bytes()


# What is refused


async def _stopped_behind_a_crash(machine: Machine) -> None:
    async with machine.killed_bookie() as (_, client):
        await add_to_all(client, 0, 10)
        await add_to_all(client, 10, 10)
        await fence(client, 4)
        await fence(client, 5)


@pytest.mark.parametrize("number", [0, 1])
async def test_b20_damage_in_any_journal_refuses_the_start(machine: Machine, number: int) -> None:
    await _stopped_behind_a_crash(machine)
    (path,) = machine.journal_files_of(number)
    data = bytearray(path.read_bytes())
    data[150] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalCorruptError, match=f"j{number}/.* damaged"):
        await machine.make().start()


async def test_a_torn_tail_of_one_journal_is_none_of_the_others(machine: Machine) -> None:
    """The last group of journal 1 is torn: nothing of it was acknowledged."""
    await _stopped_behind_a_crash(machine)
    (path,) = machine.journal_files_of(1)
    data = path.read_bytes()
    end = data.rindex(b"MJRC")  # the fence of ledger 5
    # The room that was taken ahead of it stays: a file that is shorter was cut.
    path.write_bytes(data[: end + 9].ljust(len(data), b"\0"))
    async with machine.bookie() as (_, client):
        await check_all(client, (0, 10), (10, 10))
        assert (await add(client, 4, 20)).status == Status.FENCED
        assert (await add(client, 5, 20)).status == Status.OK


@pytest.mark.parametrize("number", [0, 1])
async def test_a_missing_file_of_any_journal_refuses_the_start(
    machine: Machine, number: int
) -> None:
    async with machine.killed_bookie() as (bookie, client):
        await add_to_all(client, 0, 10)
        await bookie.parts.checkpointer.checkpoint()
        await add_to_all(client, 10, 10)
    for path in machine.journal_files_of(number):
        path.unlink()
    with pytest.raises(JournalFileMissingError, match=f"j{number}/"):
        await machine.make().start()


@pytest.mark.parametrize("number", [0, 1])
async def test_a_missing_file_between_others_refuses_the_start(
    machine: Machine, number: int
) -> None:
    async with machine.killed_bookie(journal_file_bytes_max=1 << 10) as (_, client):
        for first in range(0, 48, 4):
            await add_to_all(client, first, 4)
    files = machine.journal_files_of(number)
    assert len(files) > 3
    files[len(files) // 2].unlink()
    with pytest.raises(JournalFileMissingError, match=f"j{number}/"):
        await machine.make().start()


async def test_journals_that_changed_places_are_refused(machine: Machine) -> None:
    """By the files themselves, whatever else the directories say."""
    await _stopped_behind_a_crash(machine)
    for one, other in zip(machine.journal_files_of(0), machine.journal_files_of(1), strict=True):
        here, there = one.read_bytes(), other.read_bytes()
        other.unlink()
        one.unlink()
        (machine.journal_of(0) / other.name).write_bytes(there)
        (machine.journal_of(1) / one.name).write_bytes(here)
    records = [machine.journal_of(number) / NEWEST_NAME for number in (0, 1)]
    contents = [record.read_bytes() for record in records]
    for record, content in zip(records, reversed(contents), strict=True):
        record.write_bytes(content)
    with pytest.raises(JournalCorruptError, match="journal directory"):
        await machine.make().start()


async def test_a_damaged_last_mark_does_not_matter_if_the_other_copy_is_good(
    machine: Machine,
) -> None:
    async with machine.killed_bookie(journal_file_bytes_max=1 << 10) as (bookie, client):
        for first in range(0, 40, 4):
            await add_to_all(client, first, 4)
        await bookie.parts.checkpointer.checkpoint()
        await add_to_all(client, 40, 4)
    (machine.shard(0) / "last-mark").write_bytes(b"damaged")
    (machine.shard(1) / "last-mark.1").unlink()
    async with machine.bookie() as (_, client):
        await check_all(client, *((first, 4) for first in range(0, 44, 4)))
        marks = machine.marks()
        assert marks.safe_marks == marks.marks, "both copies are good again"


# A full disk under one journal


class OneFullDisk(FailingDisk):
    """Only files of journal 1 are on the disk that is full."""

    def create(self, path: str) -> File:
        return super().create(path) if "/j1/" in path else SystemDisk.create(self, path)

    def free_bytes(self, path: str) -> int:
        return self.bytes_left if "/j1" in path else SystemDisk.free_bytes(self, path)


async def test_a_full_journal_refuses_its_ledgers_and_recovers(machine: Machine) -> None:
    disk = machine.disk = OneFullDisk()
    async with machine.killed_bookie() as (_, client):
        await add_to_all(client, 0, 5)
        disk.bytes_left = 100
        for ledger, status in ((4, Status.OK), (5, Status.IO_ERROR), (6, Status.OK)):
            assert (await add(client, ledger, 5, 5)).status == status
        assert (await fence(client, 7)).status == Status.IO_ERROR
        disk.bytes_left = 1 << 30
        for ledger in (5, 7):
            reply = await add(client, ledger, 5, 5)
            assert reply.status == (Status.OK if ledger == 5 else Status.IO_ERROR)
        assert (await fence(client, 7)).flags == Flag.FENCED
    assert machine.fatal == []
    async with machine.bookie() as (_, client):
        for ledger in (4, 5, 6):
            assert len(packets_in(await read(client, ledger, 0, 9))) == 10
        assert (await add(client, 7, 5)).status == Status.FENCED


async def test_b18_a_failed_sync_under_one_journal_ends_the_bookie(machine: Machine) -> None:
    """Whatever the other one does: nothing more is answered, and replay says what is true."""
    disk = machine.disk = OneFullDisk()
    async with machine.bookie() as (_, client):
        await add_to_all(client, 0, 5)
        disk.fails_one_sync = True
        disk.sync_error = errno.EIO
        with pytest.raises(ConnectionError):
            await add(client, 5, 5)
        assert [type(error) for error in machine.fatal] == [JournalFailedError]
    async with machine.bookie() as (_, client):
        await check_all(client, (0, 5))


async def test_replay_of_several_journals_may_be_cut_and_repeated(machine: Machine) -> None:
    """Rule 3.5: at every write of the flush and of the marks behind a replay, over and over."""
    await _stopped_behind_a_crash(machine)
    cuts = 0
    while True:
        disk = machine.disk = CutDisk(cuts)
        try:
            bookie = machine.make()
            await bookie.start()
        except (OSError, StorageError):
            assert disk.has_cut
            cuts += 1  # the next start goes on with what this one left, and comes further
        else:
            break
    assert cuts > 8
    disk.steps = 1 << 60
    await bookie.stop()
    machine.disk = SystemDisk()
    async with machine.bookie() as (_, client):
        await check_all(client, (0, 10), (10, 10))
        assert (await add(client, 4, 20)).status == Status.FENCED


class CutDisk(SystemDisk):
    """The nth durable step of a ledger directory and all later ones fail."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.has_cut = False

    def _step(self, path: str) -> None:
        self.steps -= "/l0/" in path or "/l1/" in path
        if self.steps < 0:
            self.has_cut = True
            raise OSError("cut")

    def create(self, path: str) -> File:
        self._step(path)
        return super().create(path)

    def sync_directory(self, path: str) -> None:
        self._step(path + "/")
        super().sync_directory(path)

    def replace_file(self, path: str, data: bytes) -> None:
        self._step(path)
        super().replace_file(path, data)


async def test_a_ledger_whose_key_lies_in_a_journal_that_is_replayed_later_is_not_lost(
    tmp_path: Path,
) -> None:
    """As when journals were added while nothing could be flushed: its later records came into
    another journal than its first ones."""
    owners = [b"0" * 16, b"1" * 16]
    ledger = 3
    records = [
        [NewRecord(RecordType.FENCE, ledger, b""), block_record(ledger, 5), block_record(9, 0)],
        [NewRecord(RecordType.MASTER_KEY, ledger, KEY), block_record(ledger, 0)],
    ]
    for number in (0, 1):
        (tmp_path / f"j{number}").mkdir()
        files = JournalFiles(
            SystemDisk(),
            str(tmp_path / f"j{number}"),
            owner=owners[number],
            last_mark=NO_MARK,
            first_file_id=1,
            file_bytes_max=1 << 20,
            preallocate_bytes=0,
        )
        files.commit(records[number])
        files.close()
    storage = MemoryStorage()
    replayed = await replay_journals(
        storage,
        LastMarks(SystemDisk(), [str(tmp_path)], journals=2),
        SystemDisk(),
        [str(tmp_path / "j0"), str(tmp_path / "j1")],
        owners=owners,
    )
    assert sorted(storage.packets[ledger]) == [0, 5]
    assert storage.states[ledger].fenced
    assert storage.ledger_ids() == [ledger], "9 has no key anywhere: it was deleted"
    assert replayed.is_flushed


def block_record(ledger: int, entry_id: int) -> NewRecord:
    block = encode_block(packets_of(ledger, entry_id, 1))
    return NewRecord(RecordType.ENTRY_BLOCK, ledger, block.data)
