"""Objects as files: whole or not there, and never anywhere else than below the directory."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from magnetar.ledger.errors import (
    ObjectDamagedError,
    ObjectMissingError,
    ObjectStoreRefusedError,
    ObjectStoreUnavailableError,
)
from magnetar.ledger.offloading import directory_store
from magnetar.ledger.offloading.directory_store import DirectoryStore
from magnetar.ledger.offloading.object_store import KEY_BYTES_MAX, ObjectTail
from tests.waiting import until


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "objects")


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for each in data:
        yield each


def files_in(directory: Path) -> list[Path]:
    return [each for each in directory.rglob("*") if each.is_file()]


async def keys(store: DirectoryStore, prefix: str = "") -> list[str]:
    return [each.key async for some in store.list(prefix) for each in some]


async def test_an_object_is_what_its_pieces_were(store: DirectoryStore) -> None:
    assert await store.put("a/b/1.mgo", pieces(b"one", b"", b"two")) == 6
    assert await store.get("a/b/1.mgo", 0, 6) == b"onetwo"
    assert await store.get("a/b/1.mgo", 2, 4) == b"et"
    assert await store.tail("a/b/1.mgo", 3) == ObjectTail(b"two", 6)
    assert await store.tail("a/b/1.mgo", 100) == ObjectTail(b"onetwo", 6)


async def test_what_fails_on_the_way_leaves_nothing(store: DirectoryStore, tmp_path: Path) -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield b"one"
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        await store.put("a/1", failing())
    assert await keys(store) == []
    assert files_in(tmp_path) == []


async def test_a_write_that_was_given_up_ends_before_its_descriptor_is_another_files(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, goes_on, found = threading.Event(), threading.Event(), list[bool]()

    def slow(descriptor: int, data: bytes) -> None:
        before = os.fstat(descriptor).st_ino
        began.set()
        goes_on.wait()
        found.append(os.fstat(descriptor).st_ino == before)

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(directory_store._WRITE_BYTES)

    monkeypatch.setattr(directory_store, "_write_all", slow)
    putting = asyncio.ensure_future(store.put("a/1", endless()))
    await asyncio.to_thread(began.wait)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    others = [os.open(tmp_path, os.O_RDONLY) for _ in range(20)]
    goes_on.set()
    await until(lambda: bool(found))
    for other in others:
        os.close(other)
    assert found == [True]
    assert files_in(tmp_path) == []


async def test_a_put_that_is_cancelled_while_its_file_is_opened_leaves_nothing(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, goes_on, opened = threading.Event(), threading.Event(), list[int]()
    really = directory_store._open_aside

    def slow(path: Path) -> int:
        began.set()
        goes_on.wait()
        opened.append(really(path))
        return opened[0]

    def is_closed() -> bool:
        try:
            os.fstat(opened[0])
        except OSError:
            return True
        return False

    monkeypatch.setattr(directory_store, "_open_aside", slow)
    putting = asyncio.ensure_future(store.put("a/1", pieces(b"one")))
    await asyncio.to_thread(began.wait)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    goes_on.set()
    await until(lambda: bool(opened) and is_closed() and not files_in(tmp_path))


async def test_a_file_of_a_killed_process_with_the_same_id_is_in_nobodys_way(
    store: DirectoryStore, tmp_path: Path
) -> None:
    folder = tmp_path / "objects" / "a"
    folder.mkdir(parents=True)
    for number in (1, 2):
        (folder / f".writing-{os.getpid()}-{number}").touch()
    await store.put("a/1", pieces(b"one"))
    assert await store.create("a/2", b"two")
    assert await keys(store) == ["a/1", "a/2"]


async def test_two_stores_write_below_one_directory_at_the_same_time(
    store: DirectoryStore, tmp_path: Path
) -> None:
    async def nested() -> AsyncIterator[bytes]:
        yield b"one"
        await DirectoryStore(tmp_path / "objects").put("a/2", pieces(b"two"))

    await store.put("a/1", nested())
    assert await keys(store) == ["a/1", "a/2"]


async def test_a_listing_removes_files_of_writes_that_ended_long_ago_and_their_folders(
    store: DirectoryStore, tmp_path: Path
) -> None:
    root = tmp_path / "objects"
    names = ["a/.writing-1-1", "b/.writing-1-1", "b/.writing-1-2"]
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    await store.put("c/1", pieces(b"one"))
    for name in names[:2]:
        at_s = (root / name).stat().st_mtime - directory_store._ASIDE_KEPT_MS // 1000 - 1
        os.utime(root / name, (at_s, at_s))
    assert await keys(store) == ["c/1"]
    assert sorted(each.name for each in root.iterdir()) == ["b", "c"]
    assert files_in(root / "b") == [root / names[2]]


async def test_an_object_is_not_listed_before_it_is_whole(store: DirectoryStore) -> None:
    seen: list[list[str]] = []

    async def watched() -> AsyncIterator[bytes]:
        yield b"one"
        seen.append(await keys(store))

    await store.put("a/1", watched())
    assert seen == [[]]
    assert await keys(store) == ["a/1"]


async def test_only_the_first_creates(store: DirectoryStore) -> None:
    assert await store.create("owner.json", b"mine")
    assert not await store.create("owner.json", b"another")
    assert await store.get("owner.json", 0, 4) == b"mine"
    assert await keys(store) == ["owner.json"]


async def test_objects_are_listed_by_prefix_in_order(store: DirectoryStore) -> None:
    for key in ("b/2", "a/1", "b/10", "c"):
        await store.put(key, pieces(key.encode()))
    assert await keys(store) == ["a/1", "b/10", "b/2", "c"]
    assert await keys(store, "b/") == ["b/10", "b/2"]
    assert await keys(store, "b/1") == ["b/10"]
    (found,) = [each async for some in store.list("c") for each in some]
    assert found.size_bytes == 1
    assert found.written_ms > 0


async def test_what_is_deleted_is_gone_and_may_be_deleted_again(
    store: DirectoryStore, tmp_path: Path
) -> None:
    await store.put("a/b/1", pieces(b"x"))
    await store.put("a/2", pieces(b"x"))
    await store.delete(["a/b/1", "a/b/1", "never"])
    assert await keys(store) == ["a/2"]
    assert not (tmp_path / "objects/a/b").exists()
    with pytest.raises(ObjectMissingError):
        await store.get("a/b/1", 0, 1)
    with pytest.raises(ObjectMissingError):
        await store.tail("a/b/1", 1)


async def test_a_directory_is_no_object(store: DirectoryStore) -> None:
    await store.put("a/b/1", pieces(b"x"))
    with pytest.raises(ObjectMissingError):
        await store.get("a/b", 0, 1)
    with pytest.raises(ObjectMissingError):
        await store.tail("a/b", 1)
    with pytest.raises(ObjectStoreRefusedError):
        await store.put("a/b", pieces(b"y"))
    await store.delete(["a/b"])
    assert await keys(store) == ["a/b/1"]


async def test_an_object_that_ends_before_what_is_asked_for_is_damaged(
    store: DirectoryStore,
) -> None:
    await store.put("a", pieces(b"abc"))
    with pytest.raises(ObjectDamagedError):
        await store.get("a", 1, 5)


@pytest.mark.parametrize(
    "key",
    ["", "/a", "a//b", "../a", "a/../../b", "a/.", ".writing-1", "ä", "a" * (KEY_BYTES_MAX + 1)],
)
async def test_a_key_that_could_lead_elsewhere_is_refused(store: DirectoryStore, key: str) -> None:
    with pytest.raises(ObjectStoreRefusedError):
        await store.put(key, pieces(b"x"))
    with pytest.raises(ObjectStoreRefusedError):
        await store.get(key, 0, 1)


async def test_a_name_that_the_file_system_does_not_take_is_refused(store: DirectoryStore) -> None:
    with pytest.raises(ObjectStoreRefusedError):
        await store.put("a" * 300, pieces(b"x"))


async def test_a_directory_that_cannot_be_is_no_reason_to_call_an_object_missing(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = DirectoryStore(tmp_path / "file")
    with pytest.raises((ObjectStoreRefusedError, ObjectStoreUnavailableError)):
        await store.put("a/b", pieces(b"x"))


def failing_scandir(monkeypatch: pytest.MonkeyPatch, name: str, error: int) -> None:
    """Make one directory unreadable: the tests may run as root, who may read everything."""
    really = os.scandir

    def scandir(path: str | Path) -> object:
        if Path(path).name == name:
            raise OSError(error, os.strerror(error), str(path))
        return really(path)

    monkeypatch.setattr(os, "scandir", scandir)


async def test_a_listing_ends_with_an_error_if_a_directory_cannot_be_listed(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("a/1", "b/c/2", "d"):
        await store.put(key, pieces(b"x"))
    failing_scandir(monkeypatch, "c", errno.ESTALE)
    with pytest.raises(ObjectStoreUnavailableError):
        await keys(store)


@pytest.mark.parametrize("prefix", ["b/", "b/c/", "b/c/2", "b", ""])
async def test_a_listing_names_the_directory_that_cannot_be_listed(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    await store.put("b/c/2", pieces(b"x"))
    failing_scandir(monkeypatch, "c", errno.EACCES)
    with pytest.raises(ObjectStoreRefusedError, match=f"{tmp_path}/objects/b/c: Permission"):
        await keys(store, prefix)


@pytest.mark.parametrize("name", ["lost+found", "private", "ab"])
@pytest.mark.parametrize("prefix", ["a/", "a/b/", "a/b/1"])
async def test_a_directory_beside_the_prefix_that_cannot_be_listed_disturbs_no_listing(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, prefix: str
) -> None:
    await store.put("a/b/1", pieces(b"x"))
    (tmp_path / "objects" / name).mkdir()
    failing_scandir(monkeypatch, name, errno.EACCES)
    assert await keys(store, prefix) == ["a/b/1"]


async def test_an_entry_beside_the_prefix_whose_kind_is_unknown_disturbs_no_listing(
    store: DirectoryStore, tmp_path: Path
) -> None:
    await store.put("a/1", pieces(b"x"))
    (tmp_path / "objects" / "loop").symlink_to("loop")
    assert await keys(store, "a/") == ["a/1"]
    with pytest.raises(ObjectStoreUnavailableError, match="loop"):
        await keys(store)


async def test_the_lost_and_found_of_a_file_system_has_no_objects(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put("a/1", pieces(b"x"))
    await store.put("a/lost+found/2", pieces(b"x"))
    (tmp_path / "objects" / "lost+found").mkdir()
    assert await store.folders("") == ["a"]
    assert await store.folders("a/") == ["lost+found"]
    assert await keys(store) == ["a/1", "a/lost+found/2"]
    failing_scandir(monkeypatch, "lost+found", errno.EACCES)
    with pytest.raises(ObjectStoreRefusedError):
        await keys(store, "a/")
    with pytest.raises(ObjectStoreRefusedError):
        await keys(store, "lost+found/")


@pytest.mark.parametrize("folder", ["", "p/", "p/5f0c/", "p/5f0c/ledgers/", "p/5f0c/ledgers/00/"])
async def test_a_listing_removes_left_behind_files_on_the_way_and_below_its_prefix(
    store: DirectoryStore, tmp_path: Path, folder: str
) -> None:
    await store.put("p/5f0c/ledgers/00/1", pieces(b"x"))
    aside = tmp_path / "objects" / folder / ".writing-1-1"
    aside.touch()
    os.utime(aside, (0, 0))
    assert await keys(store, "p/5f0c/ledgers/") == ["p/5f0c/ledgers/00/1"]
    assert not aside.exists()


async def test_a_directory_that_is_deleted_during_a_listing_has_no_objects(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("a/1", "b/c/2", "d"):
        await store.put(key, pieces(b"x"))
    failing_scandir(monkeypatch, "c", errno.ENOENT)
    assert await keys(store) == ["a/1", "d"]


async def test_a_name_of_which_it_is_unknown_whether_it_is_a_directory_ends_a_listing(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unclear:
        """An entry of a file system whose listings do not tell the kinds of files."""

        name = "b"
        path = "b"

        def is_dir(self, *, follow_symlinks: bool = True) -> bool:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    await store.put("b/2", pieces(b"x"))
    monkeypatch.setattr(os, "scandir", lambda path: nullcontext([Unclear()]))
    with pytest.raises(ObjectStoreUnavailableError):
        await keys(store)
    with pytest.raises(ObjectStoreUnavailableError):
        await store.folders("")


async def test_a_store_whose_directory_was_never_made_is_empty(store: DirectoryStore) -> None:
    assert await keys(store) == []
    assert await store.folders("") == ()


async def test_a_file_in_place_of_the_directory_is_not_an_empty_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = DirectoryStore(tmp_path / "file")
    with pytest.raises(ObjectStoreRefusedError):
        await keys(store)


async def test_a_link_to_a_directory_is_neither_an_object_nor_followed(
    store: DirectoryStore, tmp_path: Path
) -> None:
    await store.put("a/1", pieces(b"x"))
    (tmp_path / "objects" / "link").symlink_to(tmp_path / "objects", target_is_directory=True)
    assert await keys(store) == ["a/1"]
