"""Damage to the file of the embedded store: it is noticed, and nothing is done on its word.

What is damaged is a file at rest, as a crash or an orderly end left it.
"""

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from magnetar.ledger.errors import InvalidPathError, MetadataDamagedError
from magnetar.ledger.metadata import MetadataStore, open_store
from magnetar.ledger.metadata.sqlite_tree import SqliteTree
from magnetar.ledger.system import SystemClock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.db"


async def opened(path: Path) -> MetadataStore:
    return await open_store(f"embedded:{path}")


async def crashed(path: Path, *, nodes: int = 20) -> Path:
    """A file as kill -9 leaves it after so many creations."""
    store = await opened(path)
    for number in range(nodes):
        await store.create(f"/{number}", b"value %d" % number)
    copy = copied(path)
    await store.close()
    return copy


def copied(path: Path) -> Path:
    """A copy of the file, and of those beside it, as they are now."""
    copy = path.with_name("copy")
    copy.mkdir()
    for file in path.parent.glob("metadata.db*"):
        if file.is_file():
            shutil.copy(file, copy / file.name)
    return copy / path.name


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 0x20
    file.write_bytes(content)


def offset_of(file: Path, content: bytes) -> int:
    return file.read_bytes().index(content)


def exists(path: Path) -> bool:
    return path.exists()


def lose(path: Path, *, leaves_empty: bool) -> None:
    path.unlink()
    if leaves_empty:
        path.touch()


def break_last_page(path: Path) -> None:
    """Change the head of its list of cells."""
    content = path.read_bytes()
    page_bytes = int.from_bytes(content[16:18], "big")
    flip(path, len(content) - page_bytes + 1)


def wal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def end_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-end")


async def test_a_changed_bit_in_a_value_is_an_error_for_who_reads_it_and_for_nobody_else(
    path: Path,
) -> None:
    store = await opened(path)
    await store.create("/a", b'{"last_entry_id":399}')
    await store.create("/b", b"other")
    await store.close()
    flip(path, offset_of(path, b":399") + 1)
    store = await opened(path)
    with pytest.raises(MetadataDamagedError, match=r"/a in .*checksum"):
        await store.get("/a")
    assert (await store.get("/b")).value == b"other"
    await store.close()


