"""Changing single records, whatever is in their way."""

from magnetar.broker.policies.model import TenantRecord, tenant_path
from magnetar.broker.policies.records import change_record, read_record
from tests.dictionary_store import DictionaryStore


class _Store(DictionaryStore):
    """Its values can be replaced."""

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
