"""Subscriptions over HTTP: made, moved and deleted; and data that is trimmed and truncated."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.base.errors import BrokerPersistenceError
from magnetar.broker.broker import Broker
from magnetar.broker.policies.model import BacklogQuota, QuotaType
from magnetar.broker.topic import Topic
from magnetar.cursors import Cursor, CursorUnavailableError, SubscriptionCursor
from magnetar.ledger.position import Position
from magnetar.sdk.wire import BaseCommand
from tests.http_calls import Answer, ask
from tests.integration.broker.broker_on_bookies import TOPIC, broker_on
from tests.integration.broker.wire_client import WireClient
from tests.integration.ledger.cluster import cluster_of

BASE = "/admin/v2/persistent/public/default/topic"
SUB = f"{BASE}/subscription/s"


class Scene:
    """A broker with a topic of five messages, and a subscription that begins in front of them."""

    def __init__(self, broker: Broker, client: WireClient) -> None:
        self.broker = broker
        self.client = client

    async def call(self, method: str, path: str, body: object = None) -> Answer:
        return await ask(self.broker.http_port, method, path, body)

    async def receipts(self, count: int) -> None:
        for _ in range(count):
            await self.client.next(BaseCommand.SEND_RECEIPT)

    @property
    def topic(self) -> Topic:
        return self.broker.services.topics.loaded[0]

    def backlog(self, name: str = "s") -> int:
        return self.topic.subscriptions[name].cursor.backlog_entries

    def place(self, entry_id: int, **more: Any) -> dict[str, Any]:
        ledger_id = self.topic.log.last_confirmed.ledger_id
        return {"ledgerId": ledger_id, "entryId": entry_id, **more}


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        client = await WireClient.open(broker.port)
        scene = Scene(broker, client)
        await client.produce(TOPIC)
        made = await scene.call("PUT", SUB, {"ledgerId": -1, "entryId": -1})
        assert made.status == 204, made.text
        for number in range(5):
            client.publish(number, b"%d" % number)
        await scene.receipts(5)
        yield scene
        await client.close()


async def test_subscriptions_are_made_listed_and_deleted(scene: Scene) -> None:
    assert scene.backlog() == 5
    assert (await scene.call("PUT", SUB)).status == 409
    assert (await scene.call("PUT", f"{BASE}/subscription/at%2Fend")).status == 204
    assert scene.backlog("at/end") == 0
    at_two = {**scene.place(2), "properties": {"team": "a"}}
    assert (await scene.call("PUT", f"{BASE}/subscription/two", at_two)).status == 204
    assert scene.backlog("two") == 3
    assert (await scene.call("GET", f"{BASE}/subscription/two/properties")).json == {"team": "a"}
    assert (await scene.call("GET", f"{BASE}/subscriptions")).json == ["at/end", "s", "two"]
    assert (await scene.call("DELETE", f"{BASE}/subscription/two")).status == 204
    assert (await scene.call("DELETE", f"{BASE}/subscription/two")).status == 404
    assert (await scene.call("GET", f"{BASE}/subscriptions")).json == ["at/end", "s"]


async def test_a_subscription_with_consumers_is_deleted_by_force_only(scene: Scene) -> None:
    await scene.client.subscribe(TOPIC)
    refused = await scene.call("DELETE", SUB)
    assert refused.status == 412
    assert "active connected consumers" in refused.json["reason"]
    assert (await scene.call("DELETE", f"{SUB}?force=true")).status == 204
    assert (await scene.client.next()).type == BaseCommand.CLOSE_CONSUMER
    assert (await scene.call("GET", f"{BASE}/subscriptions")).json == []


async def test_backlogs_are_skipped_and_expired(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await scene.call("POST", f"{SUB}/skip/2")).status == 204
    assert scene.backlog() == 3
    assert (await scene.call("POST", f"{SUB}/expireMessages", scene.place(2))).status == 204
    assert scene.backlog() == 2
    excluded = scene.place(4, isExcluded=True)
    assert (await scene.call("POST", f"{SUB}/expireMessages", excluded)).status == 204
    assert scene.backlog() == 1
    assert (await scene.call("POST", f"{SUB}/expireMessages/0")).status == 412
    assert (await scene.call("POST", f"{SUB}/expireMessages/3600")).status == 204
    assert scene.backlog() == 1, "published in 1970, by its producer, and stored just now"
    monkeypatch.setattr(scene.topic.log, "stored_since_ms", lambda _: 0)
    assert (await scene.call("POST", f"{SUB}/expireMessages/3600")).status == 204
    assert scene.backlog() == 0
    assert (await scene.call("POST", f"{SUB}/resetcursor/0")).status == 204
    everywhere = f"{BASE}/all_subscription/expireMessages/3600"
    assert (await scene.call("POST", everywhere)).status == 204
    assert scene.backlog() == 0
    assert (await scene.call("POST", f"{SUB}/resetcursor/0")).status == 204
    assert scene.backlog() == 5
    assert (await scene.call("POST", f"{SUB}/skip_all")).status == 204
    assert scene.backlog() == 0
    cursor = scene.topic.subscriptions["s"].cursor
    assert cursor.persisted_mark_delete == cursor.mark_delete


async def test_a_subscription_that_is_being_made_holds_up_no_expiry(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scene.topic.log, "stored_since_ms", lambda _: 0)
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def open_cursor() -> SubscriptionCursor:
        asked.set()
        await go_on.wait()
        raise CursorUnavailableError("not now")

    making = asyncio.create_task(scene.topic.subscriptions.ensure("late", open_cursor))
    await asked.wait()
    everywhere = f"{BASE}/all_subscription/expireMessages/3600"
    assert (await scene.call("POST", everywhere)).status == 204
    assert scene.backlog() == 0
    go_on.set()
    with pytest.raises(BrokerPersistenceError):
        await making


async def test_a_subscription_is_reset_by_id_and_by_time(scene: Scene) -> None:
    await scene.call("POST", f"{SUB}/skip_all")
    assert (await scene.call("POST", f"{SUB}/resetcursor", scene.place(1))).status == 204
    assert scene.backlog() == 4
    excluded = scene.place(1, isExcluded=True)
    assert (await scene.call("POST", f"{SUB}/resetcursor", excluded)).status == 204
    assert scene.backlog() == 3
    assert (await scene.call("POST", f"{SUB}/resetcursor/0")).status == 204
    assert scene.backlog() == 5
    future = f"{SUB}/resetcursor/{1 << 50}"
    assert (await scene.call("POST", future)).status == 204
    assert scene.backlog() == 0


async def test_consumers_are_disconnected_by_a_reset_and_get_the_messages_again(
    scene: Scene,
) -> None:
    await scene.client.subscribe(TOPIC, permits=10)
    for _ in range(5):
        assert (await scene.client.next()).type == BaseCommand.MESSAGE
    assert (await scene.call("POST", f"{SUB}/resetcursor", scene.place(3))).status == 204
    assert (await scene.client.next()).type == BaseCommand.CLOSE_CONSUMER
    await scene.client.subscribe(TOPIC, consumer_id=1, permits=10)
    got = [(await scene.client.next()).message.message_id.entryId for _ in range(2)]
    assert got == [3, 4]


async def test_what_was_sent_stays_counted_when_consumers_are_gone(scene: Scene) -> None:
    async def counted() -> tuple[int, list[int]]:
        stats = (await scene.call("GET", f"{BASE}/stats")).json
        every = stats["subscriptions"].values()
        return stats["msgOutCounter"], [each["msgOutCounter"] for each in every]

    await scene.client.subscribe(TOPIC, permits=10)
    for _ in range(5):
        assert (await scene.client.next()).type == BaseCommand.MESSAGE
    assert await counted() == (5, [5])
    assert (await scene.call("POST", f"{SUB}/skip_all")).status == 204
    assert (await scene.client.next()).type == BaseCommand.CLOSE_CONSUMER
    assert await counted() == (5, [5])
    assert (await scene.call("DELETE", SUB)).status == 204
    assert await counted() == (5, [])


async def test_properties_of_a_subscription_can_be_replaced(scene: Scene) -> None:
    path = f"{SUB}/properties"
    assert (await scene.call("GET", path)).json == {}
    assert (await scene.call("PUT", path, {"a": "1"})).status == 204
    assert (await scene.call("GET", path)).json == {"a": "1"}


async def test_truncating_deletes_the_data_whatever_is_retained(scene: Scene) -> None:
    before = [ledger.ledger_id for ledger in scene.topic.log.ledgers]
    assert (await scene.call("POST", f"{BASE}/trim")).status == 204
    assert scene.backlog() == 5
    assert (await scene.call("DELETE", f"{BASE}/truncate")).status == 204
    assert scene.backlog() == 0
    assert not {ledger.ledger_id for ledger in scene.topic.log.ledgers} & set(before)
    scene.client.publish(5, b"5")
    await scene.receipts(1)
    assert scene.backlog() == 1
    await scene.client.subscribe(TOPIC, permits=10)
    message = (await scene.client.next()).message
    assert Position(message.message_id.ledgerId, message.message_id.entryId) == (
        scene.topic.log.last_confirmed
    )


async def test_calls_about_a_partitioned_topic_reach_every_partition(scene: Scene) -> None:
    whole = "/admin/v2/persistent/public/default/whole"
    sub = f"{whole}/subscription/s"
    assert (await scene.call("PUT", f"{whole}/partitions", 3)).status == 204
    assert (await scene.call("PUT", sub, {"ledgerId": -1, "entryId": -1})).status == 204
    assert (await scene.call("PUT", sub)).status == 409
    assert (await scene.call("GET", f"{whole}/subscriptions")).json == ["s"]
    for index in range(3):
        topic = f"persistent://public/default/whole-partition-{index}"
        await scene.client.produce(topic, 1 + index)
        scene.client.publish(0, b"body", 1 + index)
        await scene.receipts(1)
    parts = [each for each in scene.broker.services.topics.loaded if "partition" in str(each.name)]
    assert [each.subscriptions["s"].cursor.backlog_entries for each in parts] == [1, 1, 1]
    assert (await scene.call("POST", f"{sub}/skip_all")).status == 204
    assert [each.subscriptions["s"].cursor.backlog_entries for each in parts] == [0, 0, 0]
    assert (await scene.call("POST", f"{sub}/resetcursor/0")).status == 204
    assert [each.subscriptions["s"].cursor.backlog_entries for each in parts] == [1, 1, 1]
    assert (await scene.call("PUT", f"{sub}/properties", {"a": "1"})).status == 204
    assert (await scene.call("GET", f"{sub}/properties")).json == {"a": "1"}
    assert (await scene.call("POST", f"{sub}/skip/1")).status == 405
    assert (await scene.call("POST", f"{sub}/resetcursor", scene.place(0))).status == 405
    assert (await scene.call("DELETE", f"{whole}/truncate")).status == 204
    assert (await scene.call("DELETE", sub)).status == 204
    assert (await scene.call("GET", f"{whole}/subscriptions")).json == []


async def test_the_making_of_a_subscription_that_was_interrupted_is_completed(
    scene: Scene,
) -> None:
    whole = "/admin/v2/persistent/public/default/whole"
    assert (await scene.call("PUT", f"{whole}/partitions", 3)).status == 204
    assert (await scene.call("PUT", f"{whole}-partition-1/subscription/s")).status == 204
    assert (await scene.call("PUT", f"{whole}/subscription/s")).status == 204
    for index in range(3):
        found = await scene.call("GET", f"{whole}-partition-{index}/subscriptions")
        assert found.json == ["s"]
    assert (await scene.call("PUT", f"{whole}/subscription/s")).status == 409


async def test_a_subscription_is_replicated_and_inside_its_batch_from_its_first_moment(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second step could fail, and a retry would meet a subscription that exists already."""
    scene.client.publish(5, b"four", num_messages_in_batch=4)
    await scene.receipts(1)

    async def persist(_: Cursor) -> None:
        raise CursorUnavailableError("not now")

    monkeypatch.setattr(Cursor, "persist", persist)
    path = f"{BASE}/subscription/made"
    made = await scene.call("PUT", f"{path}?replicated=true", scene.place(5, batchIndex=2))
    assert made.status == 204, made.text
    status = await scene.call("GET", f"{path}/replicatedSubscriptionStatus")
    assert list(status.json.values()) == [True]
    cursor = scene.topic.subscriptions["made"].cursor
    batch = Position(scene.topic.log.last_confirmed.ledger_id, 5)
    assert cursor.remaining_words(batch) == (0b1100,)


