"""A restore checks that nobody has deleted its backup meanwhile (`restoring.py`)."""

from pathlib import Path
from random import Random
from typing import cast

import pytest

from magnetar.broker.base.errors import ConflictError
from magnetar.broker.features.backup.restoring import Restore, RestorePlan
from magnetar.broker.features.backup.scope import Scope
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.offloading.store_set import StoredLedgers, StoreSet
from magnetar.ledger.settings import LogConfig
from magnetar.ledger.system import SystemClock
from tests.dictionary_store import VersionedDictionaryStore
from tests.unit.broker.backup.test_backups import LOG, Making, node


class Restoring:
    """A restore of one topic from a backup into an empty cluster."""

    def __init__(self, making: Making) -> None:
        self.making = making
        self.store = VersionedDictionaryStore()
        self.restore = Restore(
            making.backups,
            "daily",
            Scope.of(),
            cast(StoreSet, None),
            self.store,
            cast(LedgerClient, None),
            cast(StoredLedgers, None),
            quorums=LogConfig(ensemble_size=1, write_quorum=1, ack_quorum=1),
            keeps_gaps=False,
            clock=SystemClock(),
            random=Random(1),
        )

    async def write(self) -> None:
        cluster = await self.making.backups.cluster("daily")
        found = RestorePlan(cluster, logs=list(cluster.logs))
        await self.restore.write(found, ids_max=0, on_behind=lambda _: None)

    @property
    def restored(self) -> LogMetadata:
        return LogMetadata.from_json(self.store.nodes[LOG], path=LOG)


async def test_a_restored_log_names_the_objects_of_the_backup(tmp_path: Path) -> None:
    making = Making(tmp_path, node(1, 2))
    await making.make()
    restoring = Restoring(making)
    await restoring.write()
    assert [each.ledger_id for each in restoring.restored.ledgers] == [1, 2]


@pytest.mark.parametrize("is_made_again", [False, True])
async def test_a_restore_from_a_backup_that_is_deleted_meanwhile_says_that_objects_may_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_made_again: bool
) -> None:
    making = Making(tmp_path, node(1), node(1), node(2))
    await making.make()
    restoring = Restoring(making)
    create = Restore._create

    async def deleted_before(self: Restore, path: str, node: LogMetadata) -> None:
        await making.delete("daily")
        if is_made_again:
            await making.make()
        await create(self, path, node)

    monkeypatch.setattr(Restore, "_create", deleted_before)
    with pytest.raises(ConflictError, match=r"/x was restored.*daily was deleted meanwhile"):
        await restoring.write()
