"""Objects that backups name stay in the sweep (`backup_pins.py`, `sweeper.py`)."""

import errno
import json
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from magnetar.ledger.errors import ObjectDamagedError, ObjectStoreUnavailableError
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.managed_log.log_objects import LedgerObject, ObjectState
from magnetar.ledger.offloading.backup_keys import BackupFolder, backups_prefix
from magnetar.ledger.offloading.backup_pins import ROOT, BackupPins, keys_in
from magnetar.ledger.offloading.directory_store import DirectoryStore
from magnetar.ledger.offloading.log_manifest import LogManifest, encode_checked
from magnetar.ledger.offloading.object_keys import ledgers_prefix, object_base
from magnetar.ledger.offloading.sweeper import SweepCounts, Sweeper
from magnetar.ledger.system import SystemClock
from tests.dictionary_store import DictionaryStore

LOG = "/managed-ledgers/public/default/persistent/flights"
OTHER = "/managed-ledgers/public/default/persistent/trains"
INSTANCE = "5f0c"
PREFIXES = [backups_prefix("", INSTANCE), backups_prefix("former/", INSTANCE)]
FOLDER = BackupFolder(PREFIXES[0], "daily")
EMPTY = BackupFolder(PREFIXES[0], "empty")
"""A backup of no topic."""


def node_of(log: str, *ledger_ids: int) -> LogMetadata:
    """A log with these ledgers in objects."""
    ledgers = (
        LogLedger(each, 1, 1, 1, LedgerObject(ObjectState.COPIED, f"{each:032x}", 0, 9, 9, 9))
        for each in ledger_ids
    )
    return LogMetadata(tuple(ledgers), object_bases=(object_base("main", "", INSTANCE, log),))


def file_of(log: str, node: LogMetadata) -> bytes:
    """The file of a log in a backup."""
    manifest = LogManifest(INSTANCE, log, 1, 1, node)
    return encode_checked({"manifest": json.loads(manifest.to_json())})


class Swept:
    """A store with objects, a backup's files, and the nodes of logs."""

    def __init__(self, directory: Path) -> None:
        self.objects = DirectoryStore(directory / "main")
        self.other = DirectoryStore(directory / "other")
        self.nodes = DictionaryStore()
        self.sweeper = Sweeper(
            self.objects,
            self.nodes,
            ledgers_prefix("", INSTANCE),
            clock=SystemClock(),
            grace_s=0,
            pins=BackupPins(self.nodes, self, PREFIXES),
        )
        self.nodes.nodes[f"{ROOT}/main"] = self.nodes.nodes[f"{ROOT}/other"] = b""

    def store(self, name: str) -> DirectoryStore:
        """One of two stores that have backups."""
        return {"main": self.objects, "other": self.other}[name]

    async def have(self, log: str, *ledger_ids: int) -> list[str]:
        """Objects of a log whose node names none."""
        keys = sorted(keys_in(node_of(log, *ledger_ids)))
        for key in keys:
            assert await self.objects.create(key, b"object")
        self.nodes.nodes[log] = LogMetadata().to_json()
        return keys

    async def left(self) -> list[str]:
        """The objects that two passes leave."""
        await self.sweeper.sweep(may_delete=lambda: True)
        self.counts: SweepCounts = await self.sweeper.sweep(may_delete=lambda: True)
        return await self.keys()

    async def keys(self) -> list[str]:
        """The objects of ledgers."""
        prefix = ledgers_prefix("", INSTANCE)
        return [each.key async for page in self.objects.list(prefix) for each in page]


@pytest.fixture
async def swept(tmp_path: Path) -> Swept:
    swept = Swept(tmp_path)
    for store in (swept.objects, swept.other):
        await store.create(EMPTY.cluster_key, b"{}")
    return swept


async def test_what_a_backup_names_is_kept_until_the_backup_is_deleted(swept: Swept) -> None:
    keys = await swept.have(LOG, 1, 2, 3)
    await swept.objects.create(FOLDER.log_key(LOG), file_of(LOG, node_of(LOG, 1, 3)))
    assert await swept.left() == [keys[0], keys[2]]
    assert swept.counts.pinned == 2
    await swept.objects.delete([FOLDER.log_key(LOG)])
    assert await swept.left() == []


async def test_a_backup_in_another_store_keeps_objects_too(swept: Swept) -> None:
    keys = await swept.have(LOG, 1)
    await swept.other.create(FOLDER.log_key(LOG), file_of(LOG, node_of(LOG, 1)))
    assert await swept.left() == keys


async def test_a_backup_below_a_former_prefix_keeps_objects_too(swept: Swept) -> None:
    keys = await swept.have(LOG, 1)
    key = BackupFolder(PREFIXES[1], "daily").log_key(LOG)
    await swept.objects.create(key, file_of(LOG, node_of(LOG, 1)))
    assert await swept.left() == keys


