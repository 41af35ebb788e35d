"""Frames of the WebSocket interface: JSON objects in text frames. Pure; no I/O.

The interface is Pulsar's (docs/websocket.md): payloads and message ids are base64, times ISO 8601.
"""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.schema import Schema
from magnetar.sdk.wire.errors import (
    AuthenticationError,
    AuthorizationError,
    ConsumerBusyError,
    MalformedFrameError,
    MalformedPayloadError,
    NotAllowedError,
    ProducerBusyError,
    ProducerQuotaExceededError,
    ServiceError,
    ServiceNotReadyError,
    TooManyRequestsError,
    TopicNotFoundError,
    TopicTerminatedError,
    UnknownServiceError,
)
from magnetar.sdk.wire.pulsar_pb2 import KeyValue, MessageMetadata

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Entry:
    """The data of a message, in the shape of an entry."""

    topic: str
    ledger_id: int
    entry_id: int
    partition: int
    batch_size: int
    redelivery_count: int
    metadata: MessageMetadata = field(repr=False)
    first_chunk: MessageId | None = None
    round: object = None
    schema: Schema[object] | None = None


class WebSocketMessage(Message):
    """A `Message` from WebSocket. Ids are opaque there: the text of an id goes back unchanged."""

    __slots__ = ("id_text",)

    def __init__(self, data: bytes, entry: _Entry, index: int, id_text: str) -> None:
        super().__init__(data, entry, index, None)
        self.id_text = id_text


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to a publish."""

    context: str
    message_id: MessageId | None
    error: str = ""


def publish_frame(
    payload: bytes | None,
    context: str,
    *,
    key: str | bytes | None,
    properties: Mapping[str, str] | None,
    event_time_ms: int | None,
    deliver_at_ms: int | None,
) -> str:
    """Encode a message for a producer session; the answer has the same context."""
    frame: dict[str, object] = {
        "payload": base64.b64encode(payload or b"").decode(),
        "context": context,
    }
    if payload is None:
        frame["nullValue"] = True
    if isinstance(key, bytes):
        frame |= {"key": base64.b64encode(key).decode(), "keyIsBase64": True}
    elif key is not None:
        frame["key"] = key
    if properties:
        frame["properties"] = dict(properties)
    if event_time_ms:
        moment = _EPOCH + timedelta(milliseconds=event_time_ms)
        frame["eventTime"] = moment.isoformat(timespec="milliseconds")
    if deliver_at_ms:
        frame["deliverAt"] = deliver_at_ms
    return json.dumps(frame)


def parse_outcome(text: str | bytes) -> Outcome:
    """Parse the answer to a publish.

    Raises:
        MalformedFrameError: the frame is not such an answer.
    """
    frame = _object(text)
    context = frame.get("context")
    if not isinstance(context, str):
        raise MalformedFrameError(f"an answer without the context of its message: {text!r:.200}")
    if frame.get("result") == "ok":
        return Outcome(context, _message_id(frame.get("messageId")))
    return Outcome(context, None, f"{frame.get('result')}: {frame.get('errorMsg', '')}")


def parse_message(text: str | bytes, topic: str) -> WebSocketMessage:
    """Parse a message.

    Raises:
        MalformedFrameError: the frame is not a message.
    """
    frame = _object(text)
    id_text = frame.get("messageId")
    message_id = _message_id(id_text)
    assert isinstance(id_text, str)
    properties = frame.get("properties") or {}
    key = frame.get("key")
    if not isinstance(properties, dict) or not isinstance(key, str | None):
        raise MalformedFrameError(f"message {message_id}: properties or key of another type")
    metadata = MessageMetadata(
        publish_time=_time_ms(frame.get("publishTime")),
        event_time=_time_ms(frame.get("eventTime")) or None,
        partition_key=key,
        partition_key_b64_encoded=frame.get("keyIsBase64") is True or None,
        null_value=frame.get("nullValue") is True or None,
        properties=[KeyValue(key=str(k), value=str(v)) for k, v in properties.items()],
    )
    count = frame.get("redeliveryCount", 0)
    entry = _Entry(
        topic,
        message_id.ledger_id,
        message_id.entry_id,
        message_id.partition,
        message_id.batch_size,
        count if isinstance(count, int) else 0,
        metadata,
        message_id.first_chunk,
    )
    return WebSocketMessage(_bytes(frame.get("payload")), entry, message_id.batch_index, id_text)


def is_end_answer(text: str | bytes) -> bool | None:
    """Return whether an answer says that the topic has ended; None if the frame is another one."""
    if b"endOfTopic" not in (text if isinstance(text, bytes) else text.encode()):
        return None
    end = _object(text).get("endOfTopic")
    return end if isinstance(end, bool) else None


def id_text_of(what: Message | MessageId) -> str:
    """Return the id in the interface's form."""
    if isinstance(what, WebSocketMessage):
        return what.id_text
    message_id = what if isinstance(what, MessageId) else what.message_id
    return base64.b64encode(message_id.to_bytes()).decode()


