"""JSON of WebSocket frames. Pure.

Parsers turn text into a `Publish` or a `Command`, or raise `BadFrameError`. Receipts, errors and
messages become the bytes of a text frame. Source: WebSocket sheet, sections 3 and 4.
"""

import binascii
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from sys import getsizeof
from typing import Any, Final

from magnetar.broker.websocket.encryption import Encoding, context_of, parse_encoding
from magnetar.broker.websocket.endpoint import parse_message_id
from magnetar.broker.websocket.errors import BadFrameError, Code
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.wire.errors import MalformedPayloadError

LONG_MAX = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

_PROPERTY_COST_BYTES = 128
"""Memory of a property beside its two texts: its places in the frame's dict and the metadata."""

END_OF_TOPIC: Final = {
    True: b'{"endOfTopic":true}',
    False: b'{"endOfTopic":false}',
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """A message to publish, from a frame of a producer."""

    payload: bytes
    """Decoded payload; empty if `is_null`."""
    context: str | None = None
    key: str | None = None
    """Key as in the frame: base64 text if `key_is_base64`."""
    key_is_base64: bool = False
    is_null: bool = False
    """Whether the message has no value, which differs from an empty one."""
    properties: Mapping[str, str] | None = None
    event_time_ms: int | None = None
    deliver_at_ms: int | None = None
    deliver_after_ms: int | None = None
    replicate_to: tuple[str, ...] = field(default=())
    encoding: Encoding | None = None
    held_bytes: int = field(init=False, compare=False)
    """Memory that it takes until it is confirmed: the payload, and all texts of the frame, which
    can be far larger."""

    def __post_init__(self) -> None:
        texts = [each for each in (self.context, self.key, *self.replicate_to) if each is not None]
        for pair in (self.properties or {}).items():
            texts += pair
        held_bytes = len(self.payload) + sum(map(getsizeof, texts))
        held_bytes += _PROPERTY_COST_BYTES * len(self.properties or {})
        if self.encoding is not None:
            held_bytes += len(self.encoding.param)
        object.__setattr__(self, "held_bytes", held_bytes)


class CommandType(Enum):
    """Type of a frame from a consumer or reader."""

    ACKNOWLEDGE = "acknowledge"
    NEGATIVE_ACKNOWLEDGE = "negativeAcknowledge"
    PERMIT = "permit"
    UNSUBSCRIBE = "unsubscribe"
    IS_END_OF_TOPIC = "isEndOfTopic"


@dataclass(frozen=True, slots=True)
class Command:
    """One frame of a consumer or reader."""

    type: CommandType
    message_id: MessageId | None = None
    """Message of an acknowledgement or a negative acknowledgement."""
    permits: int = 0


# -- in


def parse_publish(data: bytes) -> Publish:
    """Parse a frame of a producer. Raises: BadFrameError."""
    body = _object(data)
    context = _text(body, "context", Code.BAD_JSON, None)
    payload = body.get("payload")
    is_null = body.get("nullValue") is True
    if is_null and payload in (None, ""):
        payload = ""
    elif is_null:
        raise BadFrameError(
            Code.BAD_PAYLOAD,
            "the frame has nullValue and a payload: give one of them",
            context=context,
        )
    if not isinstance(payload, str):
        raise BadFrameError(Code.BAD_PAYLOAD, "the frame has no payload", context=context)
    try:
        content = b64decode(payload, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadFrameError(Code.BAD_PAYLOAD, f"payload: {error}", context=context) from None
    return Publish(
        payload=content,
        context=context,
        key=_encodable(_text(body, "key", Code.BAD_JSON, context), "key", context),
        key_is_base64=body.get("keyIsBase64") is True,
        is_null=is_null,
        properties=_properties(body, context),
        event_time_ms=_event_time(body, context),
        deliver_at_ms=_long(body, "deliverAt", context),
        deliver_after_ms=_long(body, "deliverAfterMs", context),
        replicate_to=_clusters(body, context),
        encoding=parse_encoding(body, context),
    )


def parse_command(data: bytes) -> Command:
    """Parse a frame of a consumer. Raises: BadFrameError."""
    body = _object(data)
    kind = body.get("type")
    if kind == CommandType.PERMIT.value:
        permits = body.get("permitMessages")
        if isinstance(permits, bool) or not isinstance(permits, int):
            raise BadFrameError(Code.BAD_JSON, "a permit needs the number permitMessages")
        if not 0 <= permits <= LONG_MAX:
            raise BadFrameError(Code.BAD_JSON, "permitMessages is out of range")
        return Command(CommandType.PERMIT, permits=permits)
    if kind == CommandType.UNSUBSCRIBE.value:
        return Command(CommandType.UNSUBSCRIBE)
    if kind == CommandType.IS_END_OF_TOPIC.value:
        return Command(CommandType.IS_END_OF_TOPIC)
    text = body.get("messageId")
    if not isinstance(text, str):
        raise BadFrameError(Code.BAD_JSON, "an acknowledgement needs a messageId")
    try:
        message_id = parse_message_id(text)
    except MalformedPayloadError as error:
        raise BadFrameError(Code.BAD_JSON, f"messageId: {error}") from None
    if kind == CommandType.NEGATIVE_ACKNOWLEDGE.value:
        return Command(CommandType.NEGATIVE_ACKNOWLEDGE, message_id)
    return Command(CommandType.ACKNOWLEDGE, message_id)


def parse_reader_command(data: bytes) -> Command:
    """Parse a frame of a reader. All frames but `isEndOfTopic` count as the arrival of a message.

    Raises:
        BadFrameError: the frame is not a JSON object.
    """
    is_question = _object(data).get("type") == CommandType.IS_END_OF_TOPIC.value
    return Command(CommandType.IS_END_OF_TOPIC if is_question else CommandType.ACKNOWLEDGE)


def _object(data: bytes) -> dict[str, Any]:
    try:
        # json.loads takes bytes for UTF-16 or UTF-32, too.
        body = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        # For numbers with thousands of digits, Python's text is longer than a client needs.
        raise BadFrameError(Code.BAD_JSON, str(error)[:200]) from None
    if not isinstance(body, dict):
        raise BadFrameError(Code.BAD_JSON, "a frame must be a JSON object")
    return body


def _text(body: dict[str, Any], name: str, code: Code, context: str | None) -> str | None:
    """Return a string; numbers and booleans become their text, as in Pulsar's parser."""
    value = body.get(name)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return _number_text(value, name, context)
    raise BadFrameError(code, f"{name} is not a string", context=context)


def _number_text(value: float, name: str, context: str | None) -> str:
    try:
        return str(value)
    except ValueError:  # More digits than Python converts.
        raise BadFrameError(Code.BAD_JSON, f"{name} is out of range", context=context) from None


def _encodable(text: str | None, name: str, context: str | None) -> str | None:
    """Refuse half a surrogate pair: it is valid JSON, but not text."""
    if text is not None:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadFrameError(Code.BAD_JSON, f"{name} is not text", context=context) from None
    return text


def _properties(body: dict[str, Any], context: str | None) -> dict[str, str] | None:
    value = body.get("properties")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise BadFrameError(Code.BAD_JSON, "properties is not an object", context=context)
    properties: dict[str, str] = {}
    for key in value:
        text = _encodable(_text(value, key, Code.BAD_JSON, context), "a property", context)
        if text is not None:
            properties[_encodable(key, "a property", context) or ""] = text
    return properties


def _long(body: dict[str, Any], name: str, context: str | None) -> int | None:
    """Return a number, or None if it is 0 or less."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > LONG_MAX:
        raise BadFrameError(Code.BAD_JSON, f"{name} is not a 64-bit number", context=context)
    return value if value > 0 else None


def _event_time(body: dict[str, Any], context: str | None) -> int | None:
    value = body.get("eventTime")
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None or "T" not in value.upper():
            raise ValueError("give a time with an offset")
        milliseconds = (moment - _EPOCH) // _MILLISECOND
        if milliseconds < 0:
            raise ValueError("before 1970")
    except (TypeError, ValueError, OverflowError) as error:
        raise BadFrameError(Code.BAD_PAYLOAD, f"eventTime: {error}", context=context) from None
    return milliseconds


def _clusters(body: dict[str, Any], context: str | None) -> tuple[str, ...]:
    value = body.get("replicationClusters")
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise BadFrameError(
            Code.BAD_JSON, "replicationClusters is not an array of strings", context=context
        )
    for each in value:
        _encodable(each, "a cluster", context)
    return tuple(value)


# -- out


def receipt_frame(message_id: MessageId, context: str | None) -> bytes:
    """Encode the receipt of a message that is stored."""
    body: dict[str, object] = {"result": "ok", "messageId": id_text(message_id)}
    if context is not None:
        body["context"] = context
    return _encoded({**body, "errorCode": 0, "schemaVersion": 0})


def send_error_frame(code: Code, text: str, context: str | None) -> bytes:
    """Encode the error for a message that was not stored, or whose outcome is unknown."""
    body: dict[str, object] = {"result": f"send-error:{code.value}", "errorMsg": text}
    if context is not None:
        body["context"] = context
    return _encoded({**body, "errorCode": 0, "schemaVersion": 0})


def message_frame(
    message: Message, message_id: MessageId, *, with_encryption: bool = False
) -> bytes:
    """Encode a message for a consumer or reader. `with_encryption` adds the encryption context of
    an encrypted one."""
    body: dict[str, object] = {
        "messageId": id_text(message_id),
        "payload": b64encode(message.data).decode(),
        "properties": message.properties,
        "publishTime": time_text(message.publish_time_ms),
        "redeliveryCount": message.redelivery_count,
    }
    event_time_ms = message.event_time_ms
    if event_time_ms:
        body["eventTime"] = time_text(event_time_ms)
    key = message.key
    if key is not None:
        body["key"] = key
    # Pulsar has neither field, so only messages that need one have it.
    if isinstance(message.given_key, bytes):
        body["keyIsBase64"] = True
    if message.is_null:
        body["nullValue"] = True
    if with_encryption and message.is_encrypted:
        body["encryptionContext"] = context_of(message)
    return _encoded(body)


def id_text(message_id: MessageId) -> str:
    """Return the base64 of an id, as it comes back in acknowledgements."""
    return b64encode(message_id.to_bytes()).decode()


def time_text(epoch_ms: int) -> str:
    """Format a time as ISO 8601 with milliseconds, in UTC. Times outside of the years 1 to 9999
    give the nearest end."""
    if epoch_ms > LONG_MAX:
        # The metadata has no sign: clients store a time before 1970 as its two's complement.
        epoch_ms -= 1 << 64
    try:
        moment = _EPOCH + epoch_ms * _MILLISECOND
    except OverflowError:
        end = datetime.max if epoch_ms > 0 else datetime.min
        moment = end.replace(tzinfo=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _encoded(body: Mapping[str, object]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
