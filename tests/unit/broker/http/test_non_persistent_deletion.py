"""The deletion of a partitioned topic that keeps nothing, given up halfway."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from magnetar.broker.base.errors import TopicNotFoundError
from magnetar.broker.cluster.partitions import PartitionedTopicRecord
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.non_persistent import _NonPersistent
from magnetar.sdk.wire import parse_topic_name
from tests.waiting import settle

NAME = parse_topic_name("non-persistent://public/default/t")


class Partitioned:
    """The record of one topic. `is_gone`: another request completes the deletion."""

    is_marked = False
    is_gone = False

    async def get(self, _: object) -> PartitionedTopicRecord:
        return PartitionedTopicRecord(partitions=2)

    async def mark_deleted(self, _: object, *, is_deleted: bool = True) -> int:
        if self.is_gone:
            raise TopicNotFoundError("gone")
        self.is_marked = is_deleted
        return 2


@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("is_forced", [False, True])
async def test_a_cancelled_deletion_takes_its_mark_back_unless_it_was_forced(
    is_forced: bool, is_gone: bool
) -> None:
    async def wait(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    partitioned = Partitioned()
    context: Any = SimpleNamespace(
        topics=SimpleNamespace(
            partitioned=partitioned,
            removal=SimpleNamespace(check_unused=AsyncMock(), delete=wait),
        ),
        admin=SimpleNamespace(here=AsyncMock()),
        topic=AsyncMock(return_value=NAME),
    )
    routes = _NonPersistent(cast(HttpContext, context))
    request = asyncio.create_task(routes.delete_partitioned("public", "default", "t", is_forced))
    await settle()
    assert partitioned.is_marked
    partitioned.is_gone = is_gone
    request.cancel()
    await asyncio.wait([request])
    assert request.cancelled()
    assert partitioned.is_marked == (is_forced or is_gone)
