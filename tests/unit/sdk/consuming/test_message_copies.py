"""Copies of messages while their consumer closes: no producer is left, and callers get an error."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from magnetar.sdk.consuming.message_copies import MessageCopies
from magnetar.sdk.errors import AlreadyClosedError, SdkError
from magnetar.sdk.message import Entry, Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.producing.outgoing import OutgoingMessage
from magnetar.sdk.schema import Schema, SchemaInfo, SchemaType
from magnetar.sdk.settings import ProducerSettings
from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata
from magnetar.sdk.wire.topic_name import TopicName
from tests.waiting import settle

SOURCE = "persistent://public/default/t"
TARGET = TopicName.parse("persistent://public/default/t-DLQ")


class Sender:
    """A producer that stores at once."""

    def __init__(self, client: "Client") -> None:
        self._client = client

    async def send_message(self, message: OutgoingMessage) -> MessageId:
        if self not in self._client.open:
            raise AlreadyClosedError("the producer is closed")
        self._client.stored += 1
        return MessageId(1, 0, -1)

    def send_encoded_nowait(
        self,
        body: bytes,
        metadata: MessageMetadata,
        *,
        on_sent: Callable[[MessageId | None, SdkError | None], None] | None = None,
    ) -> None:
        raise AssertionError("no message is encrypted")

    async def close(self, *, flush: bool = True) -> None:
        self._client.open.discard(self)


class Client:
    """Each of its answers takes a turn of the loop."""

    def __init__(self) -> None:
        self.open: set[Sender] = set()
        self.stored = 0

    async def schema(self, topic: str, version: bytes = b"") -> SchemaInfo | None:
        await asyncio.sleep(0)
        return SchemaInfo(SchemaType.STRING)

    async def register_schema(self, topic: str, schema: SchemaInfo) -> bytes:
        await asyncio.sleep(0)
        return b"\1"

    async def producer(
        self, topic: str, settings: ProducerSettings, *, schema: Schema[bytes]
    ) -> Sender:
        await asyncio.sleep(0)
        sender = Sender(self)
        self.open.add(sender)
        return sender


def message() -> Message:
    entry = SimpleNamespace(
        topic=SOURCE,
        metadata=MessageMetadata(
            producer_name="p", sequence_id=0, publish_time=1, schema_version=b"\0"
        ),
    )
    return Message(b"x", cast(Entry, entry), -1, None)


@pytest.mark.parametrize("turns", range(8))
async def test_a_copy_under_way_at_the_close_leaves_no_producer_and_gets_an_error(
    turns: int,
) -> None:
    client = Client()
    copies = MessageCopies(lambda _: client, needs_schema=True)
    storing = asyncio.ensure_future(copies.store(message(), TARGET, {}))
    await settle(turns)
    await copies.close()
    (outcome,) = await asyncio.gather(storing, return_exceptions=True)
    assert not client.open
    if client.stored:
        assert outcome is None
    else:
        assert type(outcome) is AlreadyClosedError


async def test_a_copy_after_the_close_is_refused() -> None:
    client = Client()
    copies = MessageCopies(lambda _: client, needs_schema=True)
    await copies.close()
    with pytest.raises(AlreadyClosedError, match="t-DLQ"):
        await copies.store(message(), TARGET, {})
    assert not client.open


async def test_a_cancelled_copy_is_cancelled_also_while_the_consumer_closes() -> None:
    client = Client()
    copies = MessageCopies(lambda _: client, needs_schema=True)
    storing = asyncio.ensure_future(copies.store(message(), TARGET, {}))
    await settle(2)
    storing.cancel()
    await copies.close()
    await asyncio.gather(storing, return_exceptions=True)
    assert storing.cancelled()
    assert not client.open
