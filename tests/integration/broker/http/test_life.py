"""Creating, deleting and terminating topics over HTTP, on real bookies."""

from pathlib import Path

import pytest

from magnetar.broker.base import naming
from magnetar.broker.base.errors import (
    BrokerMetadataError,
    ServiceNotReadyError,
    TenantNotFoundError,
)
from magnetar.broker.cluster.balance.layouts import create_layout
from magnetar.broker.policies.model import NamespaceRecord
from magnetar.broker.policies.tenants import Tenants
from magnetar.cursors import delete_unopened, list_cursors
from magnetar.ledger.managed_log.log_deletion import delete_marked, mark_deleted
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.sdk.wire import BaseCommand, TopicName, parse_topic_name
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.http_calls import ask
from tests.integration.broker.broker_on_bookies import TOPIC, broker_on
from tests.integration.broker.wire_client import WireClient
from tests.integration.ledger.cluster import Cluster, cluster_of

TOPICS = "/admin/v2/persistent/public/default"
PATH = f"{TOPICS}/topic"
LOG = naming.log_path(parse_topic_name(TOPIC))

_PUBLISHED_AND_GOT = {BaseCommand.SEND_RECEIPT, BaseCommand.MESSAGE}


async def delete(port: int, path: str, *, force: bool = False) -> int:
    return (await ask(port, "DELETE", path + ("?force=true" if force else ""))).status


async def ledgers_of(cluster: Cluster) -> list[int]:
    """The ledgers that the topic and its cursors name."""
    store = cluster.store
    metadata = LogMetadata.from_json((await store.get(LOG)).value, path=LOG)
    return [each.ledger_id for each in metadata.ledgers]


