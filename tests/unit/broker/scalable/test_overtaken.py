"""A split that the deletion of its topic overtakes leaves nothing, and the name can be used."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from magnetar.broker.base import naming
from magnetar.broker.base.errors import RequestError, TopicNotFoundError
from magnetar.broker.topics.deletion import TopicDeletion
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import NoNodeError
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from magnetar.sdk.wire import TopicName
from tests.unit.broker.paused_store import PausedStore
from tests.unit.broker.scalable.test_scalable_topics import TOPIC, Owners, Scene, have_cursor

SUBSCRIPTIONS = ["s", "t"]


class _NoLedgers:
    """No log here has any."""


class DeletingOwners(Owners):
    """Owners that delete segments as brokers do."""

    def __init__(self, store: MetadataStore) -> None:
        super().__init__(store)
        self._deletion = TopicDeletion(cast(LedgerClient, _NoLedgers()), store)

    async def seal(self, segment: TopicName) -> Sequence[str]:
        if await self._store.exists(naming.log_path(segment)) is None:
            raise TopicNotFoundError(f"{segment} does not exist")
        return await super().seal(segment)

    async def delete(self, segment: TopicName) -> None:
        with suppress(TopicNotFoundError):
            await self._deletion.mark(segment)
            await self._deletion.finish(segment, lambda: True)


async def segments_in(store: MetadataStore) -> dict[str, bytes]:
    """The nodes of segments, and their values."""
    root = naming.segments_path(TOPIC.namespace_name)
    try:
        names = await store.children(root)
    except NoNodeError:
        return {}
    return {each: (await store.get(f"{root}/{each}")).value for each in names}


async def have_topic(scene: Scene) -> None:
    await scene.create()
    for name in SUBSCRIPTIONS:
        await have_cursor(scene.store, await scene.name(0), name)


async def overtaken(path: Path, at: int, *, ends_first: bool) -> bool:
    """Pause a split before its call `at` of the store; meanwhile another broker deletes the topic.
    Return False if the split has no such call.

    `ends_first`: the deletion is complete before the split goes on.
    """
    store: Any = await open_store(f"embedded:{path}")
    try:
        scene = Scene(store)
        scene.owners = DeletingOwners(store)
        scene.topics.owners = scene.owners
        await have_topic(scene)
        paused = PausedStore(store, at)
        late = Scene(paused.store).topics
        late.owners = scene.owners
        split = asyncio.create_task(late.split(TOPIC, 0))
        if not await paused.waits_in(split):
            await split
            return False
        created_ms = await scene.topics.delete_segments(TOPIC)
        if ends_first:
            await scene.topics.forget(TOPIC, created_ms)
        paused.may_go_on.set()
        with suppress(RequestError):
            await split
        if not ends_first:
            await scene.topics.forget(TOPIC, created_ms)
        assert await segments_in(store) == {}, f"paused before call {at}"
        scene.clock.advance(1)
        await have_topic(scene)
        await scene.topics.split(TOPIC, 0)
        for child in (1, 2):
            assert await scene.subscriptions(child) == SUBSCRIPTIONS
        return True
    finally:
        await store.close()


@pytest.mark.parametrize("ends_first", [False, True])
async def test_a_split_that_a_deletion_overtakes_at_any_point_leaves_nothing(
    tmp_path: Path, ends_first: bool
) -> None:
    calls = 0
    while await overtaken(tmp_path / f"{calls}.db", calls, ends_first=ends_first):
        calls += 1
    assert calls > 20, "each step of the split was paused"
