"""Making, listing and deleting backups in a store (`creating.py`, `backups.py`)."""

from pathlib import Path
from random import Random
from typing import cast

import pytest

from magnetar.broker.base.errors import (
    BrokerMetadataError,
    ConflictError,
    InvalidNameError,
    NotThereError,
)
from magnetar.broker.features.backup.backups import Backups
from magnetar.broker.features.backup.creating import BackupMaker, Covered
from magnetar.broker.features.backup.deleting import BackupDeletion
from magnetar.broker.features.backup.documents import ClusterBackup, LeftOut, LogBackup, Uncovered
from magnetar.broker.features.backup.reading import LogReading
from magnetar.broker.features.backup.scope import Scope
from magnetar.broker.policies.model import NamespaceRecord, TenantRecord
from magnetar.ledger.errors import ObjectDamagedError, ObjectMissingError
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.managed_log.log_objects import LedgerObject, ObjectBase, ObjectState
from magnetar.ledger.offloading.backup_keys import backups_prefix
from magnetar.ledger.offloading.backup_pins import (
    forget_store,
    note_of,
    stores_with_backups,
)
from magnetar.ledger.offloading.directory_store import DirectoryStore
from magnetar.ledger.offloading.log_manifest import LogManifest
from magnetar.ledger.system import SystemClock
from tests.dictionary_store import VersionedDictionaryStore

LOG = "/managed-ledgers/t/n/persistent/x"
PREFIX = backups_prefix("", "5f0c")


def node(*ledger_ids: int) -> LogMetadata:
    ledgers = (
        LogLedger(each, 1, 1, 1, LedgerObject(ObjectState.COPIED, f"{each:032x}", 0, 9, 9, 9))
        for each in ledger_ids
    )
    return LogMetadata(tuple(ledgers), object_bases=(ObjectBase("main", "5f0c/ledgers/00/x/"),))


class Reading:
    """A log whose node is another one at each look, for as long as there are any."""

    def __init__(self, *nodes: LogMetadata | None) -> None:
        self._nodes = list(nodes)

    async def node(self, path: str) -> tuple[LogMetadata, int] | None:
        found = self._nodes.pop(0) if len(self._nodes) > 1 else self._nodes[0]
        return None if found is None else (found, 1)

    async def read(self, path: str) -> LogBackup | None:
        found = await self.node(path)
        if found is None:
            return None
        manifest = LogManifest("5f0c", path, 1, 1, found[0])
        return LogBackup(manifest, uncovered=Uncovered(ledgers=1, entries=2, since_ms=3))

    async def everything(self, path: str) -> Uncovered:
        assert "/segment/" in path
        return Uncovered(ledgers=1, entries=5, bytes=50, since_ms=2)


class Making:
    """Backups of one topic."""

    def __init__(self, directory: Path, *nodes: LogMetadata | None) -> None:
        self.objects = DirectoryStore(directory)
        self.backups = Backups(self.objects, PREFIX)
        self.store = VersionedDictionaryStore()
        self.store.nodes |= {
            "/admin/policies/t": TenantRecord(admin_roles=("boss",)).encode(),
            "/admin/policies/t/n": NamespaceRecord().encode(),
            "/admin/policies/t/gone": NamespaceRecord(is_deleted=True).encode(),
            LOG: b"",
            "/managed-ledgers/pulsar/system/persistent/x": b"",
        }
        self.told: list[Covered] = []
        self.maker = BackupMaker(
            self.objects,
            self.backups,
            self.store,
            cast(LogReading, Reading(*nodes)),
            store_name="main",
            instance_id="5f0c",
            clock=SystemClock(),
            random=Random(1),
        )

    async def make(self, name: str = "daily") -> ClusterBackup:
        return await self.maker.make(name, Scope.of(), on_log=self.told.append)

    async def delete(self, name: str) -> int:
        deletion = BackupDeletion(self.objects, self.backups, (), self.store, store_name="main")
        return await deletion.delete(name)

    async def listed(self) -> list[tuple[str, int, bool]]:
        found = await self.backups.found()
        return [(each.name, each.files, each.is_finished) for each in found]


async def test_a_backup_has_what_is_above_topics_and_names_the_files_of_logs(
    tmp_path: Path,
) -> None:
    making = Making(tmp_path, node(1, 2))
    made = await making.make()
    assert await making.backups.cluster("daily") == made
    assert made.tenants == {"t": TenantRecord(admin_roles=("boss",))}
    assert list(made.namespaces) == ["t/n"]
    (file,) = made.logs
    assert (await making.backups.log(file)).manifest.node == node(1, 2)
    assert made.uncovered.since_ms == 3
    assert [each.ledgers for each in making.told] == [2]
    assert await making.listed() == [("daily", 2, True)]


async def test_scalable_topics_are_named_and_their_entries_count_as_not_covered(
    tmp_path: Path,
) -> None:
    making = Making(tmp_path, node(1))
    for path in (
        "/topics/t/n/empty",
        "/topics/t/n/wide+one",
        "/managed-ledgers/t/n/segment/wide+one%2F0000-7fff-1",
        "/managed-ledgers/t/n/segment/wide+one%2F8000-ffff-2",
    ):
        making.store.nodes[path] = b"{}"
    told: list[LeftOut] = []
    made = await making.maker.make(
        "daily", Scope.of(), on_log=lambda _: None, on_left_out=told.append
    )
    assert told == [
        LeftOut(topic="topic://t/n/empty", uncovered=Uncovered()),
        LeftOut(
            topic="topic://t/n/wide one",
            uncovered=Uncovered(ledgers=2, entries=10, bytes=100, since_ms=2),
        ),
    ]
    assert (await making.backups.cluster("daily")).left_out == tuple(told)
    assert made.uncovered == Uncovered(ledgers=3, entries=12, bytes=100, since_ms=2)


