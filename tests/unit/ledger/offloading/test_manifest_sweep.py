"""Of each log the newest manifest stays (`manifest_sweep.py`)."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.ledger.errors import ObjectStoreUnavailableError
from magnetar.ledger.managed_log.log_metadata import CREATED_PROPERTY, LogLedger, LogMetadata
from magnetar.ledger.managed_log.log_objects import LedgerObject, ObjectBase, ObjectState
from magnetar.ledger.metadata.store import Versioned
from magnetar.ledger.offloading.directory_store import DirectoryStore
from magnetar.ledger.offloading.log_manifest import (
    LogManifest,
    manifest_directory,
    manifest_key,
    manifests_prefix,
)
from magnetar.ledger.offloading.manifest_sweep import ManifestSweep, ManifestSweepCounts
from magnetar.ledger.offloading.object_store import StoredObject
from tests.dictionary_store import DictionaryStore
from tests.unit.broker.memory_log import ManualClock

FLIGHTS = "/managed-ledgers/public/default/persistent/flights"
TRAINS = "/managed-ledgers/public/default/persistent/trains"
LONG = f"/managed-ledgers/public/default/persistent/{'n' * 300}"


def node_of(*ledger_ids: int) -> LogMetadata:
    ledgers = (
        LogLedger(each, 1, 1, 1, LedgerObject(ObjectState.COPIED, f"{each:032x}", 0, 9, 9, 9))
        for each in ledger_ids
    )
    return LogMetadata(tuple(ledgers), object_bases=(ObjectBase("main", "x/"),))


class Nodes(DictionaryStore):
    """With versions, and a fault."""

    def __init__(self) -> None:
        super().__init__()
        self.versions: dict[str, int] = {}

    async def get(self, path: str) -> Versioned:
        found = await super().get(path)
        return Versioned(found.value, self.versions.get(path, 0))


class Swept:
    """Manifests, nodes, and the sweep of both."""

    def __init__(self, directory: Path, *, remembered_max: int = 100) -> None:
        self.objects = DirectoryStore(directory)
        self.nodes = Nodes()
        self.clock = ManualClock()
        self.sweeping = ManifestSweep(
            self.objects,
            self.nodes,
            manifests_prefix("", "5f0c"),
            clock=self.clock,
            grace_s=10.0,
            remembered_max=remembered_max,
        )

    def set(self, log: str, node: LogMetadata, version: int) -> None:
        self.nodes.nodes[log], self.nodes.versions[log] = node.to_json(), version

    async def add(self, log: str, through: int, version: int, written_ms: int = 1) -> str:
        key = manifest_key(
            manifest_directory("", "5f0c", log),
            through=through,
            version=version,
            written_ms=written_ms,
        )
        manifest = LogManifest("5f0c", log, version, written_ms, node_of(through))
        await self.objects.create(key, manifest.to_json())
        return key

    async def keys(self) -> list[str]:
        return [each.key async for page in self.objects.list("") for each in page]

    async def sweep(self, *, may_delete: bool = True) -> ManifestSweepCounts:
        return await self.sweeping.sweep(may_delete=lambda: may_delete)

    async def sweep_out(self) -> list[str]:
        """What is left when the grace of all that is old now is over."""
        await self.sweep()
        self.clock.advance(10_000)
        await self.sweep()
        return await self.keys()


async def test_older_manifests_go_after_the_grace_and_the_newest_stays(tmp_path: Path) -> None:
    swept = Swept(tmp_path)
    swept.set(FLIGHTS, node_of(4, 5), 7)
    old = [await swept.add(FLIGHTS, 4, 3), await swept.add(FLIGHTS, 5, 6, 1)]
    new = await swept.add(FLIGHTS, 5, 6, 2)
    counts = await swept.sweep()
    assert (counts.manifests, counts.old, counts.deleted) == (3, 2, 0)
    swept.clock.advance(9_999)
    assert (await swept.sweep()).deleted == 0
    assert await swept.keys() == [*old, new]
    swept.clock.advance(1)
    assert (await swept.sweep(may_delete=False)).deleted == 0
    assert (await swept.sweep()).deleted == 2
    assert await swept.keys() == [new]


async def test_manifests_of_a_deleted_log_go(tmp_path: Path) -> None:
    swept = Swept(tmp_path)
    swept.set(TRAINS, node_of(1), 1)
    await swept.add(FLIGHTS, 4, 3)
    await swept.add(LONG, 4, 3)
    kept = await swept.add(TRAINS, 1, 1)
    assert await swept.sweep_out() == [kept]


async def test_manifests_of_a_log_whose_node_was_lost_stay(tmp_path: Path) -> None:
    swept = Swept(tmp_path)
    keys = [await swept.add(FLIGHTS, 4, 3), await swept.add(FLIGHTS, 5, 4)]
    swept.nodes.lost.add(FLIGHTS)
    assert await swept.sweep_out() == keys
    assert (await swept.sweep()).undecided == 2


async def test_manifests_older_than_a_log_that_was_created_anew_stay_unless_the_former_was_deleted(
    tmp_path: Path,
) -> None:
    """The metadata file lost the log, and a client that used it created it again."""
    swept = Swept(tmp_path)
    swept.nodes.records_deletions = True
    created_ms = 5 * 3_600_000
    node = replace(node_of(9), properties={CREATED_PROPERTY: str(created_ms)})
    swept.set(FLIGHTS, node, 4)
    former = [
        await swept.add(FLIGHTS, 4, 3, created_ms - 2),
        await swept.add(FLIGHTS, 5, 4, created_ms - 1),
    ]
    own = [
        await swept.add(FLIGHTS, 9, 3, created_ms),
        await swept.add(FLIGHTS, 9, 4, created_ms + 1),
    ]
    assert await swept.sweep_out() == [*former, own[1]]
    swept.nodes.deleted[FLIGHTS] = created_ms - 1
    assert await swept.sweep_out() == [own[1]]


async def test_a_log_of_the_same_name_loses_the_manifest_of_the_former_one_only(
    tmp_path: Path,
) -> None:
    """The node of the new log begins at version 0, and a restored one has older ledgers."""
    swept = Swept(tmp_path)
    await swept.add(FLIGHTS, 20, 50)
    swept.set(FLIGHTS, LogMetadata((LogLedger(30),)), 0)  # made again, and nothing was moved
    assert await swept.sweep_out() == []
    former = await swept.add(FLIGHTS, 20, 50)
    swept.set(FLIGHTS, node_of(10), 1)  # restored from a backup that was older
    own = await swept.add(FLIGHTS, 10, 1)
    assert await swept.sweep_out() == [own]
    assert former != own


async def test_what_cannot_be_told_stays(tmp_path: Path) -> None:
    swept = Swept(tmp_path)
    swept.nodes.nodes[FLIGHTS] = b"not a log"
    keys = [await swept.add(FLIGHTS, 4, 3), await swept.add(FLIGHTS, 5, 4)]
    await swept.objects.create("5f0c/manifests/a/b/something else", b"")
    damaged = await swept.add(LONG, 4, 3)
    await swept.objects.delete([damaged])
    await swept.objects.create(damaged, b"spoiled")
    assert await swept.sweep_out() == sorted([*keys, damaged, "5f0c/manifests/a/b/something else"])
    assert (await swept.sweep()).undecided == 3


async def test_a_sweep_remembers_no_more_than_it_may(tmp_path: Path) -> None:
    swept = Swept(tmp_path, remembered_max=2)
    swept.set(FLIGHTS, node_of(4), 9)
    for version in range(4):
        new = await swept.add(FLIGHTS, 4, version)
    assert (await swept.sweep()).put_off == 1
    swept.clock.advance(10_000)
    counts = await swept.sweep()
    assert (counts.deleted, counts.put_off) == (2, 1)
    assert await swept.sweep_out() == [new]


async def test_a_pass_that_breaks_off_forgets_no_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept = Swept(tmp_path)
    swept.set(FLIGHTS, node_of(4), 9)
    await swept.add(FLIGHTS, 4, 1)
    new = await swept.add(FLIGHTS, 4, 2)
    await swept.sweep()
    swept.clock.advance(10_000)

    async def broken(_prefix: str) -> AsyncIterator[Sequence[StoredObject]]:
        raise ObjectStoreUnavailableError("away")
        yield ()

    with monkeypatch.context() as patched:
        patched.setattr(swept.objects, "list", broken)
        with pytest.raises(ObjectStoreUnavailableError):
            await swept.sweep()
    await swept.sweep()
    assert await swept.keys() == [new]
