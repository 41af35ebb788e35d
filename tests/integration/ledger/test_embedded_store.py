"""The embedded store's own promises: crashes, locks, foreign files, what idling costs."""

import asyncio
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import TypeVar

import pytest

from magnetar.ledger.errors import (
    BadVersionError,
    InvalidPathError,
    MetadataUnavailableError,
    NodeExistsError,
    SessionExpiredError,
    UnknownOutcomeError,
)
from magnetar.ledger.metadata import MetadataStore, WatchEvent, open_store
from magnetar.ledger.metadata.embedded import EmbeddedStore
from magnetar.ledger.metadata.sqlite_tree import APPLICATION_ID, Written
from magnetar.ledger.metadata.store import SessionState
from tests.integration.ledger.metadata_stores import SETTINGS, WAIT_S, Events, owner_process
from tests.processes import magnetar_environment
from tests.waiting import settle

T = TypeVar("T")

SHORT_SESSION = SETTINGS.model_copy(update={"session_timeout_ms": 300})

_WRITER = """
import asyncio, sys
from magnetar.ledger.metadata import open_store

async def main():
    store = await open_store(sys.argv[1])
    await store.create("/owned", ephemeral=True)
    while True:
        path = await store.create("/writes/", b"x" * 200, sequential=True)
        sys.stdout.write(path + "\\n")
        sys.stdout.flush()

asyncio.run(main())
"""


def _write_until_killed(path: Path, *, lines: int) -> set[str]:
    """Paths that the process had been told of as created when it was killed."""
    command = [sys.executable, "-c", _WRITER, f"embedded:{path}"]
    environment = magnetar_environment()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        written = {process.stdout.readline().strip() for _ in range(lines)}
        process.kill()
        return written | {line.strip() for line in process.stdout if line.endswith("\n")}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "metadata.db"


@pytest.mark.disk
@pytest.mark.parametrize("seed", range(5))
async def test_kill_9_in_the_middle_of_writing_loses_nothing_acknowledged(
    path: Path, seed: int
) -> None:
    written = _write_until_killed(path, lines=random.Random(seed).randint(1, 400))
    store = await open_store(f"embedded:{path}")
    found = {f"/writes/{name}" for name in await store.children("/writes")}
    assert written <= found
    assert len(found) >= len(written)
    # The dead process is known to be dead: nobody has to wait for a session timeout.
    assert await store.exists("/owned") is None
    await store.close()


async def test_the_nodes_of_a_killed_process_are_gone_when_the_store_is_opened(path: Path) -> None:
    url = f"embedded:{path}"
    with owner_process(url, "/owned") as owner:
        owner.kill()
        store = await open_store(url, settings=SETTINGS)
        assert await store.exists("/owned") is None
        await store.close()


async def test_the_nodes_of_a_living_process_stay_when_the_store_is_opened(path: Path) -> None:
    url = f"embedded:{path}"
    with owner_process(url, "/owned"):
        store = await open_store(url, settings=SETTINGS)
        assert await store.exists("/owned") == 0
        await store.close()


async def test_a_watch_sees_the_changes_of_another_process(path: Path) -> None:
    url = f"embedded:{path}"
    store = await open_store(url, settings=SETTINGS)
    events = Events()
    store.watch("/owned", events)
    assert await store.exists("/owned") is None
    with owner_process(url, "/owned"):
        await events.wait_for(WatchEvent.CREATED)
    await events.wait_for(WatchEvent.DELETED)
    await store.close()


async def test_no_files_of_ended_sessions_stay(path: Path) -> None:
    url = f"embedded:{path}"
    with owner_process(url, "/owned") as owner:
        owner.kill()
    store = await open_store(url)
    await store.create("/mine", ephemeral=True)
    await store.close()
    assert os.listdir(f"{path}-sessions") == ["open"]


async def test_many_handles_may_open_a_new_file_at_once(path: Path) -> None:
    stores = await asyncio.gather(*(open_store(f"embedded:{path}") for _ in range(8)))
    for number, store in enumerate(stores):
        await store.create(f"/{number}")
    assert len(await stores[0].children("/")) == 8
    for store in stores:
        await store.close()


