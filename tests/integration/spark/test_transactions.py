"""Readers of the ledgers themselves see of transactions what consumers see."""

import asyncio

import pytest

from magnetar.sdk import Client
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.http_calls import admin
from tests.integration.broker.wire_client import WireClient
from tests.integration.spark.driven import Checkpoint, DrivenQuery
from tests.integration.spark.support import options_for
from tests.standalone import Standalone


@pytest.mark.parametrize("mode", ["direct", "broker"])
async def test_what_is_open_is_not_read_and_what_was_aborted_never(
    server: Standalone, topic: str, mode: str
) -> None:
    options = options_for(server, topic=topic, startingOffsets="earliest", readMode=mode)
    checkpoint = Checkpoint()

    def read() -> list[bytes]:
        with DrivenQuery(options, checkpoint) as query:
            return query.run_available().values

    async with Client(server.url) as client:
        producer = await client.producer(topic)
        await producer.send(b"before")
        first = await client.transaction().begin()
        await producer.send(b"aborted", transaction=first)
        await producer.send(b"behind")
        assert await asyncio.to_thread(read) == [b"before"], "behind an open transaction"
        await first.abort()
        second = await client.transaction().begin()
        await producer.send(b"committed", transaction=second)
        await second.commit()
        await producer.send(b"last")
        assert await asyncio.to_thread(read) == [b"behind", b"committed", b"last"]


@pytest.mark.parametrize("mode", ["direct", "broker"])
async def test_messages_whose_commands_alone_name_their_transaction_are_no_others(
    server: Standalone, topic: str, mode: str
) -> None:
    """As clients in Go send them: the entries themselves must say it."""
    options = options_for(server, topic=topic, startingOffsets="earliest", readMode=mode)
    checkpoint = Checkpoint()

    def read() -> list[bytes]:
        with DrivenQuery(options, checkpoint) as query:
            return query.run_available().values

    client = await WireClient.open(server.port)
    await client.produce(topic, txn_enabled=True)

    first = await client.begin(topic)
    await client.publish_ok(0, b"before")
    await client.publish_ok(1, b"aborted", txn=first)
    assert await asyncio.to_thread(read) == [b"before"]
    await client.end(first, pb.ABORT)
    second = await client.begin(topic)
    await client.publish_ok(2, b"committed", txn=second)
    await client.end(second)
    assert await asyncio.to_thread(read) == [b"committed"]
    await client.close()


@pytest.mark.parametrize("mode", ["direct", "broker"])
async def test_a_ledger_without_a_message_is_not_taken_for_lost(
    server: Standalone, topic: str, mode: str
) -> None:
    """What was aborted is all that is in it."""
    options = options_for(server, topic=topic, startingOffsets="earliest", readMode=mode)

    def read() -> list[bytes]:
        with DrivenQuery(options, Checkpoint()) as query:
            return query.run_available().values

    async def begin_ledger() -> None:
        await asyncio.to_thread(admin, server, "PUT", f"{topic.replace('://', '/')}/unload")

    async with Client(server.url) as client:
        producer = await client.producer(topic)
        await producer.send(b"before")
        await begin_ledger()
        for _ in range(3):
            transaction = await client.transaction().begin()
            await producer.send(b"aborted", transaction=transaction)
            await transaction.abort()
        await begin_ledger()
        await producer.send(b"behind")
        assert await asyncio.to_thread(read) == [b"before", b"behind"]