def acknowledge_frame(id_text: str) -> str:
    return json.dumps({"messageId": id_text})


def negative_acknowledge_frame(id_text: str) -> str:
    return json.dumps({"type": "negativeAcknowledge", "messageId": id_text})


def permit_frame(messages: int) -> str:
    return json.dumps({"type": "permit", "permitMessages": messages})


UNSUBSCRIBE_FRAME = '{"type":"unsubscribe"}'
IS_END_FRAME = '{"type":"isEndOfTopic"}'


def refusal(status: int, body: str, what: str) -> ServiceError:
    """Return the error for an upgrade that was refused with an HTTP status."""
    text = f"{what}: HTTP {status}: {body.strip() or 'no reason given'}"
    if status == 503:
        return _unavailable(body)(text)
    return _REFUSALS.get(status, UnknownServiceError)(text)


def _unavailable(body: str) -> type[ServiceError]:
    """Return the error for a 503, which has several causes; only its text tells them apart.

    Names of topics are removed from the text first: they may contain any word. An unknown cause
    passes by itself: a broker that stops, or a proxy without one.
    """
    reason = _WITH_SCHEME.sub("", body).lower()
    return next((kind for word, kind in _UNAVAILABLE if word in reason), ServiceNotReadyError)


def busy(what: str, body: str, *, produces: bool) -> ServiceError:
    """Return the error for HTTP 409."""
    kind = ProducerBusyError if produces else ConsumerBusyError
    return kind(f"{what}: HTTP 409: {body.strip()}")


_REFUSALS: dict[int, type[ServiceError]] = {
    400: NotAllowedError,
    401: AuthenticationError,
    403: AuthorizationError,
    404: TopicNotFoundError,
    429: TooManyRequestsError,
    502: ServiceNotReadyError,
    504: ServiceNotReadyError,
}

_WITH_SCHEME = re.compile(r"\S*://\S*")
_UNAVAILABLE: tuple[tuple[str, type[ServiceError]], ...] = (
    ("terminated", TopicTerminatedError),
    ("quota", ProducerQuotaExceededError),
    ("sessions already", TooManyRequestsError),
)


def _object(text: str | bytes) -> dict[str, Any]:
    try:
        frame = json.loads(text)
    except ValueError as error:
        raise MalformedFrameError(f"not JSON: {error}") from error
    if not isinstance(frame, dict):
        raise MalformedFrameError(f"not a JSON object: {text!r:.200}")
    return frame


def _bytes(text: object) -> bytes:
    if text is None:
        return b""
    try:
        return base64.b64decode(str(text), validate=True)
    except ValueError as error:
        raise MalformedFrameError(f"not base64: {error}") from error


def _message_id(text: object) -> MessageId:
    if not isinstance(text, str):
        raise MalformedFrameError("a frame without a message id")
    try:
        return MessageId.from_bytes(_bytes(text))
    except MalformedPayloadError as error:
        raise MalformedFrameError(f"a frame whose message id cannot be read: {error}") from error


def _time_ms(text: object) -> int:
    if not text:
        return 0
    try:
        moment = datetime.fromisoformat(str(text))
        return round((moment - _EPOCH) / timedelta(milliseconds=1))
    except (ValueError, TypeError) as error:
        raise MalformedFrameError(f"no time with an offset: {text!r}") from error
