"""Files of servers are for their owner alone, however open the umask is."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.bookie.indexes.rocks_store import RocksStore
from magnetar.ledger.metadata import MetadataSettings, open_store
from magnetar.ledger.system import SystemDisk

_OTHERS = 0o077


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def _open_to_others(path: Path) -> list[Path]:
    return [each for each in (path, *path.rglob("*")) if each.lstat().st_mode & _OTHERS]


def test_what_a_disk_makes_is_for_its_owner(tmp_path: Path) -> None:
    data = tmp_path / "a" / "b"
    disk = SystemDisk()
    disk.make_directory(str(data))
    disk.create(str(data / "created")).close()
    disk.update(str(data / "updated")).close()
    disk.replace_file(str(data / "replaced"), b"1")
    disk.lock(str(data / "locked")).release()
    assert len(list(data.iterdir())) == 4
    assert _open_to_others(tmp_path / "a") == []


async def test_metadata_and_session_files_are_for_their_owner(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(0o700)
    store = await open_store(f"embedded:{data / 'metadata.db'}", settings=MetadataSettings())
    await store.create("/live", b"1", ephemeral=True)
    assert {"metadata.db", "metadata.db-wal", "metadata.db-sessions"} <= {
        each.name for each in data.iterdir()
    }
    assert _open_to_others(data) == []
    await store.close()


def test_nobody_else_gets_into_an_index(tmp_path: Path) -> None:
    RocksStore.open(str(tmp_path / "index"), may_create=True).close()
    assert (tmp_path / "index").stat().st_mode & _OTHERS == 0
