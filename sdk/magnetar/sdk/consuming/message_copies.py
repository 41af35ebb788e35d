"""Copies of messages in other topics, with everything that makes them readable there.

A copy has the payload as it was written, both keys, the marks for a missing value and for a key of
bytes, and the version of the *target's* schema that describes it. For that, the source's definition
is registered in the target, as the Java client does for dead letters. An encrypted message is
copied still encrypted, with its keys.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from magnetar.sdk.errors import AlreadyClosedError, SchemaError, SdkError, ServiceError
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.producing.outgoing import OutgoingMessage
from magnetar.sdk.schema import Schema, SchemaInfo, SchemaType
from magnetar.sdk.settings import ProducerSettings
from magnetar.sdk.wire.errors import TopicNotFoundError
from magnetar.sdk.wire.pulsar_pb2 import KeyValue, MessageMetadata
from magnetar.sdk.wire.topic_name import TopicName

_log = logging.getLogger("magnetar.sdk")

VERSIONS_MAX = 1_000
"""Schema versions remembered. At this bound all are forgotten, and requested again."""


class Sender(Protocol):
    """The part of a producer that copies use."""

    async def send_message(self, message: OutgoingMessage) -> MessageId: ...

    def send_encoded_nowait(
        self,
        body: bytes,
        metadata: MessageMetadata,
        *,
        on_sent: Callable[[MessageId | None, SdkError | None], None] | None = None,
    ) -> None: ...

    async def close(self, *, flush: bool = True) -> None: ...


class CopyClient(Protocol):
    """The part of a client that copies use. All calls raise SdkError."""

    async def schema(self, topic: str, version: bytes = b"") -> SchemaInfo | None: ...

    async def register_schema(self, topic: str, schema: SchemaInfo) -> bytes: ...

    def producer(
        self, topic: str, settings: ProducerSettings, *, schema: Schema[bytes]
    ) -> Awaitable[Sender]: ...


class EncodedSchema(Schema[bytes]):
    """Passes through bytes that others have encoded by a given definition."""

    def __init__(self, info: SchemaInfo | None) -> None:
        self.info = info

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, data: bytes, version: bytes = b"", key: bytes | None = None) -> bytes:
        return data


class MessageCopies:
    """Copies messages for one consumer, with a producer for each target topic."""

    def __init__(
        self, client_for: Callable[[TopicName], CopyClient], *, needs_schema: bool
    ) -> None:
        """Start without producers.

        `needs_schema`: a message whose schema the target refuses is not copied, since the
        application decodes by it. Otherwise it is copied without a schema, as for a consumer of
        bytes.
        """
        self._client_for = client_for
        self._needs_schema = needs_schema
        self._senders: dict[TopicName, asyncio.Task[Sender]] = {}
        self._is_closed = False
        self._versions: dict[tuple[TopicName, str, bytes], bytes] = {}
        """Schema version on the target, by target, source topic and source version; empty if copies
        are stored without a schema."""

    async def store(
        self,
        message: Message[Any],
        target: TopicName,
        properties: Mapping[str, str],
        *,
        initial_subscription: str = "",
        deliver_at_ms: int | None = None,
    ) -> None:
        """Store a copy, and return when it is stored.

        `initial_subscription`: a subscription that the target gets before its first copy.

        Raises:
            SdkError: the broker did not confirm the copy.
            AlreadyClosedError: the copies are closed, or were closed meanwhile.
        """
        sender, version = await self._attached(message, target, initial_subscription)
        if message.is_encrypted:
            await _send_encrypted(sender, message, properties, version, deliver_at_ms)
            return
        await sender.send_message(
            OutgoingMessage(
                payload=message.data,
                key=message.given_key,
                ordering_key=message.ordering_key,
                properties=properties,
                event_time_ms=message.event_time_ms or None,
                deliver_at_ms=deliver_at_ms,
                is_null=message.is_null,
                is_null_key=message.is_null_key,
                schema_version=version,
            )
        )

    async def close(self) -> None:
        """Close the producers, and make no others. Does not raise."""
        self._is_closed = True
        made = list(self._senders.values())
        self._senders.clear()
        for each in made:
            if not each.done():
                each.cancel()
        results = await asyncio.gather(*made, return_exceptions=True)
        senders = [each for each in results if not isinstance(each, BaseException)]
        await asyncio.gather(*(each.close(flush=False) for each in senders), return_exceptions=True)

    # -- schemas

    async def _attached(
        self, message: Message[Any], target: TopicName, subscription: str
    ) -> tuple[Sender, bytes]:
        """Return the producer of the target, and the target's version of the message's schema.

        Raises:
            SdkError
        """
        source, version = message.topic, message.schema_version
        if not version:
            return await self._sender(target, subscription, None), b""
        key = (target, source, version)
        found = self._versions.get(key)
        if found is not None:
            return await self._sender(target, subscription, None), found
        try:
            info = await self._definition(source, version)
            # A topic that enforces schemas refuses a producer without one: it gets the first
            # schema.
            sender = await self._sender(target, subscription, info)
            found = b"" if info is None else await self._register(target, info)
        except (ServiceError, SchemaError) as error:
            # A moving topic is unknown to its broker for a moment, which says nothing about the
            # schema.
            is_passing = error.retryable or isinstance(error, TopicNotFoundError)
            if self._needs_schema or is_passing:
                raise
            _log.warning(
                "copied_without_schema source=%s target=%s version=%s: %s",
                source,
                target,
                version.hex(),
                error,
            )
            sender, found = await self._sender(target, subscription, None), b""
        if len(self._versions) >= VERSIONS_MAX:
            self._versions.clear()
        self._versions[key] = found
        return sender, found

    async def _definition(self, source: str, version: bytes) -> SchemaInfo | None:
        """Return the definition of a source's schema version; None if it is deleted, or is of plain
        bytes."""
        info = await self._client_for(TopicName.parse(source)).schema(source, version)
        return None if info is None or info.type is SchemaType.BYTES else info

    async def _register(self, target: TopicName, info: SchemaInfo) -> bytes:
        return await self._client_for(target).register_schema(str(target), info)

    # -- producers

    async def _sender(
        self, target: TopicName, subscription: str, info: SchemaInfo | None
    ) -> Sender:
        """Return the producer of a target, which is made if there is none yet.

        Raises:
            SdkError: it could not be made.
            AlreadyClosedError: nothing would close it.
        """
        if self._is_closed:
            raise _closed_error(target)
        task = self._senders.get(target)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            # Copies may be as large as an assembled chunked message.
            settings = ProducerSettings(
                batching=False, chunking=True, initial_subscription=subscription
            )
            task = asyncio.ensure_future(
                self._client_for(target).producer(str(target), settings, schema=EncodedSchema(info))
            )
            self._senders[target] = task
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # Only `close` cancels the task; the caller itself may not have been cancelled.
            waiting = asyncio.current_task()
            if task.cancelled() and waiting is not None and not waiting.cancelling():
                raise _closed_error(target) from None
            raise


def _closed_error(target: TopicName) -> AlreadyClosedError:
    return AlreadyClosedError(f"the consumer is closed: no message was copied to {target}")


async def _send_encrypted(
    sender: Sender,
    message: Message[Any],
    properties: Mapping[str, str],
    version: bytes,
    deliver_at_ms: int | None,
) -> None:
    """Send an encrypted message as it is, with the fields that its readers need."""
    metadata = encrypted_metadata(message.metadata)
    metadata.properties.extend(KeyValue(key=k, value=v) for k, v in properties.items())
    metadata.schema_version = version
    if deliver_at_ms is not None:
        metadata.deliver_at_time = deliver_at_ms
    stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_sent(message_id: MessageId | None, error: SdkError | None) -> None:
        if stored.done():
            return  # the consumer is closed
        if error is not None:
            stored.set_exception(error)
        else:
            stored.set_result(None)

    sender.send_encoded_nowait(message.data, metadata, on_sent=on_sent)
    await stored


_OF_ENCRYPTED = (
    "encryption_algo",
    "encryption_param",
    "compression",
    "uncompressed_size",
    "num_messages_in_batch",
    "partition_key",
    "partition_key_b64_encoded",
    "ordering_key",
    "event_time",
    "null_value",
    "null_partition_key",
)


def encrypted_metadata(source: MessageMetadata) -> MessageMetadata:
    """Return the metadata for a copy of an encrypted entry, without properties."""
    copy = MessageMetadata(encryption_keys=source.encryption_keys)
    for name in _OF_ENCRYPTED:
        if source.HasField(name):
            setattr(copy, name, getattr(source, name))
    return copy
