"""The table view: the newest value of each key, kept up to date."""

import asyncio
import base64
from collections.abc import AsyncIterator

import pytest

from magnetar.sdk import Client, ProducerSettings
from magnetar.sdk.errors import AlreadyClosedError, TooSlowError
from magnetar.sdk.schemas import INT64, STRING, KeyValue, KeyValueEncoding, KeyValueSchema
from magnetar.sdk.wire.pulsar_pb2 import CompressionType, MessageMetadata
from magnetar.testing import Broker
from tests.integration.sdk.embedded import compact, make_partitioned
from tests.waiting import until


async def put(client: Client, topic: str, pairs: list[tuple[str, bytes]]) -> None:
    async with await client.producer(topic, ProducerSettings(batching=False)) as producer:
        await asyncio.gather(*(producer.send(value, key=key) for key, value in pairs))


async def test_it_holds_the_newest_value_of_each_key(client: Client, topic: str) -> None:
    await put(client, topic, [("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"1"), ("c", b"")])
    async with await client.table_view(topic) as view:
        assert dict(view) == {"a": b"2", "b": b"1"}
        assert "c" not in view
        message = view.message("a")
        assert message is not None
        assert message.key == "a"
        await put(client, topic, [("b", b"2"), ("d", b"1"), ("a", b"")])
        await view.refresh()
        assert dict(view) == {"b": b"2", "d": b"1"}
        assert (len(view), view.get("a"), view["d"]) == (2, None, b"1")


async def test_a_key_of_bytes_is_another_key_than_the_text_of_its_base64(
    client: Client, topic: str
) -> None:
    raw = b"\xffkey"
    text = base64.b64encode(raw).decode()
    async with await client.producer(topic) as producer:
        await producer.send(b"1", key=raw)
        await producer.send(b"2", key=text)
        await producer.send(b"3", key=b"gone")
        await producer.send(None, key=b"gone")
    async with await client.table_view(topic) as view:
        assert dict(view) == {raw: b"1", text: b"2"}
        found = view.message(raw)
        assert found is not None
        assert found.key_bytes == raw


async def test_pairs_with_the_key_apart_are_found_by_the_bytes_of_their_keys(
    client: Client, topic: str
) -> None:
    schema = KeyValueSchema(INT64, STRING, KeyValueEncoding.SEPARATED)
    gone: KeyValue[int, str] = KeyValue(2, None)
    async with await client.producer(topic, schema=schema) as producer:
        await producer.send_many([KeyValue(1, "one"), KeyValue(2, "two"), gone])
    async with await client.table_view(topic) as view:
        assert dict(view) == {INT64.encode(1): b"one"}


async def test_changes_come_in_order(client: Client, topic: str) -> None:
    await put(client, topic, [("a", b"1")])
    async with await client.table_view(topic) as view:
        seen: list[tuple[str | bytes, bytes | None]] = []
        changes = view.changes()
        first = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        await put(client, topic, [("a", b"2"), ("x", b""), ("b", b"1"), ("a", b"")])
        change = await first
        seen.append((change.key, change.value))
        async for change in changes:
            seen.append((change.key, change.value))
            if change.value is None:
                break
        # A key that was not there does not go.
        assert seen == [("a", b"2"), ("b", b"1"), ("a", None)]


async def test_it_begins_with_what_compaction_left(
    server: Broker, client: Client, topic: str
) -> None:
    await put(client, topic, [(f"k{at % 3}", b"%d" % at) for at in range(30)])
    await compact(server, topic)
    async with await client.table_view(topic) as view:
        assert dict(view) == {"k0": b"27", "k1": b"28", "k2": b"29"}
        await view.refresh()


async def test_it_waits_for_nothing_that_compaction_took_and_an_aborted_message_follows(
    server: Broker, client: Client, topic: str
) -> None:
    await put(client, topic, [("a", b"1"), ("b", b"1"), ("b", b"")])
    await compact(server, topic)
    async with await client.producer(topic) as producer:
        aborted = await client.transaction().begin()
        await producer.send(b"never", key="c", transaction=aborted)
        await aborted.abort()
    async with asyncio.timeout(20), await client.table_view(topic) as view:
        assert dict(view) == {"a": b"1"}
        await view.refresh()


async def test_a_view_of_a_partitioned_topic_has_all_keys(
    server: Broker, client: Client, topic: str
) -> None:
    await make_partitioned(server, topic, 2)
    for index in range(2):
        await put(client, f"{topic}-partition-{index}", [(f"k{index}", b"v")])
    async with await client.table_view(topic) as view:
        assert dict(view) == {"k0": b"v", "k1": b"v"}
        await put(client, f"{topic}-partition-1", [("k1", b"w")])
        await view.refresh()
        assert view["k1"] == b"w"


async def test_what_cannot_be_read_is_passed_over(client: Client, topic: str) -> None:
    async def put_damaged() -> None:
        metadata = MessageMetadata(compression=CompressionType.ZSTD, uncompressed_size=1)
        async with await client.producer(topic, ProducerSettings(batching=False)) as producer:
            producer.send_encoded_nowait(b"not compressed", metadata)
            await producer.flush()

    await put(client, topic, [("a", b"1")])
    await put_damaged()
    await put(client, topic, [("a", b"2")])
    await put_damaged()
    async with asyncio.timeout(30), await client.table_view(topic) as view:
        assert dict(view) == {"a": b"2"}
        await view.refresh()
        await put_damaged()
        await put(client, topic, [("a", b"3")])
        await view.refresh()
        assert dict(view) == {"a": b"3"}


async def test_an_empty_topic_is_an_empty_view(client: Client, topic: str) -> None:
    async with await client.table_view(topic) as view:
        assert dict(view) == {}
        await view.refresh()
        waiting = asyncio.ensure_future(wait_change(view.changes()))
        await asyncio.sleep(0)
    with pytest.raises(AlreadyClosedError):
        await waiting
    with pytest.raises(AlreadyClosedError):
        await view.refresh()


async def wait_change(changes: AsyncIterator[object]) -> object:
    return await anext(changes)


async def test_who_is_too_slow_for_the_changes_hears_of_it(client: Client, topic: str) -> None:
    async with await client.table_view(topic, changes_max=2) as view:
        changes = view.changes()
        first = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        await put(client, topic, [(f"k{at}", b"v") for at in range(10)])
        await until(lambda: len(view) == 10)
        assert (await first).key == "k0"
        with pytest.raises(TooSlowError, match="more than 2 changes"):
            async for _ in changes:
                pass