async def test_the_objects_of_a_topic_that_is_in_no_backup_are_deleted(swept: Swept) -> None:
    await swept.have(OTHER, 5)
    await swept.objects.create(FOLDER.log_key(LOG), file_of(LOG, node_of(LOG, 5)))
    assert await swept.left() == []


async def test_a_file_that_cannot_be_understood_keeps_everything(swept: Swept) -> None:
    keys = await swept.have(LOG, 1)
    await swept.objects.create(FOLDER.log_key(LOG), b"{}")
    await swept.sweeper.sweep(may_delete=lambda: True)
    with pytest.raises(ObjectDamagedError, match=r"flights\.json"):
        await swept.sweeper.sweep(may_delete=lambda: True)
    assert await swept.keys() == keys


async def test_a_store_of_backups_that_is_away_keeps_everything(
    swept: Swept, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(prefix: str) -> AsyncIterator[list[object]]:
        raise ObjectStoreUnavailableError("away")
        yield []

    keys = await swept.have(LOG, 1)
    monkeypatch.setattr(swept.other, "list", away)
    await swept.sweeper.sweep(may_delete=lambda: True)
    with pytest.raises(ObjectStoreUnavailableError):
        await swept.sweeper.sweep(may_delete=lambda: True)
    assert await swept.keys() == keys


@pytest.mark.parametrize("has_mount_point", [True, False])
async def test_a_store_that_lists_none_of_its_backups_keeps_everything(
    swept: Swept, tmp_path: Path, has_mount_point: bool
) -> None:
    """For example, its file system is not mounted."""
    keys = await swept.have(LOG, 1)
    await swept.other.create(FOLDER.log_key(LOG), file_of(LOG, node_of(LOG, 1)))
    (tmp_path / "other").rename(tmp_path / "elsewhere")
    if has_mount_point:
        (tmp_path / "other").mkdir()
    await swept.sweeper.sweep(may_delete=lambda: True)
    with pytest.raises(ObjectStoreUnavailableError, match=r"store other .*mounted"):
        await swept.sweeper.sweep(may_delete=lambda: True)
    assert await swept.keys() == keys


async def test_a_folder_of_backups_that_cannot_be_listed_keeps_everything(
    swept: Swept, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = await swept.have(LOG, 1, 2)
    await swept.objects.create(FOLDER.log_key(LOG), file_of(LOG, node_of(LOG, 1, 2)))
    await swept.sweeper.sweep(may_delete=lambda: True)
    really = os.scandir

    def scandir(path: str | Path) -> object:
        if Path(path).name == "logs":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return really(path)

    async def pinned(self: BackupPins, keys: Sequence[str]) -> frozenset[str]:
        monkeypatch.setattr(os, "scandir", scandir)
        return await find_pinned(self, keys)

    find_pinned = BackupPins.pinned
    monkeypatch.setattr(BackupPins, "pinned", pinned)
    with pytest.raises(ObjectStoreUnavailableError):
        await swept.sweeper.sweep(may_delete=lambda: True)
    monkeypatch.undo()
    assert await swept.keys() == keys


async def test_a_backup_below_one_prefix_shows_that_the_store_is_in_place(swept: Swept) -> None:
    for store in (swept.objects, swept.other):
        await store.delete([EMPTY.cluster_key])
        await store.create(BackupFolder(PREFIXES[1], "old").log_key(OTHER), b"of another log")
    await swept.have(LOG, 1)
    assert await swept.left() == []


async def test_a_store_that_has_no_backups_is_not_asked(
    swept: Swept, monkeypatch: pytest.MonkeyPatch
) -> None:
    del swept.nodes.nodes[f"{ROOT}/other"]
    monkeypatch.setattr(swept, "other", None)
    await swept.have(LOG, 1)
    assert await swept.left() == []


async def test_files_are_read_behind_nodes_and_nodes_once_more_behind_files(
    swept: Swept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore names an object again, and its backup is deleted, both in the middle of a pass."""
    keys = await swept.have(LOG, 1)
    await swept.sweeper.sweep(may_delete=lambda: True)
    read = swept.other.list

    async def restored_meanwhile(prefix: str) -> AsyncIterator[object]:
        swept.nodes.nodes[LOG] = node_of(LOG, 1).to_json()
        async for page in read(prefix):
            yield page

    monkeypatch.setattr(swept.other, "list", restored_meanwhile)
    counts = await swept.sweeper.sweep(may_delete=lambda: True)
    assert (counts.unnamed, counts.pinned, counts.deleted) == (1, 0, 0)
    assert await swept.keys() == keys
