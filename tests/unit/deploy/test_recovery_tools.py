"""The commands about re-replication, when something in the metadata store cannot be read
(`bookies_tools.py`, `recovery_tools.py`)."""

import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from magnetar.deploy.bookies_tools import BookiesTools
from magnetar.deploy.errors import DeployError
from magnetar.deploy.options import Sources
from magnetar.deploy.recovery_tools import RecoveryTools
from magnetar.ledger.autorecovery.work_items import WorkItems
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.ledger_manager import LedgerManager
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.system import SystemClock
from magnetar.ledger.under_replication import EVERYTHING, item_path
from tests.unreadable_ledgers import open_ledger_of, spoil_ledger


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[MetadataStore]:
    store = await open_store(f"embedded:{tmp_path / 'metadata.db'}")
    yield store
    await store.close()


def manager_of(store: MetadataStore) -> LedgerManager:
    return LedgerManager(store, random=random.Random(1), clock=SystemClock())


@pytest.mark.parametrize("is_dry_run", [False, True])
async def test_a_recovery_is_not_done_while_a_ledger_cannot_be_read(
    store: MetadataStore, capsys: pytest.CaptureFixture[str], is_dry_run: bool
) -> None:
    manager = manager_of(store)
    ledger_id = await open_ledger_of(manager, "b3")
    await spoil_ledger(store, ledger_id)
    client = SimpleNamespace(
        manager=manager,
        channels=None,
        registry=None,
        fetcher=SimpleNamespace(facts_of=None, note_bad=None),
    )
    tools = BookiesTools(store, cast(LedgerClient, client), SystemClock(), Sources())
    with pytest.raises(DeployError, match=f"may name b3.*ledger {ledger_id}"):
        await tools.recover(
            ["b3"],
            ledger_id=None,
            is_dry_run=is_dry_run,
            skips_open=False,
            deletes_cookies=False,
            as_json=False,
        )
    assert "no ledger that can be read refers" in capsys.readouterr().out


async def test_items_that_cannot_be_read_are_in_the_json_list(
    store: MetadataStore, capsys: pytest.CaptureFixture[str]
) -> None:
    items = WorkItems(store, clock=SystemClock(), random=random.Random(1))
    await items.publish(6, {"b1": [EVERYTHING]})
    await items.publish(7, {"b1": [EVERYTHING]})
    path = item_path("/ledgers", 7)
    await store.set(path, b"?", version=(await store.get(path)).version)
    await RecoveryTools(store, manager_of(store), SystemClock()).list_items(
        lacking=None, as_json=True
    )
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["ledger_id"] == 6
    assert list(second) == ["problem"]
    assert path in second["problem"]
