"""When an owner writes a manifest, and what it says (`manifest_writer.py`)."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from magnetar.ledger.errors import ObjectStoreRefusedError, ObjectStoreUnavailableError
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.managed_log.log_objects import LedgerObject, ObjectBase, ObjectState
from magnetar.ledger.offloading import manifest_writer
from magnetar.ledger.offloading.log_manifest import (
    LogManifest,
    ManifestSchema,
    ManifestTransactions,
    newest_manifests,
    parse_manifest_key,
)
from magnetar.ledger.offloading.manifest_writer import ManifestWriter
from magnetar.ledger.offloading.object_store import ObjectTail, StoredObject
from magnetar.ledger.position import Position
from tests.unit.broker.memory_log import ManualClock

SCHEMAS = (ManifestSchema(0, 1, "STRING", b""),)


async def find_schemas() -> Sequence[ManifestSchema]:
    return SCHEMAS


class MemoryObjects:
    """An object store whose `create` may fail; nothing else is asked."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.is_away = False

    async def create(self, key: str, body: bytes) -> bool:
        if self.is_away:
            raise ObjectStoreUnavailableError("away")
        return self.objects.setdefault(key, body) is body

    async def put(self, key: str, pieces: AsyncIterator[bytes], *, expected_bytes: int = 0) -> int:
        raise NotImplementedError

    async def get(self, key: str, start: int, end: int) -> bytes:
        raise NotImplementedError

    async def tail(self, key: str, size_bytes: int) -> ObjectTail:
        raise NotImplementedError

    def list(self, prefix: str) -> AsyncIterator[Sequence[StoredObject]]:
        raise NotImplementedError

    async def delete(self, keys: Sequence[str]) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        pass


class Owned:
    """A log as its owner has it, and the stores of the process."""

    path = "/managed-ledgers/public/default/persistent/flights"

    def __init__(self, *ledgers: LogLedger) -> None:
        self.objects = self
        self.stores = {"main": MemoryObjects(), "other": MemoryObjects()}
        self.version = 0
        self.metadata = LogMetadata(
            ledgers, object_bases=(ObjectBase("main", "a/"), ObjectBase("other", "b/"))
        )

    @property
    def node(self) -> tuple[LogMetadata, int]:
        return self.metadata, self.version

    def store(self, name: str) -> MemoryObjects:
        return self.stores[name]

    def change(self, *ledgers: LogLedger, removed_through: int = -1) -> None:
        self.version += 1
        self.metadata = replace(self.metadata, ledgers=ledgers, removed_through=removed_through)

    def manifests(self, store: str = "main") -> list[LogManifest]:
        found = sorted(self.stores[store].objects.items())
        return [LogManifest.from_json(body, key=key) for key, body in found]


def copied(ledger_id: int, *, base: int = 0, state: ObjectState = ObjectState.COPIED) -> LogLedger:
    return LogLedger(ledger_id, 2, 20, 1, LedgerObject(state, f"{ledger_id:032x}", base, 9, 9, 9))


def copying(ledger_id: int) -> LogLedger:
    found = LedgerObject(ObjectState.COPYING, f"{ledger_id:032x}", 0)
    return LogLedger(ledger_id, 2, 20, 1, found)


def writer_of(owned: Owned, clock: ManualClock) -> ManifestWriter:
    return ManifestWriter(owned, owned, "p/", interval_s=60.0, clock=clock)


async def test_an_owner_writes_once_and_again_only_after_a_change() -> None:
    owned, clock = Owned(copied(4), LogLedger(9)), ManualClock()
    writer = writer_of(owned, clock)
    assert writer.is_due()
    key = await writer.write("5f0c", find_schemas)
    parsed = parse_manifest_key(key)
    assert parsed is not None
    assert (parsed.log, parsed.through, parsed.version) == (owned.path, 4, 0)
    assert key.startswith("p/5f0c/manifests/")
    (manifest,) = owned.manifests()
    assert (manifest.node, manifest.schemas) == (owned.metadata, SCHEMAS)
    clock.advance(1_000_000)
    assert not writer.is_due()
    # Which ledger is open, and which one the bookies have as well, is nothing to readers.
    owned.change(copied(4, state=ObjectState.ONLY), LogLedger(11))
    assert not writer.is_due()


