"""What the commands for backups record about the store of the backups (`backup_tools.py`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features.backup.backups import Backups, FoundBackup
from magnetar.deploy.backup_tools import BackupTools
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.offloading.backup_keys import BackupFolder, backups_prefix
from magnetar.ledger.offloading.backup_pins import (
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

    async def have(self, name: str, prefix: str = PREFIX) -> None:
        """Write the last file of a backup."""
        folder = BackupFolder(backups_prefix(prefix, INSTANCE), name)
        assert await self.stores.store("main").create(folder.cluster_key, b"{}")

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


@pytest.mark.parametrize("prefix", [PREFIX, FORMER])
async def test_a_list_notes_a_store_of_which_older_metadata_does_not_know(
    tools: Tools, prefix: str
) -> None:
    await tools.have("old", prefix)
    tools.metadata.nodes.clear()
    await tools.tools.list_backups("", as_json=False)
    assert await tools.noted()
