"""A cursor's node: who may write it, when outcomes are not known."""

import asyncio

import pytest

from magnetar.cursors import CursorFencedError
from magnetar.cursors.node import CursorNode, OwnedNode, encode_node
from magnetar.ledger.errors import (
    BadVersionError,
    MetadataUnavailableError,
    UnknownOutcomeError,
)
from magnetar.ledger.metadata.store import Versioned
from tests.unit.cursors.doubles import UNKNOWN, MemoryStore
from tests.unit.cursors.world import UNAVAILABLE

PATH = "/managed-ledgers/a/b/persistent/log/cursor"


class OneNode:
    """A store with one node, which others change while a write is under way."""

    def __init__(self, node: Versioned) -> None:
        self.node = node
        self.meanwhile: Versioned | None = None

    async def get(self, path: str) -> Versioned:
        await asyncio.sleep(0)
        return self.node

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        await asyncio.sleep(0)
        if self.meanwhile is not None:
            self.node, self.meanwhile = self.meanwhile, None
            raise UnknownOutcomeError("the connection broke")
        if version != self.node.version:
            raise BadVersionError(path)
        self.node = Versioned(value, version + 1)
        return version + 1

    async def delete(self, path: str, *, version: int) -> None:
        await asyncio.sleep(0)
        if version != self.node.version:
            raise BadVersionError(path)
        raise AssertionError("it is deleted")


def node_at(entry_id: int) -> CursorNode:
    return CursorNode(epoch=1, mark_delete=(7, entry_id))


async def test_a_cursor_made_anew_that_came_to_the_same_version_is_somebody_elses() -> None:
    """The cursor's owner was stopped in the middle of a write, for longer than its session
    lasts."""
    store = OneNode(Versioned(encode_node(node_at(1)), 4))
    owned = OwnedNode(store, PATH, store.node)  # type: ignore[arg-type]
    store.meanwhile = Versioned(encode_node(node_at(-1)), 4)
    with pytest.raises(CursorFencedError):
        await owned.write(node_at(9))
    assert store.node.value == encode_node(node_at(-1))


async def test_a_write_that_did_not_happen_is_made_again() -> None:
    store = OneNode(Versioned(encode_node(node_at(1)), 4))
    owned = OwnedNode(store, PATH, store.node)  # type: ignore[arg-type]
    store.meanwhile = store.node
    await owned.write(node_at(9))
    assert store.node == Versioned(encode_node(node_at(9)), 5)
    assert not owned.is_in_doubt


async def test_a_node_that_another_owner_has_written_is_not_deleted_though_it_reads_the_same() -> (
    None
):
    store = OneNode(Versioned(encode_node(node_at(1)), 4))
    owned = OwnedNode(store, PATH, store.node)  # type: ignore[arg-type]
    store.node = Versioned(store.node.value, 6)
    with pytest.raises(CursorFencedError):
        await owned.delete()


async def test_the_node_is_what_the_store_turned_out_to_hold_after_a_lost_reply() -> None:
    store = MemoryStore()
    store.nodes[PATH] = Versioned(encode_node(node_at(1)), 4)
    owned = OwnedNode(store, PATH, store.nodes[PATH])
    store.faults.add("set", UNKNOWN, done=True)
    store.faults.add("get", UNAVAILABLE)
    with pytest.raises(MetadataUnavailableError):
        await owned.write(node_at(2))
    store.faults.add("set", UNAVAILABLE)
    with pytest.raises(MetadataUnavailableError):
        await owned.write(node_at(3))
    assert not owned.is_in_doubt
    assert encode_node(owned.node) == store.nodes[PATH].value