async def test_a_log_without_an_object_has_no_manifest() -> None:
    owned = Owned(copying(4))
    assert not writer_of(owned, ManualClock()).is_due()
    owned.metadata = LogMetadata((LogLedger(4, 1, 1, 1),), removed_through=3)
    assert not writer_of(owned, ManualClock()).is_due()


async def test_a_new_object_is_told_at_once_and_what_went_after_the_interval() -> None:
    owned, clock = Owned(copied(4), copied(5)), ManualClock()
    writer = writer_of(owned, clock)
    await writer.write("5f0c", find_schemas)
    owned.change(copied(4), copied(5), copied(6))
    assert writer.is_due()
    await writer.write("5f0c", find_schemas)
    owned.change(copied(5), copied(6), removed_through=4)
    clock.advance(59_999)
    assert not writer.is_due()
    clock.advance(1)
    assert writer.is_due()
    await writer.write("5f0c", find_schemas)
    newest = [*newest_manifests(owned.stores["main"].objects).values()]
    assert newest == [max(owned.stores["main"].objects)]
    assert [each.node.removed_through for each in owned.manifests()] == [-1, -1, 4]


async def test_a_replaced_object_is_told_at_once() -> None:
    owned, clock = Owned(copied(4)), ManualClock()
    writer = writer_of(owned, clock)
    await writer.write("5f0c", find_schemas)
    found = copied(4).object
    assert found is not None
    owned.change(replace(copied(4), object=replace(found, attempt="ab" * 16)))
    assert writer.is_due()


async def test_the_end_of_a_transaction_is_told_though_the_node_did_not_change() -> None:
    owned, clock = Owned(copied(4)), ManualClock()
    writer = writer_of(owned, clock)
    is_open = ManifestTransactions(Position(4, 0), {4: b"\x02"})
    await writer.write("5f0c", find_schemas, is_open)
    assert not writer.is_due(is_open)
    clock.advance(60_000)
    assert writer.is_due()
    await writer.write("5f0c", find_schemas)
    assert [each.transactions for each in owned.manifests()] == [is_open, ManifestTransactions()]


async def test_a_manifest_that_failed_is_still_due_and_a_second_try_harms_nothing() -> None:
    owned, clock = Owned(copied(4)), ManualClock()
    writer = writer_of(owned, clock)
    owned.stores["main"].is_away = True
    with pytest.raises(ObjectStoreUnavailableError):
        await writer.write("5f0c", find_schemas)
    assert writer.is_due()
    owned.stores["main"].is_away = False
    await writer.write("5f0c", find_schemas)
    await writer_of(owned, clock).write("5f0c", find_schemas)  # the answer to the first was lost
    assert len(owned.manifests()) == 1


async def test_a_manifest_is_in_the_store_of_the_newest_object() -> None:
    owned, clock = Owned(copied(4), copied(5, base=1), copying(6)), ManualClock()
    writer = writer_of(owned, clock)
    await writer.write("5f0c", find_schemas)
    assert len(owned.manifests("other")) == 1
    owned.change(removed_through=5)
    clock.advance(60_000)
    await writer.write("5f0c", find_schemas)
    assert [each.node.ledgers == () for each in owned.manifests("other")] == [False, True]


async def test_a_manifest_at_the_limit_is_written_and_one_beyond_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owned, clock = Owned(copied(4)), ManualClock()
    await writer_of(owned, clock).write("5f0c", find_schemas)
    (body,) = owned.stores["main"].objects.values()
    monkeypatch.setattr(manifest_writer, "MANIFEST_BYTES_MAX", len(body))
    await writer_of(owned, clock).write("5f0c", find_schemas)
    monkeypatch.setattr(manifest_writer, "MANIFEST_BYTES_MAX", len(body) - 1)
    with pytest.raises(ObjectStoreRefusedError, match=f"{owned.path}.*{len(body)} bytes"):
        await writer_of(owned, clock).write("5f0c", find_schemas)