async def test_a_file_locked_by_another_writer_is_unavailable_and_nothing_is_changed(
    path: Path,
) -> None:
    store = await open_store(f"embedded:{path}", settings=SETTINGS)
    await store.create("/a")
    await _pragma(store, "busy_timeout = 100")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(MetadataUnavailableError):
        await store.set("/a", b"1", version=0)
    assert await store.exists("/a") == 0, "reading goes on"
    other.execute("ROLLBACK")
    other.close()
    assert await store.set("/a", b"1", version=0) == 1
    await store.close()


async def test_a_full_disk_makes_writes_unavailable_and_reading_goes_on(path: Path) -> None:
    store = await open_store(f"embedded:{path}", settings=SETTINGS)
    await store.create("/a", b"kept")
    # SQLite's own limit of the file's size: it fails the way a full disk does.
    await _pragma(store, "max_page_count = 1")
    big = [store.create("/big/", bytes(100_000), sequential=True) for _ in range(20)]
    with pytest.raises(MetadataUnavailableError, match="full"):
        await asyncio.gather(*big)
    assert (await store.get("/a")).value == b"kept"
    await _pragma(store, f"max_page_count = {1 << 20}")
    await store.create("/b")
    await store.close()


async def _pragma(store: MetadataStore, pragma: str) -> None:
    assert isinstance(store, EmbeddedStore)
    connection = store._tree._connection
    await store._worker.run(lambda: connection.execute(f"PRAGMA {pragma}"))


async def test_a_foreign_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("no database\n" * 1000)
    with pytest.raises(InvalidPathError, match=r"notes\.txt is not a SQLite file"):
        await open_store(f"embedded:{text}")
    assert text.read_text() == "no database\n" * 1000

    database = tmp_path / "other.db"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE people (name TEXT)")
    connection.close()
    with pytest.raises(InvalidPathError, match="not a metadata store of Magnetar"):
        await open_store(f"embedded:{database}")


async def test_a_file_of_a_newer_version_is_refused(path: Path) -> None:
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(InvalidPathError, match="version 99"):
        await open_store(f"embedded:{path}")


async def test_a_folder_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MetadataUnavailableError, match="cannot open"):
        await open_store(f"embedded:{tmp_path / 'file' / 'metadata.db'}")


@pytest.mark.disk
async def test_opening_and_writing_are_fast(path: Path, tmp_path: Path) -> None:
    """Generous bounds, best of several, by what a sync costs at that time: they catch a slip by an
    order of magnitude."""
    await (await open_store(f"embedded:{path}")).close()
    opened = []
    for _ in range(5):
        started = time.perf_counter()
        store = await open_store(f"embedded:{path}")
        opened.append(time.perf_counter() - started)
        await store.close()
    store = await open_store(f"embedded:{path}")
    written, synced = [], []
    for n in range(50):
        started = time.perf_counter()
        await store.create(f"/{n}", bytes(300))
        written.append(time.perf_counter() - started)
        synced.append(_synced_write_s(tmp_path / "raw"))
    assert min(written) < 5 * min(synced) + 0.005
    assert min(opened) < 5 * min(synced) + 0.05
    await store.close()


def _synced_write_s(path: Path) -> float:
    """How long the file system takes for it, without a store."""
    with path.open("ab", buffering=0) as file:
        started = time.perf_counter()
        file.write(bytes(300))
        os.fsync(file.fileno())
        return time.perf_counter() - started


async def test_a_handle_without_watches_does_not_poll(path: Path) -> None:
    store = await open_store(f"embedded:{path}", settings=SETTINGS)
    assert isinstance(store, EmbeddedStore)
    events = Events()
    watch = store.watch("/a", events)
    assert store._poll_timer is not None
    watch.close()
    store._start_poll()  # What the timer calls.
    assert store._poll_timer is None
    await store.close()


async def test_writes_that_wait_share_a_sync_and_each_has_its_own_outcome(path: Path) -> None:
    store = await EmbeddedStore.open(str(path))
    await store.create("/taken/3")
    before = _syncs()
    outcomes = await _all_waiting(
        path,
        *(store.create(f"/taken/{number}", b"%d" % number) for number in range(500)),
        store.set("/taken", b"x", version=7),
        store.create("/taken/3/below"),
        store.set("/taken/4", b"later", version=0),
    )
    refused = {at: type(each) for at, each in enumerate(outcomes) if isinstance(each, Exception)}
    assert refused == {3: NodeExistsError, 500: BadVersionError}
    assert _syncs() - before < 100
    assert len(await store.children("/taken")) == 500
    assert (await store.get("/taken/4")).value == b"later"
    assert (await store.get("/taken/3")).value == b""
    await store.close()
    again = await EmbeddedStore.open(str(path))
    assert len(await again.children("/taken")) == 500
    assert await again.children("/taken/3") == ["below"]
    await again.close()