async def test_backlogs_and_subscriptions_of_a_whole_namespace(scene: Scene) -> None:
    namespace = "/admin/v2/namespaces/public/default"
    other = "/admin/v2/persistent/public/default/other/subscription"
    beginning = {"ledgerId": -1, "entryId": -1}
    await scene.client.produce("persistent://public/default/other", 1)
    for name in ("s", "t"):
        assert (await scene.call("PUT", f"{other}/{name}", beginning)).status == 204
    scene.client.publish(0, b"body", 1)
    await scene.receipts(1)

    def backlogs() -> dict[str, int]:
        return {
            f"{topic.name.local_name}/{name}": each.cursor.backlog_entries
            for topic in scene.broker.services.topics.loaded
            for name, each in topic.subscriptions.items()
        }

    assert backlogs() == {"topic/s": 5, "other/s": 1, "other/t": 1}
    assert (await scene.call("POST", f"{namespace}/clearBacklog/s")).status == 204
    assert backlogs() == {"topic/s": 0, "other/s": 0, "other/t": 1}
    assert (await scene.call("POST", f"{namespace}/clearBacklog")).status == 204
    assert backlogs() == {"topic/s": 0, "other/s": 0, "other/t": 0}
    assert (await scene.call("POST", f"{namespace}/unsubscribe/s")).status == 204
    assert backlogs() == {"other/t": 0}
    assert (await scene.call("POST", "/admin/v2/namespaces/public/no/clearBacklog")).status == 404