@pytest.mark.parametrize(
    "change",
    ["path = '/c' WHERE path = '/a'", "version = 7 WHERE path = '/a'", "value = x'00'"],
)
async def test_every_field_that_is_acted_on_has_part_in_the_checksum(
    path: Path, change: str
) -> None:
    store = await opened(path)
    await store.create("/a", b"value")
    await store.close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE nodes SET {change}")
    connection.close()
    store = await opened(path)
    with pytest.raises(MetadataDamagedError):
        await store.get("/c" if "/c" in change else "/a")
    await store.close()


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a changed byte early": lambda wal: flip(wal, wal.stat().st_size // 4),
    "a changed byte at the end": lambda wal: flip(wal, wal.stat().st_size - 100),
    "cut": lambda wal: os.truncate(wal, wal.stat().st_size // 2),
    "empty": lambda wal: os.truncate(wal, 0),
    "removed": lambda wal: wal.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
async def test_a_write_ahead_log_that_lacks_answered_changes_refuses_the_start(
    path: Path, damage: Callable[[Path], None]
) -> None:
    copy = await crashed(path)
    damage(wal_of(copy))
    with pytest.raises(MetadataDamagedError, match=r"lacks the last|missing or empty"):
        await opened(copy)


async def test_what_a_crash_leaves_is_no_damage(path: Path) -> None:
    store = await opened(await crashed(path))
    assert (await store.get("/19")).value == b"value 19"
    await store.close()


async def test_a_file_that_is_older_than_its_last_answer_is_refused(path: Path) -> None:
    store = await opened(path)
    await store.create("/a")
    await store.close()
    older = copied(path)
    store = await opened(path)
    await store.create("/b")
    await store.close()
    shutil.copy(older, path)
    with pytest.raises(MetadataDamagedError, match="an older copy"):
        await opened(path)
    lose(end_of(path), leaves_empty=False)
    store = await opened(path)
    assert await store.exists("/b") is None
    await store.close()


@pytest.mark.parametrize("is_there", [False, True], ids=["removed", "empty"])
async def test_a_lost_file_is_not_begun_anew(path: Path, is_there: bool) -> None:
    store = await opened(path)
    await store.create("/a")
    await store.close()
    lose(path, leaves_empty=is_there)
    with pytest.raises(MetadataDamagedError, match="missing or empty"):
        await opened(path)
    assert exists(path) == is_there  # nothing new was put in its place


async def test_a_damaged_or_missing_count_of_transactions_proves_nothing(path: Path) -> None:
    store = await opened(path)
    await store.create("/a")
    await store.close()
    flip(end_of(path), 10)
    store = await opened(path)
    await store.create("/b")
    await store.close()
    lose(end_of(path), leaves_empty=False)
    store = await opened(path)
    assert await store.exists("/b") == 0
    await store.close()


async def test_tables_that_do_not_fit_together_refuse_the_start(path: Path) -> None:
    store = await opened(path)
    for number in range(300):
        await store.create(f"/parent/{number}", bytes(100))
    await store.close()
    break_last_page(path)
    with pytest.raises((MetadataDamagedError, InvalidPathError), match="damaged"):
        await opened(path)


async def test_a_node_is_gone_if_it_was_deleted_and_not_if_it_was_lost(path: Path) -> None:
    store = await opened(path)
    for name in ("/deleted", "/lost", "/there"):
        await store.create(name)
    await store.create("/ephemeral", ephemeral=True)
    await store.delete("/deleted")
    await store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM nodes WHERE path = '/lost'")
    connection.close()
    store = await opened(path)
    names = ("/deleted", "/lost", "/there", "/never")
    assert [await store.is_gone(name) for name in names] == [True, False, False, False]
    await store.close()


async def test_the_time_of_a_deletion_stays_known_when_the_node_is_created_again(
    path: Path,
) -> None:
    store = await opened(path)
    before_ms = SystemClock().wall_ms()
    await store.create("/node")
    assert await store.deleted_ms("/node") is None
    await store.delete("/node")
    await store.create("/node")
    deleted_ms = await store.deleted_ms("/node")
    assert deleted_ms is not None
    assert before_ms <= deleted_ms <= SystemClock().wall_ms() + 1000
    await store.close()


def test_a_file_of_the_first_version_is_brought_up_to_date(path: Path) -> None:
    """Ledgers that are missing in it were deleted: nothing recorded that then."""
    _make_first_version(path)
    tree = SqliteTree(str(path), busy_timeout_s=1.0)
    assert tree.get("/ledgers/00/0000/L0006").value == b"six"
    assert tree.damaged == []
    assert tree.is_gone("/ledgers/00/0000/L0003")
    assert not tree.is_gone("/ledgers/00/0000/L0006")
    assert not tree.is_gone("/ledgers/00/0000/L0007")
    tree.close()
    tree = SqliteTree(str(path), busy_timeout_s=1.0)
    assert tree.damaged == []
    tree.close()


@pytest.mark.parametrize(
    ("node", "is_gone"),
    [
        ("/ledgers/00/0000/L0003", True),
        ("/ledgers/L0000000003", True),  # flat layout
        ("/ledgers/00/0000/L0007", False),
        ("/managed-ledgers/public/default/persistent/t5", False),
        ("/managed-ledgers/public/default/persistent/L0000000003", False),
        ("/managed-ledgers/public/00/0000/L0003", False),
        ("/namespace/public/default3", False),
        ("/ledgers/3", False),
        ("/other/00/0000/L0003", False),
    ],
)
def test_only_ledgers_count_as_deleted_before_deletions_were_recorded(
    path: Path, node: str, is_gone: bool
) -> None:
    """The file knows no deletion of a topic or policy of that time: it may have lost the node."""
    _make_first_version(path)
    tree = SqliteTree(str(path), busy_timeout_s=1.0)
    assert tree.is_gone(node) == is_gone
    tree.close()


def _make_first_version(path: Path) -> None:
    """As release 0.1.0 before checksums made it: six ids were given out."""
    connection = sqlite3.connect(path)
    connection.executescript(
        """
        PRAGMA journal_mode = WAL;
        CREATE TABLE sessions (
            number INTEGER PRIMARY KEY AUTOINCREMENT, timeout_ms INTEGER NOT NULL);
        CREATE TABLE nodes (
            number INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL UNIQUE,
            parent INTEGER NOT NULL, value BLOB NOT NULL, version INTEGER NOT NULL DEFAULT 0,
            children_version INTEGER NOT NULL DEFAULT 0, next_sequence INTEGER NOT NULL DEFAULT 0,
            session INTEGER);
        CREATE INDEX nodes_by_parent ON nodes (parent, path);
        CREATE INDEX nodes_by_session ON nodes (session) WHERE session IS NOT NULL;
        INSERT INTO nodes (number, path, parent, value, next_sequence) VALUES
            (1, '/', 0, x'', 0), (2, '/ledgers', 1, x'', 0), (3, '/ledgers/idgen', 2, x'', 7),
            (4, '/ledgers/00', 2, x'', 0), (5, '/ledgers/00/0000', 4, x'', 0),
            (6, '/ledgers/00/0000/L0006', 5, CAST('six' AS BLOB), 0);
        PRAGMA application_id = 0x4D474D44;
        PRAGMA user_version = 1;
        """
    )
    connection.close()