async def test_ephemeral_nodes_share_a_sync_too_once_the_session_is_there(path: Path) -> None:
    """Each ledger takes its id from one: a thousand topics would wait for a thousand syncs."""
    store = await EmbeddedStore.open(str(path))
    await store.create("/session", ephemeral=True)
    before = _syncs()
    outcomes = await _all_waiting(
        path, *(store.create("/ids/ID-", ephemeral=True, sequential=True) for _ in range(200))
    )
    names = [each for each in outcomes if isinstance(each, str)]
    assert len(set(names)) == 200
    assert _syncs() - before < 100
    assert (await store.get(names[0])).is_ephemeral
    await store.close()


async def test_a_session_that_is_over_fails_its_ephemeral_nodes_and_no_other_writes(
    path: Path,
) -> None:
    store = await EmbeddedStore.open(str(path))
    await store.create("/session", ephemeral=True)
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("DELETE FROM sessions")
    outcomes = await asyncio.gather(
        *(store.create(f"/n{number}", ephemeral=number % 2 == 1) for number in range(6)),
        return_exceptions=True,
    )
    assert outcomes[::2] == ["/n0", "/n2", "/n4"]
    assert all(isinstance(each, SessionExpiredError) for each in outcomes[1::2])
    assert await store.create("/n1", ephemeral=True) == "/n1"  # in a new one
    await store.close()


async def test_listeners_hear_of_a_session_that_is_over_whatever_else_fails_in_that_round(
    path: Path,
) -> None:
    """Else a bookie would stay out of the registry until it is restarted."""
    store = await EmbeddedStore.open(str(path), settings=SHORT_SESSION)
    states = _states_of(store)
    await store.create("/owned", ephemeral=True)
    os.mkdir(f"{path}-sessions/999")  # which cannot be opened as the file of a session
    with sqlite3.connect(path, isolation_level=None) as other:
        other.executescript(
            "BEGIN IMMEDIATE; DELETE FROM sessions;"
            "INSERT INTO sessions (number, timeout_ms) VALUES (999, 300); COMMIT"
        )
    async with asyncio.timeout(WAIT_S):
        assert await states.get() is SessionState.EXPIRED
    await store.close()


async def test_listeners_hear_of_a_session_that_is_over_though_no_write_was_committed(
    path: Path,
) -> None:
    store = await EmbeddedStore.open(str(path))
    states = _states_of(store)
    await store.create("/session", ephemeral=True)
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("DELETE FROM sessions")
    await _pragma(store, "max_page_count = 1")
    outcomes = await _in_one_go(
        store,
        store.create("/n", ephemeral=True),
        *(store.create("/big/", bytes(100_000), sequential=True) for _ in range(20)),
    )
    assert {type(each) for each in outcomes} == {MetadataUnavailableError}
    async with asyncio.timeout(WAIT_S):
        assert await states.get() is SessionState.EXPIRED
    await store.close()


async def test_listeners_hear_once_of_a_session_that_several_writes_found_over(path: Path) -> None:
    store = await EmbeddedStore.open(str(path))
    states = _states_of(store)
    await store.create("/session", ephemeral=True)
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("DELETE FROM sessions")
    writes = [store.create(f"/n{number}", ephemeral=True) for number in range(3)]
    outcomes = await _in_one_go(store, *writes)
    assert {type(each) for each in outcomes} == {SessionExpiredError}
    await settle()
    heard = [states.get_nowait() for _ in range(states.qsize())]
    assert heard == [SessionState.EXPIRED, SessionState.CONNECTED]
    await store.close()