async def test_a_topic_is_created_and_deleted(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port = broker.http_port
        assert (await ask(port, "PUT", PATH, {"who": "me"})).status == 204
        assert (await ask(port, "PUT", PATH)).status == 409
        assert (await ask(port, "PUT", f"{TOPICS}/x-partition-1")).status == 412
        assert (await ask(port, "GET", TOPICS)).json == [TOPIC]
        assert (await ask(port, "GET", f"{PATH}/properties")).json == {"who": "me"}
        assert (await ask(port, "PUT", f"{PATH}/properties", {"a": "b"})).status == 204
        assert await delete(port, f"{PATH}/properties?key=who") == 204
        assert (await ask(port, "GET", f"{PATH}/properties")).json == {"a": "b"}
        assert await delete(port, PATH) == 204
        assert await delete(port, PATH) == 404
        assert (await ask(port, "GET", TOPICS)).json == []


async def test_a_topic_in_use_is_deleted_by_force_only(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port = broker.http_port
        client = await WireClient.open(broker.port)
        await client.produce(TOPIC)
        assert await delete(port, PATH) == 412
        await client.subscribe(TOPIC, 10)
        client.publish(0, b"gone")
        assert {(await client.next()).type for _ in range(2)} == _PUBLISHED_AND_GOT
        before = await ledgers_of(cluster)
        assert await delete(port, PATH, force=True) == 204
        ended = {(await client.next()).type for _ in range(2)}
        assert ended == {BaseCommand.CLOSE_PRODUCER, BaseCommand.CLOSE_CONSUMER}
        assert await cluster.store.exists(LOG) is None
        async with cluster.client() as ledgers:
            for ledger_id in before:
                with pytest.raises(Exception, match=str(ledger_id)):
                    await ledgers.open(ledger_id)
        # It appears again by itself, as any topic, with nothing in it.
        await client.subscribe(TOPIC, 10)
        await client.produce(TOPIC)
        client.publish(0, b"new")
        assert {(await client.next()).type for _ in range(2)} == _PUBLISHED_AND_GOT
        assert (await ask(port, "GET", f"{PATH}/subscriptions")).json == ["s"]
        await client.close()


async def test_a_subscription_alone_keeps_a_topic(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster:
        async with broker_on(cluster) as broker:
            client = await WireClient.open(broker.port)
            await client.subscribe(TOPIC)
            await client.close()
        async with broker_on(cluster, seed=4) as broker:  # Nobody has loaded it here.
            assert await delete(broker.http_port, PATH) == 412
            assert await delete(broker.http_port, PATH, force=True) == 204
        assert await cluster.store.exists(LOG) is None


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("by", ["delete", "load"])
async def test_an_interrupted_deletion_is_completed(tmp_path: Path, steps: int, by: str) -> None:
    async with cluster_of(1, tmp_path) as cluster:
        async with broker_on(cluster) as broker:
            client = await WireClient.open(broker.port)
            await client.subscribe(TOPIC)
            await client.produce(TOPIC)
            client.publish(0, b"old")
            await client.close()
        store = cluster.store
        async with cluster.client() as ledgers:
            assert await mark_deleted(store, LOG)
            if steps > 1:
                for name in await list_cursors(store, LOG):
                    await delete_unopened(ledgers, store, LOG, name)
            if steps > 2:
                await delete_marked(ledgers, store, LOG)
        async with broker_on(cluster, seed=4) as broker:
            if by == "delete":
                expected = 404 if steps > 2 else 204
                assert await delete(broker.http_port, PATH, force=True) == expected
            client = await WireClient.open(broker.port)
            answer = await client.produce(TOPIC)
            while answer.error.error == pb.ServerError.ServiceNotReady:
                answer = await client.produce(TOPIC)
            assert answer.type == BaseCommand.PRODUCER_SUCCESS
            assert (await ask(broker.http_port, "GET", f"{PATH}/subscriptions")).json == []
            await client.close()


_SCHEMA = {"type": "STRING", "schema": "", "properties": {}}


async def _away(_: TopicName, check: object) -> None:
    raise BrokerMetadataError("the metadata store is away")


@pytest.mark.parametrize("by", ["delete", "load"])
async def test_a_completed_deletion_leaves_no_schemas_to_a_topic_of_that_name(
    tmp_path: Path, by: str
) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port, followers = broker.http_port, broker.services.topics.removal.followers
        assert (await ask(port, "PUT", PATH)).status == 204
        schema = "/admin/v2/schemas/public/default/topic/schema"
        assert (await ask(port, "POST", schema, _SCHEMA)).status == 200
        followers.insert(0, _away)
        assert await delete(port, PATH) == 503
        followers.remove(_away)
        if by == "delete":
            assert await delete(port, PATH) == 204
        client = await WireClient.open(broker.port)
        answer = await client.produce(TOPIC)
        while answer.error.error == pb.ServerError.ServiceNotReady:
            answer = await client.produce(TOPIC)
        assert answer.type == BaseCommand.PRODUCER_SUCCESS
        assert (await ask(port, "GET", schema)).status == 404
        await client.close()


async def test_the_interrupted_deletion_of_a_partitioned_topic_is_completed(
    tmp_path: Path,
) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port, followers = broker.http_port, broker.services.topics.removal.followers
        whole = f"{TOPICS}/whole"
        assert (await ask(port, "PUT", f"{whole}/partitions", 2)).status == 204
        schema = "/admin/v2/schemas/public/default/whole/schema"
        assert (await ask(port, "POST", schema, _SCHEMA)).status == 200
        followers.insert(0, _away)
        assert await delete(port, f"{whole}/partitions") == 503
        followers.remove(_away)
        assert await delete(port, f"{whole}/partitions") == 204
        assert (await ask(port, "PUT", f"{whole}/partitions", 2)).status == 204
        assert (await ask(port, "GET", schema)).status == 404


async def test_the_interrupted_deletion_of_one_that_keeps_nothing_is_completed(
    tmp_path: Path,
) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port, followers = broker.http_port, broker.services.topics.removal.followers
        whole = "/admin/v2/non-persistent/public/default/whole/partitions"
        assert (await ask(port, "PUT", whole, 2)).status == 204
        followers.insert(0, _away)
        assert await delete(port, whole) == 503
        followers.remove(_away)
        assert await delete(port, whole) == 204
        assert (await ask(port, "GET", whole)).status == 404


async def test_one_that_keeps_nothing_is_still_there_after_its_deletion_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody may ever repeat the deletion, so the topic must not stay hidden."""
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port, topics = broker.http_port, broker.services.topics
        whole = "/admin/v2/non-persistent/public/default/whole/partitions"
        assert (await ask(port, "PUT", whole, 2)).status == 204
        with monkeypatch.context() as patched:
            patched.setattr(topics.removal, "delete", _lost)
            assert await delete(port, whole) == 503
        assert (await ask(port, "GET", whole)).json == {"partitions": 2, "deleted": False}


async def _lost(*_: object, **__: object) -> None:
    raise ServiceNotReadyError("the lease was lost")


async def test_one_that_keeps_nothing_is_not_marked_while_it_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that reconnect during the refused deletion must find the topic."""
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port, partitioned = broker.http_port, broker.services.topics.partitioned
        whole = "/admin/v2/non-persistent/public/default/whole/partitions"
        assert (await ask(port, "PUT", whole, 2)).status == 204
        client = await WireClient.open(broker.port)
        await client.produce("non-persistent://public/default/whole-partition-1")
        with monkeypatch.context() as patched:
            patched.setattr(partitioned, "mark_deleted", None)
            assert await delete(port, whole) == 412
        # An interrupted deletion left its mark: a repeated one takes it back.
        await partitioned.mark_deleted(parse_topic_name("non-persistent://public/default/whole"))
        assert await delete(port, whole) == 412
        assert (await ask(port, "GET", whole)).json == {"partitions": 2, "deleted": False}
        await client.close()


async def test_a_partitioned_topic_is_deleted_as_a_whole(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port = broker.http_port
        whole = f"{TOPICS}/whole"
        assert (await ask(port, "PUT", f"{whole}/partitions", 3)).status == 204
        assert await delete(port, whole) == 409
        client = await WireClient.open(broker.port)
        await client.produce("persistent://public/default/whole-partition-2")
        assert await delete(port, f"{whole}/partitions") == 412
        assert (await ask(port, "GET", f"{whole}/partitions")).json["partitions"] == 3
        assert len((await ask(port, "GET", TOPICS)).json) == 3
        assert await delete(port, f"{whole}/partitions", force=True) == 204
        assert (await client.next()).type == BaseCommand.CLOSE_PRODUCER
        assert (await ask(port, "GET", TOPICS)).json == []
        assert (await ask(port, "GET", f"{whole}/partitions")).status == 404
        assert await delete(port, f"{whole}/partitions") == 404
        await client.produce(TOPIC, 1)
        assert await delete(port, f"{PATH}/partitions") == 409
        await client.close()


async def test_a_partitioned_topic_that_grows_meanwhile_is_deleted_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port, removal = broker.http_port, broker.services.topics.removal
        whole = f"{TOPICS}/whole"
        assert (await ask(port, "PUT", f"{whole}/partitions", 2)).status == 204
        check_unused = removal.check_unused

        async def grow(name: TopicName) -> None:
            await check_unused(name)
            assert (await ask(port, "POST", f"{whole}/partitions", 3)).status == 204

        monkeypatch.setattr(removal, "check_unused", grow)
        assert await delete(port, f"{whole}/partitions") == 204
        assert (await ask(port, "GET", TOPICS)).json == []


async def test_of_two_kinds_that_are_created_at_once_one_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port, creation = broker.http_port, broker.services.topics.creation
        check_room = creation.check_room

        async def meanwhile(namespace: str, more: int) -> None:
            await check_room(namespace, more)
            if more == 1:
                assert (await ask(port, "PUT", f"{PATH}/partitions", 2)).status == 204

        monkeypatch.setattr(creation, "check_room", meanwhile)
        assert (await ask(port, "PUT", PATH)).status == 409
        assert (await ask(port, "GET", TOPICS)).json == [
            f"{TOPIC}-partition-{index}" for index in (0, 1)
        ]


@pytest.mark.parametrize("body", [None, 2])
async def test_a_deleted_topic_takes_along_what_roles_may_do_with_it(
    tmp_path: Path, body: int | None
) -> None:
    path = PATH if body is None else f"{PATH}/partitions"
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port = broker.http_port
        for topic in (PATH, f"{TOPICS}/other"):
            granted = await ask(port, "POST", f"{topic}/permissions/reader", ["consume"])
            assert granted.status == 204
        assert (await ask(port, "PUT", path, body)).status == 204
        assert await delete(port, path) == 204
        assert (await ask(port, "GET", f"{PATH}/permissions")).json == {}
        assert (await ask(port, "GET", f"{TOPICS}/other/permissions")).json == {
            "reader": ["consume"]
        }


async def test_a_terminated_topic_stays_terminated(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster:
        async with broker_on(cluster) as broker:
            port = broker.http_port
            client = await WireClient.open(broker.port)
            await client.produce(TOPIC)
            receipt = (await client.publish_ok(0, b"last")).message_id
            answer = await ask(port, "POST", f"{PATH}/terminate")
            assert answer.status == 200
            assert answer.json == {
                "ledgerId": receipt.ledgerId,
                "entryId": receipt.entryId,
                "partitionIndex": -1,
            }
            assert (await ask(port, "POST", f"{PATH}/terminate")).json == answer.json
            assert (await client.next()).type == BaseCommand.CLOSE_PRODUCER
            assert (await ask(port, "POST", f"{TOPICS}/none/terminate")).status == 404
            assert (await ask(port, "POST", f"{PATH}/terminate/partitions")).status == 405
            await client.close()
        async with broker_on(cluster, seed=4) as broker:
            client = await WireClient.open(broker.port)
            refused = await client.produce(TOPIC)
            assert refused.error.error == pb.ServerError.TopicTerminatedError
            await client.subscribe(TOPIC, 10)
            assert await client.bodies(1) == [b"last"]
            assert await delete(broker.http_port, PATH, force=True) == 204
            await client.close()


async def test_all_partitions_are_terminated(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port = broker.http_port
        assert (await ask(port, "PUT", f"{TOPICS}/whole/partitions", 2)).status == 204
        assert (await ask(port, "POST", f"{TOPICS}/whole/terminate")).status == 405
        answer = await ask(port, "POST", f"{TOPICS}/whole/terminate/partitions")
        assert [answer.json[each]["partitionIndex"] for each in "01"] == [0, 1]
        client = await WireClient.open(broker.port)
        refused = await client.produce("persistent://public/default/whole-partition-1")
        assert refused.error.error == pb.ServerError.TopicTerminatedError
        await client.close()


async def _nodes(cluster: Cluster, path: str = "/") -> set[str]:
    found = {path}
    for name in await cluster.store.children(path):
        found |= await _nodes(cluster, f"{path.rstrip('/')}/{name}")
    return found


async def test_a_deleted_tenant_leaves_no_nodes(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port, rounds = broker.http_port, []
        for tenant in ("first", "second"):
            whole = f"/admin/v2/tenants/{tenant}"
            info = {"allowedClusters": ["standalone"]}
            assert (await ask(port, "PUT", whole, info)).status == 204
            space = f"/admin/v2/namespaces/{tenant}/space"
            assert (await ask(port, "PUT", space)).status == 204
            topics = f"/admin/v2/persistent/{tenant}/space"
            assert (await ask(port, "PUT", f"{topics}/plain")).status == 204
            assert (await ask(port, "PUT", f"{topics}/whole/partitions", 2)).status == 204
            assert await delete(port, f"{topics}/plain") == 204
            assert await delete(port, f"{topics}/whole/partitions") == 204
            assert await delete(port, space) == 204
            assert await delete(port, whole) == 204
            rounds.append(await _nodes(cluster))
        assert not [each for every in rounds for each in every if "first" in each]
        assert not [each for each in rounds[1] if "second" in each]


async def test_a_tenant_that_is_deleted_while_a_namespace_is_made_leaves_none_of_both(
    tmp_path: Path,
) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port, tenants = broker.http_port, Tenants(cluster.store)
        whole = "/admin/v2/tenants/short"
        assert (await ask(port, "PUT", whole, {"allowedClusters": ["standalone"]})).status == 204
        # What a request for a namespace with bundles of its own does, step by step.
        await tenants.check_new_namespace("short/space", NamespaceRecord())
        await create_layout(cluster.store, "short/space", 8)
        assert await delete(port, whole) == 204
        with pytest.raises(TenantNotFoundError):
            await tenants.create_namespace("short/space", NamespaceRecord())
        assert not [each for each in await _nodes(cluster) if "short" in each]


async def test_a_tenant_stays_if_a_namespace_was_made_just_before(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port, whole = broker.http_port, "/admin/v2/tenants/short"
        assert (await ask(port, "PUT", whole, {"allowedClusters": ["standalone"]})).status == 204
        await Tenants(cluster.store).create_namespace("short/space", NamespaceRecord())
        assert await delete(port, whole) == 409
        assert (await ask(port, "GET", "/admin/v2/namespaces/short")).json == ["short/space"]
