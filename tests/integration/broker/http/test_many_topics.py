"""Many topics in one request: each is answered for itself, as alone."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.broker import Broker
from magnetar.sdk.wire import BaseCommand
from tests.http_calls import ask
from tests.integration.broker.broker_on_bookies import broker_on
from tests.integration.broker.wire_client import WireClient
from tests.integration.ledger.cluster import cluster_of

BASE = "/admin/v2/persistent/public/default"
MANY = "/magnetar/v1/topics"
NAMES = [f"persistent://public/default/many-{number}" for number in range(3)]
MISSING = "persistent://public/default/missing"
WHOLE = "persistent://public/default/whole"


class Scene:
    """A broker with three topics of three messages each, and a partitioned one."""

    def __init__(self, broker: Broker, client: WireClient) -> None:
        self.broker = broker
        self.client = client

    async def many(self, what: str, **body: Any) -> Any:
        answer = await ask(self.broker.http_port, "POST", f"{MANY}/{what}", body)
        assert answer.status == 200, answer.text
        return answer.json

    async def alone(self, name: str, what: str) -> Any:
        path = name.replace("persistent://public/default", BASE)
        answer = await ask(self.broker.http_port, "GET", f"{path}/{what}")
        assert answer.status == 200, answer.text
        return answer.json

    async def position(self, name: str, subscription: str = "s") -> str | None:
        cursors = (await self.alone(name, "internalStats"))["cursors"]
        return cursors[subscription]["markDeletePosition"] if subscription in cursors else None

    async def ledger(self, name: str) -> int:
        return int((await self.alone(name, "internalStats"))["ledgers"][0]["ledgerId"])


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        client = await WireClient.open(broker.port)
        for producer_id, name in enumerate(NAMES):
            await client.produce(name, producer_id)
            for number in range(3):
                client.publish(number, b"%d" % number, producer_id=producer_id)
            for _ in range(3):
                await client.next(BaseCommand.SEND_RECEIPT)
        assert (await ask(broker.http_port, "PUT", f"{BASE}/whole/partitions", 4)).status == 204
        yield Scene(broker, client)
        await client.close()


async def test_how_many_topics_are_stored_is_told_as_of_each_alone(scene: Scene) -> None:
    found = await scene.many("internalStats", topics=[*NAMES, WHOLE, MISSING, "no/name"])
    for name in NAMES:
        assert found["topics"][name] == await scene.alone(name, "internalStats")
    assert found["topics"][WHOLE] == {"partitions": 4}
    assert found["refused"].keys() == {MISSING, "no/name"}
    assert found["refused"][MISSING]["status"] == 404
    assert found["refused"]["no/name"]["status"] == 412
    assert found["elsewhere"] == {}


async def test_what_the_last_entry_holds_is_told_where_no_counter_tells_how_large_entries_are(
    scene: Scene,
) -> None:
    """As after a restart of the broker; a topic without a message has no last entry."""
    empty = f"{WHOLE}-partition-3"
    found = await scene.many("internalStats", topics=[NAMES[0], empty], countsMessages=True)
    assert "lastEntryMessages" not in found["topics"][NAMES[0]]
    assert found["topics"][NAMES[0]]["messagesAddedCounter"] == 3
    assert found["topics"][empty]["lastEntryMessages"] == 0
    path = f"{BASE}/many-0/unload"
    assert (await ask(scene.broker.http_port, "PUT", path)).status == 204
    found = await scene.many("internalStats", topics=NAMES[:1], countsMessages=True)
    assert found["topics"][NAMES[0]]["lastEntryMessages"] == 1
    found = await scene.many("internalStats", topics=NAMES[:1])
    assert "lastEntryMessages" not in found["topics"][NAMES[0]]


async def test_a_partition_that_is_gone_is_told_of_and_not_made_again(scene: Scene) -> None:
    gone, there = f"{WHOLE}-partition-1", f"{WHOLE}-partition-2"
    path = f"{BASE}/whole-partition-1?force=true"
    assert (await ask(scene.broker.http_port, "DELETE", path)).status == 204
    for _ in range(2):
        found = await scene.many("internalStats", topics=[gone, there])
        assert found["refused"][gone]["status"] == 404
        assert found["topics"].keys() == {there}


async def test_schemas_of_many_topics_are_told_as_of_each_alone(scene: Scene) -> None:
    path = "/admin/v2/schemas/public/default/many-0/schema"
    for definition in ('{"type": "int"}', '{"type": "long"}'):
        body: dict[str, Any] = {"type": "AVRO", "schema": definition, "properties": {}}
        policy = "/admin/v2/namespaces/public/default/schemaCompatibilityStrategy"
        assert (await ask(scene.broker.http_port, "PUT", policy, "ALWAYS_COMPATIBLE")).status == 204
        answer = await ask(scene.broker.http_port, "POST", path, body)
        assert answer.status == 200, answer.text
    newest = (await ask(scene.broker.http_port, "GET", path)).json
    every = (await ask(scene.broker.http_port, "GET", f"{path}s")).json["getSchemaResponses"]
    assert len(every) == 2
    found = await scene.many("schemas", topics=NAMES)
    assert found["topics"] == {NAMES[0]: [newest], NAMES[1]: [], NAMES[2]: []}
    found = await scene.many("schemas?allVersions=true", topics=[f"{NAMES[0]}", NAMES[1]])
    assert found["topics"] == {NAMES[0]: every, NAMES[1]: []}


async def test_first_messages_since_a_time_are_told_as_of_each_alone(scene: Scene) -> None:
    found = await scene.many("messageIds", topics=[*NAMES, MISSING], timeMs=0)
    for name in NAMES:
        alone = await scene.alone(name, "messageid/0")
        assert found["topics"][name] == {each: alone[each] for each in ("ledgerId", "entryId")}
    assert found["refused"].keys() == {MISSING}


async def test_a_subscription_of_many_topics_is_made_moved_and_deleted(scene: Scene) -> None:
    ledgers = {name: await scene.ledger(name) for name in NAMES}

    def places(entry_id: int, names: list[str] = NAMES) -> dict[str, Any]:
        return {
            name: {"ledgerId": ledgers.get(name, 0), "entryId": entry_id, "isExcluded": True}
            for name in names
        }

    async def change(action: str, topics: dict[str, Any]) -> Any:
        return await scene.many("subscriptions", subscription="s", action=action, topics=topics)

    moved = await change("move", places(0))
    assert {each["status"] for each in moved["refused"].values()} == {404}
    made = await change("hold", places(0, NAMES[:2]))
    assert made["topics"] == {name: {} for name in NAMES[:2]}
    assert await scene.position(NAMES[0]) == f"{ledgers[NAMES[0]]}:0"
    assert await scene.position(NAMES[2]) is None

    moved = await change("move", places(1))
    assert moved["topics"].keys() == set(NAMES[:2])
    assert moved["refused"].keys() == {NAMES[2]}
    assert await scene.position(NAMES[1]) == f"{ledgers[NAMES[1]]}:1"

    held = await change("hold", places(0))
    assert held["topics"].keys() == set(NAMES)
    assert {await scene.position(name) for name in NAMES} == {
        f"{each}:0" for each in ledgers.values()
    }

    gone = await change("delete", dict.fromkeys([*NAMES, MISSING]))
    assert gone["topics"].keys() == set(NAMES)
    assert gone["refused"].keys() == {MISSING}
    assert [await scene.position(name) for name in NAMES] == [None] * 3


async def test_several_that_hold_a_topic_at_a_time_all_do(scene: Scene) -> None:
    place = {"ledgerId": await scene.ledger(NAMES[0]), "entryId": 0, "isExcluded": True}
    holding = (
        scene.many("subscriptions", subscription="s", action="hold", topics={NAMES[0]: place})
        for _ in range(8)
    )
    for held in await asyncio.gather(*holding):
        assert (held["topics"], held["refused"]) == ({NAMES[0]: {}}, {})


@pytest.mark.parametrize(
    ("chunk", "age_ms", "is_spared"),
    [(0, 0, True), (1, 0, False), (0, 120_000, False)],
    ids=["its end may come", "it is the end", "nobody waits any more"],
)
async def test_the_beginning_of_a_message_in_chunks_is_spared_while_its_end_may_come(
    scene: Scene, chunk: int, age_ms: int, is_spared: bool
) -> None:
    name = NAMES[0]
    now_ms = scene.broker.services.clock.wall_ms()
    scene.client.publish(
        9,
        b"c",
        publish_time=now_ms - age_ms,
        uuid="u",
        chunk_id=chunk,
        num_chunks_from_msg=2,
        total_chunk_msg_size=2,
    )
    await scene.client.next(BaseCommand.SEND_RECEIPT)
    ledger_id = await scene.ledger(name)
    begin = {"ledgerId": ledger_id, "entryId": 2, "isExcluded": True}
    end = {"ledgerId": ledger_id, "entryId": 3, "isExcluded": True}
    await scene.many("subscriptions", subscription="s", action="hold", topics={name: begin})
    found = await scene.many(
        "subscriptions", subscription="s", action="move", topics={name: end}, sparesUnfinished=True
    )
    assert found["topics"] == {name: {"isUnfinished": True} if is_spared else {}}
    assert await scene.position(name) == f"{ledger_id}:{2 if is_spared else 3}"


async def test_a_request_names_so_many_topics_and_no_more(scene: Scene) -> None:
    for count, status in ((1_000, 200), (1_001, 400)):
        body: dict[str, Any] = {"topics": [f"{MISSING}-{number}" for number in range(count)]}
        answer = await ask(scene.broker.http_port, "POST", f"{MANY}/schemas", body)
        assert answer.status == status, answer.text[:300]