async def test_a_watch_sees_the_end_of_a_session_in_a_round_that_fails_later(path: Path) -> None:
    store = await EmbeddedStore.open(str(path), settings=SHORT_SESSION)
    await store.create("/theirs")
    events = Events()
    store.watch("/theirs", events)
    assert await store.exists("/theirs") == 0  # the watch has its base by now
    with sqlite3.connect(path, isolation_level=None) as other:
        # Both owners are dead. The second session cannot be ended.
        other.executescript(
            "BEGIN IMMEDIATE;"
            "CREATE TRIGGER stays BEFORE DELETE ON sessions WHEN OLD.number = 6"
            " BEGIN SELECT RAISE(ABORT, 'it stays'); END;"
            "INSERT INTO sessions (number, timeout_ms) VALUES (5, 300), (6, 300);"
            "UPDATE nodes SET session = 5 WHERE path = '/theirs'; COMMIT"
        )
    await events.wait_for(WatchEvent.DELETED)
    await store.close()


async def test_a_watch_sees_a_write_of_its_own_handle_whose_outcome_is_unknown(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await EmbeddedStore.open(str(path), settings=SETTINGS)
    await store.create("/a")
    events = Events()
    store.watch("/a", events)
    assert await store.exists("/a") == 0  # the watch has its base by now
    other = await EmbeddedStore.open(str(path))
    await other.create("/a/b")
    await events.wait_for(WatchEvent.CHILDREN)  # the handle has found a change of another one
    write = store._tree.set

    def lose_the_answer(path: str, value: bytes, *, version: int) -> Written:
        write(path, value, version=version)
        raise UnknownOutcomeError("the disk failed in the commit")

    monkeypatch.setattr(store._tree, "set", lose_the_answer)
    with pytest.raises(UnknownOutcomeError):
        await store.set("/a", b"1", version=0)
    await events.wait_for(WatchEvent.CHANGED)
    await other.close()
    await store.close()


async def test_a_session_whose_file_cannot_be_made_is_unavailable_and_may_be_had_later(
    path: Path,
) -> None:
    """As when the process has no descriptor left, or the disk no room."""
    store = await EmbeddedStore.open(str(path))
    folder = f"{path}-sessions"
    os.rename(folder, f"{folder}.away")
    with pytest.raises(MetadataUnavailableError, match="no file for a session"):
        await store.create("/session", ephemeral=True)
    os.rename(f"{folder}.away", folder)
    assert await store.create("/session", ephemeral=True) == "/session"
    await store.close()


async def test_who_reads_after_a_write_began_finds_it(path: Path) -> None:
    store = await EmbeddedStore.open(str(path))
    writes = [asyncio.ensure_future(store.create(f"/each/{number}")) for number in range(50)]
    await asyncio.sleep(0)
    assert len(await store.children("/each")) == 50
    await asyncio.gather(*writes)
    await store.close()


async def test_writes_together_fail_together_when_another_process_holds_the_lock(
    path: Path,
) -> None:
    store = await EmbeddedStore.open(str(path), settings=SETTINGS)
    await store.create("/here")
    await _pragma(store, "busy_timeout = 100")
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        outcomes = await asyncio.gather(
            *(store.create(f"/here/{number}") for number in range(20)), return_exceptions=True
        )
        other.execute("ROLLBACK")
    assert all(isinstance(each, MetadataUnavailableError) for each in outcomes)
    await store.create("/here/last")
    await store.close()


async def _all_waiting(
    path: Path, *writes: Coroutine[object, object, T]
) -> list[T | BaseException]:
    """Run writes that all wait before the first of them can be carried out: how many of them share
    a sync does not depend on which thread is faster."""
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        tasks = [asyncio.create_task(write) for write in writes]
        await asyncio.sleep(0)  # each runs until it waits for the store
        other.execute("ROLLBACK")
    return await asyncio.gather(*tasks, return_exceptions=True)


def _states_of(store: MetadataStore) -> asyncio.Queue[SessionState]:
    """What a listener hears of the handle's session."""
    states: asyncio.Queue[SessionState] = asyncio.Queue()
    store.on_session_change(states.put_nowait)
    return states


async def _in_one_go(
    store: EmbeddedStore, *writes: Coroutine[object, object, T]
) -> list[T | BaseException]:
    """Run writes in one transaction: the worker is busy until all of them wait."""
    gate = threading.Event()
    busy = asyncio.create_task(store._worker.run(gate.wait))
    tasks = [asyncio.create_task(write) for write in writes]
    await asyncio.sleep(0)  # each runs until it waits for the store
    gate.set()
    await busy
    return await asyncio.gather(*tasks, return_exceptions=True)


def _syncs() -> int:
    """Writes of this process so far; a commit is one at least."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("syscw"))
