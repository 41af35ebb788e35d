"""A request to delete a topic that comes late: another one has completed the deletion, and the
topic was created anew."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.base import naming
from magnetar.broker.broker import Broker
from magnetar.cursors import list_cursors
from magnetar.sdk.wire import BaseCommand, parse_topic_name
from tests.http_calls import ask
from tests.integration.broker.broker_on_bookies import broker_on
from tests.integration.broker.wire_client import WireClient
from tests.integration.ledger.cluster import Cluster, cluster_of

_SCHEMA = {"type": "STRING", "schema": "", "properties": {}}
_POLICIES = "/admin/v2/persistent/public/default/t/maxProducers"
_SCHEMAS = "/admin/v2/schemas/public/default/t/schema"
_WHOLE = "/admin/v2/persistent/public/default/t/partitions"
_SCALABLE = "/admin/v2/scalable/public/default/t"
_PARTITION = "persistent://public/default/t-partition-1"
_SEGMENT = "segment://public/default/t/0000-ffff-0"

_PARTS = ("removal.delete", "removal.forget", "partitioned.forget", "scalable.forget")


class FirstWaits:
    """A method whose first call waits until the test lets it go on."""

    def __init__(self, method: Callable[..., Awaitable[Any]]) -> None:
        self._method = method
        self._has_begun = False
        self.is_waiting = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def __call__(self, *args: Any, **named: Any) -> Any:
        if not self._has_begun:
            self._has_begun = True
            self.is_waiting.set()
            await self.may_go_on.wait()
        return await self._method(*args, **named)


def _made_to_wait(broker: Broker, part: str, patch: pytest.MonkeyPatch) -> FirstWaits:
    owner, _, method = part.partition(".")
    on = getattr(broker.services.topics, owner)
    waiting = FirstWaits(getattr(on, method))
    patch.setattr(on, method, waiting)
    return waiting


async def _have(port: int, path: str, topic: str, client: WireClient, number: int) -> None:
    """Create the topic with a policy, a schema, a subscription and a message."""
    assert (await ask(port, "PUT", path, 2 if path == _WHOLE else None)).status == 204
    assert (await ask(port, "POST", _POLICIES, 7)).status == 204
    assert (await ask(port, "POST", _SCHEMAS, _SCHEMA)).status == 200
    await client.subscribe(topic, consumer_id=number)
    assert (await client.produce(topic, number)).type == BaseCommand.PRODUCER_SUCCESS
    await client.publish_ok(0, b"kept", number)


async def _check_whole(cluster: Cluster, port: int, path: str, topic: str) -> None:
    assert (await ask(port, "GET", path)).status == 200
    assert (await ask(port, "GET", _POLICIES)).json == 7
    assert (await ask(port, "GET", _SCHEMAS)).status == 200
    assert await list_cursors(cluster.store, naming.log_path(parse_topic_name(topic))) == ["s"]


@pytest.mark.parametrize(
    ("path", "topic", "part"),
    [(_WHOLE, _PARTITION, part) for part in _PARTS[:3]]
    + [(_SCALABLE, _SEGMENT, part) for part in _PARTS],
)
async def test_a_late_request_to_delete_a_topic_leaves_one_that_was_created_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, topic: str, part: str
) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port, client = broker.http_port, await WireClient.open(broker.port)
        await _have(port, path, topic, client, 1)
        waiting = _made_to_wait(broker, part, monkeypatch)
        late = asyncio.create_task(ask(port, "DELETE", f"{path}?force=true"))
        await waiting.is_waiting.wait()
        assert (await ask(port, "DELETE", f"{path}?force=true")).status == 204
        other = await WireClient.open(broker.port)
        await _have(port, path, topic, other, 2)
        waiting.may_go_on.set()
        assert (await late).status in (204, 409)
        await _check_whole(cluster, port, path, topic)
        await other.publish_ok(1, b"and used", 2)
        await client.close()
        await other.close()


async def test_a_late_request_leaves_a_non_persistent_topic_that_was_created_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/admin/v2/non-persistent/public/default/t/partitions"
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port = broker.http_port
        assert (await ask(port, "PUT", path, 2)).status == 204
        waiting = _made_to_wait(broker, "removal.delete", monkeypatch)
        late = asyncio.create_task(ask(port, "DELETE", path))
        await waiting.is_waiting.wait()
        assert (await ask(port, "DELETE", path)).status == 204
        assert (await ask(port, "PUT", path, 2)).status == 204
        waiting.may_go_on.set()
        assert (await late).status == 409
        assert (await ask(port, "GET", path)).json["partitions"] == 2


async def test_a_scalable_topic_is_deleted_beside_a_partitioned_one_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A migrated topic is deleted twice; the second request marks what is created meanwhile."""
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port = broker.http_port
        assert (await ask(port, "PUT", _WHOLE, 2)).status == 204
        assert (await ask(port, "POST", f"{_SCALABLE}/migrate?force=true")).status == 204
        waiting = _made_to_wait(broker, "partitioned.mark_migrated_deleted", monkeypatch)
        late = asyncio.create_task(ask(port, "DELETE", f"{_SCALABLE}?force=true"))
        await waiting.is_waiting.wait()
        assert (await ask(port, "DELETE", f"{_SCALABLE}?force=true")).status == 204
        assert (await ask(port, "PUT", _WHOLE, 3)).status == 204
        waiting.may_go_on.set()
        assert (await late).status == 404
        assert (await ask(port, "GET", _WHOLE)).json == {"partitions": 3, "deleted": False}


async def test_a_partition_is_deleted_as_one_only_while_its_topic_is_being_deleted(
    tmp_path: Path,
) -> None:
    """Another broker's request for a partition of this one comes late, too."""
    path = "/admin/v2/persistent/public/default/t-partition-1?force=true&asPartition=true"
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port, client = broker.http_port, await WireClient.open(broker.port)
        await _have(port, _WHOLE, _PARTITION, client, 1)
        assert (await ask(port, "DELETE", path)).status == 409
        await client.publish_ok(1, b"and used", 1)
        await broker.services.topics.partitioned.mark_deleted(parse_topic_name("t"))
        assert (await ask(port, "DELETE", path)).status == 204
        assert (await ask(port, "DELETE", path)).status == 404
        await client.close()