async def test_quotas_are_checked_at_once_on_demand(scene: Scene) -> None:
    policies = scene.topic.policies.with_values(
        backlog_quotas={QuotaType.SIZE: BacklogQuota(bytes=1)}
    )
    scene.topic.apply_policies(policies)
    assert (await scene.call("GET", "/admin/v2/brokers/backlog-quota-check")).status == 204
    assert (await scene.client.next()).type == BaseCommand.CLOSE_PRODUCER


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", f"{BASE}/subscription/nobody/skip_all", 404),
        ("POST", f"{BASE}/subscription/nobody/skip/1", 404),
        ("POST", f"{BASE}/subscription/nobody/resetcursor/0", 404),
        ("POST", f"{BASE}/subscription/nobody/expireMessages/5", 404),
        ("DELETE", f"{BASE}/subscription/nobody", 404),
        ("GET", f"{BASE}/subscription/nobody/properties", 404),
        ("POST", f"{SUB}/skip/-1", 412),
        ("POST", f"{SUB}/skip/many", 400),
        ("POST", f"{SUB}/resetcursor", 400),
        ("GET", "/admin/v2/persistent/public/default/missing/subscriptions", 404),
        ("GET", "/admin/v2/persistent/public/nowhere/topic/subscriptions", 404),
        ("POST", "/admin/v2/persistent/public/default/missing/trim", 404),
        ("POST", "/admin/v2/non-persistent/public/default/t/subscription/s/skip_all", 405),
        ("PUT", "/admin/v2/non-persistent/public/default/t/subscription/s", 400),
        ("DELETE", "/admin/v2/non-persistent/public/default/t/truncate", 412),
    ],
)
async def test_what_cannot_be_done_is_refused_with_pulsars_status(
    scene: Scene, method: str, path: str, status: int
) -> None:
    answer = await scene.call(method, path)
    assert answer.status == status, answer.text
    assert answer.json["reason"]


@pytest.mark.parametrize(
    "name",
    ["pulsar.dedup", "__compaction", "pulsar.repl.x", "n" * 1025, "a%00b", "a%0ab", "a%7f", "%20"],
)
async def test_a_name_that_no_subscription_can_have_is_a_failed_precondition(
    scene: Scene, name: str
) -> None:
    before = set(scene.topic.subscriptions)
    made = await scene.call("PUT", f"{BASE}/subscription/{name}", scene.place(-1))
    assert made.status == 412, made.text
    assert "name" in made.text
    assert set(scene.topic.subscriptions) == before
