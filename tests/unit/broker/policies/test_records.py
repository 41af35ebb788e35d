"""Changing single records, whatever is in their way."""

from typing import cast

import pytest

from magnetar.broker.base.errors import ConflictError, NotThereError
from magnetar.broker.policies.model import TenantRecord, tenant_path
from magnetar.broker.policies.records import change_record, read_record
from magnetar.ledger.metadata.store import MetadataStore
from tests.dictionary_store import DictionaryStore
from tests.unit.broker.schemas.memory_schemas import MemoryNodes


class _Store(DictionaryStore):
    """A store whose values can be replaced."""

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        assert path in self.nodes
        self.nodes[path] = value
        return version


RECORD = TenantRecord(admin_roles=("admin",), allowed_clusters=("standalone",))


async def test_a_node_that_is_there_for_its_children_alone_is_given_a_record() -> None:
    """A tenant that is deleted while a namespace is made in it leaves such a node behind."""
    store = _Store()
    path = tenant_path("acme")
    store.nodes[path] = b""
    assert await read_record(store, TenantRecord, path, is_sure=True) is None
    assert await change_record(store, TenantRecord, path, lambda _: RECORD) == RECORD
    found = await read_record(store, TenantRecord, path)
    assert found is not None
    assert found[0] == RECORD


async def test_what_is_not_there_is_made_and_taken_away_again() -> None:
    store = _Store()
    path = tenant_path("acme")
    assert await change_record(store, TenantRecord, path, lambda _: RECORD) == RECORD
    assert await change_record(store, TenantRecord, path, lambda _: None) is None
    assert path not in store.nodes


async def test_a_record_that_was_made_is_no_conflict_when_the_answer_is_lost() -> None:
    def first(before: TenantRecord | None) -> TenantRecord:
        if before is not None:
            raise ConflictError("it exists")
        return RECORD

    nodes = MemoryNodes()
    store, path = cast(MetadataStore, nodes), tenant_path("acme")
    nodes.lost_replies = 1
    assert await change_record(store, TenantRecord, path, first) == RECORD
    with pytest.raises(ConflictError):
        await change_record(store, TenantRecord, path, first)


async def test_a_record_that_was_taken_away_is_not_missing_when_the_answer_is_lost() -> None:
    def last(before: TenantRecord | None) -> None:
        if before is None:
            raise NotThereError("it does not exist")

    nodes = MemoryNodes()
    store, path = cast(MetadataStore, nodes), tenant_path("acme")
    await change_record(store, TenantRecord, path, lambda _: RECORD)
    nodes.lost_replies = 1
    assert await change_record(store, TenantRecord, path, last) is None
    assert path not in nodes.nodes


async def test_a_change_upon_what_somebody_else_wrote_is_made_when_an_answer_is_lost() -> None:
    other = RECORD.model_copy(update={"admin_roles": ("other",)})
    store = _Lost(other)
    path = tenant_path("acme")

    def add(before: TenantRecord | None) -> TenantRecord:
        roles = () if before is None else before.admin_roles
        return RECORD.model_copy(update={"admin_roles": (*roles, "admin")})

    changed = await change_record(cast(MetadataStore, store), TenantRecord, path, add)
    assert changed is not None
    assert changed.admin_roles == ("other", "admin")


class _Lost(MemoryNodes):
    """The first write is lost, and somebody else's is there in its place."""

    def __init__(self, other: TenantRecord) -> None:
        super().__init__()
        self._other: TenantRecord | None = other

    async def create(self, path: str, value: bytes = b"") -> str:
        other, self._other = self._other, None
        if other is not None:
            self.lost_replies = 1
            return await super().create(path, other.encode())
        return await super().create(path, value)