async def test_scalable_topics_outside_the_scope_are_not_named(tmp_path: Path) -> None:
    making = Making(tmp_path, node(1))
    for name in ("one", "other"):
        making.store.nodes[f"/topics/t/n/{name}"] = b"{}"
        making.store.nodes[f"/managed-ledgers/t/n/segment/{name}%2F0000-ffff-0"] = b""
    scope = Scope.of(topic="persistent://t/n/one")
    made = await making.maker.make("daily", scope, on_log=lambda _: None)
    assert [each.topic for each in made.left_out] == ["topic://t/n/one"]


async def test_a_log_that_has_moved_on_is_written_anew(tmp_path: Path) -> None:
    making = Making(tmp_path, node(1, 2), node(2), node(2, 3), node(2, 3))
    (file,) = (await making.make()).logs
    assert (await making.backups.log(file)).manifest.node == node(2, 3)


async def test_further_objects_of_a_log_are_no_reason_to_write_it_anew(tmp_path: Path) -> None:
    making = Making(tmp_path, node(1), node(1, 2))
    (file,) = (await making.make()).logs
    assert (await making.backups.log(file)).manifest.node == node(1)


async def test_a_log_that_always_moves_on_leaves_no_backup_and_no_pin(tmp_path: Path) -> None:
    making = Making(tmp_path, *(node(each) for each in range(1, 12)))
    with pytest.raises(BrokerMetadataError, match="moved on"):
        await making.make()
    assert await making.listed() == []


async def test_a_topic_that_is_deleted_meanwhile_is_left_out(tmp_path: Path) -> None:
    making = Making(tmp_path, node(1), None, None)
    assert (await making.make()).logs == ()


async def test_the_sweep_knows_of_the_store_before_there_is_a_file(tmp_path: Path) -> None:
    making = Making(tmp_path, node(1))
    await making.make()
    assert await stores_with_backups(making.store) == ["main"]
    await making.make("weekly")
    assert await stores_with_backups(making.store) == ["main"]


@pytest.mark.parametrize("again", [False, True])
async def test_a_backup_during_which_the_store_was_forgotten_is_not_finished(
    tmp_path: Path, again: bool
) -> None:
    making = Making(tmp_path, node(1))

    def forget(covered: Covered) -> None:
        del making.store.nodes["/backup-stores/main"]
        if again:
            making.store.nodes["/backup-stores/main"] = b"another"

    with pytest.raises(ConflictError, match="try again"):
        await making.maker.make("daily", Scope.of(), on_log=forget)
    assert await making.listed() == [("daily", 1, False)]


async def test_a_store_without_backups_is_forgotten(tmp_path: Path) -> None:
    making = Making(tmp_path, node(1))
    assert await stores_with_backups(making.store) == ()
    await making.make()
    noted = await note_of(making.store, "main")
    assert noted is not None
    await forget_store(making.store, "main", noted)
    assert await stores_with_backups(making.store) == ()


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_deletion_that_looked_before_a_backups_first_file_does_not_forget_the_store(
    tmp_path: Path, is_first: bool
) -> None:
    making = Making(tmp_path, node(1))
    if not is_first:
        await making.make("old")
        await making.objects.delete(await making.backups.keys("old"))
    noted: list[bytes | None] = []
    create = making.objects.create

    async def looked_at(key: str, body: bytes) -> bool:
        if not noted:
            noted.append(await note_of(making.store, "main"))
            assert await making.backups.found() == []
        return await create(key, body)

    making.objects.create = looked_at  # type: ignore[method-assign]
    await making.make()
    assert noted[0] is not None
    await forget_store(making.store, "main", noted[0])
    assert await stores_with_backups(making.store) == ["main"]


async def test_backups_that_are_made_at_the_same_time_both_finish(tmp_path: Path) -> None:
    making = Making(tmp_path, node(1))
    look = making.maker._reading.node

    async def meanwhile(path: str) -> tuple[LogMetadata, int] | None:
        making.maker._reading.node = look  # type: ignore[method-assign]
        await making.make("other")
        return await look(path)

    making.maker._reading.node = meanwhile  # type: ignore[method-assign]
    await making.make()
    assert await making.listed() == [("daily", 2, True), ("other", 2, True)]


async def test_a_name_is_used_once(tmp_path: Path) -> None:
    making = Making(tmp_path, node(1))
    await making.make()
    with pytest.raises(ConflictError, match="daily"):
        await making.make()
    await making.make("weekly")
    for name in ("", "a/b", ".."):
        with pytest.raises(InvalidNameError):
            await making.make(name)


async def test_a_backup_without_its_last_file_is_unfinished_and_can_be_deleted(
    tmp_path: Path,
) -> None:
    making = Making(tmp_path, node(1))
    made = await making.make()
    await making.objects.delete([making.backups.folder("daily").cluster_key])
    assert await making.listed() == [("daily", 1, False)]
    with pytest.raises(NotThereError, match="broken off"):
        await making.backups.cluster("daily")
    assert await making.delete("daily") == 1
    assert await making.listed() == []
    with pytest.raises(ObjectMissingError):
        await making.backups.log(made.logs[0])
    assert await making.delete("daily") == 0


async def test_a_file_that_is_not_the_one_that_the_backup_names_is_refused(
    tmp_path: Path,
) -> None:
    making = Making(tmp_path, node(1))
    (file,) = (await making.make()).logs
    other = Making(tmp_path / "other", node(2))
    await other.make()
    value = (tmp_path / "other" / file.key).read_bytes()
    (tmp_path / file.key).write_bytes(value)
    with pytest.raises(ObjectDamagedError, match="cluster file"):
        await making.backups.log(file)
