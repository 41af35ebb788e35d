"""What the commands for backups record about the store of the backups (`backup_tools.py`)."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features.backup import deleting
from magnetar.broker.features.backup.backups import Backups, FoundBackup
from magnetar.broker.features.backup.documents import Uncovered
from magnetar.deploy.backup_tools import BackupTools
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.offloading.backup_keys import BackupFolder, backups_prefix
from magnetar.ledger.offloading.backup_pins import (
    leave_store,
    note_of,
    note_store,
    renew_note,
    stores_with_backups,
)
from magnetar.ledger.offloading.settings import ObjectStoreSettings
from magnetar.ledger.offloading.store_set import StoreSet
from magnetar.ledger.system import SystemClock
from tests.dictionary_store import VersionedDictionaryStore

INSTANCE = "5f0c"
PREFIX, FORMER = "now/", "before/"


class Tools:
    """The commands over one store of backups, which the metadata store knows of."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "objects"
        self.settings = BrokerSettings(
            object_stores=(ObjectStoreSettings(name="main", url=f"file://{self.directory}"),),
            offload_store="main",
            object_prefix=PREFIX,
            object_prefixes_former=(FORMER,),
        )
        self.metadata = VersionedDictionaryStore()
        self.metadata.nodes["/backup-stores/main"] = b"noted"
        self.stores = StoreSet(self.settings.object_stores)
        self.tools = BackupTools(
            self.metadata,
            cast(LedgerClient, None),
            self.stores,
            self.settings,
            "main",
            INSTANCE,
            SystemClock(),
        )

    async def have(
        self, name: str, prefix: str = PREFIX, *, logs: int = 0, has_cluster: bool = True
    ) -> None:
        """Write files of a backup: of logs, and the last one."""
        folder = BackupFolder(backups_prefix(prefix, INSTANCE), name)
        for each in range(logs):
            assert await self.stores.store("main").create(folder.log_key(f"/log-{each}"), b"{}")
        if has_cluster:
            assert await self.stores.store("main").create(folder.cluster_key, b"{}")

    async def has_files(self) -> bool:
        """Whether the store has any object."""
        return bool([page async for page in self.stores.store("main").list("")])

    async def noted(self) -> bool:
        """Whether the sweep looks for backups in the store."""
        return list(await stores_with_backups(self.metadata)) == ["main"]


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    return Tools(tmp_path)


async def test_a_store_is_forgotten_with_its_last_backup(
    tools: Tools, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("daily", "weekly"):
        await tools.have(name)
    await tools.tools.delete("daily")
    assert await tools.noted()
    await tools.tools.delete("weekly")
    assert not await tools.noted()
    assert "1 files of backup weekly are deleted" in capsys.readouterr().out


async def test_a_store_that_is_not_mounted_is_not_forgotten(
    tools: Tools, capsys: pytest.CaptureFixture[str]
) -> None:
    await tools.have("daily")
    tools.directory.rename(tools.directory.with_name("elsewhere"))
    tools.directory.mkdir()
    await tools.tools.delete("daily")
    assert "there is no backup daily" in capsys.readouterr().out
    assert await tools.noted()


async def test_a_store_with_a_backup_below_a_former_prefix_is_not_forgotten(tools: Tools) -> None:
    await tools.have("old", FORMER)
    await tools.have("daily")
    await tools.tools.delete("daily")
    assert await tools.noted()


async def test_a_store_with_a_backup_that_was_made_during_the_look_is_not_forgotten(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tools.have("daily")
    look = Backups.found

    async def made_behind_the_look(backups: Backups) -> Sequence[FoundBackup]:
        found = await look(backups)
        noted = await note_store(tools.metadata, "main", b"another")
        await tools.have("weekly")
        assert await renew_note(tools.metadata, "main", noted, b"finished")
        monkeypatch.undo()
        return found

    monkeypatch.setattr(Backups, "found", made_behind_the_look)
    await tools.tools.delete("daily")
    assert await tools.noted()


class Broken(Exception):
    """The command is killed."""


class Killed:
    """Counts the steps that change the store or the note, and breaks off before one of them."""

    def __init__(self, tools: Tools, monkeypatch: pytest.MonkeyPatch, *, before_step: int) -> None:
        self.left = before_step
        objects = tools.stores.store("main")
        for part, name in (
            (objects, "delete"),
            (tools.metadata, "delete"),
            (tools.metadata, "set"),
        ):
            monkeypatch.setattr(part, name, self._counted(getattr(part, name)))

    def _counted(self, call: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def counted(first: object, *rest: object, **named: object) -> object:
            done: object = None
            # A deletion of several files is one step for each.
            for each in [[key] for key in first] if isinstance(first, list) else [first]:
                if not self.left:
                    raise Broken
                self.left -= 1
                done = await call(each, *rest, **named)
            return done

        return counted


@pytest.mark.parametrize("step", range(6))
@pytest.mark.parametrize(
    ("logs", "has_cluster"), [(0, True), (1, True), (3, True), (1, False), (3, False)]
)
@pytest.mark.parametrize("has_other", [True, False])
async def test_a_deletion_that_was_interrupted_can_be_repeated(
    tools: Tools,
    monkeypatch: pytest.MonkeyPatch,
    step: int,
    logs: int,
    has_cluster: bool,
    has_other: bool,
) -> None:
    await tools.have("daily", logs=logs, has_cluster=has_cluster)
    if has_other:
        await tools.have("weekly")
    with monkeypatch.context() as patched, suppress(Broken):
        Killed(tools, patched, before_step=step)
        await tools.tools.delete("daily")
    assert not await tools.noted() or await tools.has_files()
    await tools.tools.delete("daily")
    if has_other:
        assert await tools.noted()
        await tools.tools.delete("weekly")
    assert not await tools.noted()
    assert not await tools.has_files()


@pytest.mark.parametrize("point", ["note_of", "leave_store", "forget_store"])
@pytest.mark.parametrize("is_behind", [True, False])
async def test_of_two_deletions_at_once_the_later_one_forgets_the_store(
    tools: Tools, monkeypatch: pytest.MonkeyPatch, point: str, is_behind: bool
) -> None:
    """The second deletion runs in the middle of the first one."""
    await tools.have("daily", logs=2)
    await tools.have("weekly", logs=2)
    if point == "forget_store":  # an interrupted deletion that had left the store to "daily"
        await tools.tools.delete("weekly")
        await tools.have("weekly", has_cluster=False, logs=1)
    really = getattr(deleting, point)

    async def meanwhile(*args: object) -> object:
        monkeypatch.setattr(deleting, point, really)
        done = await really(*args) if is_behind else None
        await tools.tools.delete("weekly")
        return done if is_behind else await really(*args)

    monkeypatch.setattr(deleting, point, meanwhile)
    await tools.tools.delete("daily")
    await tools.tools.delete("weekly")
    assert not await tools.noted()
    assert not await tools.has_files()


async def test_deletions_that_each_saw_the_last_file_of_the_other_forget_the_store(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("daily", "weekly", "monthly")
    for name in names:
        await tools.have(name, logs=2)
    looks = asyncio.Barrier(len(names))
    really = leave_store

    async def at_once(store: MetadataStore, name: str, note: bytes, left: Iterable[str]) -> bool:
        if first:
            await looks.wait()
            first.pop()
        return await really(store, name, note, left)

    first = list(names)
    monkeypatch.setattr(deleting, "leave_store", at_once)
    await asyncio.gather(*map(tools.tools.delete, names))
    assert not await tools.noted()
    assert not await tools.has_files()


async def test_a_backup_that_is_made_again_counts_although_its_deletion_was_noted(
    tools: Tools,
) -> None:
    for name in ("daily", "weekly"):
        await tools.have(name)
    await tools.tools.delete("daily")
    assert b"daily" in tools.metadata.nodes["/backup-stores/main"]
    noted = await note_store(tools.metadata, "main", b"another")
    assert await renew_note(tools.metadata, "main", noted, b"finished")
    await tools.have("daily")
    await tools.tools.delete("weekly")
    assert await tools.noted()


async def test_a_store_that_is_unmounted_during_a_deletion_is_not_forgotten(
    tools: Tools, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("daily", "weekly"):
        await tools.have(name, logs=1)
    really = note_of

    async def unmounted(store: MetadataStore, name: str) -> bytes | None:
        tools.directory.rename(tools.directory.with_name("elsewhere"))
        tools.directory.mkdir()
        return await really(store, name)

    monkeypatch.setattr(deleting, "note_of", unmounted)
    await tools.tools.delete("daily")
    assert await tools.noted()
    assert "mounted" in capsys.readouterr().err


async def test_a_note_without_files_is_reported_and_goes_with_another_backup(
    tools: Tools, capsys: pytest.CaptureFixture[str]
) -> None:
    """A former release was interrupted after the last file."""
    await tools.tools.delete("daily")
    assert "magnetar backup create" in capsys.readouterr().err
    await tools.have("weekly")
    await tools.tools.delete("daily")
    await tools.tools.delete("weekly")
    assert capsys.readouterr().err == ""
    assert not await tools.noted()


@pytest.mark.parametrize("prefix", [PREFIX, FORMER])
async def test_a_list_notes_a_store_of_which_older_metadata_does_not_know(
    tools: Tools, prefix: str
) -> None:
    await tools.have("old", prefix)
    tools.metadata.nodes.clear()
    await tools.tools.list_backups("", as_json=False)
    assert await tools.noted()


@pytest.mark.parametrize(
    ("uncovered", "left_out", "words"),
    [
        (Uncovered(), 0, "everything is covered"),
        (
            Uncovered(cursors_rolled_back=1),
            0,
            "a subscription is older, because the last acknowledgements cannot be read",
        ),
        (
            Uncovered(is_compacted=True, cursors_rolled_back=2),
            1,
            "compacted messages that left the topic are not covered; 2 subscriptions are older, "
            "because the last acknowledgements cannot be read; a scalable topic is not in the "
            "backup, with messages and subscriptions",
        ),
    ],
)
def test_everything_is_covered_only_if_a_restore_brings_everything_back(
    tools: Tools, uncovered: Uncovered, left_out: int, words: str
) -> None:
    assert tools.tools._in_words(uncovered, left_out=left_out) == words
